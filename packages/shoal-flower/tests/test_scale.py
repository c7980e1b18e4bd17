"""What a round costs the server, by number of clients: memory of a few models, requests and packing that are shared."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict
from in_process import InProcessSuperLink

from shoal_flower.server import server_rounds
from shoal_flower.server.exchange import Exchange
from shoal_flower.server.server_rounds import UpdateFile
from shoal_flower.wire_codec import pack_identity, pack_models
from wire_federation import Federation


def test_updates_come_back_from_their_file_bit_for_bit_in_any_order(tmp_path):
    rows = torch.randn(7, 1001, generator=torch.Generator().manual_seed(3))
    rows[2, 5] = -0.0
    file = UpdateFile(tmp_path, 1001)
    assert [file.add(row) for row in rows] == [*range(7)]
    assert not [*tmp_path.iterdir()], "a name that would outlive the process"
    assert torch.equal(file[torch.tensor([6, 0, 2])], rows[[6, 0, 2]])
    file.order = [4, 3, 2]
    assert torch.equal(file[torch.tensor([2, 0])].view(torch.int32), rows[[2, 4]].view(torch.int32))
    file.add(rows[0])
    assert torch.equal(file[torch.tensor([1])], rows[[3]])
    file.close()


def test_no_update_is_in_memory_while_others_are_awaited(tmp_path, monkeypatch):
    kept = []

    def received(self, updates, ends, clusters):
        kept.extend(sent.update.end.untyped_storage().nbytes() for sent in updates.values())
        assert len(ends) == 3
        return original(self, updates, ends, clusters)

    original = server_rounds.Server._received_updates
    monkeypatch.setattr(server_rounds.Server, "_received_updates", received)
    Federation(tmp_path / "run").serve()
    assert kept == [0] * 6


@pytest.mark.parametrize(
    ("algorithm", "packed"),
    [({"name": "ifca", "clusters": 2, "rounds": 2}, 2), ({"name": "cfl", "rounds": 2, "eps1": 10.0, "eps2": 0.0}, 3)],
    ids=["ifca", "cfl"],
)
def test_models_are_packed_and_sent_once_for_all_who_are_offered_them(tmp_path, monkeypatch, algorithm, packed):
    calls = []
    pack = server_rounds.pack_models
    monkeypatch.setattr(server_rounds, "pack_models", lambda models: calls.append(models) or pack(models))
    federation = Federation(tmp_path / "run", changes={"algorithm": algorithm})
    link = federation.link()
    chunks = []
    push = link.PushObject

    def pushed(request):
        if request.object_content.startswith(b"ArrayChunk "):
            chunks.append(request.object_id)
        return push(request)

    link.PushObject = pushed
    federation.run(link)
    assert len(calls) == packed
    assert 0 < len(chunks) <= packed


def test_many_messages_are_asked_about_in_parts_and_none_whose_answer_has_come():
    nodes = {i: lambda _, __, i=i: pack_identity(f"client-{i}", None) for i in range(1, 601)}
    link, looks = InProcessSuperLink(nodes), []
    pull = link.PullMessages

    def pulled(request):
        looks.append(list(request.message_ids))
        return pull(request)

    link.PullMessages = pulled
    answers = Exchange(link.grid()).ask("identify", {node: RecordDict() for node in nodes}, set(nodes), 60.0, "1")
    assert sorted(answer.node for answer in answers) == [*nodes]
    assert max(map(len, looks)) <= 256
    asked = [message for look in looks for message in look]
    assert len(asked) == len(set(asked)) == 600


def test_an_answer_is_freed_when_the_next_one_is_asked_for():
    """By the garbage collector it would be after hundreds of answers, of tens of megabytes each."""
    nodes = {i: lambda _, __: RecordDict({"model": pack_models(torch.zeros(10))}) for i in range(1, 4)}
    asked, freed = {node: RecordDict() for node in nodes}, []
    gc.disable()
    try:
        for answer in Exchange(InProcessSuperLink(nodes).grid()).ask("identify", asked, set(nodes), 60.0, "1"):
            freed.append(weakref.ref(answer.content["model"]["models"]))
            del answer
            assert [each() is None for each in freed[:-1]] == [True] * (len(freed) - 1)
    finally:
        gc.enable()
    assert len(freed) == 3


def test_a_round_that_has_its_quorum_leaves_nothing_open(tmp_path: Path):
    """Those who come after it are late in the next exchange, and are not read."""
    federation = Federation(tmp_path / "run")
    federation.serve(quorum=0.6)
    assert not federation.events("missed")
    assert not federation.events("rejected")
