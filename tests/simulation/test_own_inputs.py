"""Clients with inputs of their own kind: an audit compares a client's examples with its own, or says that it cannot."""

import logging

import pandas as pd
import pytest
import torch

import shoal
from shoal.audit.audit import audit_records
from shoal.audit.finding import findings, sentence
from shoal.data.swap_pairs import OTHER_CLIENTS
from shoal.metrics import roc_auc
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import EngineSettings, move_to_engine

CLIENTS, OWN = 12, 20
MODEL = shoal.create_model("logistic", shoal.VectorShape(inputs=4, classes=2))


def rows(seed, count=OWN):
    """Inputs (count, 4) and labels of each client; every second one has the labels the other way round."""
    drawn = []
    for i in range(CLIENTS):
        x = torch.randn(count, 4, generator=torch.Generator().manual_seed(100 * seed + i))
        drawn.append((x, ((x[:, 0] > 0) ^ (i % 2 == 1)).long()))
    return drawn


def together(pairs):
    return tuple(map(torch.cat, zip(*pairs, strict=True)))


def frame(pairs):
    parts = [
        pd.DataFrame(x.numpy(), columns=[*"abcd"]).assign(ill=y.numpy(), ward=f"w{i}") for i, (x, y) in enumerate(pairs)
    ]
    return pd.concat(parts, ignore_index=True)


def of_tensors(clients, held):
    names, whose = ["all"] * (CLIENTS * OWN), torch.arange(CLIENTS).repeat_interleave(OWN)
    return shoal.Federation.from_tensors(clients, test=shoal.Examples(*together(held), names, whose))


def of_holdout(clients, held):
    return shoal.Federation.from_tensors(clients, test=together(rows(7)), holdout=held)


def of_table(clients, held):
    return shoal.Federation.from_table(frame(clients), shoal.Columns("ward", "ill"), test=frame(held).sample(frac=1))


def of_nobody(clients, held):
    return shoal.Federation.from_tensors(clients, test=together(held))


def attacked(make):
    """Models that every client trained on another draw of its kind: they know its kind, and none of its examples."""
    local = shoal.LocalSGD(steps=60, batch_size=20, learning_rate=0.5)
    trained = shoal.simulate(of_nobody(rows(3, 100), rows(4)), MODEL, shoal.LocalOnly(), local, rounds=1)
    simulation = shoal.simulate(make(rows(1), rows(2)), MODEL, shoal.LocalOnly(), local, rounds=1).simulation
    with shoal.Engine(MODEL) as engine:
        run = AttackedRun.from_run(move_to_engine(simulation, engine), trained.state, [], engine)
        found = run.scores(engine)
        records = records_of_run(run, found, [], engine)
    audit = audit_records(records, shoal.Stream(0))
    if OTHER_CLIENTS in run.notes:
        audit = audit.mark_other_clients(OTHER_CLIENTS)
    return run, roc_auc(found.score.numpy(), found.member.numpy()), findings(audit.attacks)


@pytest.mark.parametrize("make", [of_tensors, of_holdout, of_table])
def test_models_without_members_are_at_chance_on_clients_of_their_own_kinds(make):
    run, auc, _ = attacked(make)
    assert len(run.records) > 180, "or three deviations would be more"
    assert auc == pytest.approx(0.5, abs=0.08)
    assert run.notes == ()
    federation, pairs = run.simulation.federation, len(run.records)
    whose = federation.test.client if run.records.source == "test" else federation.holdout.owners()
    assert torch.equal(whose[run.records.test], run.records.client[:pairs])


def test_non_members_of_other_clients_tell_kinds_apart_and_the_audit_says_so(caplog):
    run, auc, found = attacked(of_nobody)
    assert auc > 0.7
    assert max(one.accuracy.low for one in found) > 0.5
    assert {one.verdict for one in found} == {"not decided"}
    assert sentence(found[0]).startswith("Whether the records are exposed to an outsider is not decided, since non-")
    (note,) = run.notes
    assert note.startswith("non-members are test examples")
    result = shoal.simulate(of_nobody(rows(1), rows(2)), MODEL, shoal.LocalOnly(), shoal.LocalSGD(), rounds=1)
    with caplog.at_level(logging.WARNING, logger="shoal"):
        audit = result.audit(references=0)
    assert audit.notes == (note,)
    assert note in caplog.messages
    assert {one.verdict for one in findings(audit.attacks)} <= {"at chance", "not decided"}


def test_whose_test_examples_are_must_fit_the_clients():
    clients, (x, y) = rows(1), together(rows(2))
    for whose, words in (([0], "must be 240 integers from -1 to 11"), ([12] * 240, "from -1 to 11")):
        with pytest.raises(shoal.InputError, match=words):
            shoal.Federation.from_tensors(clients, test=shoal.Examples(x, y, ["all"] * 240, whose))
    names, groups = ["a", "b"] * 120, ["a", "b"] * 6
    with pytest.raises(shoal.InputError, match="test examples of client 0"):
        shoal.Federation.from_tensors(clients, test=shoal.Examples(x, y, names, [0] * 240), groups=groups)


def test_rows_of_strangers_are_nobody_s():
    table = frame(rows(1))
    test = frame(rows(2)).assign(ward=["w3", "elsewhere"] * 120)
    federation = shoal.Federation.from_table(table, shoal.Columns("ward", "ill"), test=test)
    assert federation.test.client.tolist() == [3, -1] * 120
    strangers = shoal.Federation.from_table(table, shoal.Columns("ward", "ill"), test=test.assign(ward="elsewhere"))
    assert strangers.test.client is None
    assert federation.test.take(torch.tensor([2, 1])).client.tolist() == [3, -1]


@pytest.mark.parametrize(("asked", "used"), [("auto", "vmap"), ("vmap", "vmap"), ("loop", "loop")])
def test_an_engine_has_the_backend_that_is_asked_for(asked, used):
    """Small linear networks train faster under vmap."""
    with EngineSettings(backend=asked).engine(MODEL) as engine:
        assert engine.backend == used
