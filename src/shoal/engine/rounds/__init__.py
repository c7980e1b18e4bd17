"""Rounds of federated training, from the plan to the aggregation, on one machine or several."""
