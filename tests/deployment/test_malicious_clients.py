"""What a malicious client tries on the server, on the wire format: each attempt costs that client its reply."""

import csv
import hashlib
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="messages are Flower's, which needs the extra: pip install 'shoal[flower]'")

from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from in_process import InProcessSuperLink

from shoal.config.schema import parse_config
from shoal.deployment.client.client_round import training_reply
from shoal.deployment.flower_config import NodeSettings, RunSettings
from shoal.deployment.flower_records import pack_identity, pack_reply, unpack_offer
from shoal.deployment.messages import RejectedReplyError, plain
from shoal.deployment.server.exchange import Exchange
from shoal.deployment.server.replies import Reply, content_of
from shoal.deployment.server.server_app import serve
from shoal.runs.checkpoint import load_checkpoint

TABLE = {
    "seed": 2,
    "data": {
        "source": "digits", "clients": 3, "examples_per_client": 20, "holdout_examples": 10, "shadow_examples": 40,
        "test_examples": 20,
    },
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "rounds": 2},
    "local": {"epochs": 1, "batch_size": 10},
    "red_team": {"every": 0, "attack": "gap"},
    "engine": {"backend": "loop"},
}  # fmt: skip

Objects = dict[str, bytes]


def made(objects: Objects, kind: str, body: bytes, children: tuple[str, ...] = ()) -> str:
    """Add an object of the wire format to ``objects``; returns its id."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
    name = hashlib.sha256(content).hexdigest()
    objects[name] = content
    return name


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


@dataclass(eq=False)
class Federation:
    """Three nodes, of which the second may spoil what it sends of a question."""

    folder: Path
    spoil: Callable[[RecordDict], RecordDict | Objects | None] = lambda reply: reply
    question: str = "train"
    changes: dict[str, object] = field(default_factory=dict)

    def serve(self, **settings: object) -> InProcessSuperLink:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "run.toml"
        path.write_text(parse_config({**TABLE, **self.changes}, "test").toml())
        link = InProcessSuperLink({100 + i: self.node(i) for i in range(3)})
        run = {"config": str(path), "out": str(self.out), "min-nodes": 2, "wait-timeout": 0.0, **settings}
        serve(Exchange(link.grid()), RunSettings.read(run))
        return link

    def node(self, partition: int):
        def answer(kind: str, content: RecordDict) -> RecordDict | Objects | None:
            settings = NodeSettings.read(
                {"partition-id": partition, "state-dir": str(self.folder / str(partition)), "noise": "seed"}
            )
            if kind.endswith("identify"):
                reply = pack_identity(settings.name, partition)
            else:
                reply = pack_reply(training_reply(unpack_offer(content), settings))
            return self.spoil(reply) if partition == 1 and kind.endswith(self.question) else reply

        return answer

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def models(self) -> torch.Tensor:
        progress = load_checkpoint(self.out / "checkpoint")
        assert progress is not None
        return progress.state.models

    def events(self, kind: str) -> list[dict[str, str]]:
        rows = csv.DictReader((self.out / "events.csv").read_text().splitlines())
        return [row for row in rows if row["kind"] == kind]


@pytest.fixture
def alone(tmp_path) -> torch.Tensor:
    """The models of a run in which the second client does not reply."""
    quiet = Federation(tmp_path / "quiet", spoil=lambda reply: None)
    quiet.serve(**{"round-timeout": 0.5})
    return quiet.models


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_json, "a reply that cannot be read: JSONDecodeError"),
        (lambda _: repeated_chunk(1 << 20, 500), "a reply whose arrays have more than"),
        (lambda _: RecordDict({"refusal": ConfigRecord({"reason": "x" * (1 << 21)})}), "bytes beside its arrays"),
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


def test_a_reply_that_is_announced_and_never_uploaded_is_waited_for_until_the_deadline_alone(tmp_path, alone):
    federation = Federation(tmp_path / "run", lambda reply: {"0" * 64: b""})
    path = federation.folder
    path.mkdir()
    link = None

    def keep_back(reply: RecordDict) -> Objects:
        objects = without_json(reply)
        assert link is not None
        link.uploading.update(objects)
        return objects

    federation.spoil = keep_back
    (path / "run.toml").write_text(parse_config(TABLE, "test").toml())
    link = InProcessSuperLink({100 + i: federation.node(i) for i in range(3)})
    run = {"config": str(path / "run.toml"), "out": str(federation.out), "min-nodes": 2, "round-timeout": 0.5}
    serve(Exchange(link.grid()), RunSettings.read(run))
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
    """The body of a message is the node's; whom it answers is told by the SuperLink, which has checked it."""
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
