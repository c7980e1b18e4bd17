"""What a malicious client tries on the server, on the wire format: each attempt costs that client its reply."""

import hashlib
import json
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from in_process import InProcessSuperLink

from shoal.attacks.queries.loss_histograms import discrete_laplace
from shoal.core.errors import InputError
from shoal.engine import ClientUpdate, server_round
from shoal.runs.checkpoint import load_checkpoint
from shoal_flower.flower_config import RunSettings
from shoal_flower.messages import Limits, RejectedReplyError, check_histograms, long_updates, plain, with_bounded_shares
from shoal_flower.server.attendance import Attendance
from shoal_flower.server.exchange import Exchange, Reply, content_of
from shoal_flower.server.roster import Events, LedgerStamps, Roster
from shoal_flower.wire_codec import pack_histograms, pack_identity, pack_reply, unpack_reply
from wire_federation import Federation, Objects, made, rows_of


def without_json(_: RecordDict) -> Objects:
    objects: Objects = {}
    made(objects, "Message", b"", (made(objects, "RecordDict", b"no json"),))
    return objects


def repeated_chunk(size: int, times: int, shape: int = 650) -> Objects:
    """A reply whose one chunk of ``size`` bytes is named so many ``times``."""
    objects: Objects = {}
    chunk = made(objects, "ArrayChunk", bytes(size))
    about = {"dtype": "float32", "shape": [shape], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    array = made(objects, "Array", json.dumps(about).encode(), (chunk,))
    record = made(objects, "ArrayRecord", json.dumps({"model": array}).encode(), (array,))
    records = made(objects, "RecordDict", json.dumps({"model": record}).encode(), (record,))
    made(objects, "Message", b"", (records,))
    return objects


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> torch.Tensor:
    """The models of a run in which the second client does not reply."""
    quiet = Federation(tmp_path_factory.mktemp("alone") / "quiet", spoil=lambda reply: None)
    quiet.serve(**{"round-timeout": 0.5})
    return quiet.models


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_json, "the reply cannot be read: JSONDecodeError"),
        (lambda _: repeated_chunk(1 << 20, 500), "the reply's arrays have more than"),
        (lambda _: RecordDict({"refusal": ConfigRecord({"reason": "x" * (1 << 21)})}), "bytes besides its arrays"),
    ],
    ids=["no JSON", "one chunk 500 times", "a reason of 2 MB"],
)
def test_a_reply_that_cannot_be_read_costs_its_sender_alone_the_round(tmp_path, alone, spoil, words):
    federation = Federation(tmp_path / "run", spoil)
    federation.serve()
    rejected = federation.events("rejected")
    assert [(row["round"], row["client"], row["node"]) for row in rejected] == [
        ("1", "partition-1", "101"), ("2", "partition-1", "101")
    ]  # fmt: skip
    assert all(words in row["reason"] for row in rejected)
    assert torch.equal(federation.models, alone)


def garbled(records: RecordDict, draw: random.Random) -> Objects:
    """A reply one of whose objects has other bytes than it should, under the hash that these have."""
    contents = {key: value.deflate() for key, value in get_all_nested_objects(records).items()}
    victim, objects, names = draw.choice([*contents]), Objects(), dict[str, str]()

    def build(name: str) -> str:
        if name not in names:
            content = contents[name]
            for child in contents:
                if child != name and child.encode() in content:
                    content = content.replace(child.encode(), build(child).encode())
            if name == victim:
                at, end = sorted(draw.choices(range(len(content)), k=2))
                content = content[:at] + draw.randbytes(draw.choice([0, end - at, 40])) + content[end:]
            names[name] = hashlib.sha256(content).hexdigest()
            objects[names[name]] = content
        return names[name]

    made(objects, "Message", b"", (build(records.object_id),))
    return objects


def test_garbage_anywhere_in_a_reply_is_a_reply_that_is_rejected():
    honest, outcomes = pack_reply(ClientUpdate(1, 20, torch.full((650,), 0.01), None)), Counter()
    for seed in range(200):
        objects = garbled(honest, random.Random(seed))
        grid = InProcessSuperLink({}, objects=objects).grid()
        try:
            content = content_of(grid, Reply([*objects][-1], ""), 70_000)
            unpack_reply(content, torch.zeros(2, 650), Limits(), counts_best=False)
            outcomes["taken"] += 1  # Other digits of a number are a number.
        except RejectedReplyError:
            outcomes["rejected"] += 1
    assert outcomes["rejected"] > 150


