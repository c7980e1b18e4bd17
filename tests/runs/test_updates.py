"""Updates recorded while a run trains: what they are, and that nobody notices."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from full_simulation import simulate_with
from html_page import page_of
from run_files import content, stop_after
from shoal.algorithms import FedAvg
from shoal.attacks import FedMIACosine, FedMIALoss, GradCosine, SourceInference
from shoal.audit import audit_updates
from shoal.config.build import build
from shoal.config.schema import parse_config, read_config
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import NormClipping
from shoal.engine import Engine, LocalSGD, LocalTraining, RoundPlan, Training, client_updates
from shoal.runs.audits.trace import read_trace, trace_of, update_scores_of_trace
from shoal.runs.result import load, report_of
from shoal.runs.run import run
from shoal.runs.updates import megabytes, read_updates
from shoal.simulation.simulation import Simulation
from shoal.sweeps.plan import digest_of

FOUR = {"algorithm__rounds": 6, "algorithm__participation": 0.5, "checkpoint__every": 3}


def recorded(out):
    return {path.name: path.read_bytes() for path in sorted((out / "updates").iterdir())}


@pytest.fixture(scope="module")
def plain(toy_run):
    return toy_run(**FOUR)


@pytest.fixture(scope="module")
def watched(toy_run):
    """The same run with the updates of every second round."""
    return toy_run(**FOUR, record__updates=2)


def test_recording_changes_no_byte_of_a_run(plain, watched):
    one, other = content(plain), content(watched)
    assert one.pop("config.toml") != other.pop("config.toml")
    assert one == other
    assert not (plain / "updates").exists()


def test_every_second_round_has_its_file_with_what_was_promised(watched):
    assert list(recorded(watched)) == [f"round-000{t}.safetensors" for t in (2, 4, 6)]
    parameters = read_trace(watched).model.layout.size
    for path in (watched / "updates").iterdir():
        tensors = load_file(path)
        shapes = {name: (tuple(each.shape), each.dtype) for name, each in tensors.items()}
        assert shapes == {
            "clients": ((5,), torch.int64),
            "assignment": ((5,), torch.int64),
            "models": ((2, parameters), torch.float32),
            "updates": ((5, parameters), torch.float32),
        }
    assert "updates: 0.1 MB in updates/ at the end" in (watched / "run.log").read_text()


def test_the_page_of_the_run_says_which_rounds_are_recorded_and_how_large_they_are(plain, watched):
    known = load(watched).recorded
    assert known is not None
    assert known.rounds == (2, 4, 6)
    assert known.size == sum(map(len, recorded(watched).values()))
    words = page_of(report_of(watched).read_text(encoding="utf-8")).text
    assert known.sentence in words
    assert f"shoal audit --trace {watched}" in words
    assert load(plain).recorded is None


def test_the_recorded_updates_are_those_that_the_engine_computes_again(watched):
    """The states of rounds are played once more, and each client's update asked of the engine."""
    _, simulation = build(read_config(watched / "config.toml"))
    with Engine(simulation.setup.model, backend="vmap") as engine:
        training = simulation.on(engine)
        state = training.start()
        for after, report in training.rounds(state, 4):
            if after.round % 2 == 0:
                found = read_updates(watched / "updates" / f"round-{after.round:04d}.safetensors")
                assert torch.equal(found.models, state.models)
                assert torch.equal(found.assignment, report.assignment)
                assert torch.equal(report.updates.updates, found.updates)
                for client, update in zip(found.clients.tolist(), found.updates, strict=True):
                    ((_, _, again),) = client_updates(training, state, report, client)
                    torch.testing.assert_close(update, again, rtol=1e-5, atol=1e-6)
            else:
                assert report.updates is None
            state = after


def test_killed_and_resumed_leaves_the_same_files(watched, toy_config, tmp_path):
    out, config = tmp_path / "out", toy_config(**FOUR, record__updates=2)
    for number in (2, 5):
        with pytest.raises(KeyboardInterrupt):
            run(config, out, resume=True, watch=stop_after(number))
    # As if it had been killed while it wrote, after its last checkpoint.
    (out / "updates" / "round-0004.safetensors").write_bytes(b"")
    for path in sorted((out / "checkpoint").glob("round-*"))[1:]:
        path.unlink()
    (out / "updates" / ".round-0006.safetensors.1.unfinished").touch()
    run(config, out, resume=True)
    assert recorded(out) == recorded(watched)
    assert content(out) == content(watched)


