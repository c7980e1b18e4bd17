"""Attacks with reference models: what they are given, and that they run wherever others do."""

from dataclasses import dataclass, field

import pytest
import torch

from calibrated_confidence import CalibratedConfidence, FittedCalibratedConfidence
from full_simulation import simulate_with
from shoal.algorithms import IFCA
from shoal.attacks import Gap, LossHistograms, LossThreshold, Query, ShadowModels
from shoal.audit import RedTeam
from shoal.audit.model_scores import evaluate_models
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import LocalSGD

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)


@dataclass(frozen=True, eq=False)
class Recording:
    """The calibrated confidence, with a list of the queries that it scored."""

    needs = "reference models"
    queries: list[Query] = field(default_factory=list)

    def fit(self, records, stream):
        return FittedRecording(CalibratedConfidence().fit(records, stream), self.queries)


@dataclass(frozen=True, eq=False)
class FittedRecording:
    fitted: FittedCalibratedConfidence
    queries: list[Query]

    @property
    def threshold(self):
        return self.fitted.threshold

    def score(self, query):
        self.queries.append(query)
        return self.fitted.score(query)


@pytest.fixture
def records(clustered):
    return ShadowModels(number=3).records(*clustered, (LOCAL,) * 2, Stream(0), keep_models=True)


def outputs_of(models, x, engine):
    return torch.stack([engine.outputs(model, x) for model in models])


def test_reference_models_are_the_shadow_models_and_know_their_members(clustered, records):
    _, federation, engine = clustered
    for cluster in records:
        reference = cluster.reference
        torch.testing.assert_close(reference.outputs, outputs_of(reference.models, federation.shadow.x, engine))
        for r in range(3):
            one = cluster.where(cluster.shadow == r)
            members = torch.zeros(len(federation.shadow), dtype=torch.bool)
            members[one.example[one.member]] = True
            assert torch.equal(reference.member[r], members)
            assert torch.equal(one.labels, federation.shadow.y[one.example])
            assert torch.equal(one.outputs, reference.outputs[r, one.example])


def test_a_shadow_model_kept_is_the_one_that_would_have_been_dropped(clustered, records):
    for kept, dropped in zip(records, ShadowModels(number=3).records(*clustered, (LOCAL,) * 2, Stream(0)), strict=True):
        torch.testing.assert_close(kept.outputs, dropped.outputs)
        for name in ("labels", "member", "shadow", "example"):
            assert torch.equal(getattr(kept, name), getattr(dropped, name))
        assert dropped.reference is None


def test_a_shadow_model_is_compared_with_the_others(records):
    cluster, reference = records[1], records[1].reference
    for r, rest in enumerate(([1, 2], [0, 2], [0, 1])):
        query, one = cluster.query(r), cluster.where(cluster.shadow == r)
        assert torch.equal(query.outputs, one.outputs)
        assert torch.equal(query.labels, one.labels)
        assert torch.equal(query.reference, reference.outputs[rest][:, one.example])
        assert torch.equal(query.reference_member, reference.member[rest][:, one.example])


def test_without_one_shadow_model_the_others_are_as_they_were(records):
    cluster = records[0]
    rest = cluster.without(1)
    assert torch.equal(rest.reference.models, cluster.reference.models[[0, 2]])
    for new, old in enumerate((0, 2)):
        assert torch.equal(rest.query(new).outputs, cluster.query(old).outputs)
        assert torch.equal(rest.query(new).reference[0], cluster.query(old).reference[0 if old == 2 else 1])


@pytest.mark.parametrize("estimator", ["audit", "federated"])
def test_members_and_others_are_asked_of_their_model_and_of_its_reference_models(clustered, estimator):
    state, federation, engine = clustered
    attack, local, expected = Recording(), (LOCAL,) * 2, []
    team = RedTeam(1, estimator, attack, ShadowModels(number=2))
    _, records = team.fit(state, federation, engine, local, Stream(2))
    team.estimate(state, federation, engine, local, Stream(2))
    for k in range(2):
        clients = torch.nonzero(state.assignment == k).flatten()
        for shards in (federation.clients, federation.holdout):
            rows = torch.cat([shards.indices_of(int(i)) for i in clients])
            expected.append((k, shards.x[rows], shards.y[rows]))
    if estimator == "audit":
        expected[1::2] = [(k, federation.test.x, federation.test.y) for k in range(2)]
    for query, (k, x, y) in zip(attack.queries, expected, strict=True):
        assert torch.equal(query.labels, y)
        torch.testing.assert_close(query.outputs, engine.outputs(state.models[k], x))
        torch.testing.assert_close(query.reference, outputs_of(records[k].reference.models, x, engine))
        assert query.reference_member.shape == query.reference.shape[:2]
        assert not query.reference_member.any()


def test_the_shadow_estimator_leaves_the_judged_model_out(clustered):
    attack = Recording()
    team = RedTeam(1, "shadow", attack, ShadowModels(number=3))
    state, federation, engine = clustered
    stream = Stream(2)("shadow models")
    records = team.shadow_models.records(state, federation, engine, (LOCAL,) * 2, stream, keep_models=True)
    team.estimate(state, federation, engine, (LOCAL,) * 2, Stream(2))
    expected = [cluster.query(r) for cluster in records for r in range(3)]
    for query, right in zip(attack.queries, expected, strict=True):
        for name, value in vars(right).items():
            asked = getattr(query, name)
            assert torch.equal(asked, value) if isinstance(value, torch.Tensor) else asked is value


@pytest.mark.parametrize(
    "team",
    [
        RedTeam(1, "audit", CalibratedConfidence(), ShadowModels(number=3)),
        RedTeam(1, "shadow", LossThreshold(), ShadowModels(number=2, training="federated")),
        RedTeam(1, "histogram", Gap()),
        RedTeam(1, "histogram", Gap(), histograms=LossHistograms(0.5)),
    ],
    ids=repr,
)
def test_watching_changes_nothing(mlp, build, team):
    watched, alone = (
        simulate_with(build(), mlp, IFCA(2), LOCAL, rounds=2, threads=1, red_team=estimator)
        for estimator in (team, None)
    )
    for group in ("rows", "columns"):
        assert 0 <= watched.summary.by_group[group]["mia"] <= 1
    assert watched.rounds["risk"].notna().all()
    assert torch.equal(watched.state.models, alone.state.models)


def test_other_attacks_keep_no_models_and_evaluate_none(clustered):
    state, federation, engine = clustered
    for attack in (LossThreshold(), Gap()):
        _, records = RedTeam(1, "audit", attack).fit(state, federation, engine, (LOCAL,) * 2, Stream(2))
        members = state.assignment[:, None] == torch.arange(2)
        outputs = evaluate_models(state.models, members, federation, engine, records)
        assert all(cluster.reference is None for cluster in records)
        assert outputs.reference_members == outputs.reference_test == {}


@pytest.mark.parametrize(("every", "estimator", "least"), [(1, "shadow", 3), (0, "shadow", 2), (1, "federated", 2)])
def test_too_few_shadow_models_to_compare_with_are_refused(every, estimator, least):
    RedTeam(every, estimator, CalibratedConfidence(), ShadowModels(number=least))
    RedTeam(every, estimator, LossThreshold(), ShadowModels(number=1))
    with pytest.raises(InputError, match=rf"needs at least {least} shadow models \(got {least - 1}"):
        RedTeam(every, estimator, CalibratedConfidence(), ShadowModels(number=least - 1))
