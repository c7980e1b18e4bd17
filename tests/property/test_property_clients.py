"""A property attack among clients that are absent, defended or of another kind of network, and what a client knows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from full_simulation import simulate_with
from property_rounds import LOCAL, observed, one_round, played
from shoal.algorithms import IFCA, EarlyStopping, FedAvg, FedOpt, FedSoft
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, Dropout, NormClipping, TrainingSetup, apply_defenses
from shoal.engine import Engine, LocalSGD, Training, client_updates
from shoal.metrics.summary import flatten
from shoal.models import Model
from shoal.models.networks import FacesCNN, ReviewGRU
from shoal.property import PropertyAttack, PropertySchedule, active_property_attacker, extract_features
from shoal.property.simulated_updates import Auxiliary, local_updates
from shoal.property.update_table import property_summary

CLIENTS = 6


class FixedAssignment(IFCA):
    """IFCA whose clients train the models that they are told to."""

    def __init__(self, assignment):
        super().__init__(2)
        object.__setattr__(self, "fixed", assignment)

    def plan(self, state, cohort):
        return self.plan_of(self.fixed, None, state, cohort)


class Normed(nn.Module):
    """A convolution with batch norm, and log-probabilities, as the VGGs have them."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.output = nn.Linear(4 * 3 * 3, 3)

    def forward(self, images):
        features = torch.relu(torch.max_pool2d(self.norm(self.convolution(images)), 2))
        return self.output(features.flatten(1)).log_softmax(dim=1)


@pytest.mark.parametrize("participation", [0.17, 0.5])
@pytest.mark.parametrize("visible_models", ["all", "own"])
def test_clients_that_are_absent_are_neither_attackers_nor_victims(mlp, federation, participation, visible_models):
    attack, algorithm = PropertyAttack(visible_models=visible_models, simulated_clients=2), IFCA(2, choose_by="batch")
    settings = {"rounds": 24, "participation": participation}
    alone, _, _ = played(mlp, federation, algorithm, **settings)
    states, reports, observations = played(mlp, federation, algorithm, attack=attack, **settings)
    assert torch.equal(alone[-1].models, states[-1].models)
    absent = {"attacker": 0, "victim": 0}
    for report, seen in zip(reports, observations, strict=True):
        ids = federation.ids[report.cohort].tolist()
        chosen = dict(zip(ids, report.assignment.tolist(), strict=True))
        attacker, victim = (chosen.pop(federation.schedule.attacker, None), chosen.get(federation.schedule.victim))
        visible = {0, 1} if visible_models == "all" else {attacker}
        assert set(seen.clusters.tolist()) == visible & set(chosen.values())
        assert seen.has_property.tolist() == [seen.round % 3 == 0 and k == victim for k in seen.clusters.tolist()]
        absent["attacker"] += attacker is None
        absent["victim"] += victim is None and seen.round % 3 == 0
    assert min(absent.values()) > 0


def test_an_active_attacker_that_is_absent_remembers(mlp, federation):
    malicious_client = active_property_attacker(mlp, federation, alpha=0.5, gamma=5.0)
    settings = {"participation": 0.17, "rounds": 24}
    states, reports, _ = played(mlp, federation, IFCA(2), malicious_clients=malicious_client, **settings)
    there = [federation.schedule.attacker in federation.ids[report.cohort].tolist() for report in reports]
    assert 0 < sum(there) < 24
    for before, after, present in zip(states, states[1:], there, strict=False):
        assert torch.equal(before.adversary["head"], after.adversary["head"]) != present


def test_simulated_aggregates_are_of_as_many_as_take_part(mlp, federation, monkeypatch):
    calls = []

    def aggregate_size(attack, clients, models):
        calls.append((attack.aggregate_of, clients, models))
        return 1

    monkeypatch.setattr(PropertyAttack, "aggregate_size", aggregate_size)
    played(mlp, federation, IFCA(2), attack=PropertyAttack(), rounds=1, participation=0.5)
    assert calls == [("cluster", 3, 2)] * 2


def test_simulated_updates_do_not_depend_on_other_clients_examples(mlp, federation):
    """The attacker's own number of examples is all that it can simulate by."""
    local = LocalSGD(epochs=1, batch_size=8, learning_rate=0.1)
    attacker = int(torch.nonzero(federation.ids == federation.schedule.attacker))
    kept = [
        federation.clients.indices_of(i) if i == attacker else federation.clients.indices_of(i)[::2]
        for i in range(CLIENTS)
    ]
    halved = type(federation.clients).from_indices(
        federation.clients.x, federation.clients.y, torch.cat(kept), torch.tensor([len(rows) for rows in kept])
    )
    first, second = (
        played(mlp, data, FedAvg(), attack=PropertyAttack(), rounds=1, local=local)[2][0]
        for data in (federation, replace(federation, clients=halved))
    )
    assert torch.equal(first.simulated_features, second.simulated_features)
    assert not torch.equal(first.features, second.features)


