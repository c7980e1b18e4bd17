"""The laws of the design that bind whole rounds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from every_algorithm import ALGORITHMS
from shoal import algorithms
from shoal.algorithms import (
    APFL,
    IFCA,
    IFCAMIR,
    MRMTL,
    PACFL,
    ByGroup,
    Ditto,
    FedAvg,
    FedBN,
    FedEM,
    FedProx,
    FedRep,
    FedSoft,
    LocalOnly,
    PerFedAvg,
    PrivateMeans,
    Redraw,
    Scaffold,
    ServerOnly,
)
from shoal.algorithms.wrapper import with_bases
from shoal.attacks import Gap, LossThreshold, ShadowModels
from shoal.audit import RedTeam
from shoal.core.randomness import Stream
from shoal.data import Federation, Preferences
from shoal.engine import Engine, LocalSGD, RoundReport, State, Training, client_updates
from shoal.models import Model
from shoal.testing import check_algorithm, same_state

LOCAL = LocalSGD(epochs=2, batch_size=6, learning_rate=0.2)
"""Of clients of 5 to 12 examples: one of less than a batch, and others with whole and partial ones."""
GAP = RedTeam(every=1, estimator="audit", attack=Gap())
RED_TEAM = RedTeam(every=2, attack=LossThreshold(), shadow_models=ShadowModels(number=2))


def played(
    model: Model,
    federation: Federation,
    algorithm: Any,
    *,
    rounds: int = 4,
    local: LocalSGD = LOCAL,
    seed: int = 5,
    **settings: Any,
) -> State:
    rounds_settings = {key: settings.pop(key) for key in ("participation", "risk_estimator") if key in settings}
    with Engine(model, **settings) as engine:
        training = Training(engine.prepare(federation), algorithm, local, engine, Stream(seed), **rounds_settings)
        state = training.start()
        later = [each for each, _ in training.rounds(state, rounds)]
    return later[-1] if later else state


@dataclass(frozen=True)
class Run:
    """A run whose states laws read."""

    states: list[State]
    reports: list[RoundReport]


def run(model: Model, federation: Federation, algorithm: Any, rounds: int) -> Run:
    with Engine(model) as engine:
        training = Training(federation, algorithm, LOCAL, engine, Stream(5))
        states, reports = [training.start()], []
        for state, report in training.rounds(states[0], rounds):
            states.append(state)
            reports.append(report)
    return Run(states, reports)


@pytest.fixture(scope="module")
def plain_run(build) -> Callable[[Callable[[], nn.Module], int], Run]:
    """Two rounds of an algorithm, by its number, on a network, each computed once: laws compare others with them."""
    return cache(lambda network, number: run(Model(network), build(), ALGORITHMS[number], 2))


@pytest.fixture(params=ALGORITHMS, ids=repr)
def algorithm(request):
    return request.param


@pytest.fixture
def number(algorithm) -> int:
    return ALGORITHMS.index(algorithm)


@pytest.fixture
def network(number, request) -> Model:
    """The convolutional network for every other algorithm, the dense one (and its backend) for the rest.

    For laws that no network can bend; `test_backends_agree` takes the pairs that it needs.
    """
    return request.getfixturevalue(("cnn", "mlp")[number % 2])


@pytest.fixture
def plain(plain_run, network, number) -> Run:
    return plain_run(network.build, number)


def test_all_beta_follows_risk_alone(model, build):
    state = played(model, build(beta=1.0), IFCAMIR(), rounds=3, risk_estimator=RED_TEAM)
    assert state.assignment.tolist() == [int(state.risks.argmin())] * 6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_step_of_gradient_averaging_is_model_averaging_by_the_cluster_s_part(model, build, seed):
    step = LocalSGD(steps=1, batch_size="all", learning_rate=0.3)
    federation = build()
    before = played(model, federation, IFCA(2), rounds=0, seed=seed)
    by_model, by_gradient = (
        played(model, federation, IFCA(2, averaging=averaging), rounds=1, local=step, seed=seed)
        for averaging in ("model", "gradient")
    )
    part = torch.bincount(by_model.assignment, minlength=2)[:, None] / len(federation)
    torch.testing.assert_close(
        by_gradient.models - before.models, part * (by_model.models - before.models), rtol=1e-3, atol=1e-7
    )


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_watching_and_threads_change_no_bit(model, build, backend):
    for algorithm in (FedAvg(), IFCA(2)):
        given = {"backend": backend, "threads": 2}
        unwatched = played(model, build(), algorithm, **given)
        for options in ({"threads": 1}, {"threads": 3}, {"risk_estimator": RED_TEAM}):
            watched = played(model, build(), algorithm, **given | options)
            estimates = {name: getattr(watched, name) for name in ("risks", "risk_intervals")}
            assert same_state(watched, replace(unwatched, **estimates)), options


KINDS_OF_STEPS = (FedAvg, FedProx, Scaffold, FedSoft, FedEM, FedRep, FedBN, APFL, PerFedAvg, ServerOnly)
"""Plain; with a linear term; from mixtures of models; of weighted examples; of some tensors; by a rule."""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(kind, number, id=f"{kind}-{each!r}")
        for number, each in enumerate(ALGORITHMS)
        for kind in ("mlp", "cnn")
        # Gradients by vmap know no algorithms, but what a step is made of.
        if kind == "mlp" or isinstance(each, KINDS_OF_STEPS)
    ],
)
def test_backends_agree(plain_run, kind, number, build, request):
    # Two rounds: Adam's and Yogi's steps divide by small numbers, which makes rounding errors grow from round to round.
    model, backend = request.getfixturevalue(kind), {"cnn": "vmap", "mlp": "loop"}[kind]
    usual = plain_run(model.build, number).states[-1]
    other = played(model, build(), ALGORITHMS[number], rounds=2, backend=backend)
    assert torch.equal(usual.assignment, other.assignment)
    torch.testing.assert_close(usual.models, other.models, rtol=1e-4, atol=1e-5)
    for name, own in usual.clients.items():
        torch.testing.assert_close(own, other.clients[name], rtol=1e-3, atol=1e-5)


def test_every_algorithm_keeps_the_laws(algorithm, network, build):
    federation = build()
    x = federation.clients.x.clone()
    check_algorithm(algorithm, federation, network, LOCAL, risk_estimator=GAP)
    assert torch.equal(federation.clients.x, x)


PERSONAL = (Scaffold, Ditto, LocalOnly, MRMTL, FedSoft, FedRep, FedBN, APFL)
"""Algorithms that keep a vector as long as a model, or nearly, for each client."""


def test_algorithms_with_personal_vectors_are_listed(plain, algorithm):
    """Else one of them copies N x P numbers in every round, or is missing below."""
    state, base = plain.states[0], getattr(algorithm, "base", None)
    assert bool(state.personal) == (isinstance(algorithm, PERSONAL) or isinstance(base, PERSONAL))
    assert all(tensor.numel() < state.models[0].numel() for tensor in state.clients.values()), "it belongs to personal"


def test_models_move_by_the_mean_of_the_updates_or_the_algorithm_says_that_they_do_not(
    plain_run, mlp, build, algorithm, number
):
    """Property attacks take single updates out of that mean. First rounds, in which clusters are made, are left out."""
    by_average = all(getattr(each, "moves_by_average", True) for each in with_bases(algorithm))
    run = plain_run(mlp.build, number)
    _, before, after = run.states
    report = run.reports[-1]
    if len(after.models) != len(before.models):
        return
    total = torch.zeros_like(before.models)
    with Engine(mlp) as engine:
        training = Training(engine.prepare(build()), algorithm, LOCAL, engine, Stream(5))
        for client in training.federation.ids[report.cohort].tolist():
            for k, weight, update in client_updates(training, before, report, client):
                total[k] += weight * update
    assert torch.allclose(total, after.models - before.models, rtol=1e-3, atol=1e-5) == by_average


def test_models_start_apart_and_move(plain, algorithm):
    before, after, _ = plain.states
    # Clusters that models do not choose start from one model.
    if not isinstance(algorithm, ByGroup | PACFL | PrivateMeans):
        assert len(torch.unique(before.models, dim=0)) == len(before.models), "models must start apart"
    if algorithm == LocalOnly():
        # Nobody sends anything, so it is the clients' models that move.
        assert torch.equal(after.models, before.models)
        before_all, after_all = before.personal["local"].tensor(), after.personal["local"].tensor()
        assert (after_all != before_all).any(dim=1).all()
    else:
        assert torch.equal(after.models, before.models) == (algorithm == ServerOnly(epochs=1))


@pytest.mark.parametrize("participation", [1e-9, 0.08, 0.5])
def test_a_round_has_the_fraction_of_the_clients_and_at_least_one(model, build, participation):
    federation = build()
    with Engine(model) as engine:
        training = Training(federation, FedAvg(), LOCAL, engine, Stream(5), participation=participation)
        assert len(training.cohort(1)) == max(round(participation * len(federation)), 1)


def test_partial_participation_assigns_only_participants(model, build):
    federation = build()
    with Engine(model) as engine:
        training = Training(federation, IFCA(2), LOCAL, engine, Stream(5), participation=0.5)
        after, report = training.round(training.start())
    assert len(report.cohort) == 3
    assert sorted(torch.nonzero(after.assignment >= 0).flatten().tolist()) == sorted(report.cohort.tolist())


def test_mini_batch_choice_scores_the_batch_that_trains_first(build, mlp):
    federation, local = build(), replace(LOCAL, batch_size=4)
    stream = Stream(7)("batches")
    batch = local.first_batch(federation.clients, federation.ids, stream)
    orders = local.randomness(federation.clients, federation.ids, stream).orders
    for i in range(len(federation)):
        assert torch.equal(batch.indices_of(i), federation.clients.indices_of(i)[orders[i, 0, :4]])


def test_redraw_takes_models_that_each_win_enough_clients(mlp, build):
    federation = build()
    with Engine(mlp) as engine:
        for share in (0.3, 0.45):
            algorithm = IFCA(2, redraw=Redraw(share=share, clients=6, attempts=200))
            models = algorithm.init(engine, federation, LOCAL, Stream(5)).models
            won = torch.bincount(engine.losses(models, federation.clients).argmin(dim=1), minlength=2)
            assert won.min() >= share * 6


def test_redraw_gives_up_with_a_warning(mlp, build, caplog):
    federation = build()
    with Engine(mlp) as engine:
        IFCA(2, redraw=Redraw(share=0.5, clients=3, attempts=2)).init(engine, federation, LOCAL, Stream(5))
    assert "none of 2 draws of initial models" in caplog.text


def test_the_representation_of_an_algorithm_is_the_algorithm(algorithm):
    assert eval(repr(algorithm), {**vars(algorithms), "LocalSGD": LocalSGD}) == algorithm


def test_deployed_models_have_the_reported_losses(plain, algorithm, network, build):
    federation, state = build(), plain.states[2]
    with Engine(network) as engine:
        training = Training(federation, algorithm, LOCAL, engine, Stream(5))
        deployed, losses = training.deployed_models(state)
        expected = [
            engine.losses(deployed.models[s][None], federation.clients.take(torch.tensor([i])))[0, 0]
            for i, s in enumerate(deployed.model.tolist())
        ]
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_ifca_mir_weighs_risk_as_line_12_says(mlp, build):
    losses = torch.tensor([[1.0, 1.2]] * 6, dtype=torch.float64)
    # The second model is better for a client when beta * 0.3 > alpha * 0.2, that is when beta > 0.4.
    beta = torch.tensor([0.3, 0.39, 0.41, 0.0, 1.0, 0.5], dtype=torch.float64)
    with Engine(mlp) as engine:
        training = Training(build(), IFCAMIR(), LOCAL, engine, Stream(5))
        state = replace(training.start(), risks=torch.tensor([0.9, 0.6], dtype=torch.float64))
        cohort = training.cohort_of(state, torch.arange(6))
        asked = replace(cohort, preferences=Preferences(beta, beta), scores=lambda models, examples: losses)
        plan = IFCAMIR().plan(state, asked)
    assert plan.assignment.tolist() == [0, 0, 1, 0, 1, 1]
    assert plan.losses is losses


def test_with_different_initial_models_clients_find_their_groups(mlp, build):
    # From most initial models; from some, IFCA ends with one cluster for all, as its theory allows.
    local = LocalSGD(epochs=3, batch_size=4, learning_rate=0.3)
    found = [played(mlp, build((20,) * 6), IFCA(2), rounds=5, local=local, seed=seed).assignment for seed in range(5)]
    assert sum(assignment.tolist() in ([0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]) for assignment in found) >= 3
