"""Site inference tells clients by their models' outputs within a class, and is at chance where these say nothing."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import shoal
from shoal.attacks.queries.site_inference import SiteInference
from shoal.cli.app import main
from shoal.replay import attack_inputs
from shoal.replay.attack_inputs import site_figures
from shoal.replay.reference_federations import AttackedRun


def drawn(seed: int, shift: float, sites: int = 4, records: int = 600):
    """Outputs, labels and sites: the label depends on the site, and outputs on the label and, by ``shift``, on it."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, sites, records)
    label = (rng.random(records) < (1 + site) / (1 + sites)).astype(np.int64)
    outputs = rng.normal(size=(records, 2)) + 3.0 * label[:, None] + shift * site[:, None]
    return outputs, label, site


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_model_gives_exactly_the_prior(seed):
    _, label, site = drawn(seed, 0.0)
    found = SiteInference().guess(np.full((len(site), 2), 0.3), label, site)
    assert (found.gain, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.outputs.accuracy == found.outputs.chance > 1 / 4


def test_what_the_class_says_of_the_site_is_not_credited_to_the_outputs():
    gains = [SiteInference().guess(*drawn(seed, 0.0)) for seed in range(10)]
    assert sum(found.low > 0 for found in gains) <= 1
    assert abs(np.mean([found.gain for found in gains])) < 0.03


def test_outputs_that_depend_on_the_site_tell_it():
    found = SiteInference().guess(*drawn(0, 3.0))
    assert found.low > 0.3
    assert found.outputs.accuracy - found.outputs.chance == pytest.approx(found.gain)


def test_classes_and_sites_with_one_record_are_guessed_by_nothing():
    found = SiteInference(folds=2).guess(np.arange(3.0)[:, None], np.array([0, 1, 1]), np.array([0, 1, 2]))
    assert (found.outputs.count, found.gain) == (3, 0.0)


def test_the_outputs_on_clients_held_out_examples_tell_clients_whose_inputs_differ():
    draw = torch.Generator().manual_seed(0)

    def examples(client, count):
        x = torch.randn(count, 4, generator=draw) + 1.5 * client
        return x, (torch.rand(count, generator=draw) < 0.5).long()

    shards, holdout = ([examples(i, 40) for i in range(4)] for _ in range(2))
    federation = shoal.Federation.from_tensors(shards, test=examples(0, 40), holdout=holdout)
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=4, classes=2))
    result = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=3)
    with result.engine.reopened() as engine:
        run = AttackedRun.from_run(result.simulation, result.state, result._rows(), engine)
        found = site_figures(run, engine)
    assert found["site-inference.chance"] < 0.35
    assert found["site-inference.gain.low"] > 0.3


def test_the_command_asks_it_of_a_run_and_of_the_largest_clients_alone(tmp_path, capsys, monkeypatch):
    draw = np.random.default_rng(0)
    ward = np.repeat(["a", "b", "c"], [60, 80, 100])
    x = draw.normal(size=len(ward)) + 3.0 * (ward == "b") - 3.0 * (ward == "c")
    pd.DataFrame({"ward": ward, "x": x, "ill": draw.integers(0, 2, len(ward))}).to_csv(tmp_path / "w.csv", index=False)
    (tmp_path / "run.toml").write_text(
        """
        [data]
        source = "table"
        path = "w.csv"
        client = "ward"
        label = "ill"
        test_fraction = 0.5
        [model]
        name = "logistic"
        [algorithm]
        name = "fedavg"
        rounds = 2
        [red_team]
        attack = "gap"
        every = 0
        """
    )
    assert main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]) == 0
    for clients in (3, 2):
        monkeypatch.setattr(attack_inputs, "MOST_SITES", clients)
        assert main(["audit", str(tmp_path / "run"), "--references", "0", "--site"]) == 0
        assert (
            f"Site inference among {clients} clients: a held-out record's outputs reveal its client"
            in capsys.readouterr().out
        )
        found = json.loads((tmp_path / "run" / "audit.json").read_text())
        assert found["site-inference.clients"] == clients
        assert found["site-inference.gain.low"] > 0.1
