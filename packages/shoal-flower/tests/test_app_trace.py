"""The recorder of an existing Flower app: it changes no reply, and what it records is audited."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from experiment_scripts import experiment_script
from shoal.core.errors import InputError
from shoal.runs.audits.audit_members import audit_trace
from shoal_flower.app_trace import AppRecorder, app_trace

APP = Path(__file__).parents[3] / "docs" / "examples" / "flower_app"


@pytest.fixture(autouse=True)
def _task():
    before = dict(vars(TaskIdentity))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7
    yield
    for name in ("_task_id", "_run_id", "_node_id"):
        if name in before:
            setattr(TaskIdentity, name, before[name])


def node(client, run=1):
    return Context(run_id=run, node_id=7, node_config={"partition-id": client}, state=RecordDict(), run_config={})


def question(model, number=1, **more):
    content = RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"server-round": number, "lr": 0.1})})
    return Message(content=RecordDict({**content, **more}), dst_node_id=7, message_type="train")


@pytest.fixture
def example(monkeypatch):
    """The modules of the documentation's app."""
    monkeypatch.syspath_prepend(str(APP))
    for name in ("task", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = importlib.import_module("task"), importlib.import_module("client_app")
    yield loaded
    for name in ("task", "client_app"):
        sys.modules.pop(name, None)


def test_the_documented_app_is_recorded_unchanged_and_its_server_recognises_records(example, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.reports.audit.audit_page.audit_page", lambda *_, **__: "")
    task, clients = example
    recorder, silent = AppRecorder(tmp_path / "trace"), clients.fit
    torch.manual_seed(0)
    model = task.Net().state_dict()
    for number in (1, 2):
        sent = []
        for client in range(task.CLIENTS):
            answers = []
            for ask in (lambda m, c: recorder(m, c, silent), silent):
                torch.manual_seed(client)
                answers.append(ask(question(model, number), node(client)).content["arrays"].to_torch_state_dict())
            assert all(torch.equal(answers[0][name], answers[1][name]) for name in model)
            sent.append(answers[0])
        model = {name: torch.stack([of[name] for of in sent]).mean(dim=0) for name in model}
    members = [task.load_data(client) for client in range(task.CLIENTS)]
    trace = app_trace(tmp_path / "trace", task.Net(), members, others=task.load_data(task.CLIENTS))
    first, second = trace.rounds()
    assert (first.clients.tolist(), len(first.models), first.assignment.unique().tolist()) == ([*range(10)], 1, [0])
    assert torch.allclose(second.models[0], first.models[0] + first.updates.mean(dim=0), atol=1e-6)
    flat = audit_trace(trace, out=tmp_path / "audit").flat
    assert (flat["attacks.span.all.auc"], flat["members"]) == (1.0, 200)
    assert flat["attacks.fedmia-ii.all.auc"] < 0.7
    assert (tmp_path / "audit/audit.json").exists()


def test_ten_lines_are_added_to_flowers_quickstart_and_stand_on_the_page(tmp_path):
    script, page = experiment_script("federation/quickstart"), (APP.parents[1] / "flower.md").read_text()
    assert script.CLIENT_APP in page
    assert script.AUDIT in page
    assert len([line for line in (script.CLIENT_APP + script.AUDIT).splitlines() if line]) <= 10
    app = tmp_path / "theirs" / "pytorchexample"
    app.mkdir(parents=True)
    (app / "client_app.py").write_text("before\napp = ClientApp()\nafter\n")
    script.with_audit(app.parent, tmp_path / "copy", Path("/there"), nodes=4)
    recorded = (tmp_path / "copy/pytorchexample/client_app.py").read_text()
    assert recorded == "before\n" + script.CLIENT_APP.replace("/tmp/shoal-trace", "/there") + "after\n"
    assert "load_data(client, 4, 32)[0] for client in range(4)" in (tmp_path / "copy/audit.py").read_text()
    with pytest.raises(InputError, match="has not the one line 'app = ClientApp"):
        script.with_audit(tmp_path / "copy", tmp_path / "again", Path("/there"), nodes=4)


def test_an_app_of_the_older_interface_is_recorded_by_its_group_of_messages(tmp_path):
    from flwr.client import NumPyClient  # noqa: PLC0415

    class Client(NumPyClient):
        def fit(self, parameters, config):
            return [array + 1 for array in parameters], 3, {}

    app = ClientApp(client_fn=lambda _: Client().to_client(), mods=[AppRecorder(tmp_path)])
    start = [np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros(3, dtype=np.float32)]
    content = fitins_to_recorddict(FitIns(ndarrays_to_parameters(start), {}), keep_input=True)
    message = Message(content=content, dst_node_id=7, message_type="train", group_id="4")
    reply = app(message, node(2))
    assert recorddict_to_fitres(reply.content, keep_input=False).num_examples == 3
    one = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    [updates] = app_trace(tmp_path, nn.Linear(2, 3), {2: one}, one).rounds()
    assert (updates.round, updates.clients.tolist()) == (4, [2])
    assert torch.equal(updates.models[0], torch.tensor([0.0, 1, 2, 3, 4, 5, 0, 0, 0]))
    assert torch.equal(updates.updates, torch.ones(1, 9))


def test_clients_that_receive_different_models_are_clusters(tmp_path):
    recorder, layer = AppRecorder(tmp_path), nn.Linear(1, 2, bias=False)
    for client, value in enumerate((1.0, 2.0, 1.0)):
        message = question({"weight": torch.full((2, 1), value)})
        recorder(message, node(client), lambda m, _: Message(content=m.content, reply_to=m))
    one = [[1.0]], [1]
    [updates] = app_trace(tmp_path, layer, [one] * 3, ([[2.0]], [0])).rounds()
    assert updates.models.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert updates.assignment.tolist() == [0, 1, 0]
    assert not updates.updates.any()


def test_what_cannot_be_recorded_or_read_is_one_sentence(tmp_path):
    recorder, layer = AppRecorder(tmp_path / "trace"), nn.Linear(1, 2, bias=False)
    echo = lambda m, _: Message(content=m.content, reply_to=m)  # noqa: E731
    model = {"weight": torch.zeros(2, 1)}
    with pytest.raises(InputError, match=r"messages with one model .got 2."):
        recorder(question(model, more=ArrayRecord(model)), node(0), echo)
    unnumbered = Message(content=RecordDict({"arrays": ArrayRecord(model)}), dst_node_id=7, message_type="train")
    with pytest.raises(InputError, match="needs the round's number"):
        recorder(unnumbered, node(0), echo)
    one = [[1.0]], [1]
    with pytest.raises(InputError, match="has no rounds"):
        app_trace(tmp_path / "trace", layer, [one], one)
    recorder(question(model), node(0, run=1), echo)
    recorder(question(model), node(1, run=2), echo)
    with pytest.raises(InputError, match="has 2 runs"):
        [*app_trace(tmp_path / "trace", layer, [one, one], one).rounds()]
    with pytest.raises(InputError, match="'members' must be a list of examples"):
        app_trace(tmp_path / "trace", layer, "members", one)
    recorder(question(model), node(1, run=1), echo)
    with pytest.raises(InputError, match="client 1 has no records"):
        [*app_trace(tmp_path / "trace", layer, [one], one).rounds()]
    evaluated = Message(content=RecordDict({}), dst_node_id=7, message_type="evaluate")
    assert recorder(evaluated, node(0), lambda *_: "its reply") == "its reply"