def test_a_prolonged_run_has_the_files_of_a_longer_one(watched, toy_config, tmp_path):
    out = run(toy_config(**FOUR | {"algorithm__rounds": 4}, record__updates=2), tmp_path / "out")
    run(toy_config(**FOUR, record__updates=2), out, resume=True)
    assert recorded(out) == recorded(watched)


def test_another_run_s_updates_are_not_mixed_in(watched, toy_config):
    with pytest.raises(InputError, match=r"record.updates = 2"):
        run(toy_config(**FOUR, record__updates=3), watched, resume=True)


def test_what_takes_too_much_room_is_refused_before_anything_is_written(toy_config, tmp_path):
    wide = {"model": {"name": "mlp", "hidden": 5000}, "record__updates": 1}
    with pytest.raises(InputError, match=r"\[record\]: 'max_megabytes' must be at least 61"):
        run(toy_config(**wide, record__max_megabytes=59), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    _, simulation = build(toy_config(**wide))
    assert megabytes(simulation) == 4 * 10 * simulation.setup.model.layout.size * 4 / 1e6


def test_a_table_that_records_nothing_and_the_room_that_is_allowed_are_no_other_run(toy_config):
    plain, never = (build(toy_config(**more))[0] for more in ({}, {"record__updates": 0}))
    assert "record" not in never.table()
    assert digest_of(never) == digest_of(plain)
    little, much = (build(toy_config(record={"updates": 2, "max_megabytes": each}))[0] for each in (100, 200))
    assert digest_of(little) == digest_of(much) != digest_of(plain)


def test_an_update_is_recorded_before_the_server_s_filter_and_after_the_client_s_defences(mlp, build):
    local = LocalSGD(epochs=1, batch_size=4, learning_rate=0.5)
    found = {}
    for name, bound in (("open", 1e6), ("clipped", 1e-3)):
        defenses = [NormClipping(bound)]
        simulation = Simulation(build(), mlp, FedAvg(), local, 1, defenses=defenses, record_updates=1)
        with Engine(mlp) as engine:
            training = simulation.on(engine)
            found[name] = next((after.models, report.updates) for after, report in training.rounds(training.start(), 1))
    assert torch.equal(found["open"][1].updates, found["clipped"][1].updates)
    assert not torch.equal(found["open"][0], found["clipped"][0])


class Personal:
    """FedAvg in which clients also send what they trained from other starts, and train something of their own."""

    def __init__(self):
        self._base = FedAvg()

    def __getattr__(self, name):
        return getattr(self._base, name)

    def plan(self, state, cohort):
        plan = self._base.plan(state, cohort)
        (sent,) = plan.trainings
        halves = 0.5 * state.models.repeat(2, 1)
        own = LocalTraining(halves, torch.zeros(len(cohort), dtype=torch.int64))
        other = LocalTraining(halves, sent.init_index, weights=torch.zeros_like(sent.weights))
        return RoundPlan(plan.assignment, (own, sent, other))


def test_what_is_sent_is_recorded_and_relative_to_the_model_whatever_it_started_from(mlp, build):
    federation = build()
    with Engine(mlp) as engine:
        training = Training(federation, Personal(), LocalSGD(steps=1, batch_size=4, learning_rate=0.0001), engine,
                            Stream(1), record_every=1)  # fmt: skip
        before = training.start()
        _, report = training.round(before)
    updates = report.updates
    assert updates.clients.tolist() == 2 * federation.ids.tolist(), "one for each training that is sent"
    ends = updates.models[updates.assignment] + updates.updates
    torch.testing.assert_close(ends[:6], before.models.expand(6, -1), atol=0.01, rtol=0)
    torch.testing.assert_close(ends[6:], 0.5 * before.models.expand(6, -1), atol=0.01, rtol=0)


def test_a_round_without_clients_is_recorded_as_such(mlp, build):
    with Engine(mlp) as engine:
        training = Training(build(), FedAvg(), LocalSGD(), engine, Stream(1), participation=0.0, record_every=1)
        _, report = training.round(training.start())
    assert len(report.updates) == 0
    assert report.updates.updates.shape == (0, mlp.layout.size)


PYTHON = {"rounds": 3, "seed": 4, "record_updates": 1}


def test_a_simulation_in_python_records_too(mlp, build, tmp_path):
    federation, local = build(), LocalSGD(epochs=1, batch_size=4)
    out = tmp_path / "out"
    watched = simulate_with(federation, mlp, FedAvg(), local, out=out, **PYTHON)
    plain = simulate_with(federation, mlp, FedAvg(), local, **PYTHON | {"record_updates": 0})
    assert watched.recorded is not None
    assert (watched.recorded.rounds, plain.recorded) == ((1, 2, 3), None)
    assert torch.equal(watched.state.models, plain.state.models)
    assert len(recorded(out)) == 3
    trace = trace_of(out, federation, mlp, every=1)
    last = list(trace.rounds())[-1]
    average = last.models[0] + federation.clients.sizes / federation.clients.sizes.sum() @ last.updates
    torch.testing.assert_close(average, watched.state.models[0], rtol=1e-4, atol=1e-6)
    for other, sentence in [
        ({"record_updates": 0}, r"record\.updates = 1 \(got None\)"),
        ({"record_updates": 2}, "record.updates = 1"),
    ]:
        with pytest.raises(InputError, match=sentence):
            simulate_with(federation, mlp, FedAvg(), local, out=out, resume=True, **PYTHON | other)
    for wrong, sentence in [
        ({"out": None}, "'record_updates' needs 'out'"),
        ({"record_updates": -1}, r"'record_updates' must be at least 0 \(got -1"),
        ({"max_megabytes": 0}, "'max_megabytes' must be at least 1"),
    ]:
        with pytest.raises(InputError, match=sentence):
            simulate_with(federation, mlp, FedAvg(), local, **{"out": tmp_path / "no"} | PYTHON | wrong)
        assert not (tmp_path / "no").exists()


@pytest.fixture(scope="module")
def digits_scores(digits_table, tmp_path_factory):
    """Five clients with 20 digits each, a hundred epochs a round: they remember their own digits."""
    out = run(parse_config(digits_table, "test"), tmp_path_factory.mktemp("digits") / "out")
    trace = read_trace(out)
    with Engine(trace.model) as engine:
        return update_scores_of_trace(trace, engine)


@dataclass(frozen=True)
class OwnLabels:
    """A score that knows no update: how many of a client's own examples have the record's label."""

    label: np.ndarray
    name: str = "own-labels"
    title: ClassVar[str] = "own labels"
    view: ClassVar[str] = "server"
    threshold: ClassVar[float] = 0.5

    def score(self, scores):
        own = [np.bincount(self.label[scores.client == i], minlength=10) for i in range(len(scores.clients))]
        return np.stack(own)[:, self.label].astype(np.float64)


@pytest.fixture(scope="module")
def digits_table():
    return {
        "data": {"source": "digits", "clients": 5, "examples_per_client": 20, "test_examples": 400},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "rounds": 2},
        "local": {"epochs": 100, "batch_size": 10, "learning_rate": 0.3},
        "red_team": {"every": 0, "attack": "gap"},
        "record": {"updates": 1},
    }


