"""Shadow models, the three estimators and the audit, on toy federations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from shoal.attacks import (
    Gap,
    LossThreshold,
    MembershipAudit,
    Query,
    Records,
    RedTeam,
    ShadowModelAttack,
    ShadowModels,
    evaluate_models,
    one_group_mix,
)
from shoal.attacks.yeom import FittedLossThreshold
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import GroupedExamples, Shards
from shoal.engine import LocalSGD
from shoal.metrics import balanced_accuracy

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
GAPS = [Gap().fit(Records.none(), Stream(0))] * 2


def test_shadow_models_are_as_large_as_their_cluster(clustered):
    records = ShadowModels(number=3).records(*clustered, (LOCAL,) * 2, Stream(0))
    # Clusters hold 9 + 12 and 7 + 12 + 5 + 10 = 34 examples; the shadow set's half is 30.
    for each, size in zip(records, (21, 30), strict=True):
        for s in range(3):
            mine = each.where(each.shadow == s)
            assert int(mine.member.sum()) == size
            assert len(mine) == 2 * size


def test_an_empty_cluster_is_attacked_as_if_one_client_had_joined(clustered):
    state, federation, engine = clustered
    state = replace(state, assignment=torch.zeros(6, dtype=torch.int64))
    records = ShadowModels(number=1).records(state, federation, engine, (LOCAL,) * 2, Stream(0))
    assert int(records[1].member.sum()) == round(55 / 6)


def test_a_shadow_model_has_seen_its_members_and_nobody_else(clustered):
    """Trained long enough, it knows members by heart, whichever examples those are."""
    long = LocalSGD(epochs=1, batch_size=4, learning_rate=0.3)
    for warm_start in (True, False):
        shadows = ShadowModels(number=2, size=10, epochs=150, warm_start=warm_start)
        for records in shadows.records(*clustered, (long,) * 2, Stream(0)):
            fitted = LossThreshold().fit(records, Stream(0))
            scores = fitted.score(Query(records.outputs, records.labels))
            assert scores[records.member.numpy()].mean() > -0.05
            assert scores[~records.member.numpy()].mean() < scores[records.member.numpy()].mean()


def test_shadow_models_start_where_warm_start_says(clustered):
    state, federation, engine = clustered
    slow = LocalSGD(epochs=1, learning_rate=1e-12)
    warm = ShadowModels(number=1).records(state, federation, engine, (slow,) * 2, Stream(0))
    fresh = ShadowModels(number=1, warm_start=False).records(state, federation, engine, (slow,) * 2, Stream(0))
    order = torch.randperm(60, generator=Stream(0)("model", 0, "shadow", 0).generator())[:42]
    expected = engine.outputs(state.models[0], federation.shadow.x[order])
    torch.testing.assert_close(warm[0].outputs, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fresh[0].outputs, expected, atol=1e-2)


def test_without_a_shadow_set_there_are_no_shadow_models(clustered):
    state, federation, engine = clustered
    bare = replace(federation, shadow=federation.shadow.take(torch.arange(1)))
    with pytest.raises(InputError, match="shadow set of at least 2 examples; got 1"):
        ShadowModels().records(state, bare, engine, (LOCAL,) * 2, Stream(0))


@pytest.mark.parametrize("estimator", ["shadow", "federated", "audit"])
@pytest.mark.parametrize("attack", [LossThreshold(), ShadowModelAttack(), Gap()], ids=repr)
def test_risks_are_accuracies_and_come_again(clustered, estimator, attack):
    team = RedTeam(1, estimator, attack, ShadowModels(number=2))
    state, federation, engine = clustered
    first, again = (team.risks(state, federation, engine, (LOCAL,) * 2, Stream(2)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == (2,)
    assert ((first >= 0) & (first <= 1)).all()


def test_one_shadow_model_is_judged_on_its_other_half(clustered):
    risks = RedTeam(1, "shadow", LossThreshold(), ShadowModels(number=1)).risks(*clustered, (LOCAL,) * 2, Stream(2))
    assert torch.isfinite(risks).all()


@pytest.mark.parametrize("estimator", ["federated", "audit"])
def test_members_that_are_known_by_heart_are_the_highest_risk(clustered, estimator):
    """Labels are what model 0 says on members, and what it does not say on others: the gap attack is always right."""
    state, federation, engine = clustered

    def labels(x: torch.Tensor, turn: int) -> torch.Tensor:
        return (engine.outputs(state.models[0], x).argmax(1) + turn) % 3

    known = replace(
        federation,
        clients=replace(federation.clients, y=labels(federation.clients.x, 0)),
        holdout=replace(federation.holdout, y=labels(federation.holdout.x, 1)),
        test=replace(federation.test, y=labels(federation.test.x, 1)),
    )
    risks = torch.tensor([0.5, 0.77], dtype=torch.float64)
    everyone_on_the_first = replace(state, assignment=torch.zeros(6, dtype=torch.int64), risks=risks)
    estimates = RedTeam(1, estimator, Gap()).risks(everyone_on_the_first, known, engine, (LOCAL,) * 2, Stream(2))
    assert estimates.tolist() == [1.0, 0.77], "a model without members keeps its last estimate"


def test_the_federated_estimate_counts_members_and_holdout(clustered):
    state, federation, engine = clustered
    risks = RedTeam(1, "federated", Gap()).risks(state, federation, engine, (LOCAL,) * 2, Stream(2))
    for k in range(2):
        clients = torch.nonzero(state.assignment == k).flatten()
        rates = []
        for shards, member in ((federation.clients, True), (federation.holdout, False)):
            rows = torch.cat([shards.owned(int(i)) for i in clients])
            right = engine.outputs(state.models[k], shards.x[rows]).argmax(1) == shards.y[rows]
            rates.append(float((right == member).double().mean()))
        assert float(risks[k]) == pytest.approx(sum(rates) / 2)


def test_the_federated_estimate_needs_holdout(clustered):
    state, federation, engine = clustered
    nothing = [(federation.clients.x[:0], federation.clients.y[:0])] * 6
    bare = replace(federation, holdout=Shards.from_pairs(nothing))
    with pytest.raises(InputError, match="needs hold-out examples"):
        RedTeam(1, "federated", Gap()).risks(state, bare, engine, (LOCAL,) * 2, Stream(2))


def audited(clustered, assignment):
    state, federation, engine = clustered
    observed = evaluate_models(state.models, torch.tensor(assignment), federation, engine)
    return MembershipAudit.of(observed, GAPS)


def test_a_cluster_is_measured_on_non_members_of_the_same_mix(clustered):
    state, federation, engine = clustered
    # Model 1 has 12 examples of group 0 and 34 of group 1.
    metrics = audited(clustered, [0, 1, 1, 1, 1, 1]).of_cluster(1, federation)
    rows = torch.cat([federation.clients.owned(i) for i in range(1, 6)])
    right = engine.outputs(state.models[1], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows]
    wrong = (engine.outputs(state.models[1], federation.test.x).argmax(1) != federation.test.y).double()
    tnr = (12 * wrong[federation.test.group == 0].mean() + 34 * wrong[federation.test.group == 1].mean()) / 46
    assert metrics.accuracy == pytest.approx(float(right.double().mean() + tnr) / 2)
    assert metrics.members == 46


def test_exposure_does_not_depend_on_the_order_of_clients(clustered):
    state, federation, engine = clustered
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = federation.permuted(order)
    audits = [
        MembershipAudit.of(evaluate_models(state.models, assignment, each, engine), GAPS)
        for each, assignment in ((federation, state.assignment), (permuted, state.assignment[order]))
    ]
    for k in range(2):
        straight, turned = (a.of_cluster(k, f) for a, f in zip(audits, (federation, permuted), strict=True))
        assert straight.accuracy == pytest.approx(turned.accuracy)
        assert straight.auc == pytest.approx(turned.auc)


def test_a_model_without_members_has_no_exposure(clustered):
    metrics = audited(clustered, [0] * 6).of_cluster(1, clustered[1])
    assert np.isnan(metrics.accuracy)
    assert metrics.members == 0


def test_a_group_is_measured_on_the_models_its_clients_chose(clustered):
    state, federation, engine = clustered
    assignment = [0, 1, 1, 1, 1, 1]
    metrics = audited(clustered, assignment).of_group(0, federation, one_group_mix(0, federation))
    mine = torch.nonzero(federation.test.group == 0).flatten()
    rates = []
    for k, client in ((0, 0), (1, 1)):
        rows = federation.clients.owned(client)
        right = engine.outputs(state.models[k], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows]
        wrong = engine.outputs(state.models[k], federation.test.x[mine]).argmax(1) != federation.test.y[mine]
        rates.append((right.double(), wrong.double().mean()))
    tpr, tnr = torch.cat([right for right, _ in rates]).mean(), (rates[0][1] + rates[1][1]) / 2
    assert metrics.accuracy == pytest.approx(float(tpr + tnr) / 2)


def test_population_non_members_are_of_all_groups_by_share(clustered):
    state, federation, engine = clustered
    assignment = [0, 0, 1, 1, 1, 1]
    metrics = audited(clustered, assignment).of_group(0, federation, federation.group_fractions.numpy())
    rows = torch.cat([federation.clients.owned(i) for i in (0, 1)])
    tpr = (
        (engine.outputs(state.models[0], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows])
        .double()
        .mean()
    )
    wrong = (engine.outputs(state.models[0], federation.test.x).argmax(1) != federation.test.y).double()
    tnr = wrong[federation.test.group == 0].mean() / 3 + wrong[federation.test.group == 1].mean() * 2 / 3
    assert metrics.accuracy == pytest.approx(float(tpr + tnr) / 2)


def test_non_members_of_another_group_differ_in_their_loss(clustered):
    """Each model's margins from the posteriors; non-members count on each model as often as clients chose it."""
    state, federation, engine = clustered
    fitted = [FittedLossThreshold(-1.1), FittedLossThreshold(-1.2)]
    assignment = [0, 0, 1, 1, 0, 1]
    audit = MembershipAudit.of(evaluate_models(state.models, torch.tensor(assignment), federation, engine), fitted)
    margins, member = [], []
    mine = federation.test.of_group(0)
    for i in (2, 3, 4, 5):
        rows = federation.clients.owned(i)
        for x, y, inside in ((federation.clients.x[rows], federation.clients.y[rows], 1), (mine.x, mine.y, 0)):
            posteriors = engine.outputs(state.models[assignment[i]], x).double().softmax(1)
            likely = posteriors[torch.arange(len(y)), y].log()
            margins.append(likely.numpy() - fitted[assignment[i]].threshold)
            member.append(np.full(len(y), inside))
    scores, inside = np.concatenate(margins), np.concatenate(member)
    metrics = audit.of_group(1, federation, one_group_mix(0, federation))
    assert metrics.accuracy == pytest.approx(balanced_accuracy_score(inside, scores > 0))
    assert metrics.auc == pytest.approx(roc_auc_score(inside, scores), abs=1e-4)
    assert abs(metrics.accuracy - audit.of_group(1, federation, one_group_mix(1, federation)).accuracy) > 1e-3
    assert abs(metrics.accuracy - 0.5) > 1e-3


