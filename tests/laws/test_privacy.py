"""The laws that a stated epsilon rests on, over every algorithm.

One record of one client is replaced, and noise and batches are held. Under one state, and where the client chooses the
same model, what it sends moves by its clipped share of each step that the record takes part in, and nothing else that
the server receives moves at all; or DP-SGD is refused. The network is linear and so is its loss: then no gradient
depends on the parameters, and the bound is exact over several steps.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from every_algorithm import ALGORITHMS
from linear_training import MODEL, Kept
from shoal import algorithms, simulate
from shoal.algorithms.wrapper import choice_noise, with_bases
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import DPSGD, accounting
from shoal.engine import Cohort, Engine, LinearTerm, LocalSGD, LocalTraining, RoundPlan, State, Training
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.simulation.measure import accountable_trainings

CLIP = 0.5
RULE = DPSGD(CLIP, 0.5)
LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
PRIVATE = replace(LOCAL, gradient_privacy=RULE)
SIZES = (8, 12, 4, 16, 8, 12)
CLIENT, RECORD = 3, 5
REFUSED = (shoal.APFL, shoal.FedEM, shoal.FedRC, shoal.FedSoft, shoal.PACFL, shoal.PerFedAvg, shoal.Scaffold)


def refused(algorithm: Any) -> bool:
    """Whether DP-SGD should be refused: clients send what is computed without noise, or steps are not DP-SGD's."""
    return any(
        isinstance(each, REFUSED) or (isinstance(each, shoal.HypCluster) and each.start == "farthest-first")
        for each in with_bases(algorithm)
    )


ACCEPTED = [each for each in ALGORITHMS if not refused(each)]


def with_examples(federation: Federation, x: Tensor) -> Federation:
    return replace(federation, clients=replace(federation.clients, x=x))


def with_record(federation: Federation, factor: float) -> Federation:
    """With a multiple of one record in its place: 0 has the gradient 0, as if left out, and -1 the opposite one."""
    x = federation.clients.x.clone()
    x[federation.clients.indices_of(CLIENT)[RECORD]] *= factor
    return with_examples(federation, x)


def apart(federation: Federation) -> Tensor:
    """Other examples: each client has one pixel of its own, so that its data span what no other's do."""
    x = torch.zeros_like(federation.clients.x)
    for i in range(len(federation)):
        x[federation.clients.indices_of(i), 0, i] = 1.0 + i
    return x


@dataclass(frozen=True)
class Round:
    """A round of a federation, and the same of one with other examples."""

    plan: RoundPlan
    other_plan: RoundPlan
    moved: Tensor
    """How far what was sent moved (n,), a row for each client and training that is sent."""
    senders: Tensor
    bounds: Tensor
    """(n,), of a record that is left out."""
    server: bool
    """Whether the server's part of the round read nothing but what was sent."""


def rounds(algorithm: Any, federation: Federation, other: Federation, count: int = 2) -> Iterator[Round]:
    with Engine(MODEL, threads=1) as engine:
        one, two = (
            Kept(each, algorithm, LOCAL, engine, Stream(2), defenses=(RULE,), record_every=1)
            for each in (federation, other)
        )
        state = one.start()
        for _ in range(count):
            (after, report), (_, other_report) = one.round(state), two.round(state)
            sent, other_sent = report.updates, other_report.updates
            assert sent is not None
            assert other_sent is not None
            moved = (sent.updates - other_sent.updates).norm(dim=1)
            bounds = torch.cat([torch.empty(0), *bounds_of(one, state, report.plan)])
            cohort = one.cohort_of(state, report.cohort)
            merged = [one.merged(state, each, report.plan, one.aggregates[-1]) for each in (cohort, unread(cohort))]
            yield Round(report.plan, other_report.plan, moved, sent.clients, bounds, equal(*merged))
            state = after


def unread(cohort: Cohort) -> Cohort:
    """The cohort as the server would have it, without its examples."""

    def nothing(models: Tensor, *_: object) -> Tensor:
        return torch.zeros(len(cohort), len(models), dtype=torch.float64)

    return replace(cohort, scores=nothing, example_scores=nothing, labels=torch.zeros_like(cohort.labels))


def bounds_of(training: Training, state: State, plan: RoundPlan) -> Iterator[Tensor]:
    """What one record may move of what each client sends: C / B in each step, and a record is in one step a pass."""
    for index, each in enumerate(plan.trainings):
        if each.weights is None:
            continue
        found = []
        for i, k in enumerate(plan.clusters(index).tolist()):
            if each.participates is None or bool(each.participates[i]):
                local = training.local_of(state, k, each.local)
                passes = sum(phase.epochs for phase in each.phases if phase.tensors & each.shared) or local.epochs
                found.append(passes * local.learning_rate * CLIP / local.batch(SIZES[i]))
        yield torch.tensor(found)


