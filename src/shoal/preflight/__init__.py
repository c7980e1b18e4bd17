"""What updates and models will show of single records, predicted before anything is trained."""
