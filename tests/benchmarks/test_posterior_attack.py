"""The comparison of posterior attacks: its own side, without the other's packages."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import posterior_attack

from shoal.attacks.membership_attack import Query, Records
from shoal.core.randomness import Stream

SMALL = [
    'data.source="digits"', "data.clients=3", "data.examples_per_client=10", "data.shadow_examples=80",
    "data.test_examples=20", "model.hidden=8", "algorithm.rounds=1", "local.epochs=1",
]  # fmt: skip


def given(count=300, classes=3):
    """Records whose posteriors are surer where they are members."""
    draw = np.random.default_rng(0)
    arrays = {}
    for of in ("shadow", "target"):
        labels, member = draw.integers(0, classes, count), draw.random(count) < 0.5
        logits = draw.normal(size=(count, classes)) + 3 * member[:, None] * np.eye(classes)[labels]
        posteriors = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        arrays |= {f"{of}_posteriors": posteriors, f"{of}_labels": labels, f"{of}_member": member}
    return arrays


def test_from_posteriors_the_scores_are_those_of_the_attack_on_outputs():
    """Logits that differ by a constant a record are the same posteriors."""
    arrays = given()
    count = len(arrays["shadow_labels"])
    shadow, target = (
        torch.from_numpy(arrays[f"{of}_posteriors"]).log() + torch.arange(count)[:, None] % 5
        for of in ("shadow", "target")
    )
    labels, member = torch.from_numpy(arrays["shadow_labels"]), torch.from_numpy(arrays["shadow_member"])
    records = Records(shadow, labels, member, torch.zeros(count).long(), torch.arange(count))
    found = posterior_attack.our_scores(arrays, 7)
    assert set(found) == set(posterior_attack.OURS)
    for name, attack in posterior_attack.OURS.items():
        fitted = attack.fit(records, Stream(7)("ours")(name))
        scores = fitted.score(Query(target, torch.from_numpy(arrays["target_labels"])))
        assert found[name] == pytest.approx(scores, abs=1e-6)
        assert roc_auc_score(arrays["target_member"], found[name]) > 0.7


def test_both_sides_get_the_same_outputs_and_a_seed_is_trained_once(tmp_path, monkeypatch):
    first = next(iter(posterior_attack.OURS))
    monkeypatch.setattr(posterior_attack, "OURS", {first: posterior_attack.OURS[first]})
    seen, trained, outputs_of = [], [], posterior_attack.outputs_of
    monkeypatch.setattr(posterior_attack, "outputs_of", lambda config: (trained.append(1), outputs_of(config))[1])

    def art(path, seed):
        with np.load(path) as file:
            arrays = dict(file)
        seen.append((seed, arrays))
        return {"ART, random forest": arrays["target_posteriors"].max(axis=1)}

    for _ in range(2):
        rows = posterior_attack.compare(tmp_path, [0, 1], SMALL, art=art)
    assert len(trained) == 2
    assert [seed for seed, _ in seen] == [0, 1, 0, 1]
    assert rows.groupby("seed")["attack"].nunique().tolist() == [2, 2]
    arrays = seen[0][1]
    assert arrays["target_posteriors"].shape == (50, 10)
    assert arrays["target_posteriors"].sum(axis=1) == pytest.approx(1)
    assert arrays["target_member"].sum() == 30
    assert arrays["shadow_posteriors"].shape == (3 * 60, 10)
    assert arrays["shadow_member"].sum() == 3 * 30
    assert not np.array_equal(arrays["target_labels"], seen[1][1]["target_labels"])
    assert len(pd.read_csv(tmp_path / "posterior_attack.csv")) == 4
