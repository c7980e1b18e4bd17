"""What updates and models will show about each record, predicted before anything is trained."""
