"""A regression from its federation to its page: two groups of opposite slopes, and IFCA, which must find both."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import shoal
from full_simulation import simulate_with
from shoal.attacks import LossThreshold
from shoal.metrics.summary import flatten
from shoal.models import squared_error
from shoal.runs.comparison import compare
from shoal.simulation.simulation import LOSS_RED_TEAM

SLOPES = {"up": 1.0, "down": -1.0}
NAMES = ["up", "down"] * 3
LOCAL = shoal.LocalSGD(epochs=3, batch_size=4, learning_rate=0.1)
WITHOUT_CLASSES = ("gap", "fairness", "most_frequent_class", "test_examples", "main.auc")


def line(group: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, generator=draw)
    return x, SLOPES[group] * x[:, 0] + 0.1 * torch.randn(count, generator=draw)


def both(count: int, seed: int) -> shoal.Examples:
    (x, y), (u, v) = (line(group, count, seed + g) for g, group in enumerate(SLOPES))
    return shoal.Examples(torch.cat([x, u]), torch.cat([y, v]), ["up"] * count + ["down"] * count)


FEDERATION = shoal.Federation.from_tensors(
    [line(name, 12, seed) for seed, name in enumerate(NAMES)],
    groups=NAMES,
    test=both(20, 50),
    shadow=both(40, 60),
    task="regression",
)


def linear() -> nn.Module:
    return nn.Linear(1, 1)


def minus_absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return -(outputs - labels).abs().mean(dim=1)


def simulated(model=None, *, rounds=4, **settings):
    model = shoal.Model(linear, squared_error) if model is None else model
    return simulate_with(FEDERATION, model, shoal.IFCA(clusters=2), LOCAL, rounds=rounds, **settings)


@pytest.fixture(scope="module")
def result():
    return simulated()


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("regression") / "page.html").read_text(encoding="utf-8")


def test_ifca_finds_both_slopes(result):
    assert result.summary.overall["adjusted_rand_index"] == 1.0
    of_group = {row.group: row.cluster for row in result.clients.itertuples()}
    for name, slope in SLOPES.items():
        assert float(result.models[of_group[name]]["weight"]) == pytest.approx(slope, abs=0.1)


def test_the_metric_is_minus_the_loss_on_test_and_training_examples(result):
    for row in result.clients.itertuples():
        network = linear()
        network.load_state_dict(result.models[row.cluster])
        test = FEDERATION.test.of_group(FEDERATION.groups.index(row.group))
        own = FEDERATION.clients.indices_of(row.client)
        with torch.no_grad():
            of_test = float((network(test.x) - test.y).square().mean())
            of_training = float((network(FEDERATION.clients.x[own]) - FEDERATION.clients.y[own]).square().mean())
        assert row.accuracy == pytest.approx(-of_test, rel=1e-5)
        assert row.train_accuracy == pytest.approx(-of_training, rel=1e-5)
        assert row.loss == pytest.approx(of_training, rel=1e-5)
    assert result.summary.overall["accuracy.overall"] == pytest.approx(result.clients["accuracy"].mean())
    # A cluster's models are those of one group, and the last round's are the final ones.
    last = result.rounds[result.rounds["round"] == 4].set_index("cluster")["accuracy"]
    assert dict(last) == pytest.approx({k: each["accuracy"] for k, each in result.summary.by_cluster.items()})


def test_what_only_classes_have_is_left_out(result):
    keys = flatten(result.summary)
    assert [key for key in keys if any(key.split(".", 2)[-1].startswith(each) for each in WITHOUT_CLASSES)] == []
    assert [key for key in keys if key.startswith(WITHOUT_CLASSES)] == []
    assert {"accuracy.up", "train_accuracy.down", "mia.up", "loss_threshold.up", "clusters.1.mia"} <= set(keys)


def test_the_loss_threshold_is_the_attack_where_none_is_given(result):
    assert set(result.clients["attack"]) == {"loss threshold"}
    given = simulated(red_team=LOSS_RED_TEAM)
    assert metrics_of(given) == metrics_of(result)


def test_a_threshold_beyond_all_examples_is_warned_of(caplog):
    """No model fits both slopes of the shadow set, so its models' mean loss lies above all losses of a cluster."""
    result = simulated(seed=2)
    assert {each["mia"] for each in result.summary.by_cluster.values()} == {0.5}
    (said,) = (each.message for each in caplog.records if "threshold lies beyond all examples" in each.message)
    assert "of up, down, so its balanced accuracy is 0.5" in said
    caplog.clear()
    narrow = shoal.Examples(*line("up", 60, 70), ["up"] * 60)
    federation = shoal.Federation.from_tensors(
        [line("up", 12, seed) for seed in range(3)], test=line("up", 40, 50), shadow=(narrow.x, narrow.y),
        task="regression",
    )  # fmt: skip
    one = shoal.simulate(federation, shoal.Model(linear, squared_error), shoal.FedAvg(), LOCAL, rounds=3)
    assert one.summary.by_group["all"]["mia"] != 0.5
    assert "threshold lies beyond" not in caplog.text


