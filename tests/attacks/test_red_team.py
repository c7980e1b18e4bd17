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
    RedTeam,
    ShadowModelAttack,
    ShadowModels,
    evaluate_models,
    one_group_mix,
)
from shoal.attacks.yeom import FittedLossThreshold
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Examples, Shards
from shoal.engine import Engine, LocalSGD, State
from shoal.metrics import balanced_accuracy

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)


@pytest.fixture
def scene(mlp, build):
    """Two models, chosen by the first two clients and by the others."""
    federation = build()
    models = torch.stack([mlp.init(Stream(1)(k)) for k in range(2)])
    state = State(5, models, torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1, 1]))
    with Engine(mlp) as engine:
        yield state, federation, engine


def test_shadow_models_are_as_large_as_their_cluster(scene):
    records = ShadowModels(number=3).train(*scene, LOCAL, Stream(0))
    # Clusters hold 9 + 12 and 7 + 12 + 5 + 10 = 34 examples; the shadow set's half is 30.
    for each, size in zip(records, (21, 30), strict=True):
        for s in range(3):
            mine = each.where(each.shadow == s)
            assert int(mine.member.sum()) == size
            assert len(mine) == 2 * size


def test_an_empty_cluster_is_attacked_as_if_one_client_had_joined(scene):
    state, federation, engine = scene
    state = replace(state, assignment=torch.zeros(6, dtype=torch.int64))
    records = ShadowModels(number=1).train(state, federation, engine, LOCAL, Stream(0))
    assert int(records[1].member.sum()) == round(55 / 6)


def test_a_shadow_model_has_seen_its_members_and_nobody_else(scene):
    """Trained long enough, it knows members by heart, whichever examples those are."""
    long = LocalSGD(epochs=1, batch_size=4, learning_rate=0.3)
    for warm_start in (True, False):
        shadows = ShadowModels(number=2, size=10, epochs=150, warm_start=warm_start)
        for records in shadows.train(*scene, long, Stream(0)):
            fitted = LossThreshold().fit(records, Stream(0))
            scores = fitted.score(records.outputs, records.labels)
            assert scores[records.member.numpy()].mean() > -0.05
            assert scores[~records.member.numpy()].mean() < scores[records.member.numpy()].mean()


def test_shadow_models_start_where_they_are_told(scene):
    state, federation, engine = scene
    slow = LocalSGD(epochs=1, learning_rate=1e-12)
    warm = ShadowModels(number=1).train(state, federation, engine, slow, Stream(0))
    fresh = ShadowModels(number=1, warm_start=False).train(state, federation, engine, slow, Stream(0))
    order = torch.randperm(60, generator=Stream(0)("model", 0, "shadow", 0).generator())[:42]
    expected = engine.outputs(state.models[0], federation.shadow.x[order])
    torch.testing.assert_close(warm[0].outputs, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fresh[0].outputs, expected, atol=1e-2)


def test_without_a_shadow_set_there_are_no_shadow_models(scene):
    state, federation, engine = scene
    bare = replace(federation, shadow=federation.shadow.take(torch.arange(1)))
    with pytest.raises(InputError, match=r"data\.shadow_examples"):
        ShadowModels().train(state, bare, engine, LOCAL, Stream(0))