@pytest.mark.parametrize("kind", ["plain", "bf16", "batch norm", "dropout", "clipped", "texts", "filtered"])
def test_an_active_attacker_with_all_weight_on_the_main_task_is_any_other_client(mlp, federation, texts, kind):
    model, data, settings = mlp, federation, {"participation": 0.7}
    match kind:
        case "bf16":
            settings["engine"] = {"precision": "bf16"}
        case "batch norm":
            model = Model(Normed)
        case "dropout":
            model = Dropout(0.5).to(mlp)
        case "clipped":
            settings["defenses"] = apply_defenses(TrainingSetup(mlp, LOCAL), [DPSGD(0.5)]).defenses
        case "texts":
            model, data = Model(lambda: ReviewGRU(50, 3)), texts
        case "filtered":
            settings["update_filter"] = NormClipping(0.05)
    malicious_client = active_property_attacker(model, data, alpha=1.0, gamma=1.0)
    honest, active = (
        played(model, data, IFCA(2, choose_by="batch"), malicious_clients=attacker, **settings)[0]
        for attacker in (None, malicious_client)
    )
    near = {"atol": 2e-3, "rtol": 0.05} if kind == "bf16" else {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(honest[-1].models, active[-1].models, **near)


def test_scaling_leaves_statistics_where_they_can_be(federation):
    """Running variances scaled like weights become negative."""
    model, local = Model(Normed), replace(LOCAL, steps=8, learning_rate=1e-3)
    malicious_client = active_property_attacker(model, federation, alpha=0.9, gamma=20.0)
    plain = replace(malicious_client, gamma=1.0)
    (start, scaled), (_, once) = (
        played(model, federation, FedAvg(), malicious_clients=attacker, rounds=1, local=local)[0]
        for attacker in (malicious_client, plain)
    )
    trained = model.layout.trainable
    torch.testing.assert_close(scaled.models[:, trained:], once.models[:, trained:])
    assert (model.layout.views(scaled.models[0])["norm.running_var"] > 0).all()
    assert (scaled.models - start.models)[:, :trained].norm() > 2 * (once.models - start.models)[:, :trained].norm()


@pytest.mark.parametrize("algorithm", [FedAvg(), IFCA(2), IFCA(2, averaging="gradient")], ids=repr)
@pytest.mark.parametrize(
    "settings", [{}, {"participation": 0.5}, {"update_filter": NormClipping(0.05)}, {"malicious_clients": 3.0}]
)
def test_contributions_add_up_to_the_update(mlp, federation, algorithm, settings):
    if "malicious_clients" in settings:
        settings = {"malicious_clients": active_property_attacker(mlp, federation, alpha=0.5, gamma=3.0)}
    with Engine(mlp) as engine:
        training = Training(engine.prepare(federation), algorithm, LOCAL, engine, Stream(5), **settings)
        before = training.start()
        for after, report in training.rounds(before, 3):
            total = torch.zeros_like(after.models)
            for client in range(CLIENTS):
                for k, share, update in client_updates(training, before, report, client):
                    total[k] += share * update
            torch.testing.assert_close(total, after.models - before.models, atol=1e-6, rtol=1e-3)
            before = after


def test_without_its_own_part_an_update_is_that_of_the_others(mlp, federation):
    attack = PropertyAttack(remove_own_update=True)
    attacker = federation.schedule.attacker
    with one_round(mlp, federation, IFCA(2)) as (training, before, after, report):
        observation, last = observed(attack, before, after, report, training)
        rest = torch.zeros_like(before.models)
        for client in set(range(CLIENTS)) - {attacker}:
            for k, share, update in client_updates(training, before, report, client):
                rest[k] += share * update
    # Features have norm 1, so that by how much the others' shares fall short of 1 means nothing.
    expected = extract_features(mlp.layout, rest[observation.clusters])
    torch.testing.assert_close(observation.features, expected, atol=2e-3, rtol=0)
    assert not torch.equal(observation.features, extract_features(mlp.layout, last[observation.clusters]))
    assert torch.equal(last, after.models - before.models)


@pytest.mark.parametrize("remove_own_update", [False, True])
def test_a_swapped_update_is_that_of_the_round_with_the_victims_other_examples(mlp, federation, remove_own_update):
    """By playing the round again on a federation whose victim's schedule is the other way round."""

    class Swapped(PropertySchedule):
        def present(self, number):
            return not super().present(number)

    attack, algorithm = PropertyAttack(remove_own_update=remove_own_update), IFCA(2)
    schedule = federation.schedule
    other = replace(federation, schedule=Swapped(**vars(schedule)))
    # All a client's examples in one batch, so that no order is drawn.
    local = replace(LOCAL, batch_size="all")
    with Engine(mlp) as engine:
        training = Training(engine.prepare(federation), algorithm, local, engine, Stream(5))
        before = training.start()
        for _ in range(3):
            after, report = training.round(before)
            seen, _ = observed(attack, before, after, report, training)
            again = Training(engine.prepare(other), FixedAssignment(report.assignment), local, engine, Stream(5))
            changed, its = again.round(before)
            expected, _ = observed(attack, before, changed, its, again)
            (k,) = seen.swapped.tolist()
            victim = report.assignment[federation.ids[report.cohort] == schedule.victim]
            assert seen.clusters[k] == victim
            torch.testing.assert_close(seen.swapped_features[0], expected.features[k], atol=2e-3, rtol=0)
            assert not torch.allclose(seen.swapped_features[0], seen.features[k], atol=2e-3)
            before = after


def test_noise_is_drawn_anew_for_a_swapped_update(mlp, federation):
    """The attacker does not know the noise: pairs that shared it would tell more than it can see."""
    private = replace(LOCAL, gradient_privacy=DPSGD(max_grad_norm=1e-6, noise_multiplier=1e5))
    with one_round(mlp, federation, FedAvg("equal"), private) as (training, before, _, report):
        schedule = federation.schedule
        same = federation.clients.take(torch.nonzero(federation.ids == schedule.victim).flatten())
        ((_, _, first),) = client_updates(training, before, report, schedule.victim)
        ((_, _, again),) = client_updates(training, before, report, schedule.victim, same)
    assert abs(float(nn.functional.cosine_similarity(first, again, dim=0))) < 0.2


def test_pairs_cancel_whose_examples_they_are():
    """A score that tells rounds and models apart, and not the property, has no counterfactual AUC."""
    rounds = np.repeat(np.arange(20), 2)
    updates = pd.DataFrame({
        "round": rounds, "cluster": np.tile([0, 1], 20), "clients": 3, "cosine": 0.1,
        "present": ((rounds % 5 == 0) & (np.tile([0, 1], 20) == 1)).astype(int),
        "score": np.where(rounds % 5 == 0, 0.9, 0.1),
    })  # fmt: skip
    blind = updates.assign(swapped=updates["score"].where(updates["cluster"] == 1))
    metrics = property_summary(blind).overall
    assert metrics["property.auc_within"] == 1
    assert (metrics["property.pairs"], metrics["property.auc_counterfactual"]) == (20, 0.5)
    assert metrics["property.auc_swapped"] == 0.5
    # A score that sees it, by less than rounds differ.
    seen = np.where(updates["present"] == 1, -0.01, 0.01)
    metrics = property_summary(blind.assign(swapped=blind["swapped"] + seen)).overall
    assert metrics["property.auc_counterfactual"] == 1
    assert 0.5 < metrics["property.auc_swapped"] < 0.9


@pytest.mark.parametrize("algorithm", [FedAvg("equal"), IFCA(2)])
def test_simulated_updates_without_the_property_are_not_all_of_the_same_clients(mlp, federation, algorithm):
    attack = PropertyAttack(simulated_clients=2, simulated_updates=8)
    with one_round(mlp, federation, algorithm) as (training, before, after, report):
        seen, _ = observed(attack, before, after, report, training)
    for k in seen.simulated_clusters.unique():
        without = seen.simulated_features[(seen.simulated_clusters == k) & ~seen.simulated_has_property]
        assert len(without.float().unique(dim=0)) >= 4


def test_matched_examples_have_each_label_as_often_with_the_property_as_without():
    y = torch.tensor([0, 0, 0, 1, 1, 2, 0, 1, 1, 1, 3])
    auxiliary = Auxiliary(torch.zeros(11, 1), y, torch.arange(6), torch.arange(6, 11))
    made = auxiliary.matched()
    assert y[made.with_property].tolist() == y[made.without_property].tolist() == [0, 1, 1]
    assert set(made.with_property.tolist()) <= set(range(6))
    assert set(made.without_property.tolist()) <= set(range(6, 11))


@pytest.mark.parametrize("auxiliary", ["attacker", "attacker+test"])
def test_a_matched_attacker_knows_equal_numbers_of_each_label(federation, auxiliary):
    made = PropertyAttack(auxiliary=auxiliary, match_labels=True).auxiliary_examples(federation)
    counts = [
        torch.bincount(made.y[rows], minlength=3).tolist() for rows in (made.with_property, made.without_property)
    ]
    assert counts[0] == counts[1]
    assert min(counts[0]) > 0


@pytest.mark.parametrize(
    ("algorithm", "named"), [(FedOpt(IFCA(2)), "FedOpt"), (EarlyStopping(FedSoft(2), 2), "FedSoft")], ids=repr
)
def test_a_server_that_moves_models_by_more_than_the_mean_is_refused(mlp, federation, algorithm, named):
    with pytest.raises(InputError, match=rf"averages updates \(got {named}\)"):
        simulate_with(federation, mlp, algorithm, LOCAL, rounds=1, round_attack=PropertyAttack())


def test_an_attacker_with_one_kind_of_example_is_refused(federation):
    schedule = federation.schedule
    test = replace(schedule, test_has_property=torch.ones_like(schedule.test_has_property))
    with pytest.raises(InputError, match=r"\(got \d+ and 0\)"):
        PropertyAttack(auxiliary="attacker+test").auxiliary_examples(replace(federation, schedule=test))
    apart = replace(federation.clients, y=federation.schedule.has_property.long())
    with pytest.raises(InputError, match="match_labels' needs a label for which the attacker has examples with and"):
        PropertyAttack(match_labels=True).auxiliary_examples(replace(federation, clients=apart))


def test_fewer_examples_than_a_batch_make_smaller_batches_and_small_fractions_keep_one(mlp, federation):
    auxiliary = Auxiliary.from_attacker(federation)
    few = replace(auxiliary, with_property=auxiliary.with_property[:3], without_property=auxiliary.without_property[:5])
    with Engine(mlp) as engine:
        made = local_updates(mlp.init(Stream(2)), few, [1.0, 0.0], size=8, local=LOCAL, engine=engine, stream=Stream(9))
        args = {"size": 8, "local": LOCAL, "engine": engine, "stream": Stream(9)}
        little = local_updates(mlp.init(Stream(2)), auxiliary, [0.01], **args)
        none = local_updates(mlp.init(Stream(2)), auxiliary, [0.0], **args)
    network = mlp.network()
    for update, rows in zip(made, (few.with_property, few.without_property), strict=True):
        network.load_state_dict(mlp.state_dict(mlp.init(Stream(2))))
        network.zero_grad()
        nn.functional.cross_entropy(network(federation.clients.x[rows]), federation.clients.y[rows]).backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        assert torch.allclose(update, -0.1 * mlp.layout.pack(gradients), atol=1e-6)
    assert not torch.equal(little, none), "an update that is said to have the property has an example of it"


def test_a_simulation_that_diverges_is_left_out(mlp, federation, caplog):
    attack = PropertyAttack(auxiliary="attacker+test")
    broken = replace(federation, test=replace(federation.test, x=federation.test.x * torch.inf))
    with one_round(mlp, federation, IFCA(2)) as (training, before, after, report):
        broken = replace(training, federation=training.engine.prepare(broken))
        observation, _ = observed(attack, before, after, report, broken)
    simulated = (observation.simulated_features, observation.simulated_clusters, observation.simulated_has_property)
    assert [len(column) for column in simulated] == [0, 0, 0]
    assert len(observation.features) > 0
    assert "round 1: simulated updates of model 0 became NaN" in caplog.text


@pytest.mark.parametrize(
    ("network", "count"), [(lambda: FacesCNN(3, 62, 47, 2), 2_912), (lambda: ReviewGRU(3_000, 5), 4_409)]
)
def test_the_papers_networks_give_as_many_features_as_counted_by_hand(network, count):
    """Faces: 3 * 32 + 32 * 64, nothing of 64 * 128 kernels, 256 rows, 2 * 256. Reviews: 3,001 words, 384 rows of each
    matrix of the GRU, 5 * 128."""
    layout = Model(network).layout
    assert extract_features(layout, torch.zeros(1, layout.size)).shape[1] == count


def test_figures_within_models_and_over_rounds():
    """Model 1 always scores higher and has the victim: the AUC over all updates rewards that, the other two do not."""
    updates = pd.DataFrame(
        {
            "round": [1, 1, 2, 2, 3, 3, 4, 4],
            "cluster": [0, 1] * 4,
            "clients": 3,
            "present": [0, 1, 0, 0, 0, 1, 0, 0],
            "cosine": 0.5,
            "score": [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6],
            "control.0": 0.5,
        }
    )
    figures = flatten(property_summary(updates))
    assert figures["property.auc"] == pytest.approx(11 / 12)
    assert figures["property.auc_within"] == figures["clusters.1.property_auc"] == pytest.approx(0.75)
    assert "clusters.0.property_auc" not in figures
    # Ranks of rounds 1 to 4: 1, 0.75, 0.75 (of model 0) and 1 (of model 0).
    assert figures["property.auc_rounds"] == pytest.approx((0.5 + 1 + 0 + 0.5) / 4)
    assert figures["property.auc_control"] == 0.5
