"""A round by messages is the simulator's, and what does not fit several machines is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.algorithms import (
    CFL,
    IFCA,
    IFCAMIR,
    CoordinateMedian,
    Ditto,
    FedAvg,
    FedEM,
    FedOpt,
    FedProx,
    FedSoft,
    HypCluster,
    IFCAWithinLimit,
    MultiKrum,
    PricedChoice,
    Redraw,
    RiskAwareChoice,
    Scaffold,
    TrimmedMean,
)
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import DPSGD
from shoal.engine import Engine, LocalSGD, Received, State, Training, client_round, server_plan, server_round
from shoal.models import Model
from shoal_flower.messages import parts_of

CLIENTS = 5


def a_federation() -> Federation:
    generator = torch.Generator().manual_seed(3)
    examples = [
        (torch.randn(6 + 2 * i, 4, generator=generator), torch.randint(0, 3, (6 + 2 * i,), generator=generator))
        for i in range(CLIENTS)
    ]
    return Federation.from_tensors(examples, test=examples[0], beta=[0.0, 0.3, 0.5, 0.7, 1.0])


ALGORITHMS = [
    FedAvg(),
    IFCA(2),
    IFCAMIR(IFCA(2, weighting="examples")),
    HypCluster(2, optimizer="adam", server_learning_rate=0.1),
    FedSoft(2),
    CFL(eps1=10.0, eps2=0.0, warm_up=1),
    Ditto(IFCA(2)),
    FedOpt(IFCA(2)),
    FedProx(IFCA(2), 0.5),
    IFCAWithinLimit(IFCA(2)),
    RiskAwareChoice(FedOpt(IFCA(2))),
    PricedChoice(IFCA(2), (0.2, 0.0)),
    FedOpt(CoordinateMedian(IFCA(2))),
    TrimmedMean(FedAvg(), 0.4),
    MultiKrum(Ditto(IFCA(2)), byzantine=1),
]


def by_messages(algorithm, federation: Federation, local: LocalSGD, engine: Engine, rounds: int, defenses=()) -> State:
    """The server's state after some rounds in which every client is another process would be."""
    stream, choice = Stream(5), parts_of(algorithm).choice

    def training(of: Federation, part) -> Training:
        return Training(federation=of, algorithm=part, local=local, engine=engine, stream=stream, defenses=defenses)

    server = training(federation, parts_of(algorithm).server)
    state = replace(server.start(), risks=torch.tensor([0.5, 0.9][: len(server.start().models)], dtype=torch.float64))
    everyone, sizes, memories = torch.arange(len(federation)), federation.clients.sizes, {}
    for _ in range(rounds):
        updates, cluster = [], torch.zeros(len(federation), dtype=torch.int64)
        unknown = torch.ones(len(federation), len(state.models), dtype=torch.int64)
        plan = server_plan(server, state, everyone, sizes, unknown) if choice == "server" else None
        for i in range(len(federation)):
            one = federation.take(torch.tensor([i]))
            offered, risks = state.models, state.risks
            if plan is not None:
                (sent,) = plan.trainings
                cluster[i], offered = plan.assignment[i], sent.initial_params[sent.init_index[i]][None]
                risks = state.risks[plan.assignment[i]][None]
            node = training(one, parts_of(algorithm).client)
            first = replace(node, federation=one.take(torch.zeros(len(offered), dtype=torch.int64))).start()
            before = memories.get(i) or replace(
                first,
                assignment=first.assignment[:1],
                clients={name: rows[:1] for name, rows in first.clients.items()},
                personal={name: rows.same(rows[torch.zeros(1).long()][0], 1) for name, rows in first.personal.items()},
            )
            before = replace(
                before, round=state.round, models=offered, risks=risks, trained=torch.zeros(1, len(offered)).long()
            )
            update, memories[i] = client_round(node, before, count_best=choice == "shares")
            updates.append(update)
            cluster[i] = cluster[i] if plan is not None else update.cluster
        best = torch.nn.functional.one_hot(cluster, len(state.models)) * sizes[:, None]
        if choice == "shares":
            best = torch.stack([update.best for update in updates])
        received = Received(everyone, sizes, best, torch.stack([update.end for update in updates]))
        state, _ = server_round(server, state, received)
    return state


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_rounds_by_messages_are_the_simulators_bit_for_bit(algorithm):
    assert_messages_are_the_simulators(algorithm)


def test_an_algorithm_of_ones_own_is_deployed(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "docs" / "examples"))
    from damped import Damped  # noqa: PLC0415

    assert_messages_are_the_simulators(Damped(Ditto(IFCA(2)), 0.25))


def test_an_algorithm_without_parts_for_several_machines_is_refused():
    with pytest.raises(InputError, match=r"Scaffold does not run on several machines.*those that do are FedAvg, IFCA"):
        parts_of(Scaffold())
    with pytest.raises(InputError, match="FedEM does not run on several machines: it has no method 'remote_rounds'"):
        parts_of(FedOpt(FedEM()))


def assert_messages_are_the_simulators(algorithm) -> None:
    federation, model = (
        a_federation(),
        Model(lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))),
    )
    local = LocalSGD(epochs=2, batch_size=4, learning_rate=0.3)
    with Engine(model, threads=1, backend="loop") as engine:
        simulated = Training(federation=federation, algorithm=algorithm, local=local, engine=engine, stream=Stream(5))
        state = simulated.start()
        state = replace(state, risks=torch.tensor([0.5, 0.9][: len(state.models)], dtype=torch.float64))
        (*_, (state, _)) = simulated.rounds(state, 3)
        received = by_messages(algorithm, federation, local, engine, 3)
    # FedSoft's pull is towards a mixture of models, whose last bits hang on how many mixtures are computed at once.
    same = torch.allclose if isinstance(algorithm, FedSoft) else torch.equal
    assert same(received.models, state.models)
    assert torch.equal(received.assignment, state.assignment)
    assert torch.equal(received.trained, state.trained)
    assert not torch.equal(state.models, simulated.start().models)


def test_private_rounds_by_messages_are_the_simulators_bit_for_bit():
    federation, model = a_federation(), Model(lambda: torch.nn.Linear(4, 3))
    local, noise = LocalSGD(epochs=1, batch_size=4), (DPSGD(max_grad_norm=1.0, noise_multiplier=0.5),)
    with Engine(model, threads=1, backend="loop") as engine:
        simulated = Training(
            federation=federation, algorithm=FedAvg(), local=local, engine=engine, stream=Stream(5), defenses=noise
        )
        state, _ = simulated.round(simulated.start())
        received = by_messages(FedAvg(), federation, local, engine, 1, noise)
    assert torch.equal(received.models, state.models)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (HypCluster(start="farthest-first"), 'must be "random"'),
        (FedSoft(selection=3), "'selection' must be left out"),
        (IFCA(redraw=Redraw()), "'redraw' must be left out"),
        (IFCAMIR(IFCA(redraw=Redraw())), "'redraw' must be left out"),
    ],
)
def test_what_needs_more_than_one_reply_a_round_is_refused(algorithm, words):
    with pytest.raises(InputError, match=words):
        parts_of(algorithm)


def test_the_server_keeps_no_personal_models_and_clients_no_server_optimizer():
    assert parts_of(FedOpt(Ditto(IFCA(2)))).server == FedOpt(IFCA(2))
    assert parts_of(Ditto(FedOpt(IFCA(2)))).client == Ditto(IFCA(2))