@pytest.mark.parametrize("estimator", ["shadow", "federated", "audit"])
@pytest.mark.parametrize("attack", [LossThreshold(), ShadowModelAttack(), Gap()], ids=repr)
def test_risks_are_accuracies_and_come_again(scene, estimator, attack):
    team = RedTeam(1, estimator, attack, ShadowModels(number=2))
    state, federation, engine = scene
    first, again = (team.risks(state, federation, engine, LOCAL, Stream(2)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == (2,)
    assert ((first >= 0) & (first <= 1)).all()


def test_one_shadow_model_is_judged_on_its_other_half(scene):
    risks = RedTeam(1, "shadow", LossThreshold(), ShadowModels(number=1)).risks(*scene, LOCAL, Stream(2))
    assert torch.isfinite(risks).all()


@pytest.mark.parametrize("estimator", ["federated", "audit"])
def test_members_that_are_known_by_heart_are_the_highest_risk(scene, estimator):
    """Labels are what model 0 says on members, and what it does not say on others: the gap attack is always right."""
    state, federation, engine = scene

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
    found = RedTeam(1, estimator, Gap()).risks(everyone_on_the_first, known, engine, LOCAL, Stream(2))
    assert found.tolist() == [1.0, 0.77], "a model without members keeps its last estimate"


def test_the_federated_estimate_counts_members_and_holdout(scene):
    state, federation, engine = scene
    risks = RedTeam(1, "federated", Gap()).risks(state, federation, engine, LOCAL, Stream(2))
    for k in range(2):
        clients = torch.nonzero(state.assignment == k).flatten()
        rates = []
        for shards, member in ((federation.clients, True), (federation.holdout, False)):
            rows = torch.cat([shards.owned(int(i)) for i in clients])
            right = engine.outputs(state.models[k], shards.x[rows]).argmax(1) == shards.y[rows]
            rates.append(float((right == member).double().mean()))
        assert float(risks[k]) == pytest.approx(sum(rates) / 2)


def test_the_federated_estimate_needs_holdout(scene):
    state, federation, engine = scene
    nothing = [(federation.clients.x[:0], federation.clients.y[:0])] * 6
    bare = replace(federation, holdout=Shards.from_pairs(nothing))
    with pytest.raises(InputError, match=r"data\.holdout_examples"):
        RedTeam(1, "federated", Gap()).risks(state, bare, engine, LOCAL, Stream(2))


def audited(scene, assignment):
    state, federation, engine = scene
    observed = evaluate_models(state.models, torch.tensor(assignment), federation, engine)
    return MembershipAudit.of(observed, [Gap(), Gap()], federation)


def test_a_cluster_is_measured_on_non_members_of_the_same_mix(scene):
    state, federation, engine = scene
    # Model 1 has 12 examples of group 0 and 34 of group 1.
    found = audited(scene, [0, 1, 1, 1, 1, 1]).of_cluster(1, federation)
    rows = torch.cat([federation.clients.owned(i) for i in range(1, 6)])
    right = engine.outputs(state.models[1], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows]
    wrong = (engine.outputs(state.models[1], federation.test.x).argmax(1) != federation.test.y).double()
    tnr = (12 * wrong[federation.test.group == 0].mean() + 34 * wrong[federation.test.group == 1].mean()) / 46
    assert found.accuracy == pytest.approx(float(right.double().mean() + tnr) / 2)
    assert found.members == 46


def test_exposure_does_not_depend_on_the_order_of_clients(scene):
    state, federation, engine = scene
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = federation.permuted(order)
    audits = [
        MembershipAudit.of(evaluate_models(state.models, assignment, each, engine), [Gap(), Gap()], each)
        for each, assignment in ((federation, state.assignment), (permuted, state.assignment[order]))
    ]
    for k in range(2):
        straight, turned = (a.of_cluster(k, f) for a, f in zip(audits, (federation, permuted), strict=True))
        assert straight.accuracy == pytest.approx(turned.accuracy)
        assert straight.auc == pytest.approx(turned.auc)


def test_a_model_without_members_has_no_exposure(scene):
    found = audited(scene, [0] * 6).of_cluster(1, scene[1])
    assert np.isnan(found.accuracy)
    assert found.members == 0


def test_a_group_is_measured_on_the_models_its_clients_chose(scene):
    state, federation, engine = scene
    assignment = [0, 1, 1, 1, 1, 1]
    found = audited(scene, assignment).of_group(0, federation, one_group_mix(0, federation))
    mine = torch.nonzero(federation.test.group == 0).flatten()
    rates = []
    for k, client in ((0, 0), (1, 1)):
        rows = federation.clients.owned(client)
        right = engine.outputs(state.models[k], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows]
        wrong = engine.outputs(state.models[k], federation.test.x[mine]).argmax(1) != federation.test.y[mine]
        rates.append((right.double(), wrong.double().mean()))
    tpr, tnr = torch.cat([right for right, _ in rates]).mean(), (rates[0][1] + rates[1][1]) / 2
    assert found.accuracy == pytest.approx(float(tpr + tnr) / 2)


def test_population_non_members_are_of_all_groups_by_share(scene):
    state, federation, engine = scene
    assignment = [0, 0, 1, 1, 1, 1]
    found = audited(scene, assignment).of_group(0, federation, federation.group_fractions.numpy())
    rows = torch.cat([federation.clients.owned(i) for i in (0, 1)])
    tpr = (
        (engine.outputs(state.models[0], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows])
        .double()
        .mean()
    )
    wrong = (engine.outputs(state.models[0], federation.test.x).argmax(1) != federation.test.y).double()
    tnr = wrong[federation.test.group == 0].mean() / 3 + wrong[federation.test.group == 1].mean() * 2 / 3
    assert found.accuracy == pytest.approx(float(tpr + tnr) / 2)


def test_non_members_of_another_group_are_told_by_their_loss(scene):
    """Each model's margins from the posteriors; non-members count on each model as often as clients chose it."""
    state, federation, engine = scene
    fitted = [FittedLossThreshold(-1.1), FittedLossThreshold(-1.2)]
    assignment = [0, 0, 1, 1, 0, 1]
    audit = MembershipAudit.of(
        evaluate_models(state.models, torch.tensor(assignment), federation, engine), fitted, federation
    )
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
    found = audit.of_group(1, federation, one_group_mix(0, federation))
    assert found.accuracy == pytest.approx(balanced_accuracy_score(inside, scores > 0))
    assert found.auc == pytest.approx(roc_auc_score(inside, scores), abs=1e-4)
    assert abs(found.accuracy - audit.of_group(1, federation, one_group_mix(1, federation)).accuracy) > 1e-3
    assert abs(found.accuracy - 0.5) > 1e-3


def test_a_cluster_s_population_is_all_groups_by_share(scene):
    state, federation, engine = scene
    found = audited(scene, [0, 0, 1, 1, 1, 1]).of_cluster_in_population(0, federation)
    rows = torch.cat([federation.clients.owned(i) for i in (0, 1)])
    right = engine.outputs(state.models[0], federation.clients.x[rows]).argmax(1) == federation.clients.y[rows]
    wrong = (engine.outputs(state.models[0], federation.test.x).argmax(1) != federation.test.y).double()
    tnr = wrong[federation.test.group == 0].mean() / 3 + wrong[federation.test.group == 1].mean() * 2 / 3
    assert found.accuracy == pytest.approx(float(right.double().mean() + tnr) / 2)


def test_balanced_accuracy_of_margins_is_that_of_the_attack(scene):
    state, federation, engine = scene
    records = ShadowModels(number=2).train(state, federation, engine, LOCAL, Stream(0))
    fitted = [LossThreshold().fit(each, Stream(0)) for each in records]
    observed = evaluate_models(state.models, state.assignment, federation, engine)
    audit = MembershipAudit.of(observed, fitted, federation)
    mine = observed.owner < 2
    scores = fitted[0].score(observed.members[mine], observed.labels[mine])
    outside = fitted[0].score(observed.held_out[0], federation.test.y)[(federation.test.group == 0).numpy()]
    said = np.concatenate([scores, outside]) > fitted[0].threshold
    member = np.arange(len(said)) < len(scores)
    assert audit.of_group(0, federation, one_group_mix(0, federation)).accuracy == pytest.approx(
        balanced_accuracy(said, member)
    )


@pytest.mark.parametrize("settings", [{"number": 0}, {"size": 0}, {"epochs": 0}])
def test_bad_shadow_models_are_refused(settings):
    with pytest.raises(InputError, match=r"red_team\.shadow"):
        ShadowModels(**settings)


def test_the_red_team_takes_no_part_of_the_test_set_for_its_shadow_models(scene):
    """What the server trains on is the shadow set: with it spoiled, shadow models learn nothing."""
    state, federation, engine = scene
    blank = Examples(torch.zeros_like(federation.shadow.x), federation.shadow.y, federation.shadow.group)
    records = ShadowModels(number=1).train(state, replace(federation, shadow=blank), engine, LOCAL, Stream(0))
    assert torch.equal(records[0].outputs, records[0].outputs[:1].expand_as(records[0].outputs))