def test_a_reply_nested_without_end_is_rejected():
    objects: Objects = {}
    made(objects, "Message", b"", (made(objects, "RecordDict", b"[" * 500_000),))
    with pytest.raises(RejectedReplyError, match="the reply cannot be read"):
        content_of(InProcessSuperLink({}, objects=objects).grid(), Reply([*objects][-1], ""), 70_000)


def test_a_reply_that_is_announced_and_never_uploaded_is_waited_for_until_the_deadline_alone(tmp_path, alone):
    federation = Federation(tmp_path / "run")
    link = federation.link()

    def keep_back(reply: RecordDict) -> Objects:
        objects = without_json(reply)
        link.uploading.update(objects)
        return objects

    federation.spoil = keep_back
    federation.run(link, **{"round-timeout": 0.5})
    assert [row["client"] for row in federation.events("missed")] == ["partition-1", "partition-1"]
    assert torch.equal(federation.models, alone)


def test_nothing_of_a_bomb_is_allocated():
    objects = repeated_chunk(1 << 22, 500)
    link = InProcessSuperLink({}, objects=objects)
    tracemalloc.start()
    try:
        with pytest.raises(RejectedReplyError, match="arrays have more than 70000 bytes"):
            content_of(link.grid(), Reply([*objects][-1], ""), 70_000)
        assert tracemalloc.get_traced_memory()[1] < 3 << 22
    finally:
        tracemalloc.stop()


def test_a_reply_is_read_as_it_was_sent_where_chunks_repeat_as_they_may():
    """An array of zeros has one chunk many times."""
    objects = repeated_chunk(1 << 20, 3)
    link = InProcessSuperLink({}, objects=objects)
    content = content_of(link.grid(), Reply([*objects][-1], ""), 3 << 20)
    assert len(content["model"]["model"].data) == 3 << 20


def test_a_reply_is_its_senders_whatever_its_body_says_it_answers(tmp_path):
    """The node writes the body of a message; the SuperLink checks which message it answers."""
    asked: list[RecordDict] = []

    def stolen(reply: RecordDict) -> Objects:
        asked.append(reply)
        objects = {key: value.deflate() for key, value in get_all_nested_objects(reply).items()}
        made(objects, "Message", b"\x0a\x04\x0a\x02xx", (reply.object_id,))
        return objects

    federation = Federation(tmp_path / "run", stolen)
    federation.serve()
    honest = Federation(tmp_path / "honest")
    honest.serve()
    assert len(asked) == 2
    assert torch.equal(federation.models, honest.models)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gone\n2026-01-01 INFO round 9: done", "gone 2026-01-01 INFO round 9: done"),
        ("=HYPERLINK(\"http://x\")", "'=HYPERLINK(\"http://x\")"),
        ("\t@SUM(A1)", "'@SUM(A1)"),
        ("\x1b[2J\u202eback", "[2J back"),
        ("x" * 50_000_000, "x" * 200),
    ],
    ids=["a log line", "a formula", "a formula behind a tab", "control characters", "50 MB"],
)  # fmt: skip
def test_what_a_stranger_says_is_one_short_plain_line(tmp_path, text, shown):
    assert plain(text) == shown
    federation = Federation(
        tmp_path / "run", lambda reply: RecordDict({"refusal": ConfigRecord({"reason": text[:100_000]})})
    )
    federation.serve()
    assert {row["reason"] for row in federation.events("refused")} == {shown}
    assert all(len(line) < 400 for line in (federation.out / "run.log").read_text().splitlines())


def scaled(factor: float) -> Callable[[RecordDict], RecordDict]:
    """An update of a model ``factor`` times as far from 0."""

    def spoil(reply: RecordDict) -> RecordDict:
        model = reply.array_records["model"]["model"].numpy() * np.float32(factor)
        reply["model"] = ArrayRecord({"model": Array(model)})
        return reply

    return spoil