def equal(one: State, other: State) -> bool:
    return all(torch.equal(*each) for each in zip(tensors(one), tensors(other), strict=True))


def tensors(state: State) -> list[Tensor]:
    kept = [*state.server.values(), *state.clients.values(), *(rows.tensor() for rows in state.personal.values())]
    return [state.models, state.assignment, state.trained, *kept]


def findings(algorithm: Any, federation: Federation) -> set[str]:
    """In what an algorithm breaks the law; nothing where it keeps it."""
    others = with_examples(federation, apart(federation))
    broken, compared = set[str](), 0
    with Engine(MODEL, threads=1) as engine:
        starts = [Training(each, algorithm, LOCAL, engine, Stream(2)).start() for each in (federation, others)]
    # A private choice reads the data through noise that the epsilon counts.
    private = choice_noise(algorithm) is not None
    if not private and not (starts[0].models.shape == starts[1].models.shape and equal(*starts)):
        broken.add("start")
    for each in rounds(algorithm, federation, with_record(federation, 0)):
        if not each.server:
            broken.add("server")
        if not torch.equal(each.plan.assignment, each.other_plan.assignment):
            continue
        compared += 1
        if bool((each.moved > each.bounds * (each.senders == CLIENT) + 1e-6).any()):
            broken.add("sent")
        for training, other in zip(each.plan.trainings, each.other_plan.trainings, strict=True):
            weights = training.weights, other.weights
            if weights[0] is not None and weights[1] is not None and not torch.equal(*weights):
                broken.add("weights")
    assert compared > 1
    return broken


