"""Rounds of federated training: plan, local trainings, aggregation, and the parts that may run on other machines."""