@pytest.mark.parametrize("attack", [FedMIALoss(), FedMIACosine(), GradCosine()], ids=repr)
def test_members_are_found_from_their_client_s_updates(digits_scores, attack):
    audit = audit_updates(attack, digits_scores)
    assert audit.unused.auc > 0.62
    assert audit.unused.auc_low > 0.5
    # Not all labels are among all clients' own, so not all 5 x 400 and 5 x 80 are asked.
    assert audit.unused.members == audit.other_clients.members == 100
    assert 1500 < audit.unused.non_members < 2000
    assert 300 < audit.other_clients.non_members < 400


def test_a_client_s_own_labels_do_not_tell_its_members(digits_scores, digits_table):
    _, simulation = build(parse_config(digits_table, "test"))
    federation = simulation.federation
    labels = torch.cat([federation.clients.y[federation.clients.indices], federation.test.y]).numpy()
    audit = audit_updates(OwnLabels(labels), digits_scores)
    for found in (audit.unused, audit.other_clients, *audit.by_client.values()):
        assert found.auc == pytest.approx(0.5, abs=1e-9)
        assert found.accuracy == pytest.approx(0.5, abs=1e-9)


def test_the_owner_of_a_record_is_found(digits_scores):
    found = SourceInference().guess(digits_scores)
    assert found.chance == pytest.approx(1 / 5)
    assert found.low > 1 / 5
