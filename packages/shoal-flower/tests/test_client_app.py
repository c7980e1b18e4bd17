"""The ClientApp answers every message, and says nothing of the client where it cannot."""

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from shoal_flower.client import client_app
from shoal_flower.messages import REFUSED
from shoal_flower.wire_codec import unpack_identity


def asked(node: dict[str, object], run: dict[str, object] | None = None) -> tuple[Message, Context]:
    # Of the process, where Flower runs a ClientApp.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7
    message = Message(content=RecordDict(), dst_node_id=7, message_type="query.identify")
    return message, Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config=run or {})


def test_a_node_says_its_client():
    reply = client_app.identify(*asked({"data-path": "/data/north", "client": "north"}))
    assert unpack_identity(reply.content) == ("north", None)


def test_nodes_of_flowers_simulation_are_known_by_their_partition():
    reply = client_app.identify(*asked({"partition-id": 3, "num-partitions": 5}, {"state-dir": "/tmp/states"}))
    assert unpack_identity(reply.content) == ("partition-3", 3)


@pytest.mark.parametrize(("simulated", "folder"), [({"num-partitions": 5}, "/server/partition-3"), ({}, None)])
def test_a_server_does_not_name_a_nodes_folder(monkeypatch, simulated, folder):
    read = []
    monkeypatch.setattr(client_app.NodeSettings, "read", lambda config: read.append(config.get("state-dir")))
    client_app.identify(*asked({"partition-id": 3, **simulated}, {"state-dir": "/server"}))
    assert read == [folder]


@pytest.mark.parametrize("handler", [client_app.identify, client_app.train, client_app.count, client_app.vote])
def test_an_error_stays_in_the_nodes_own_log(handler, caplog):
    reply = handler(*asked({"data-path": "/secret/place", "client": "a b"}))
    assert set(reply.content) == {"refusal"}
    assert reply.content["refusal"]["reason"] == REFUSED
    assert "could not be answered" in caplog.text
