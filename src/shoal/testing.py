"""Checks of the laws that every algorithm, attack and defence must satisfy, for your own tests; see docs/adding.md."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms import FedAvg
from shoal.attacks import MembershipAttack, Query, Records, ReferenceModels
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import Defense, TrainingSetup
from shoal.engine import Algorithm, Cohort, Engine, LocalSGD, RiskEstimator, State, Training
from shoal.metrics.intervals import Floats
from shoal.models import Model
from shoal.runs.run import simulate
from shoal.toy import noisy_groups


def same_state(one: State, other: State) -> bool:
    """Return whether two states are equal bit for bit, with NaN equal to NaN."""
    tables = [vars(state) | {"personal": {k: v.tensor() for k, v in state.personal.items()}} for state in (one, other)]
    try:
        torch.testing.assert_close(*tables, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def check_algorithm(
    algorithm: Algorithm,
    federation: Federation | None = None,
    model: Model | None = None,
    local: LocalSGD | None = None,
    *,
    rounds: int = 2,
    participation: float = 0.5,
    risk_estimator: RiskEstimator | None = None,
) -> None:
    """Check the laws of an algorithm on a few rounds of a small federation.

    The algorithm must equal its copy. The first state must depend only on the seed. A round must depend only on the
    seed and the given state, and must not change the given state. The order of clients must change results only by
    rounding. The aggregation weights of a cluster with clients must sum to 1. A round without clients must change no
    model.

    Args:
        federation, model, local: the federation, model and local training, by default those of
            `shoal.toy.noisy_groups`.
        rounds: the number of rounds in each of two runs; all clients take part in the first run.
        participation: the fraction of clients per round in the second run.
        risk_estimator: an estimator such as `shoal.RedTeam`, if the algorithm needs risks.

    Raises:
        AssertionError: a law is broken.

    Example:
        >>> import shoal
        >>> from shoal.testing import check_algorithm
        >>> check_algorithm(shoal.IFCA(clusters=2))
    """
    toy_federation, toy_model, toy_local = noisy_groups()
    everybody, trained_by = federation or toy_federation, local or toy_local
    _check_value(algorithm, Algorithm)
    with Engine(model or toy_model) as engine:
        for share in (1.0, participation):

            def training(clients: Federation, fraction: float = share) -> Training:
                given = {"participation": fraction, "risk_estimator": risk_estimator}
                return Training(engine.prepare(clients), deepcopy(algorithm), trained_by, engine, Stream(0), **given)

            straight = training(everybody)
            first = straight.start()
            assert same_state(first, training(everybody).start()), "the first state depends on more than the seed"
            _check_first(first, len(everybody))
            _check_plan(algorithm, first, straight.cohort_of(first, torch.arange(len(everybody))))
            state = first
            for _ in range(rounds):
                restored = deepcopy(state)
                after, _report = straight.round(state)
                assert same_state(state, restored), "a round changes the given state; return a new state"
                resumed, _report = training(everybody).round(restored)
                assert same_state(after, resumed), "a round depends on more than the seed and the state"
                state = after
            _check_deployed(straight, state)
            order = torch.arange(len(everybody)).roll(1).flip(0)
            other = training(everybody.take(order))
            *_, (permuted, _report) = other.rounds(other.start(), rounds)
            _check_permuted(state, permuted, order)
        idle, _report = training(everybody, 0.0).round(first)
        assert torch.equal(idle.models, first.models), "a round without clients changes a model"
        assert bool((idle.assignment == -1).all()), "a round without clients assigns clients to clusters"


def _check_value(value: object, protocol: type) -> None:
    name = type(value).__name__
    assert isinstance(value, protocol), f"{name} lacks a method of {protocol.__name__}"
    assert deepcopy(value) == value, f"{name} differs from its copy; make it a frozen dataclass"


def _check_first(state: State, clients: int) -> None:
    assert (state.round, state.assignment.tolist()) == (0, [-1] * clients), "the first state has a round or clusters"
    assert all(len(own) == clients for own in state.clients.values()), "a tensor of State.clients lacks a client"
    tensors = [state.models, state.risks, state.assignment, state.trained]
    tensors += [tensor for part in (state.server, state.clients, state.directives) for tensor in part.values()]
    memory = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    assert len(set(memory)) == len(memory), "two tensors of the state share memory, which checkpoints refuse; clone one"


def _check_plan(algorithm: Algorithm, state: State, cohort: Cohort) -> None:
    plan = algorithm.plan(state, cohort)
    assert plan.assignment.shape == cohort.clients.shape, "a plan must assign each client of the round to one cluster"
    assert set(plan.assignment.tolist()) <= {*range(len(state.models))}, "a plan assigns a client to an unknown model"
    sums = [training.weights.sum(dim=1) for training in plan.trainings if training.weights is not None]
    if sums:
        total, chosen = torch.stack(sums).sum(dim=0), torch.bincount(plan.assignment, minlength=len(state.models)) > 0
        whole = torch.isclose(total, torch.ones_like(total)) | ((total == 0) & ~chosen)
        assert bool(whole.all()), f"the weights of a chosen cluster must sum to 1; the sums are {total.tolist()}"


def _check_deployed(training: Training, state: State) -> None:
    deployed, losses = training.deployed_models(state)
    clients = len(training.federation)
    assert deployed.model.shape == deployed.assignment.shape == losses.shape == (clients,), "a client has no model"
    assert set(deployed.assignment.tolist()) <= {*range(len(state.models))}, "a client uses an unknown cluster"


def _check_permuted(straight: State, permuted: State, order: Tensor) -> None:
    assert torch.equal(permuted.assignment, straight.assignment[order]), "clusters depend on the order of the clients"
    near = torch.allclose(permuted.models, straight.models, rtol=1e-4, atol=1e-5)
    assert near, "models depend on the order of the clients"
    for name, own in straight.clients.items():
        near = torch.allclose(permuted.clients[name].double(), own[order].double(), rtol=1e-3, atol=1e-5)
        assert near, f"State.clients['{name}'] depends on the order of the clients"


def check_attack(attack: MembershipAttack) -> None:
    """Check the laws of a membership-inference attack on simulated outputs of shadow models.

    The attack must equal its copy. Fits with equal streams must give equal scores. Each record must have one finite
    score, which must not depend on the other records.

    Raises:
        AssertionError: a law is broken.

    Example:
        >>> import shoal
        >>> from shoal.testing import check_attack
        >>> check_attack(shoal.LossThreshold())
    """
    _check_value(attack, MembershipAttack)
    models, examples, classes = 3, 40, 4
    draw = Stream(0)("records").generator()
    outputs = torch.randn(models, examples, classes, generator=draw)
    labels = torch.randint(0, classes, (examples,), generator=draw)
    member = torch.rand(models, examples, generator=draw) < 0.5
    outputs[:, torch.arange(examples), labels] += 1.0 + member
    rows = torch.arange(models * examples)
    records = Records(outputs.flatten(0, 1), labels.repeat(models), member.flatten(), rows // examples, rows % examples)
    if attack.needs == "reference models":
        records = replace(records, reference=ReferenceModels(torch.zeros(models, 1), member, outputs))

    def scores(order: Tensor) -> Floats:
        query = records.query(0)
        reference, reference_member = (
            None if part is None else part[:, order] for part in (query.reference, query.reference_member)
        )
        fitted = attack.fit(records.without(0), Stream(0))
        return fitted.score(Query(query.outputs[order], query.labels[order], reference, reference_member))

    straight, some = scores(rows[:examples]), torch.arange(0, examples, 3).flip(0)
    assert straight.shape == (examples,), f"scores must be one number per record; their shape is {straight.shape}"
    assert bool(np.isfinite(straight).all()), "a score is not finite"
    assert np.array_equal(straight, scores(rows[:examples])), "scores depend on more than the records and the stream"
    assert np.allclose(scores(some), straight[some.numpy()], rtol=1e-9), "a score depends on other records"


def check_defense(defense: Defense, federation: Federation | None = None, model: Model | None = None) -> None:
    """Check the laws of a defence on two rounds of FedAvg in a small federation.

    The defence must equal its copy, and must not change the given setup. Equal seeds must give equal models. The order
    of clients must change models only by rounding.

    Args:
        federation, model: the federation and model to defend, by default those of `shoal.toy.noisy_groups`.

    Raises:
        AssertionError: a law is broken.

    Example:
        >>> import shoal
        >>> from shoal.testing import check_defense
        >>> check_defense(shoal.L2(0.1))
    """
    toy_federation, toy_model, local = noisy_groups()
    federation, model = federation or toy_federation, model or toy_model
    _check_value(defense, Defense)
    setup = TrainingSetup(model, local, kind=federation.kind)
    given = dict(vars(setup))
    assert isinstance(defense.apply(setup), TrainingSetup), "'apply' must return a TrainingSetup"
    assert vars(setup) == given, "'apply' changes the given setup; return a new one"

    def trained(clients: Federation) -> State:
        state = simulate(clients, model, FedAvg(), local, rounds=2, defenses=[defense]).state
        assert state is not None
        return state

    state, order = trained(federation), torch.arange(len(federation)).flip(0)
    assert same_state(state, trained(federation)), "training depends on more than the seed"
    _check_permuted(state, trained(federation.take(order)), order)
