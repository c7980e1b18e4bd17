"""What algorithms, defences and malicious clients may do through the engine's protocols; and how updates are merged."""

import pickle
from dataclasses import dataclass, replace

import pytest
import torch

from directed_halves import Halves
from shoal.algorithms import IFCA, Ditto, FedAvg
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, L2, NormClipping
from shoal.engine import (
    ClusterRound,
    DeployedModels,
    Engine,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
    Training,
    client_updates,
)
from shoal.engine.rounds.cohort_trainer import Aggregator
from shoal.engine.state import ClientVectors

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)


def states(model, federation, algorithm, rounds=2, local=LOCAL, threads=2, **others) -> list[State]:
    with Engine(model, threads=threads) as engine:
        training = Training(engine.prepare(federation), algorithm, local, engine, Stream(5), **others)
        first = training.start()
        return [first, *(state for state, _ in training.rounds(first, rounds))]


@dataclass(frozen=True)
class Obeys:
    """A defence that sets the weight decay which the server asks for."""

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        return replace(local, weight_decay=at.directive["strength"])


@dataclass(frozen=True)
class Absent(Halves):
    """As `Halves`, but the second client sits out; the state says what was kept of the updates."""

    def plan(self, state, cohort):
        plan = super().plan(state, cohort)
        trains = cohort.clients != 1
        weights = plan.trainings[0].weights * trains
        return replace(
            plan,
            trainings=(replace(plan.trainings[0], weights=weights, participates=trains, keep=lambda update: update),),
        )

    def server_update(self, state, cohort, plan, aggregate):
        after = super().server_update(state, cohort, plan, aggregate)
        return replace(after, clients={"kept": aggregate.kept[0]})


def test_a_client_that_does_not_participate_moves_nothing(model, build):
    first, after = states(model, build(), Absent(), rounds=1)
    kept = after.clients["kept"]
    moved = (kept != 0).any(dim=1)
    assert moved.tolist() == [True, False, True, True, True, True]
    torch.testing.assert_close(after.models[0], first.models[0] + (kept[0] + kept[2]) / 3, rtol=1e-4, atol=1e-6)
    assert after.trained[1].tolist() == [0, 0]
    (_, whole) = states(model, build(), Halves(), rounds=1)
    assert torch.equal(after.models[1], whole.models[1])


