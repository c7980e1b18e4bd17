"""The attacks on the final models: in parts of the models, and fitted several times."""

import weakref
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import shoal
from calibrated_confidence import CalibratedConfidence
from full_simulation import simulate_with
from shoal import IFCA, Ditto, FedAvg, FineTuning, Gap, LocalOnly, LocalSGD, LossThreshold, RedTeam, ShadowModels
from shoal.audit import final_attacks, measurement
from shoal.audit.model_scores import predictions_of
from shoal.audit.record_table import mean_metrics
from shoal.core.randomness import Stream
from shoal.metrics import MembershipMetrics
from shoal.metrics.summary import Summary, flatten
from shoal.models import accuracy, squared_error

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)
SHADOWS = ShadowModels(number=2)
LOSS = RedTeam(every=0, attack=LossThreshold(), shadow_models=SHADOWS, refits=2)
REFERENCES = RedTeam(every=0, attack=CalibratedConfidence(), shadow_models=SHADOWS, refits=2)


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
    at_once = simulated()
    monkeypatch.setattr(final_attacks, "OUTPUTS_AT_ONCE", 1)
    monkeypatch.setattr(final_attacks, "PAIRS_AT_ONCE", 1)
    parts = simulated()
    in_parts_flat, expected = (
        {key: value for key, value in flatten(result.summary).items() if not key.startswith("seconds.")}
        for result in (parts, at_once)
    )
    assert in_parts_flat == expected
    pd.testing.assert_frame_equal(parts.clients, at_once.clients, check_exact=True)
    pd.testing.assert_frame_equal(parts.roc, at_once.roc, check_exact=True)


def test_outputs_of_an_earlier_part_are_not_kept(mlp, build, monkeypatch):
    kept, evaluate = [], final_attacks.evaluate_models

    def watched(*arguments, **options):
        assert not any(reference() is not None for reference in kept), "outputs of an earlier part are still there"
        outputs = evaluate(*arguments, **options)
        kept.append(weakref.ref(outputs.test))
        return outputs

    monkeypatch.setattr(final_attacks, "evaluate_models", watched)
    monkeypatch.setattr(final_attacks, "OUTPUTS_AT_ONCE", 1)
    federation = build()
    simulate_with(federation, mlp, LocalOnly(), LOCAL, rounds=1, threads=1, red_team=REFERENCES)
    # One part a client, and then the cluster's model.
    assert len(kept) == len(federation) + 1


