"""Audits of runs that went on from trained models: reference federations begin before these were trained."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import shoal
from full_simulation import simulate_with
from shoal.core.errors import InputError
from shoal.replay.reference_federations import AttackedRun

ROWS = torch.rand(84, 16, generator=torch.Generator().manual_seed(0))
LABELS = (ROWS[:, 0] > 0.5).long()
MODEL = shoal.Model(lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)))
LOCAL = shoal.LocalSGD(epochs=4, batch_size=4, learning_rate=0.3)
WHOLE = 4


def federation(clients=6, move=0.0):
    own = [(ROWS[i : i + 8] + move, LABELS[i : i + 8]) for i in range(0, 8 * clients, 8)]
    return shoal.Federation.from_tensors(own, test=(ROWS[48:] + move, LABELS[48:]))


def simulated(**changes):
    settings = {"model": MODEL, "algorithm": shoal.FedAvg(), "local": LOCAL, "rounds": 4}
    return simulate_with(**{"federation": federation(), **settings, **changes})


def attacked(result):
    rows = result.rounds.to_dict("records")
    with result.engine.reopened() as engine:
        return AttackedRun.from_run(result.simulation, result.state, rows, engine)


@pytest.mark.parametrize(
    "settings",
    [
        {"participation": 0.7},
        {"algorithm": shoal.Ditto(shoal.IFCA(clusters=2)), "defenses": [shoal.Dropout(0.2)]},
        {
            "algorithm": shoal.IFCAMIR(shoal.IFCA(clusters=2)),
            "red_team": shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap()),
        },
    ],
    ids=["fedavg", "ditto", "ifca-mir"],
)
def test_reference_federations_of_some_rounds_and_more_are_those_of_all_rounds(settings):
    whole, result = simulated(**settings), None
    for rounds in (1, 2, 1):
        result = simulated(**settings, rounds=rounds, start=result)
    more, all_rounds = attacked(result), attacked(whole)
    with whole.engine.reopened() as engine:
        for one, other in (
            (more.scores(engine), all_rounds.scores(engine)),
            (more.replay(engine), all_rounds.replay(engine)),
            (more.train_reference(1, engine), all_rounds.train_reference(1, engine)),
        ):
            for name in ("score", "member", "model", "population", "trajectory"):
                assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert not torch.equal(one.score, more.scores(engine).score)


def test_a_run_of_some_rounds_and_more_is_as_exposed_as_one_of_all_rounds():
    judged = simulated(reference_federations=3)
    more = simulated(rounds=1, start=simulated(rounds=3), reference_federations=3)
    assert more.summary.by_group == judged.summary.by_group
    assert more.clients["exposure"].equals(judged.clients["exposure"])


def test_a_start_of_some_clients_is_replayed_with_their_examples_exchanged():
    """In whatever order its clients stand; an audit asks about the newcomers' examples too."""
    order = torch.tensor([3, 0, 1])
    begun = simulated(federation=federation().take(order), rounds=3)
    more = simulated(rounds=1, start=begun)
    assert set(more.audit(references=0).records["client"]) == set("012345")
    run = attacked(more)
    first, own = run.stages
    of_pair = run.records.client[: len(own.pair)]
    assert first.pair.sort().values.tolist() == torch.nonzero(torch.isin(of_pair, order)).flatten().tolist()
    exchange = torch.arange(len(run.records)) % 2 == 0
    before, after = first.records.swap_records(exchange[first.pair]).clients, own.records.swap_records(exchange).clients
    for position, client in enumerate(order.tolist()):
        assert torch.equal(before.x[before.indices_of(position)], after.x[after.indices_of(client)])


def test_a_start_of_which_the_training_is_not_known_is_refused(tmp_path):
    begun = simulated(rounds=3)
    saved = begun.save(tmp_path / "begun")
    for start in (shoal.load(saved), replace(begun, simulation=None, engine=None)):
        with pytest.raises(InputError, match="must retrain 'start'"):
            simulated(rounds=1, start=start, reference_federations=2)
    more = simulated(rounds=1, start=shoal.load(saved))
    with pytest.raises(InputError, match=r"retrain (a )?'start'"):
        more.audit(references=2)
    audit = more.audit(references=0)
    assert audit.members > 0
    assert any("the training of the models in 'start' is unknown" in note for note in audit.notes)
    further = simulated(rounds=1, start=more)
    with pytest.raises(InputError, match=r"retrain (a )?'start'"):
        further.audit(references=2)


def test_other_clients_than_in_the_start_are_refused_where_not_all_take_part():
    """A client that trained in the start alone would be a non-member of a model that holds its examples."""
    begun = simulated(rounds=3)
    for clients in (federation(5), federation().take(torch.tensor([1, 0, 2, 3, 4, 5]))):
        assert simulated(rounds=1, start=begun, federation=clients, reference_federations=2).summary.clients >= 5
        some = {"rounds": 1, "start": begun, "federation": clients, "participation": 0.5}
        with pytest.raises(InputError, match=r"'participation' must be 1 for reference federations .*got 0\.5"):
            simulated(**some, reference_federations=2)
        with pytest.raises(InputError, match="'participation' must be 1 for reference federations"):
            simulated(**some).audit(references=2)


def test_a_start_on_the_same_examples_in_another_form_is_refused():
    begun = simulated(rounds=3, federation=federation(move=0.5))
    with pytest.raises(InputError, match="none of the clients' examples"):
        simulated(rounds=1, start=begun, reference_federations=2)


def test_reference_federations_begin_at_a_public_start(tmp_path):
    others = simulated(rounds=3, federation=federation(move=0.5)).save(tmp_path / "public")
    settings = {"start": shoal.load(others).start(public=True), "rounds": 1, "participation": 0.5}
    result = simulated(**settings, reference_federations=2)
    # Of the clients only those of the new round are members, whoever trained before.
    trained = result.state.trained[:, 0] > 0
    assert int(trained.sum()) == 3
    found = result.audit(references=2)
    assert {int(name) for name in found.records["client"]} == set(torch.nonzero(trained).flatten().tolist())
    with pytest.raises(InputError, match=r"'public' must be a bool, True or False \(got 'no'"):
        result.start(public="no")