def metrics_of(result) -> dict:
    return {key: value for key, value in flatten(result.summary).items() if not key.startswith("seconds.")}


@pytest.mark.parametrize("estimator", ["shadow", "federated", "audit"])
def test_every_estimator_of_risk_works_on_the_loss(estimator):
    # Of one group: no model fits both, so that the mean loss of shadow models of both would lie above every loss.
    shadow = shoal.Examples(*line("up", 60, 70), ["up"] * 60)
    federation = shoal.Federation.from_tensors(
        [line(name, 12, seed) for seed, name in enumerate(NAMES)],
        groups=NAMES,
        test=both(20, 50),
        shadow=shadow,
        holdout=[line(name, 6, 80 + seed) for seed, name in enumerate(NAMES)],
        task="regression",
    )
    team = shoal.RedTeam(1, estimator, LossThreshold(), shoal.ShadowModels(number=2))
    model = shoal.Model(linear, squared_error)
    result = shoal.simulate(federation, model, shoal.IFCAMIR(shoal.IFCA(2)), LOCAL, rounds=2, red_team=team)
    risks = result.rounds["risk"]
    assert risks.between(0, 1).all()
    assert (risks != 0.5).any()


def test_non_members_have_the_members_groups_and_nothing_else(result):
    """Each test example of a group weighs the same, so the rates are plain means over the group."""
    of_group = {row.group: row.cluster for row in result.clients.itertuples()}
    for g, name in enumerate(FEDERATION.groups):
        network = linear()
        network.load_state_dict(result.models[of_group[name]])
        test, members = FEDERATION.test.of_group(g), torch.nonzero(FEDERATION.group == g).flatten()
        own = FEDERATION.clients.take(members).indices
        with torch.no_grad():
            inside = squared_error(network(FEDERATION.clients.x[own]), FEDERATION.clients.y[own]).numpy()
            outside = squared_error(network(test.x), test.y).numpy()
        auc = np.mean(inside[:, None] < outside[None, :])
        assert result.summary.by_group[name]["mia_auc"] == pytest.approx(auc, abs=1e-6)


def test_a_regression_that_is_no_better_than_the_targets_mean_is_said(caplog):
    still = shoal.LocalSGD(epochs=1, batch_size=4, learning_rate=1e-12)
    simulate_with(FEDERATION, shoal.Model(linear, squared_error), shoal.FedAvg(), still, rounds=5)
    assert "is not below the loss of predicting the targets' mean" in caplog.text
    caplog.clear()
    simulated(rounds=5)
    assert "nothing was learned" not in caplog.text


def test_both_backends_train_a_regression_alike():
    loop, vmap = (simulated(rounds=2, backend=each) for each in ("loop", "vmap"))
    torch.testing.assert_close(loop.state.models, vmap.state.models, rtol=1e-4, atol=1e-5)