def test_a_cluster_s_population_is_all_groups_by_share(clustered):
    state, federation, engine = clustered
    metrics = audited(clustered, [0, 0, 1, 1, 1, 1]).of_cluster(0, federation, population=True)
    rows = torch.cat([federation.clients.owned(i) for i in (0, 1)])
    right = engine.outputs(state.models[0], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows]
    wrong = (engine.outputs(state.models[0], federation.test.x).argmax(1) != federation.test.y).double()
    tnr = wrong[federation.test.group == 0].mean() / 3 + wrong[federation.test.group == 1].mean() * 2 / 3
    assert metrics.accuracy == pytest.approx(float(right.double().mean() + tnr) / 2)


def test_balanced_accuracy_of_margins_is_that_of_the_attack(clustered):
    state, federation, engine = clustered
    records = ShadowModels(number=2).records(state, federation, engine, (LOCAL,) * 2, Stream(0))
    fitted = [LossThreshold().fit(each, Stream(0)) for each in records]
    observed = evaluate_models(state.models, state.assignment, federation, engine)
    audit = MembershipAudit.of(observed, fitted)
    mine = observed.owner < 2
    scores = fitted[0].score(Query(observed.members[mine], observed.labels[mine]))
    outside = fitted[0].score(Query(observed.test[0], federation.test.y))[(federation.test.group == 0).numpy()]
    said = np.concatenate([scores, outside]) > fitted[0].threshold
    member = np.arange(len(said)) < len(scores)
    assert audit.of_group(0, federation, one_group_mix(0, federation)).accuracy == pytest.approx(
        balanced_accuracy(said, member)
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"number": 0}, "'number' must be at least 1; got 0"),
        ({"size": 0}, "'size' must be at least 1 or 'cluster'; got 0"),
        ({"epochs": 0}, "'epochs' must be at least 1 or 'round'; got 0"),
        ({"number": 1, "size": 1}, "a single shadow model must train on at least 2 examples; got 1"),
    ],
)
def test_bad_shadow_models_are_refused(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        ShadowModels(**wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"every": -1}, "'every' must be at least 0; got -1"),
        ({"estimator": "guess"}, "'estimator' must be 'shadow', 'federated' or 'audit'; got 'guess'"),
        ({"attack": "gap"}, "'attack' must be an instance of MembershipAttack; got 'gap'"),
    ],
)
def test_a_bad_red_team_is_refused(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        RedTeam(**wrong)


def test_the_red_team_takes_no_part_of_the_test_set_for_its_shadow_models(clustered):
    """What the server trains on is the shadow set: with it spoiled, shadow models learn nothing."""
    state, federation, engine = clustered
    blank = GroupedExamples(torch.zeros_like(federation.shadow.x), federation.shadow.y, federation.shadow.group)
    records = ShadowModels(number=1).records(state, replace(federation, shadow=blank), engine, (LOCAL,) * 2, Stream(0))
    assert torch.equal(records[0].outputs, records[0].outputs[:1].expand_as(records[0].outputs))
