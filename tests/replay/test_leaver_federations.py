"""Federations that never had a client do not depend on it; those that had it do what the run did."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

import shoal
import shoal.toy
from shoal.data.presence import Event
from shoal.engine import Engine
from shoal.replay.leaver_federations import LeaverRun
from shoal.replay.leaver_figures import exposures_of_others
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
        y[clients.indices_of(5)] = 1 - y[clients.indices_of(5)]
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
        assert had.trajectory[0].equal(never.trajectory[0])
        assert not had.trajectory[1].equal(never.trajectory[1]), "before it left, it was there"
        assert {*left.pair_scores(engine)} >= {"drop"}
        alone = [shoal.Exact.by_cluster(replace(full, algorithm=a).on(engine)) for a in (shoal.IFCA(2), shoal.FedOpt())]
        assert alone == [True, False], "which the page says"
        _, (had, never) = audited(full, engine, 0, 1)
        assert not had.trajectory.equal(never.trajectory)


def test_the_others_are_measured_before_and_after_and_a_client_that_never_was_there_has_no_pair():
    with Engine(MODEL, backend="loop") as engine:
        left, (had, never) = audited(RUN, engine, 0, 1)
        training, deployed = left.deployed_models(engine)
        assert [len(each.model) for each in deployed] == [len(training.federation)] * 2 == [5, 5]
        others = left.others(engine)
        assert {*others.records.client.tolist()} == {0, 1, 2, 3, 4}
        assert others.train_reference(0, engine, spans=()).trajectory.shape == (1, 2 * len(others.records))
        never, (had, without) = audited(replace(RUN, events=[Event(round=1, leave=(5,))]), engine, 0, 1)
        assert never.departure is None
        assert (never.pair_scores(engine), never.deployed_models(engine)[1]) == ({}, [])
        assert torch.isfinite(torch.cat([had.score, without.score])).all()


def test_exposure_of_those_who_stay_rises_only_where_membership_shows():
    with Engine(MODEL, backend="loop") as engine:
        left, _ = audited(RUN, engine)
        others = left.others(engine)
    draw, count = torch.Generator().manual_seed(0), len(others.records)
    for leak in (0.0, 2.0):
        federations = []
        for number in range(32):
            swapped = others.exchanged(number)
            member = torch.cat([~swapped, swapped])
            score = torch.randn(2, 2 * count, generator=draw, dtype=torch.float64)
            score[1] += leak * member
            federations.append(SimpleNamespace(score=score[1], trajectory=score[:1], member=member))
        before, after = (np.nanmean(each) for each in exposures_of_others(others, federations))
        assert abs(before - 0.5) < 0.05
        assert abs(after - (0.5 if leak == 0 else 0.84)) < 0.05, "Phi(1) = 0.84"
