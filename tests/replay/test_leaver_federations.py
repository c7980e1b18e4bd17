"""Federations that never had a client do not depend on it; those that had it do what the run did."""

from dataclasses import replace

import torch

import shoal
import shoal.toy
from shoal.data.presence import Event
from shoal.engine import Engine
from shoal.replay.leaver_federations import LeaverRun
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation

FEDERATION, MODEL, LOCAL = shoal.toy.noisy_groups()
RUN = Simulation(FEDERATION, MODEL, shoal.IFCA(2), LOCAL, 4, events=[Event(round=3, leave=(5,))], seed=2)


def audited(run, engine, *numbers):
    run = move_to_engine(run, engine)
    *_, (now, _) = run_rounds(run, engine, initial_state(run, engine))
    left = LeaverRun.from_run(run, now, "5", engine)
    return left, [left.train_reference(number, engine) for number in numbers]


def test_federations_without_the_client_do_not_depend_on_its_examples():
    with Engine(MODEL, backend="loop") as engine:
        left, (had, never) = audited(RUN, engine, 0, 1)
        clients = left.simulation.federation.clients
        y = clients.y.clone()
        y[clients.owned(5)] = 1 - y[clients.owned(5)]
        changed = replace(left.simulation, federation=replace(FEDERATION, clients=replace(clients, y=y)))
        other = replace(left, simulation=changed)
        assert other.train_reference(1, engine).score.equal(never.score)
        assert not other.train_reference(0, engine).score.equal(had.score)
        assert had.member.tolist() == [True] * len(left.records) + [False] * len(left.records)
        assert not never.member.any()


def test_exact_forgetting_leaves_nothing_in_any_model_that_is_sent():
    """Without random draws a federation that had the client is one that never had it, to the last bit."""
    full = replace(RUN, algorithm=shoal.FedAvg(), local=replace(LOCAL, batch_size="all"))
    with Engine(MODEL, backend="loop") as engine:
        left, (had, never) = audited(replace(full, forgetting=shoal.Exact()), engine, 0, 1)
        assert had.score.equal(never.score)
        assert had.trajectory.equal(never.trajectory)
        assert {*left.pair_scores(engine)} >= {"drop"}
        _, (had, never) = audited(full, engine, 0, 1)
        assert not had.trajectory.equal(never.trajectory)


def test_the_others_are_measured_before_and_after_and_a_client_that_never_was_there_has_no_pair():
    with Engine(MODEL, backend="loop") as engine:
        left, _ = audited(RUN, engine)
        before, after = left.others(engine)
        assert {*before} == {*after} == {*FEDERATION.groups}
        never, (had, without) = audited(replace(RUN, events=[Event(round=1, leave=(5,))]), engine, 0, 1)
        assert never.departure is None
        assert (never.pair_scores(engine), never.others(engine)) == ({}, ({}, {}))
        assert torch.isfinite(torch.cat([had.score, without.score])).all()