@pytest.mark.parametrize("classes", [3, 256, 257, 400])
def test_predictions_are_the_likeliest_classes_however_many_there_are(classes):
    labels, test = torch.tensor([0, classes // 2, classes - 1]), torch.zeros(1, 3, classes)
    test[0, torch.arange(3), labels] = 1.0
    outputs = SimpleNamespace(test=test, test_labels=labels, evaluated=[], values=[])
    examples = (torch.zeros(3, 1), labels)
    federation = shoal.Federation.from_tensors([examples], test=examples, classes=classes)
    found = predictions_of(outputs, 0, SimpleNamespace(model=torch.zeros(1)), federation, accuracy)
    assert found.predicted[0].tolist() == labels.tolist()
    assert found.test.tolist() == [[1.0]]


LONG = LocalSGD(epochs=12, batch_size=4, learning_rate=0.2)


def ended(mlp, build, team, algorithm, seed=0, **more):
    """With random labels, which a model can only know by heart: otherwise every attack of such a toy is at 0.5."""
    federation = build()

    def random(examples, name):
        return replace(examples, y=torch.randint(0, 3, examples.y.shape, generator=Stream(4)(name).generator()))

    random_labels = {name: random(getattr(federation, name), name) for name in ("clients", "test", "shadow")}
    federation = replace(federation, **random_labels)
    return simulate_with(federation, mlp, algorithm, LONG, rounds=2, seed=seed, threads=1, red_team=team, **more)


def test_roc_curves_and_the_most_frequent_class_are_of_each_group_and_fits_of_their_attack(mlp, build):
    ended_with = []

    @measurement("kept", "Kept")
    def kept(finished):
        ended_with.append(finished)
        return Summary()

    result = ended(mlp, build, LOSS, IFCA(2), metrics=[kept])
    (finished,) = ended_with
    for name, fits in finished.attacks.fits.items():
        assert {scores.attack for scores in fits} == {name}
    assert [len(fits) for fits in finished.attacks.fits.values()] == [2, 1]
    federation, curves = finished.federation, result.roc.groupby(["group", "non_members"])
    assert set(curves.groups) == {(group, kind) for group in ("rows", "columns") for kind in ("group", "population")}
    for (group, kind), curve in curves:
        area = np.trapezoid(curve["tpr"], curve["fpr"])
        key = "mia_auc" if kind == "group" else "mia_population_auc"
        assert area == pytest.approx(result.summary.by_group[group][key])
    for g, group in enumerate(federation.groups):
        trained = torch.cat([federation.clients.y[federation.clients.indices_of(int(i))]
                             for i in torch.nonzero(federation.group == g)])  # fmt: skip
        test = federation.test.y[federation.test.group == g]
        share = float((test == trained.bincount().argmax()).double().mean())
        assert result.summary.by_group[group]["most_frequent_class"] == pytest.approx(share)
        assert share > 0


def test_metrics_of_several_fits_average_accuracy_and_interval():
    rates = dict.fromkeys((rate.name for rate in fields(MembershipMetrics)), 0.1) | {
        "members": 10,
        "non_members": 20,
    }
    fits = [
        MembershipMetrics(**{**rates, "accuracy": a, "low": a - 0.1, "high": a + 0.1, "auc": a})
        for a in (0.5, 0.6, 0.7)
    ]
    measured = mean_metrics(fits)
    assert (measured.accuracy, measured.low, measured.high) == pytest.approx((0.6, 0.5, 0.7))
    assert (measured.auc, measured.members) == (0.5, 10), "the rest is the first fit's"


@pytest.mark.parametrize("attack", [LossThreshold(), CalibratedConfidence()], ids=repr)
def test_exposure_is_by_the_mean_and_all_else_by_the_first_fit(mlp, build, attack):
    once, often = (
        ended(mlp, build, RedTeam(0, attack=attack, shadow_models=SHADOWS, refits=refits), IFCA(2)) for refits in (1, 3)
    )
    assert once.state.models.equal(often.state.models)
    new = {"mia_mean", "mia_spread"}
    both = [(result.summary.by_group, result.summary.by_cluster) for result in (once, often)]
    for before, after in zip(*both, strict=True):
        for owner, metrics in after.items():
            assert set(metrics) - set(before[owner]) == new
            kept = {name: value for name, value in metrics.items() if name not in new | {"exposure", "exceeded"}}
            assert kept == {name: before[owner][name] for name in kept}
            assert metrics["mia_spread"] >= 0
    spread = [metrics["mia_spread"] for metrics in often.summary.by_cluster.values()]
    assert max(spread) > 0, "shadow models are drawn anew"
    # Of the configured attack and the gap alone: the exposure of a model is at least the configured attack's mean.
    for k, metrics in often.summary.by_cluster.items():
        exposed = often.clients[often.state.trainers(5)[:, k].numpy()]["exposure"]
        assert (exposed >= metrics["mia_mean"] - 1e-12).all()
    assert often.clients["mia"].tolist() == once.clients["mia"].tolist()


def test_personal_models_too(mlp, build):
    team = RedTeam(0, attack=LossThreshold(), shadow_models=SHADOWS, refits=2)
    # A seed with which the two fits of so small a toy set thresholds between which some losses lie.
    result = ended(mlp, build, team, Ditto(FedAvg()), seed=2)
    assert set(result.summary.by_cluster) == {0}
    assert result.summary.by_cluster[0]["mia_mean"] != result.summary.by_cluster[0]["mia"]
    assert {"mia_mean", "mia_spread"} <= set(result.summary.by_group["rows"])


def test_an_attack_that_is_fitted_on_nothing_is_fitted_once(mlp, build):
    team = RedTeam(0, attack=Gap(), refits=5)
    metrics = ended(mlp, build, team, IFCA(2)).summary.by_group["rows"]
    assert "mia_mean" not in metrics
    assert "mia_spread" not in metrics
