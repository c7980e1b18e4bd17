"""The attack at the end of a run, fitted several times: what is averaged, what is drawn anew, and what stays."""

import json
from dataclasses import fields, replace

import pytest
import torch

from calibrated_confidence import CalibratedConfidence
from full_simulation import simulate_with
from shoal import IFCA, Ditto, FedAvg, Gap, LocalSGD, LossThreshold, RedTeam, ShadowModels
from shoal.audit.records import mean_metrics
from shoal.core.randomness import Stream
from shoal.metrics import MembershipMetrics
from shoal.runs.run import run

LOCAL = LocalSGD(epochs=12, batch_size=4, learning_rate=0.2)
SHADOWS = ShadowModels(number=2)


def ended(mlp, build, team, algorithm, seed=0):
    """With random labels, which a model can only know by heart: otherwise every attack of such a toy is at 0.5."""
    federation = build()

    def random(examples, name):
        return replace(examples, y=torch.randint(0, 3, examples.y.shape, generator=Stream(4)(name).generator()))

    known = {name: random(getattr(federation, name), name) for name in ("clients", "test", "shadow")}
    federation = replace(federation, **known)
    return simulate_with(federation, mlp, algorithm, LOCAL, rounds=2, seed=seed, threads=1, red_team=team)


def test_metrics_of_several_fits_average_accuracy_and_interval():
    rates = dict.fromkeys((each.name for each in fields(MembershipMetrics)), 0.1) | {"members": 10, "non_members": 20}
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
    both = [(each.summary.by_group, each.summary.by_cluster) for each in (once, often)]
    for before, after in zip(*both, strict=True):
        for owner, metrics in after.items():
            assert set(metrics) - set(before[owner]) == new
            kept = {name: value for name, value in metrics.items() if name not in new | {"exposure", "exceeded"}}
            assert kept == {name: before[owner][name] for name in kept}
            assert metrics["mia_spread"] >= 0
    spread = [each["mia_spread"] for each in often.summary.by_cluster.values()]
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


def test_a_run_has_the_keys(tmp_path, toy_config):
    folder = run(toy_config(algorithm__rounds=2, red_team__refits=2), tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("mia_mean.minority", "mia_spread.minority", "clusters.0.mia_mean", "clusters.0.mia_spread"):
        assert 0 <= summary[key] <= 1