def claimed(examples: int) -> Callable[[RecordDict], RecordDict]:
    """An update that says that it is of so many ``examples``."""

    def spoil(reply: RecordDict) -> RecordDict:
        reply["update"] = MetricRecord({"cluster": 0, "examples": examples})
        return reply

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (scaled(100.0), "10 times the round's median"),
        (scaled(1e4), "the update's norm must be at most 254.951"),
        (claimed(10_000_001), "the number of examples must be in [1, 10000000] (got 10000001)"),
    ],
    ids=["a boosted update", "a huge update", "too many examples"],
)
def test_an_update_far_above_the_others_is_not_merged_by_default(tmp_path, alone, spoil, words):
    federation = Federation(tmp_path / "run", spoil)
    federation.serve()
    assert [(row["client"], words in row["reason"]) for row in federation.events("rejected")] == 2 * [
        ("partition-1", True)
    ]  # fmt: skip
    assert torch.equal(federation.models, alone)


def test_the_norm_of_an_update_is_judged_by_its_own_cluster_or_by_all():
    learning, done = [5.0, 6.0, 7.0], [0.1] * 9
    clusters = [1] * 3 + [0] * 9
    assert long_updates(learning + done, clusters, 10.0) == []
    assert [i for i, _ in long_updates([*learning, *done, 2.0], [*clusters, 0], 10.0)] == [12]
    # Alone in a cluster, one is judged by all.
    assert [i for i, _ in long_updates([*done, 2.0], [*[0] * 9, 1], 10.0)] == [9]
    assert long_updates([0.0, 0.0, 3.0], [0, 0, 0], 10.0) == []
    assert long_updates([], [], 10.0) == []


def test_examples_that_are_claimed_cost_the_server_nothing(tmp_path):
    """A terabyte, were an index of each kept."""
    federation = Federation(
        tmp_path / "run",
        claimed(10**12),
        changes={
            "algorithm": {"name": "ifca", "rounds": 2, "clusters": 2},
            "red_team": {"every": 1, "shadow_models": 2},
        },
    )
    federation.serve(**{"max-examples": 10**12})
    assert not federation.events("rejected")


def test_a_merged_model_that_is_not_finite_ends_the_run_before_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal_flower.server.server_rounds.server_round", diverged)
    federation = Federation(tmp_path / "run")
    with pytest.raises(InputError, match="round 1: the merged model 0 has NaN or infinite numbers"):
        federation.serve()
    assert load_checkpoint(federation.out / "checkpoint") is None


def diverged(training, state, received):
    after, plan = server_round(training, state, received)
    after.models[0, 3] = torch.inf
    return after, plan