def test_a_directive_changes_its_own_cluster_alone(model, build):
    plain = states(model, build(), Halves())[-1]
    steered = states(model, build(), Halves((0.0, 0.3)), defenses=(Obeys(),))[-1]
    decayed = states(model, build(), Halves(), local=replace(LOCAL, weight_decay=0.3))[-1]
    assert torch.equal(steered.models[0], plain.models[0])
    torch.testing.assert_close(steered.models[1], decayed.models[1], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(steered.models[1], plain.models[1], rtol=1e-3)


def test_defences_are_called_for_each_cluster_and_round(model, build):
    asked = []

    class Asked:
        def local(self, local, at):
            asked.append((at.round, at.cluster, at.risk))
            return local

    states(model, build(), Halves(), rounds=2, defenses=(Asked(),))
    assert {each[:2] for each in asked} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert {risk for *_, risk in asked} == {0.5}


def test_a_fixed_defence_equals_local_training_with_its_setting(model, build):
    for defense, local in ((L2(0.1), replace(LOCAL, weight_decay=0.1)),):
        one, other = (
            states(model, build(), IFCA(2), defenses=(defense,))[-1],
            states(model, build(), IFCA(2), local=local),
        )
        assert torch.equal(one.models, other[-1].models)
    private = DPSGD(1.0, 0.5)
    by_defense = states(model, build(), FedAvg(), defenses=(private,))[-1]
    by_local = states(model, build(), FedAvg(), local=replace(LOCAL, gradient_privacy=private))[-1]
    assert torch.equal(by_defense.models, by_local.models)


@dataclass(frozen=True, eq=False)
class Sybils:
    """Clients that send the model back, and count how often they were called."""

    clients: torch.Tensor

    def start(self, state, stream):
        return {"called": torch.zeros(len(self.clients), dtype=torch.int64)}

    def train(self, request):
        called = request.state.adversary["called"] + (self.clients == request.client)
        assert len(request.shards) == 1
        return request.start.clone(), {"called": called}


def test_several_malicious_clients_share_their_memory(model, build):
    federation, sybils = build(), Sybils(torch.tensor([1, 4]))
    last = states(model, federation, FedAvg("equal"), rounds=3, malicious_clients=sybils)[-1]
    assert last.adversary["called"].tolist() == [3, 3]
    # Two of six sent no update, so the first round's average is four sixths of what the honest would make of it.
    first, one = states(model, federation, FedAvg("equal"), rounds=1, malicious_clients=sybils)
    with Engine(model) as engine:
        training = Training(federation, FedAvg("equal"), LOCAL, engine, Stream(5))
        report = training.round(first)[1]
        updates = [next(client_updates(training, first, report, client))[2] for client in (0, 2, 3, 5)]
    torch.testing.assert_close(
        one.models[0], first.models[0] + torch.stack(updates).sum(dim=0) / 6, rtol=1e-4, atol=1e-6
    )


def test_malicious_clients_train_personal_models_honestly(model, build):
    sybils = Sybils(torch.tensor([1, 4]))
    last = states(model, build(), Ditto(strength=0.5), rounds=2, malicious_clients=sybils)[-1]
    assert last.adversary["called"].tolist() == [2, 2]
    moved = (last.personal["ditto"].tensor() != states(model, build(), Ditto(), rounds=0)[0].models[0]).any(dim=1)
    assert moved.all(), "they train models of their own as everybody does"


def test_an_update_that_is_not_finite_names_round_and_client(model, build):
    class Broken(Sybils):
        def train(self, request):
            return request.start * torch.nan, request.state.adversary

    with pytest.raises(InputError, match="round 1 at client 4"):
        states(model, build(), FedAvg(), malicious_clients=Broken(torch.tensor([4])))


@dataclass(frozen=True)
class Splits:
    """FedAvg that splits its cluster in two after round 1, and keeps the norm of every update."""

    base: FedAvg = FedAvg()

    def check(self, local, risk_period):
        pass

    def init(self, engine, federation, local, stream):
        return self.base.init(engine, federation, local, stream)

    def plan(self, state, cohort):
        cluster = state.assignment[cohort.clients].clamp(min=0)
        weights = torch.nn.functional.one_hot(cluster, len(state.models)).T.double()
        weights /= weights.sum(dim=1, keepdim=True)
        training = LocalTraining(state.models, cluster, weights, keep=lambda update: update.norm(dim=1, keepdim=True))
        return RoundPlan(cluster, (training,))

    def server_update(self, state, cohort, plan, aggregate):
        norms = aggregate.kept[0]
        assert norms.shape == (len(cohort), 1)
        state = replace(state, models=aggregate.models, server={"norms": norms})
        if state.round > 1:
            return state
        halves = (torch.arange(len(state.assignment)) >= 3).long()
        return replace(state, models=state.models.repeat(2, 1), risks=state.risks.repeat(2), assignment=halves)

    def deployed_models(self, state, cohort):
        cluster = state.assignment[cohort.clients]
        return DeployedModels(state.models, cluster, cluster)


def test_the_number_of_models_may_change_between_rounds(model, build):
    federation = build()
    first, one, two, _ = states(model, federation, Splits(), rounds=3)
    assert [len(each.models) for each in (first, one, two)] == [1, 2, 2]
    assert torch.equal(one.models[0], one.models[1])
    assert not torch.equal(two.models[0], two.models[1])
    assert two.assignment.tolist() == [0, 0, 0, 1, 1, 1]
    assert (two.server["norms"] > 0).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_kept_updates_have_one_row_per_client(model, build, threads):
    federation = build()
    first, one = states(model, federation, Splits(), rounds=1, threads=threads)
    with Engine(model) as engine:
        training = Training(federation, Splits(), LOCAL, engine, Stream(5))
        report = training.round(first)[1]
        expected = [float(next(client_updates(training, first, report, i))[2].norm()) for i in range(6)]
    torch.testing.assert_close(one.server["norms"][:, 0], torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_an_update_filter_gets_a_seed_per_client_and_round(model, build):
    class Seeds:
        def __init__(self):
            self.seen = {}

        def filter(self, starts, ends, seeds):
            assert (starts.shape, len(seeds)) == (ends.shape, len(ends))
            for end, seed in zip(ends, seeds.tolist(), strict=True):
                assert seed not in self.seen
                self.seen[seed] = end.clone()
            return ends

    by_threads = []
    for threads in (1, 3):
        seeds = Seeds()
        states(model, build(), IFCA(2), rounds=2, update_filter=seeds, threads=threads)
        by_threads.append(seeds.seen)
    assert len(by_threads[0]) == 12
    assert by_threads[0].keys() == by_threads[1].keys()
    assert all(torch.equal(end, by_threads[1][seed]) for seed, end in by_threads[0].items())


def test_personal_models_pass_no_update_filter(model, build):
    shared, personal = (
        states(model, build(), Ditto(strength=0.5), update_filter=filter_)[-1] for filter_ in (NormClipping(1e-3), None)
    )
    first = states(model, build(), Ditto(strength=0.5), rounds=0)[0]
    assert float((shared.models - first.models).norm()) <= 2.1e-3
    assert float((shared.personal["ditto"].tensor() - first.models[0]).norm(dim=1).min()) > 1e-2
    assert not torch.equal(shared.models, personal.models)


def test_updates_are_not_kept_without_keep(model, build):
    kept = []

    class Keeps(Halves):
        def server_update(self, state, cohort, plan, aggregate):
            kept.append(aggregate.kept)
            return super().server_update(state, cohort, plan, aggregate)

    states(model, build(), Keeps())
    assert kept == [(None,), (None,)]


def test_newcomers_have_the_first_state_and_others_keep_theirs(mlp, build):
    federation = build()
    few = federation.take(torch.arange(4))
    assert torch.equal(few.ids, federation.ids[:4])
    before = states(mlp, few, Ditto(FedAvg()))[-1]
    with Engine(mlp, threads=1) as engine:
        training = Training(engine.prepare(federation), Ditto(FedAvg()), LOCAL, engine, Stream(5))
        first, joined = training.start(), training.with_newcomers(before)
        after, _ = training.round(joined)
        with pytest.raises(InputError, match=r"^a state of 6 clients .*got 4"):
            replace(training, federation=few).with_newcomers(joined)
        strange = replace(before, clients={"other": torch.zeros(4)})
        with pytest.raises(InputError, match=r"first state lacks .*\['other'\]"):
            training.with_newcomers(strange)
    assert joined.assignment.tolist() == [*before.assignment.tolist(), -1, -1]
    assert torch.equal(joined.personal["ditto"].tensor()[:4], before.personal["ditto"].tensor())
    assert torch.equal(joined.personal["ditto"].tensor()[4:], first.personal["ditto"].tensor()[4:])
    assert torch.equal(joined.models, before.models)
    assert (after.trained == after.round).all()


def test_losses_after_the_last_round_are_of_the_models_that_are_asked_for(mlp, build):
    with Engine(mlp) as engine:
        training = Training(engine.prepare(build()), IFCA(2), LocalSGD(), engine, Stream(0))
        state = training.start()
        other = replace(state, models=2 * state.models)
        found, expected = (
            [training.final_cohort(at(asked)).losses(asked.models) for asked in (state, other)]
            for at in (lambda _: state, lambda asked: asked)
        )
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert not torch.equal(*found)


def moved(models, weights, ends, parts):
    aggregator = Aggregator(models, weights)
    for clients in parts:
        aggregator.add(aggregator.partial_sum(clients, ends[clients]))
    return aggregator.result()


@pytest.mark.parametrize("size", [1, 3, 12])
def test_aggregated_models_do_not_depend_on_the_partial_sums(size):
    draw = Stream(0).generator()
    models, ends = torch.randn(3, 5, generator=draw), torch.randn(12, 5, generator=draw)
    weights = torch.rand(3, 12, generator=draw, dtype=torch.float64)
    # Rows sum to 1, to less, and to 0: one model moves all the way, one in part, and one stays.
    weights *= torch.tensor([[1.0], [0.4], [0.0]]) / weights.sum(dim=1, keepdim=True)
    expected = models.double() + torch.stack(
        [row @ (ends.double() - k) for row, k in zip(weights, models.double(), strict=True)]
    )
    found = moved(models, weights, ends, torch.arange(12).split(size))
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(found[2], models[2])


def test_sums_of_many_clients_lose_no_digits():
    """Client after client, float32 would be off by about 1e-5."""
    count = 3000
    found = moved(
        torch.zeros(1, 1), torch.full((1, count), 1 / count), torch.ones(count, 1), torch.arange(count).split(1)
    )
    assert float(found) == pytest.approx(1.0, abs=2e-7)


CLIENTS, WIDTH = 7, 5


def test_vectors_equal_a_tensor_and_every_earlier_value_stays():
    vectors = ClientVectors.same(torch.arange(float(WIDTH)), CLIENTS)
    reference = torch.arange(float(WIDTH)).repeat(CLIENTS, 1)
    values, draw = [(vectors, reference)], torch.Generator().manual_seed(0)
    for i in range(24):
        some = torch.randperm(CLIENTS, generator=draw)[: 1 + i % CLIENTS]
        update = torch.randn(len(some), WIDTH, generator=draw)
        if i % 2:
            vectors, reference = vectors.replace_rows(some, update), reference.index_copy(0, some, update)
        else:
            vectors, reference = vectors.add_rows(some, update), reference.index_add(0, some, update)
        values.append((vectors, reference))
    for value, expected in values:
        assert torch.equal(value[torch.tensor([4, 0])], expected[[4, 0]])
        assert value[torch.tensor([], dtype=torch.int64)].shape == (0, WIDTH)
        assert value.shape == expected.shape
        for same in (value, pickle.loads(pickle.dumps(value))):
            assert torch.equal(same.tensor(), expected)
            first, number = same.distinct()
            assert torch.equal(expected[first][number], expected)
            assert len(first) == len(expected.unique(dim=0))
            assert first.tolist() == sorted(first.tolist())


def test_a_vector_keeps_none_of_those_that_came_with_it():
    vectors = ClientVectors.same(torch.arange(float(WIDTH)), CLIENTS)
    stored = vectors.replace_rows(torch.arange(CLIENTS), torch.ones(CLIENTS, WIDTH))
    assert {row.untyped_storage().nbytes() for row in stored._rows} == {4 * WIDTH}