def test_privacy_laws_cover_every_algorithm():
    kinds = {type(inside) for each in ALGORITHMS for inside in with_bases(each)}
    assert kinds == set(algorithms.ALGORITHMS.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_dp_sgd_is_refused_where_more_is_sent_than_noisy_gradients(algorithm):
    if not refused(algorithm):
        algorithm.check(PRIVATE, 1)
        return
    with pytest.raises(InputError, match=r"DP-SGD|needs plain SGD") as error:
        algorithm.check(PRIVATE, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algorithm", ACCEPTED, ids=repr)
def test_a_record_moves_what_is_sent_by_its_clipped_share(algorithm, build):
    assert findings(algorithm, build(SIZES)) == set()


@pytest.mark.parametrize(("factor", "shares"), [(0, 1), (-1, 2)])
def test_the_clipped_share_bound_is_tight(build, factor, shares):
    federation = build(SIZES)
    for each in rounds(shoal.FedAvg(), federation, with_record(federation, factor)):
        expected = shares * each.bounds * (each.senders == CLIENT)
        torch.testing.assert_close(each.moved, expected, rtol=1e-3, atol=1e-6)


class Faulty(shoal.FedAvg):
    """FedAvg in which something that is sent follows from clients' losses, without noise."""

    def changed(self, training: LocalTraining, losses: Tensor, state: State) -> LocalTraining:
        raise NotImplementedError

    def plan(self, state, cohort):
        plan = super().plan(state, cohort)
        (training,) = plan.trainings
        return replace(plan, trainings=(self.changed(training, cohort.losses(state.models).float(), state),))


class WeighedByLoss(Faulty):
    def changed(self, training, losses, state):
        return replace(training, weights=losses.softmax(dim=0).T.double())


class StartedByLoss(Faulty):
    def changed(self, training, losses, state):
        return replace(training, initial_params=state.models + losses, init_index=torch.arange(len(losses)))


class PulledByLoss(Faulty):
    def changed(self, training, losses, state):
        return replace(training, linear_term=LinearTerm(torch.ones(len(losses)), state.models + losses))


class SteppedByLoss(Faulty):
    def changed(self, training, losses, state):
        # Steps whose length follows from the losses: a sum over records stands where a constant should.
        return replace(training, local=replace(LOCAL, learning_rate=1 + float(losses[CLIENT].abs())))


@pytest.mark.parametrize(
    ("algorithm", "found"),
    [
        (shoal.FedSoft(2, 0.5), {"sent", "weights"}),
        (shoal.FedSoft(2, 0.0, start="clusters"), {"sent", "weights"}),
        (shoal.PACFL(45.0, 1), {"start"}),  # Of examples in one direction a second vector would be any.
        (shoal.HypCluster(3, "farthest-first"), {"server"}),
        (WeighedByLoss(), {"weights"}),
        (StartedByLoss(), {"sent"}),
        (PulledByLoss(), {"sent"}),
        (SteppedByLoss(), {"sent"}),
    ],
    ids=repr,
)
def test_faulty_algorithms_break_the_privacy_law(algorithm, found, build):
    assert findings(algorithm, build(SIZES)) == found


def marked(federation: Federation) -> Federation:
    """With the position of its client in a pixel of each example."""
    x = federation.clients.x.clone()
    for i in range(len(federation)):
        x[federation.clients.indices_of(i), 0, 0, 0] = float(i)
    return with_examples(federation, x)


TWICE = [
    shoal.FineTuning(shoal.Ditto(local=LocalSGD(steps=3, batch_size=4)), LocalSGD(epochs=3, batch_size="all")),
    shoal.Ditto(shoal.FineTuning(shoal.RDPCFL(2, 2, 1))),
]


@pytest.mark.parametrize("algorithm", [*ACCEPTED, *TWICE], ids=repr)
def test_epsilon_counts_every_private_step_on_a_client_s_examples(algorithm, build, monkeypatch):
    taken = [Counter[float]() for _ in SIZES]
    private_step = BoundNetwork.private_step

    def counted(self: BoundNetwork, x: Tensor, *rest: Any) -> None:
        owner = int(x[0, 0, 0, 0])
        taken[owner][len(x) / SIZES[owner]] += 1
        private_step(self, x, *rest)

    def composed(history: Iterable[tuple[float, float, int]], *_: object) -> float:
        """A number that tells sampling rates and steps apart, cheaper than Opacus'."""
        return sum(steps * math.exp(rate) for _, rate, steps in history)

    monkeypatch.setattr(BoundNetwork, "private_step", counted)
    monkeypatch.setattr(accounting, "composed_epsilon", composed)
    with Engine(MODEL, threads=1) as engine:
        training = Training(
            marked(build(SIZES)), algorithm, LOCAL, engine, Stream(2), participation=0.5, defenses=(RULE,)
        )
        state = [each for each, _ in training.rounds(training.start(), 3)][-1]
        training.deployed_models(state)
    trainings = accountable_trainings(training, state)
    assert trainings is not None
    cohorts = [training.cohort(number) for number in (1, 2, 3)]
    stated = accounting.PrivateTrainings(training.federation, cohorts, trainings, RULE).epsilons()
    spent = [composed((1.0, *part) for part in each.items()) for each in taken]
    if isinstance(algorithm, shoal.EarlyStopping | shoal.ServerOnly):
        assert all(one >= other for one, other in zip(stated.tolist(), spent, strict=True))
    else:
        assert stated.tolist() == pytest.approx(spent, rel=1e-9)
    assert max(spent) > 0 or isinstance(algorithm, shoal.ServerOnly)


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [(shoal.FedAvg(), 6), (shoal.Ditto(), 12), (shoal.Ditto(local=LocalSGD(steps=5, batch_size="all")), 21),
     (shoal.FineTuning(), 8), (shoal.FineTuning(shoal.Ditto()), 14)],
)  # fmt: skip
def test_a_run_states_the_epsilon_of_all_its_steps(algorithm, steps, build):
    """Full batches, three rounds of two: by Opacus' accountant and, from below, by exact Gaussian composition."""
    local, rule = LocalSGD(epochs=2, batch_size="all", learning_rate=0.1), DPSGD(CLIP, 4.0)
    found = simulate(build(SIZES), MODEL, algorithm, local, rounds=3, defenses=[rule])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import RDPAccountant  # noqa: PLC0415

        accountant = RDPAccountant()
        for _ in range(steps):
            accountant.step(noise_multiplier=4.0, sample_rate=1.0)
        expected = accountant.get_epsilon(rule.delta)
    assert found.clients["epsilon"].tolist() == pytest.approx([expected] * len(SIZES), rel=1e-9)
    assert gaussian_delta(steps**0.5 / 4.0, expected) < rule.delta
    # Twice the steps break it: the bound is not so loose that it would hide a training that is not counted.
    assert gaussian_delta((2 * steps) ** 0.5 / 4.0, expected) > rule.delta


def gaussian_delta(shift: float, epsilon: float) -> float:
    """The exact delta at ``epsilon`` of Gaussian steps of full batches, whose shifts add up as squares (Balle, Wang
    2018, Theorem 8)."""
    normal = NormalDist()
    return normal.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * normal.cdf(-shift / 2 - epsilon / shift)


class TrainsTwice(shoal.FedAvg):
    """FedAvg that trains once more and does not say so."""

    def plan(self, state, cohort):
        plan = super().plan(state, cohort)
        return replace(plan, trainings=plan.trainings * 2)


class TunesAfterwards(shoal.FedAvg):
    def deployed_models(self, state, cohort):
        return replace(super().deployed_models(state, cohort), fine_tuning=(None,))


@pytest.mark.parametrize("algorithm", [TrainsTwice(), TunesAfterwards()])
def test_an_undeclared_training_is_refused_with_dp_sgd(algorithm, build):
    simulate(build(SIZES), MODEL, algorithm, LOCAL, rounds=1)
    with pytest.raises(InputError, match="must declare every local training"):
        simulate(build(SIZES), MODEL, algorithm, LOCAL, rounds=1, defenses=[RULE])
