"""Runs with departures: reference federations forget too, and nobody who left is attacked or counted."""

from dataclasses import replace

import pytest
import torch

import shoal
import shoal.toy
from shoal.core.errors import InputError
from shoal.data.presence import Event, Presence
from shoal.engine import Engine, Training
from shoal.replay.first_rounds import FirstRounds
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation

FEDERATION, MODEL, LOCAL = shoal.toy.noisy_groups()
EVENTS = [Event(round=3, leave=(5,)), Event(round=2, join=(0,))]
RUN = Simulation(FEDERATION, MODEL, shoal.IFCA(2), LOCAL, 4, events=EVENTS, forgetting=shoal.Exact(), seed=2)


@pytest.mark.parametrize("view", ["client", "server"])
def test_attacks_of_each_view_are_on_those_who_are_there(view, caplog):
    result = shoal.Run(replace(RUN, reference_federations=2, view=view)).train()
    assert result.clients["client"].tolist() == [0, 1, 2, 3, 4]
    assert result.clients["exposure"].notna().all()
    assert "differ from the run" not in caplog.text
    assert "cannot be repeated" not in caplog.text


def test_the_run_is_replayed_with_its_forgetting_and_without_the_leaver_s_records():
    with Engine(MODEL, backend="loop") as engine:
        run = move_to_engine(RUN, engine)
        *_, (now, _) = run_rounds(run, engine, initial_state(run, engine))
        attacked = AttackedRun.from_run(run, now.state, now.rows, engine)
        assert 5 not in attacked.records.client.tolist()
        assert attacked.replay(engine).score.equal(attacked.scores(engine).score)


def test_moves_are_collected_until_models_forget():
    for method, seen in ((shoal.Continue(), 4), (shoal.Exact(), 2)):
        with Engine(MODEL, backend="loop") as engine:
            presence = Presence.from_events(EVENTS, FEDERATION, 4)
            stream = shoal.Stream(2)
            training = Training(FEDERATION, shoal.IFCA(2), LOCAL, engine, stream, presence=presence, forgetting=method)
            first = FirstRounds()
            assert len([*first.watched(training, training.start(), 4)]) == 4
            assert (len(first.merged), len(first.models)) == (seen, seen + 1)


def test_the_privacy_that_a_leaver_spent_counts_and_so_does_forgetting():
    private = replace(RUN, algorithm=shoal.FedAvg(), defenses=[shoal.DPSGD(noise_multiplier=2.0)], events=EVENTS[:1])
    went_on = shoal.Run(replace(private, forgetting=shoal.Continue())).train()
    whole = shoal.Run(replace(private, events=(), forgetting=shoal.Continue())).train()
    exact = shoal.Run(private).train()
    epsilons = [run.clients.set_index("client")["epsilon"] for run in (went_on, whole, exact)]
    assert epsilons[0].loc[:4].tolist() == epsilons[1].loc[:4].tolist(), "four rounds each"
    assert (epsilons[2] > epsilons[0]).all(), "two more rounds of training"
    gone = shoal.Run(replace(private, events=[Event(round=4, leave=(0, 1, 2, 3))], forgetting=shoal.Continue())).train()
    assert gone.summary["epsilon"] > gone.clients["epsilon"].max(), "who left has spent most"


def test_clients_are_named_as_their_user_names_them():
    named = replace(FEDERATION, names=("a", "b", "c", "d", "e", "3"))
    assert named.positions(["a", 1, "3", "4"]).tolist() == [0, 1, 5, 4]
    with pytest.raises(InputError, match="client 3 is ambiguous"):
        named.positions([3])
    presence = Presence.from_events([Event(round=2, leave=("b",))], named, 3)
    assert presence.without(torch.tensor([0])).present(1).tolist() == [1, 2, 3, 4, 5]