def test_a_regression_can_be_private():
    private = simulated(rounds=1, defenses=[shoal.DPSGD(max_grad_norm=1.0, noise_multiplier=0.5)])
    assert private.summary.overall["epsilon"] > 0
    assert np.isfinite(private.clients["accuracy"]).all()


def test_the_page_names_the_metric_and_speaks_of_no_classes(page):
    assert "Train minus squared error" in page
    for words in (
        "Test accuracy",
        "Gap attack",
        "Demographic parity",
        "three differences",
        "most frequent class",
        "nan",
    ):
        assert words not in page


def test_a_picture_of_the_rounds_has_the_metric_on_its_axis(result):
    axes = result.plot()
    assert axes[0].get_ylabel() == "minus squared error"
    assert "higher is better" in axes[0].get_title(loc="left")
    axes[0].figure.clear()


def test_saved_and_loaded_it_is_the_same_regression(result, page, tmp_path):
    loaded = shoal.load(result.save(tmp_path / "saved"))
    assert loaded.description.metric == result.description.metric == "minus squared error"
    assert loaded.summary == result.summary
    pd.testing.assert_frame_equal(loaded.rounds, result.rounds, check_dtype=False)
    assert loaded.report(tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_a_metric_of_one_s_own_is_reported_and_trains_the_same_models(result, tmp_path):
    own = simulated(shoal.Model(linear, squared_error, minus_absolute_error), out=tmp_path / "own")
    assert torch.equal(own.state.models, result.state.models)
    assert own.description.metric == "minus absolute error"
    assert own.summary.overall["accuracy.overall"] < result.summary.overall["accuracy.overall"]
    # Attacks are on the loss that was trained, whatever is reported.
    assert own.summary.by_group["up"]["mia_auc"] == result.summary.by_group["up"]["mia_auc"]
    with pytest.raises(shoal.InputError, match="metric"):
        simulated(out=tmp_path / "own", resume=True)


def test_regressions_are_compared_by_their_metric(result, tmp_path):
    first, other = result.save(tmp_path / "a"), simulated(rounds=2).save(tmp_path / "b")
    made = compare([first, other])
    assert {"minus squared error, all clients", "train minus squared error, up"} <= set(made.metrics.index)
    assert "MIA accuracy, up" in made.metrics.index
    assert "has minus squared error -0.0" in made.sentences[0]
    metric = simulated(shoal.Model(linear, squared_error, minus_absolute_error), rounds=2).save(tmp_path / "c")
    with pytest.raises(shoal.InputError, match=r"must be minus squared error.*got minus absolute error"):
        compare([first, metric])


def test_a_metric_of_a_classification_keeps_fairness_and_loses_the_gap(tmp_path):
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(12, 2, generator=draw), torch.arange(12) % 3) for _ in range(4)]
    federation = shoal.Federation.from_tensors(data, test=data[0])

    def run(metric=None):
        model = shoal.Model(lambda: nn.Linear(2, 3), metric=metric)
        return shoal.simulate(federation, model, shoal.FedAvg(), LOCAL, rounds=1)

    def probability(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.softmax(dim=1)[torch.arange(len(labels)), labels]

    plain, own = run(), run(probability)
    assert torch.equal(plain.state.models, own.state.models)
    lost = set(flatten(plain.summary)) - set(flatten(own.summary))
    assert lost == {"gap.all", "clusters.0.gap", "most_frequent_class.all", "test_examples.all"}
    assert own.summary.by_group["all"]["mia"] == plain.summary.by_group["all"]["mia"]
    assert own.summary.by_group["all"]["accuracy"] == pytest.approx(own.rounds["accuracy"].iloc[-1])
    page = own.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Demographic parity" in page
    assert plain.description.metric == "accuracy"
    assert json.loads((plain.save(tmp_path / "p") / "summary.json").read_text())["gap.all"] > 0
