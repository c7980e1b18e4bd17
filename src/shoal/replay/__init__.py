"""Reference federations, and the attacks on a run that need a second training."""
