"""Clusters of few clients, and training that learned nothing, are said after the last round."""

from dataclasses import replace
from html import unescape

import pytest
import torch

import shoal
import shoal.toy


def run_of(algorithm, **settings):
    federation, model, local = shoal.toy.two_groups()
    federation = replace(federation, names=("north", "south", "east", "west"))
    local = replace(local, **{key: settings.pop(key) for key in ("learning_rate",) if key in settings})
    return shoal.Run(shoal.Simulation(federation, model, algorithm, local, rounds=5, **settings)).train()


def test_a_cluster_below_the_floor_is_named_with_its_clients():
    result = run_of(shoal.IFCA(clusters=2), min_clients=3)
    assert result.summary.overall["clusters.small"] == 2
    said = [warning for warning in result.warnings if "min_clients" in warning]
    assert ["'north', 'south'" in warning for warning in said].count(True) == 1
    assert ["'east', 'west'" in warning for warning in said].count(True) == 1
    assert all("cluster-size-floor" in warning for warning in said)


@pytest.mark.parametrize(("algorithm", "said"), [(shoal.IFCA(clusters=2), True), (shoal.FedAvg(), False)])
def test_the_audit_of_a_run_with_small_clusters_names_their_clients(algorithm, said, tmp_path):
    federation, model, local = shoal.toy.noisy_groups()
    federation = replace(federation, names=("north", "south", "east", "west", "far", "near"))
    result = shoal.Run(shoal.Simulation(federation, model, algorithm, local, rounds=2, min_clients=7)).train()
    result.audit(tmp_path, references=2)
    page = unescape((tmp_path / "audit.html").read_text())
    small = [warning for warning in result.warnings if "min_clients" in warning]
    assert bool(small) == ("evaluation.min_clients" in page) == said
    assert all(warning[1:] in page for warning in small)  # The page begins it with a capital letter.


def test_large_clusters_one_model_and_unused_models_are_no_cluster_of_few_clients():
    assert run_of(shoal.IFCA(clusters=2), min_clients=2).summary.overall["clusters.small"] == 0
    assert "clusters.small" not in run_of(shoal.FedAvg()).summary.overall
    assert "clusters.small" not in run_of(shoal.LocalOnly()).summary.overall
    assert run_of(shoal.IFCA(clusters=3), min_clients=2).summary.overall["clusters.small"] == 0


def test_a_learning_rate_with_which_nothing_is_learned_is_said():
    assert any("nothing was learned" in warning for warning in run_of(shoal.FedAvg(), learning_rate=1e-12).warnings)
    assert not any("nothing was learned" in warning for warning in run_of(shoal.IFCA(clusters=2)).warnings)


def test_warnings_change_no_bit_of_the_models():
    first, second = (run_of(shoal.IFCA(clusters=2), min_clients=count).state for count in (1, 4))
    assert first is not None
    assert second is not None
    assert torch.equal(first.models, second.models)
