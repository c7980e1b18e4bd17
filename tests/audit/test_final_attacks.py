"""The attacks on the final models, whose outputs are computed for some models at a time."""

import weakref

import pandas as pd
import pytest
import torch

import shoal
from calibrated_confidence import CalibratedConfidence
from full_simulation import simulate_with
from shoal import IFCA, FedAvg, FineTuning, LocalOnly, LocalSGD, LossThreshold, RedTeam, ShadowModels
from shoal.audit import final_attacks
from shoal.metrics.summary import flatten
from shoal.models import squared_error

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)
LOSS = RedTeam(every=0, attack=LossThreshold(), shadow_models=ShadowModels(number=2), refits=2)
REFERENCES = RedTeam(every=0, attack=CalibratedConfidence(), shadow_models=ShadowModels(number=2), refits=2)


def line(count, seed):
    x = torch.randn(count, 1, generator=torch.Generator().manual_seed(seed))
    return x, x[:, 0] * 0.7 + 0.1


@pytest.mark.parametrize(
    ("algorithm", "team"),
    [(LocalOnly(), LOSS), (FineTuning(FedAvg()), REFERENCES), (IFCA(2), LOSS), (IFCA(2), REFERENCES)],
    ids=["local", "fine-tuning, references", "ifca", "ifca, references"],
)
def test_models_in_parts_of_one_give_the_bits_of_all_at_once(algorithm, team, mlp, build, monkeypatch):
    in_parts(monkeypatch, lambda: simulate_with(build(), mlp, algorithm, LOCAL, rounds=2, threads=1, red_team=team))


def test_models_in_parts_give_the_bits_of_all_at_once_in_a_regression(monkeypatch):
    federation = shoal.Federation.from_tensors(
        [line(7, seed) for seed in range(5)], test=line(33, 10), shadow=line(40, 11), task="regression"
    )
    model = shoal.Model(lambda: torch.nn.Linear(1, 1), squared_error)
    in_parts(
        monkeypatch, lambda: simulate_with(federation, model, LocalOnly(), LOCAL, rounds=2, threads=1, red_team=LOSS)
    )


def in_parts(monkeypatch, simulated):
    whole = simulated()
    monkeypatch.setattr(final_attacks, "OUTPUTS_AT_ONCE", 1)
    monkeypatch.setattr(final_attacks, "PAIRS_AT_ONCE", 1)
    parts = simulated()
    found, expected = (
        {key: value for key, value in flatten(each.summary).items() if not key.startswith("seconds.")}
        for each in (parts, whole)
    )
    assert found == expected
    pd.testing.assert_frame_equal(parts.clients, whole.clients, check_exact=True)
    pd.testing.assert_frame_equal(parts.roc, whole.roc, check_exact=True)


def test_outputs_of_an_earlier_part_are_not_kept(mlp, build, monkeypatch):
    kept, evaluate = [], final_attacks.evaluate_models

    def watched(*given, **named):
        assert not any(each() is not None for each in kept), "outputs of an earlier part are still there"
        outputs = evaluate(*given, **named)
        kept.append(weakref.ref(outputs.test))
        return outputs

    monkeypatch.setattr(final_attacks, "evaluate_models", watched)
    monkeypatch.setattr(final_attacks, "OUTPUTS_AT_ONCE", 1)
    federation = build()
    simulate_with(federation, mlp, LocalOnly(), LOCAL, rounds=1, threads=1, red_team=REFERENCES)
    # One part a client, and then the cluster's model.
    assert len(kept) == len(federation) + 1
