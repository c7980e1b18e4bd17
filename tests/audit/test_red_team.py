"""Shadow models, the three estimators and the audit, on toy federations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from shoal.attacks import Gap, LossThreshold, Query, Records, ShadowModelAttack, ShadowModels
from shoal.attacks.queries.yeom import FittedLossThreshold
from shoal.audit import RedTeam, measure
from shoal.audit.model_scores import Membership, ModelScores, evaluate_models, margins_of
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import GroupedExamples
from shoal.engine import LocalSGD
from shoal.metrics.intervals import mean_rate_interval

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
GAPS = [Gap().fit(Records.empty(), Stream(0))] * 2


def test_shadow_models_are_as_large_as_their_cluster(clustered):
    records = ShadowModels(number=3).records(*clustered, (LOCAL,) * 2, Stream(0))
    # Clusters hold 9 + 12 and 7 + 12 + 5 + 10 = 34 examples; the shadow set's half is 30.
    for shadows, size in zip(records, (21, 30), strict=True):
        for s in range(3):
            mine = shadows.where(shadows.shadow == s)
            assert int(mine.member.sum()) == size
            assert len(mine) == 2 * size


def test_an_empty_cluster_is_attacked_as_if_one_client_had_joined(clustered):
    state, federation, engine = clustered
    state = replace(state, assignment=torch.zeros(6, dtype=torch.int64))
    records = ShadowModels(number=1).records(state, federation, engine, (LOCAL,) * 2, Stream(0))
    assert int(records[1].member.sum()) == round(55 / 6)


def test_shadow_models_start_where_warm_start_says(clustered):
    state, federation, engine = clustered
    slow = LocalSGD(epochs=1, learning_rate=1e-12)
    warm = ShadowModels(number=1).records(state, federation, engine, (slow,) * 2, Stream(0))
    fresh = ShadowModels(number=1, warm_start=False).records(state, federation, engine, (slow,) * 2, Stream(0))
    order = torch.randperm(60, generator=Stream(0)("model", 0, "shadow", 0).generator())[:42]
    expected = engine.outputs(state.models[0], federation.shadow.x[order])
    torch.testing.assert_close(warm[0].outputs, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fresh[0].outputs, expected, atol=1e-2)


@pytest.mark.parametrize("estimator", ["shadow", "federated", "audit"])
@pytest.mark.parametrize("attack", [LossThreshold(), ShadowModelAttack(), Gap()], ids=repr)
def test_risks_are_accuracies_and_come_again(clustered, estimator, attack):
    team = RedTeam(1, estimator, attack, ShadowModels(number=2))
    state, federation, engine = clustered
    first, again = (team.estimate(state, federation, engine, (LOCAL,) * 2, Stream(2)) for _ in range(2))
    assert torch.equal(first.risks, again.risks)
    assert torch.equal(first.intervals, again.intervals)
    assert first.risks.shape == (2,)
    assert ((first.risks >= 0) & (first.risks <= 1)).all()
    assert (first.intervals[:, 0] <= first.risks).all()
    assert (first.risks <= first.intervals[:, 1]).all()


class ByHeart:
    """Calls members those whose outputs are of a member that it was fitted on: of others it knows nothing."""

    needs = "records"
    threshold = 0.5

    def __init__(self, members=()):
        self.members = set(members)

    def fit(self, records, stream):
        assert records.member.unique().tolist() == [False, True], "or there is nothing to fit"
        return type(self)(map(bytes, records.outputs[records.member].numpy()))

    def score(self, query):
        return np.array([float(bytes(row) in self.members) for row in query.outputs.numpy()])


class ByReference(ByHeart):
    """The same from the outputs of the reference models on what they were trained on."""

    needs = "reference models"

    def score(self, query):
        return ((query.reference == query.outputs).all(dim=2) & query.reference_member).any(dim=0).double().numpy()


@pytest.mark.parametrize("attack", [ByHeart(), ByReference()], ids=["fitted on", "reference"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_shadow_model_is_judged_by_an_attack_that_knows_the_other_ones_alone(clustered, attack, number):
    if attack.needs == "reference models" and number < 3:
        pytest.skip("needs three shadow models")
    estimate = RedTeam(1, "shadow", attack, ShadowModels(number=number)).estimate(*clustered, (LOCAL,) * 2, Stream(2))
    assert estimate.risks.tolist() == [0.5, 0.5]
    assert estimate.intervals.tolist() == [[0.5, 0.5]] * 2 or number == 1


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_shadow_estimate_is_the_mean_over_shadow_models_each_left_out_in_turn(clustered, number):
    shadows, local, stream = ShadowModels(number=number), (LOCAL,) * 2, Stream(2)
    estimate = RedTeam(1, "shadow", LossThreshold(), shadows).estimate(*clustered, local, stream)
    for k, records in enumerate(shadows.records(*clustered, local, stream("shadow models"))):
        losses = torch.nn.functional.cross_entropy(records.outputs, records.labels, reduction="none")
        accuracies = []
        for s in range(number):
            threshold = losses[(records.shadow != s) & records.member].mean()
            left_out = records.shadow == s
            accuracies.append(balanced_accuracy_score(records.member[left_out], losses[left_out] < threshold))
        assert float(estimate.risks[k]) == pytest.approx(np.mean(accuracies))
        half = stats.t.ppf(0.975, number - 1) * np.std(accuracies, ddof=1) / np.sqrt(number)
        ends = np.clip([np.mean(accuracies) - half, np.mean(accuracies) + half], 0, 1)
        assert estimate.intervals[k].tolist() == pytest.approx(ends)


@pytest.mark.parametrize("number", [1, 2])
def test_of_a_shadow_model_of_one_example_the_last_risk_stays_or_is_judged(clustered, number):
    """Two halves of one member and one other have one kind each; of two shadow models each has both."""
    team = RedTeam(1, "shadow", LossThreshold(), ShadowModels(number=number, size="cluster"))
    state, federation, engine = clustered
    bare = replace(federation, shadow=federation.shadow.take(torch.arange(2)))
    estimate = team.estimate(state, bare, engine, (LOCAL,) * 2, Stream(2))
    assert torch.equal(estimate.risks, state.risks) == (number == 1)
    assert torch.isfinite(estimate.risks).all()


@pytest.mark.parametrize("estimator", ["federated", "audit"])
def test_members_that_are_known_by_heart_are_the_highest_risk(clustered, estimator):
    """Labels are what model 0 says on members, and what it does not say on others: the gap attack is always right."""
    state, federation, engine = clustered

    def labels(x: torch.Tensor, turn: int) -> torch.Tensor:
        return (engine.outputs(state.models[0], x).argmax(1) + turn) % 3

    by_heart = replace(
        federation,
        clients=replace(federation.clients, y=labels(federation.clients.x, 0)),
        holdout=replace(federation.holdout, y=labels(federation.holdout.x, 1)),
        test=replace(federation.test, y=labels(federation.test.x, 1)),
    )
    risks = torch.tensor([0.5, 0.77], dtype=torch.float64)
    intervals = torch.tensor([[0.4, 0.6], [0.7, 0.8]], dtype=torch.float64)
    assignment = torch.zeros(6, dtype=torch.int64)
    everyone_on_the_first = replace(state, assignment=assignment, risks=risks, risk_intervals=intervals)
    team = RedTeam(1, estimator, Gap())
    estimate = team.estimate(everyone_on_the_first, by_heart, engine, (LOCAL,) * 2, Stream(2))
    assert estimate.risks.tolist() == [1.0, 0.77], "a model without members keeps its last estimate"
    assert estimate.intervals[0, 0] < estimate.intervals[0, 1] == 1.0
    assert estimate.intervals[1].tolist() == [0.7, 0.8]


def test_the_federated_estimate_counts_members_and_holdout(clustered):
    state, federation, engine = clustered
    estimate = RedTeam(1, "federated", Gap()).estimate(state, federation, engine, (LOCAL,) * 2, Stream(2))
    for k in range(2):
        clients = torch.nonzero(state.assignment == k).flatten()
        rates, sizes = [], []
        for shards, member in ((federation.clients, True), (federation.holdout, False)):
            rows = torch.cat([shards.indices_of(int(i)) for i in clients])
            right = engine.outputs(state.models[k], shards.x[rows]).argmax(1) == shards.y[rows]
            rates.append(float((right == member).double().mean()))
            sizes.append(len(rows))
        assert float(estimate.risks[k]) == pytest.approx(sum(rates) / 2)
        assert estimate.intervals[k].tolist() == pytest.approx(mean_rate_interval(rates, sizes))


def audit_of(attacks, models, assignment, federation, engine):
    """Each client is a member of the one model that it is assigned to."""
    members = assignment[:, None] == torch.arange(len(models))
    outputs = evaluate_models(models, members, federation, engine)
    return ModelScores(margins_of(outputs, attacks), Membership(members, assignment), federation)


def audited(clustered, assignment):
    state, federation, engine = clustered
    return audit_of(GAPS, state.models, torch.tensor(assignment), federation, engine)


LOSS_THRESHOLDS = [FittedLossThreshold(-1.1), FittedLossThreshold(-1.2)]


def by_hand(clustered, attacks, members, mix_of):
    """Balanced accuracy and AUC where each member brings non-members of weight 1: test examples of its label.

    Args:
        members: pairs (client, model).
        mix_of: from a client's group to the groups' shares of its non-members.
    """
    state, federation, engine = clustered
    test, scores, inside, weights = federation.test, [], [], []

    def margins(k, x, y):
        return attacks[k].score(Query(engine.outputs(state.models[k], x), y)) - attacks[k].threshold

    for client, k in members:
        mix = mix_of(int(federation.group[client]))
        outside = margins(k, test.x, test.y)
        for row in federation.clients.indices_of(client).tolist():
            label = federation.clients.y[row : row + 1]
            cells = [np.flatnonzero((test.group == h) & (test.y == label)) for h in range(len(mix))]
            if any(share > 0 and not len(cell) for share, cell in zip(mix, cells, strict=True)):
                continue
            scores += [margins(k, federation.clients.x[row : row + 1], label), *(outside[cell] for cell in cells)]
            inside += [np.ones(1), *(np.zeros(len(cell)) for cell in cells)]
            weights += [np.ones(1)]
            weights += [np.full(len(cell), share / max(1, len(cell))) for share, cell in zip(mix, cells, strict=True)]
    scores, inside, weights = map(np.concatenate, (scores, inside, weights))
    return (
        balanced_accuracy_score(inside, scores > 0, sample_weight=weights),
        roc_auc_score(inside, scores, sample_weight=weights),
    )


ASSIGNMENT = [0, 1, 1, 1, 0, 1]


def own_group(g):
    return np.eye(2)[g]


@pytest.mark.parametrize("attacks", [GAPS, LOSS_THRESHOLDS], ids=["gap", "loss"])
@pytest.mark.parametrize("population", [False, True])
@pytest.mark.parametrize("k", [0, 1])
def test_a_cluster_is_measured_against_non_members_of_the_same_groups_and_labels(clustered, attacks, population, k):
    state, federation, engine = clustered
    audit = audit_of(attacks, state.models, torch.tensor(ASSIGNMENT), federation, engine)
    metrics = measure(audit.of_model(k, population=population))
    shares = federation.group_fractions.numpy()
    members = [(i, k) for i, chosen in enumerate(ASSIGNMENT) if chosen == k]
    expected = by_hand(clustered, attacks, members, (lambda _: shares) if population else own_group)
    assert (metrics.accuracy, metrics.auc) == pytest.approx(expected, abs=1e-6)
    assert metrics.low < metrics.accuracy < metrics.high


@pytest.mark.parametrize("attacks", [GAPS, LOSS_THRESHOLDS], ids=["gap", "loss"])
@pytest.mark.parametrize("mix", [[1, 0], [0, 1], [1 / 3, 2 / 3]], ids=str)
@pytest.mark.parametrize("g", [0, 1])
def test_a_group_is_measured_on_the_models_its_clients_trained(clustered, attacks, mix, g):
    state, federation, engine = clustered
    audit = audit_of(attacks, state.models, torch.tensor(ASSIGNMENT), federation, engine)
    metrics = measure(audit.of_group(g, np.array(mix)))
    members = [(i, ASSIGNMENT[i]) for i in range(6) if federation.group[i] == g]
    expected = by_hand(clustered, attacks, members, lambda _: np.array(mix))
    assert (metrics.accuracy, metrics.auc) == pytest.approx(expected, abs=1e-6)


def test_a_client_is_a_member_of_every_model_that_it_trained(clustered):
    state, federation, engine = clustered
    both = torch.tensor([[True, True], *[[False, True]] * 5])
    outputs = evaluate_models(state.models, both, federation, engine)
    members = Membership(both, torch.ones(6, dtype=torch.int64))
    audit = ModelScores(margins_of(outputs, GAPS), members, federation)
    assert measure(audit.of_model(0)).accuracy == pytest.approx(by_hand(clustered, GAPS, [(0, 0)], own_group)[0])
    of_all = by_hand(clustered, GAPS, [(i, 1) for i in range(6)], own_group)
    assert measure(audit.of_model(1)).accuracy == pytest.approx(of_all[0])


def test_a_model_without_members_has_no_exposure(clustered):
    metrics = measure(audited(clustered, [0] * 6).of_model(1))
    assert np.isnan(metrics.accuracy)
    assert metrics.members == 0


@pytest.mark.parametrize(
    ("kind", "wrong", "sentence"),
    [
        (ShadowModels, {"number": 0}, r"'number' must be at least 1 \(got 0"),
        (ShadowModels, {"size": 0}, r"'size' must be at least 1 or 'cluster' \(got 0"),
        (ShadowModels, {"epochs": 0}, r"'epochs' must be at least 1 or 'round' \(got 0"),
        (ShadowModels, {"number": 1, "size": 1}, "one shadow model"),
        (RedTeam, {"every": -1}, r"'every' must be at least 0 \(got -1"),
    ],
)
def test_bad_shadow_models_and_red_teams_are_refused(kind, wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        kind(**wrong)


def test_the_red_team_takes_no_part_of_the_test_set_for_its_shadow_models(clustered):
    """What the server trains on is the shadow set: with it spoiled, shadow models learn nothing."""
    state, federation, engine = clustered
    blank = GroupedExamples(torch.zeros_like(federation.shadow.x), federation.shadow.y, federation.shadow.group)
    records = ShadowModels(number=1).records(state, replace(federation, shadow=blank), engine, (LOCAL,) * 2, Stream(0))
    assert torch.equal(records[0].outputs, records[0].outputs[:1].expand_as(records[0].outputs))


def test_a_shadow_model_with_records_of_one_kind_teaches_nothing(clustered):
    """Its records are halved; members alone, or non-members alone, cannot be told apart."""
    member, nothing = torch.arange(8) % 2 == 0, torch.zeros(8, dtype=torch.int64)
    records = Records(torch.rand(8, 3), nothing, member, nothing, torch.arange(8))
    team = RedTeam(1, attack=ByHeart())
    assert np.isnan(team._cross_validated_accuracy(records, Stream(0)).value)
    mixed = team._cross_validated_accuracy(replace(records, member=torch.arange(8) < 4), Stream(0))
    assert mixed.value == 0.5