HISTOGRAMS = np.zeros((2, 34))
HISTOGRAMS[0, 3], HISTOGRAMS[1, 5] = 20, 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({(0, 3): 40, (0, 4): -20}, "histogram counts must not be negative, except for noise (got -20)"),
        ({(0, 3): 20_000_000}, "the histogram must have 20 training examples (got 2e+07)"),
        ({(1, 5): 20_000_000}, "the histogram has too many hold-out examples (got 2e+07)"),
        ({(0, 3): 19.5, (0, 4): 0.5}, "histogram counts must be integers"),
    ],
    ids=["a count below 0", "more members than examples", "more hold-outs than are believed", "fractions"],
)
@pytest.mark.parametrize("epsilon", [None, 5.0])
def test_histograms_that_no_client_has_are_rejected(change, words, epsilon):
    limits = Limits()
    check_histograms(HISTOGRAMS, 20, limits, epsilon)
    counts = HISTOGRAMS.copy()
    for place, count in change.items():
        counts[place] = count
    with pytest.raises(RejectedReplyError, match=re.escape(words)):
        check_histograms(counts, 20, limits, epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_honest_noise_is_never_rejected(epsilon):
    generator = np.random.default_rng(1)
    for _ in range(200):
        check_histograms(HISTOGRAMS + discrete_laplace(epsilon, (2, 34), generator), 20, Limits(), epsilon)


def test_one_clients_share_of_a_risk_is_bounded():
    counts = np.stack([HISTOGRAMS] * 12 + [HISTOGRAMS * 1000, HISTOGRAMS * 2, HISTOGRAMS * 0])
    clusters = np.array([0] * 12 + [0, 0, -1])
    bounded = with_bounded_shares(counts, clusters)
    totals = bounded.sum(axis=2)
    assert totals[12].tolist() == [80, 40]
    assert totals[12, 0] / totals[:, 0].sum() < 0.23
    assert np.array_equal(np.delete(bounded, 12, axis=0), np.delete(counts, 12, axis=0))


def test_a_histogram_that_lies_about_its_examples_costs_its_sender_its_say(tmp_path):
    def spoil(reply: RecordDict) -> RecordDict:
        return pack_histograms(HISTOGRAMS * 500_000)

    estimator = {"every": 1, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 1.0}
    federation = Federation(tmp_path / "run", spoil, "histograms", {"red_team": estimator})
    federation.serve()
    words = "histograms: the histogram must have 20 training examples (got 1e+07)"
    assert [words in row["reason"] for row in federation.events("rejected")] == [True, True]


def test_a_reply_whose_upload_takes_a_while_is_merged_when_it_is_there(tmp_path):
    federation = Federation(tmp_path / "run")
    link, looks = federation.link(), list[str]()

    def slow(reply: RecordDict) -> Objects:
        objects = {key: value.deflate() for key, value in get_all_nested_objects(reply).items()}
        made(objects, "Message", b"", (reply.object_id,))
        link.uploading.update(objects)
        pull = link.PullObject

        def later(request):
            looks.append(request.object_id)
            if len(looks) > 2:
                link.uploading.clear()
            return pull(request)

        link.PullObject = later
        return objects

    federation.spoil = slow
    federation.run(link)
    honest = Federation(tmp_path / "honest")
    honest.serve()
    assert torch.equal(federation.models, honest.models)
    assert not federation.events("missed")


@dataclass(eq=False)
class Door:
    """Who is let in, of nodes that say a name each."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "run.toml").write_text("")
        self.restart()

    def restart(self) -> None:
        """The server begins anew, with what is in its directory."""
        given = {"config": str(self.folder / "run.toml"), "out": str(self.folder), "min-nodes": 1, **self.settings}
        settings = RunSettings.read(given)
        stamps = LedgerStamps(self.folder / "stamps.json")
        roster, events = Roster.load(self.folder / "nodes.json"), Events.open(self.folder / "events.csv")
        link = InProcessSuperLink({}, self.keys, self.names)
        self.link, self.attendance = link, Attendance(Exchange(link.grid()), settings, roster, events, stamps)

    def come(self, *nodes: tuple[int, str, str], number: int = 1) -> dict[str, int]:
        """Nodes are connected, which have a key and say a name; returns the members and where they are."""
        self.keys.update({node: key.encode() for node, key, _ in nodes})
        self.link.nodes = {node: lambda _, __, name=name: pack_identity(name, None) for node, _, name in nodes}
        self.attendance.gather(number)
        return {member.name: member.node for member in self.attendance.roster.members if member.node is not None}

    def reasons(self) -> list[str]:
        return [row["reason"] for row in rows_of(self.folder / "events.csv") if row["kind"] == "rejected"]


def test_a_name_belongs_to_the_key_that_first_came_with_it_whatever_its_node_does(tmp_path):
    door = Door(tmp_path)
    north, south = (1, "key-n", "north"), (2, "key-s", "south")
    assert door.come(north, south) == {"north": 1, "south": 2}
    door.attendance.roster.by_name("north").waits = False  # It has missed a deadline.
    thief = (3, "key-x", "north")
    assert door.come(north, south, thief) == {"north": 1, "south": 2}
    assert door.come(south, thief) == {"south": 2}
    door.restart()
    assert door.come(south, thief) == {"south": 2}
    assert door.come(south, (4, "key-n", "north")) == {"south": 2, "north": 4}
    assert set(door.reasons()) == {"the client 'north' belongs to another key"}


def test_a_name_that_was_registered_for_a_key_is_nobody_elses_from_the_first_day(tmp_path):
    door = Door(tmp_path, names={1: "north"})
    # The other one answers first, and before any round.
    assert door.come((0, "key-x", "north"), (1, "key-n", "north")) == {"north": 1}
    assert door.come((0, "key-x", "north"), (1, "key-n", "south")) == {"north": 1}
    door.names[5] = "south"
    assert door.come((1, "key-n", "north"), (5, "key-s", "east")) == {"north": 1}
    assert door.reasons() == [
        "the name 'north' is registered for node 1", "its key is registered for 'south', not for 'east'"
    ]  # fmt: skip
    # Its key is lost, and the name is registered for another.
    door.names[6] = "north"
    assert door.come((6, "key-n2", "north")) == {"north": 6}


def test_many_identities_of_one_key_are_one(tmp_path):
    door = Door(tmp_path)
    assert door.come((1, "key", "a")) == {"a": 1}
    assert door.come((2, "key", "b"), (3, "other", "c")) == {"c": 3}
    assert door.come((4, "key", "a"), (3, "other", "c")) == {"a": 4, "c": 3}
    assert door.reasons() == ["its key is that of the client 'a', not of 'b'"]


def test_a_key_that_comes_under_hundreds_of_names_takes_none_and_costs_a_line_each(tmp_path):
    door = Door(tmp_path)
    assert door.come((1, "key", "first"), (2, "own", "south")) == {"first": 1, "south": 2}
    for i in range(300):
        assert door.come((i + 3, "key", f"name-{i}"), (2, "own", "south"), number=i) == {"south": 2}
    assert [member.name for member in door.attendance.roster.members] == ["first", "south"]
    assert len(door.reasons()) == 300
    assert door.come((500, "fresh", "name-7"), (2, "own", "south")) == {"name-7": 500, "south": 2}


@pytest.mark.parametrize("name", ["x\n2026-01-01 00:00:00 INFO done", "\x1b[2Jx", "../../etc", "x" * 10**6, ""])
def test_a_name_that_is_none_is_turned_away_in_one_plain_line(tmp_path, caplog, name):
    door = Door(tmp_path)
    assert door.come((1, "key", name), (2, "own", "south")) == {"south": 2}
    assert all(record.getMessage().isprintable() and len(record.getMessage()) < 400 for record in caplog.records)
    (reason,) = door.reasons()
    assert reason.isprintable()
    assert "is not a client's name" in reason


def test_a_client_that_left_is_turned_away_by_its_name_and_by_its_key(tmp_path):
    door = Door(tmp_path, names={4: "north"})
    north, south = (1, "key-n", "north"), (2, "key-s", "south")
    assert door.come(north, south) == {"north": 1, "south": 2}
    door.attendance.leave(3, door.attendance.roster.by_name("north"), "so it is")
    for number, back in enumerate([north, (3, "key-n", "east"), (4, "key-x", "north"), (5, "key-y", "north")], 3):
        assert door.come(back, south, number=number) == {"south": 2}
        door.restart()
    assert door.reasons() == ["the client 'north' left for good after round 2"] * 3


def test_members_are_limited(tmp_path):
    door = Door(tmp_path, {"max-members": 3})
    assert len(door.come(*((i, f"key-{i}", f"client-{i}") for i in range(50)))) == 3
    assert set(door.reasons()) == {"there are 'max-members' = 3 clients"}


def test_without_keys_a_node_that_restarts_at_once_is_let_in_when_the_first_is_gone(tmp_path):
    door = Door(tmp_path, {"names": "nodes"})
    assert door.come((1, "once", "north")) == {"north": 1}
    again = (2, "anew", "north")
    assert door.come((1, "once", "north"), again) == {"north": 1}
    assert door.come((1, "once", "north"), again) == {"north": 1}
    assert door.come(again) == {"north": 2}
    assert door.reasons() == ["the client 'north' is at node 1 already"]


def test_thousands_of_clients_are_found_without_a_scan_for_each():
    """Each is looked up by name, key and node; a scan for each would be millions of looks."""
    roster, scans = Roster(), []

    class Counted(list):
        def __iter__(self):
            scans.append(1)
            return super().__iter__()

    roster.members = Counted()
    for i in range(2000):
        roster.join(f"client-{i}", i, None, f"key-{i}")
    assert [roster.by_node(i).id for i in (0, 1999)] == [0, 1999]
    assert roster.by_key("key-7") is roster.by_name("client-7")
    assert not scans
