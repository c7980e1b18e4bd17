"""The comparison of clients' own estimates of risk with the server's: a small run has all of its columns."""

from experiment_scripts import EXPERIMENTS, experiment_script


def test_every_model_has_the_estimates_of_its_clients_of_the_server_and_of_the_audit():
    small = [
        "data.clients=6", "data.examples_per_client=12", "data.holdout_examples=6", "data.shadow_examples=60",
        "data.test_examples=60", "algorithm.rounds=2", "red_team.every=1", "model.hidden=8", "local.epochs=1",
        'red_team.attack="loss-threshold"', "red_team.shadow_models=2",
    ]  # fmt: skip
    rows = experiment_script("federation/own_risks").compared(EXPERIMENTS / "demo" / "digits.toml", small)
    assert rows["clients"].sum() == 6
    used = rows[rows["clients"] > 0]
    assert used[["own, mean", "server", "audit"]].apply(lambda column: column.between(0, 1)).all(axis=None)
