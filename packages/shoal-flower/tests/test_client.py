"""A client answers for itself: its own data, its own ledger, its own estimate of risk."""

import contextlib
import sys
import threading
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file, save
from torch import Tensor

import wire_federation
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, accounting
from shoal.engine import Engine
from shoal.simulation.measure import accountable_trainings
from shoal_flower.client import client_app, client_round
from shoal_flower.client.client_round import histograms_reply, training_reply, vote_reply
from shoal_flower.client.node_data import asked_run, keep_features, open_client, run_config
from shoal_flower.client.policy import Ledger
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import FROZEN, REFUSED, NotAllowedError, Offer
from shoal_flower.wire_codec import pack_offer, pack_reply, unpack_identity
from wire_federation import rows_of

TABLE = {
    **wire_federation.TABLE,
    "algorithm": {"name": "ifca-mir", "clusters": 2, "rounds": 3},
    "red_team": {"every": 5},
}


def an_offer(number: int = 1, **tables: object) -> Offer:
    decided, simulation = build(parse_config({**TABLE, **tables}, "test"))
    models = torch.stack([simulation.setup.model.init(Stream(k)) for k in range(2)])
    return Offer(number, 1, decided.toml(), models, torch.tensor([0.5, 0.5], dtype=torch.float64))


def settings(folder, policy: str = "", **keys: object) -> NodeSettings:
    if policy:
        folder.mkdir(exist_ok=True)
        (folder / "policy.toml").write_text(policy)
        keys["policy"] = str(folder / "policy.toml")
    return NodeSettings.read({"partition-id": 1, "state-dir": str(folder), **keys})


def test_the_partition_is_the_simulators_client_with_the_nodes_own_preferences(tmp_path):
    offer = an_offer()
    client = open_client(asked_run(offer.config, settings(tmp_path, beta=0.25, threshold=0.6), ()))
    _, simulation = build(parse_config(TABLE, "test"))
    whole = simulation.federation.take(torch.tensor([1]))
    own, rows = client.federation.clients, whole.clients.indices
    assert torch.equal(own.x[own.indices], whole.clients.x[rows])
    assert torch.equal(own.y[own.indices], whole.clients.y[rows])
    assert len(own.x) == 20, "a node keeps nobody else's examples"
    assert client.federation.preferences.beta.tolist() == [0.25]
    assert client.federation.preferences.threshold.tolist() == [0.6]


@pytest.mark.parametrize(("risks", "cluster"), [([0.9, 0.5], 1), ([0.5, 0.9], 0)])
def test_risk_decides_by_the_nodes_own_beta(tmp_path, risks, cluster):
    offer = replace(an_offer(), risks=torch.tensor(risks, dtype=torch.float64))
    assert training_reply(offer, settings(tmp_path, alpha=0.0)).cluster == cluster


def test_a_client_that_does_not_trust_the_server_goes_by_its_own_estimates(tmp_path):
    offer = replace(an_offer(), risks=torch.tensor([0.9, 0.5], dtype=torch.float64))
    own = settings(tmp_path, beta=1.0, risk="client")
    update = training_reply(offer, own)
    rows = rows_of(tmp_path / "risks.csv")
    estimates = [float(row["own"]) for row in rows]
    assert [float(row["server"]) for row in rows] == [0.9, 0.5]
    assert update.cluster == estimates.index(min(estimates))
    training_reply(replace(offer, round=2), own)
    lines = (tmp_path / "risks.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == ["1", "1", "2", "2"]


def test_two_rounds_at_once_are_both_in_the_ledger(tmp_path, monkeypatch):
    both, load = threading.Barrier(2), Ledger.load

    def load_together(path):
        ledger = load(path)
        # Without a lock both read the same ledger before one of them writes.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)
        return ledger

    monkeypatch.setattr(Ledger, "load", staticmethod(load_together))
    rounds = [threading.Thread(target=training_reply, args=(an_offer(number), settings(tmp_path))) for number in (1, 2)]
    for thread in rounds:
        thread.start()
    for thread in rounds:
        thread.join()
    assert load(tmp_path / "ledger.json").rounds == 2


@pytest.mark.parametrize("defense", ["dp_sgd", "laplace_noise"])
def test_noise_is_the_clients_secret_and_new_for_an_offer_that_is_made_twice(tmp_path, defense):
    """Of noise that follows from the run's seed the server knows every number."""
    noisy, plain = an_offer(defenses={defense: {"noise_multiplier": 1.0}}), an_offer()

    def answers(offer, source: str) -> list[Tensor]:
        folders = (tmp_path / f"{source}-{turn}" for turn in (0, 1))
        return [training_reply(offer, settings(folder, noise=source)).end for folder in folders]

    assert torch.equal(*answers(noisy, "seed")), "for trials"
    assert torch.equal(*answers(plain, "secret")), "batches without noise are the simulator's"
    assert not torch.equal(*answers(noisy, "secret"))


def test_noise_of_histograms_and_answers_is_the_clients_secret(tmp_path):
    team = {"every": 1, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 1.0}
    offer = an_offer(red_team=team, coordinator={"l2": 0.1, "vote_epsilon": 0.1})
    one = replace(offer, models=offer.models[:1], risks=offer.risks[:1])
    secret, seeded = settings(tmp_path, "votes = 100"), settings(tmp_path, "votes = 100", noise="seed")
    assert np.array_equal(histograms_reply(one, seeded), histograms_reply(one, seeded))
    assert not np.array_equal(histograms_reply(one, secret), histograms_reply(one, secret))
    assert len({vote_reply(one, seeded) for _ in range(50)}) == 1
    assert len({vote_reply(one, secret) for _ in range(50)}) == 2, "equal with a probability of 2^-49"


@pytest.mark.parametrize("local", [{}, {"epochs": 2, "batch_size": 20}], ids=["as shared", "own"])
def test_a_ledger_of_two_trainings_a_round_is_what_the_run_states(tmp_path, local):
    table = {
        "algorithm": {"name": "ditto", "rounds": 2, **({"local": local} if local else {})},
        "defenses": {"dp_sgd": {"noise_multiplier": 1.0}},
    }
    offer = an_offer(**table)
    offer = replace(offer, models=offer.models[:1], risks=offer.risks[:1])
    for number in (1, 2):
        training_reply(replace(offer, round=number), settings(tmp_path))
    _, simulation = build(parse_config({**TABLE, **table}, "test"))
    with Engine(simulation.setup.model) as engine:
        training = simulation.on(engine)
        (*_, (state, _)) = training.rounds(training.start(), 2)
    trainings = accountable_trainings(training, state)
    assert trainings is not None
    stated = accounting.PrivateTrainings(
        simulation.federation, [torch.arange(3)] * 2, trainings, DPSGD(noise_multiplier=1.0)
    ).epsilons()
    assert Ledger.load(tmp_path / "ledger.json").epsilon(1e-5) == pytest.approx(float(stated[1]), rel=1e-9)


def test_a_ledger_is_charged_for_all_copies_of_a_record(tmp_path, monkeypatch):
    def copied(*given, **own):
        client = open_client(*given, **own)
        clients = client.federation.clients
        rows = clients.indices[:3]
        clients.x[rows], clients.y[rows] = clients.x[rows[0]].clone(), clients.y[rows[0]].clone()
        return client

    offer = an_offer(algorithm={"name": "fedavg", "rounds": 1}, defenses={"dp_sgd": {"noise_multiplier": 6.0}})
    monkeypatch.setattr(client_round, "open_client", copied)
    training_reply(replace(offer, models=offer.models[:1], risks=offer.risks[:1]), settings(tmp_path))
    expected = accounting.composed_epsilon([(2.0, 1 - 0.5**3, 2)], 1e-5)
    assert Ledger.load(tmp_path / "ledger.json").epsilon(1e-5) == expected


def test_a_personal_model_is_remembered_on_the_clients_disk(tmp_path):
    offer = an_offer(algorithm={"name": "ditto", "rounds": 3})
    offer = replace(offer, models=offer.models[:1], risks=offer.risks[:1])
    training_reply(offer, settings(tmp_path))
    training_reply(replace(offer, round=2), settings(tmp_path))
    (folder,) = tmp_path.glob("run-*")
    assert [path.name for path in sorted(folder.glob("*"))] == ["round-000001.safetensors", "round-000002.safetensors"]
    again = tmp_path / "again"
    training_reply(offer, settings(again))
    training_reply(replace(offer, round=2), settings(again))
    (other,) = again.glob("run-*")
    assert (folder / "round-000002.safetensors").read_bytes() == (other / "round-000002.safetensors").read_bytes()
    first, second = ((folder / f"round-00000{i}.safetensors").read_bytes() for i in (1, 2))
    assert first != second


def test_a_personal_model_begins_where_all_do_also_where_its_noise_is_secret(tmp_path):
    """Training that hardly moves it leaves what it began with."""
    local = {"epochs": 1, "batch_size": 10, "learning_rate": 1e-6}
    personal_models = []
    for name, defenses in (("noisy", {"dp_sgd": {"noise_multiplier": 1.0}}), ("plain", {})):
        offer = an_offer(defenses=defenses, local=local, algorithm={"name": "ditto", "rounds": 3})
        training_reply(replace(offer, models=offer.models[:1], risks=offer.risks[:1]), settings(tmp_path / name))
        (path,) = (tmp_path / name).glob("run-*/round-000001.safetensors")
        (personal,) = [rows for key, rows in load_file(path).items() if rows.shape[-1] == offer.models.shape[1]]
        personal_models.append(personal)
    torch.testing.assert_close(*personal_models, atol=1e-4, rtol=0)
    assert personal_models[0].std() > 1e-2


def test_a_node_runs_no_code_that_the_server_names():
    with pytest.raises(InputError, match=r"'allow-code' lacks .got 'os:system'"):
        run_config('[data]\nsource = "os:system"\nclients = 1')
    with pytest.raises(InputError, match=r"'allow-code' lacks .got 'os:system'"):
        run_config('[data]\nsource = "os:system"\nclients = 1', allow_code="mine:Mine, os:popen")


def test_a_model_of_another_network_is_refused(tmp_path):
    offer = an_offer()
    with pytest.raises(InputError, match="must have 650 parameters"):
        training_reply(replace(offer, models=offer.models[:, :-1]), settings(tmp_path))


def test_a_client_trains_on_a_folder_of_its_own(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    for label, shade in (("dark", 20), ("light", 230)):
        folder = tmp_path / "north" / "north" / label
        folder.mkdir(parents=True)
        for i in range(8):
            pictures.new("L", (8, 8), shade + i).save(folder / f"{i}.png")
    table = {
        "data": {"source": "folder", "path": "", "size": [8, 8], "channels": 1, "holdout_fraction": 0.25},
        "model": {"name": "logistic", "classes": 3},
        "algorithm": {"name": "fedavg", "rounds": 1},
    }
    config = parse_config(table, "test").toml()
    node = NodeSettings.read(
        {"data-path": str(tmp_path / "north"), "client": "north", "state-dir": str(tmp_path / "s")}
    )
    client = open_client(asked_run(config, node, ("dark", "grey", "light")))
    assert client.federation.names == ("north",)
    assert sorted(client.federation.clients.y.unique().tolist()) == [0, 2]
    assert len(client.federation.clients.indices) == 11
    with pytest.raises(InputError, match="classes 'dark', which are missing in the server's data"):
        open_client(asked_run(config, node, ("grey", "light")))
    private = {"defenses": {"dp_sgd": {"noise_multiplier": 1.0}}, "algorithm": {"name": "fedsoft", "rounds": 1}}
    steered = {"red_team": {"every": 1, "estimator": "histogram"}, "coordinator": {"dp_sgd": {"noise_multiplier": 1.0}}}
    for unsound in (table | private, table | private | steered | {"defenses": {}}):
        with pytest.raises(InputError, match="FedSoft's importances"):
            open_client(asked_run(parse_config(unsound, "test").toml(), node, ("dark", "grey", "light")))


# --- frozen tensors ----------------------------------------------------------------------------------------------


def test_a_message_has_no_frozen_tensor_and_another_body_is_refused(tmp_path, monkeypatch):
    seeds = [1]

    class Pretrained(torch.nn.Sequential):
        def __init__(self, shape: object) -> None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds[-1])
                body = torch.nn.Linear(64, 2000).requires_grad_(False)
            super().__init__(torch.nn.Flatten(), body, torch.nn.AdaptiveAvgPool1d(20), torch.nn.Linear(20, 10))

    module = types.ModuleType("network_with_a_body")
    module.Pretrained = Pretrained
    monkeypatch.setitem(sys.modules, "network_with_a_body", module)
    name = "network_with_a_body:Pretrained"
    _, simulation = build(parse_config({**TABLE, "model": {"name": name}}, "test"))
    offer = replace(an_offer(model={"name": name}), frozen=simulation.setup.model.frozen_hash)
    node = settings(tmp_path, **{"allow-code": name})
    open_client.cache_clear()
    asked_run.cache_clear()
    reply = training_reply(offer, node)
    sent = [array for message in (pack_offer(offer), pack_reply(reply)) for array in message.array_records.values()]
    sizes = [len(array.data) for record in sent for array in record.values()]
    assert max(sizes) < 3000 < 100 * 3000 < 4 * simulation.setup.model.frozen["1.weight"].numel()
    seeds.append(2)
    open_client.cache_clear()
    asked_run.cache_clear()
    frozen, later = simulation.setup.model.frozen, replace(offer, round=2)
    with pytest.raises(NotAllowedError, match="the frozen tensors of the server's models are missing"):
        training_reply(later, node)
    for content, digest, sentence in (
        (b"nonsense", offer.frozen, "cannot be read"),
        (save({"x": torch.zeros(1)}), offer.frozen, "must have the hash"),
        (save(dict(frozen)), "../x", "is not a hash"),
    ):
        with pytest.raises(InputError, match=sentence):
            keep_features(node.folder, FROZEN + digest, content)
    assert keep_features(node.folder, FROZEN + offer.frozen, save(dict(frozen))) == FROZEN + offer.frozen
    training_reply(later, node)
    sent = open_client(asked_run(offer.config, node, (), None, "", offer.frozen)).setup.model
    assert torch.equal(sent.structure()[1].weight, frozen["1.weight"])
    assert not torch.equal(Pretrained(None)[1].weight, frozen["1.weight"])
    open_client.cache_clear()
    asked_run.cache_clear()


def asked(node: dict[str, object], run: dict[str, object] | None = None) -> tuple[Message, Context]:
    # Of the process, where Flower runs a ClientApp.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7
    message = Message(content=RecordDict(), dst_node_id=7, message_type="query.identify")
    return message, Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config=run or {})


def test_a_node_says_its_client():
    reply = client_app.identify(*asked({"data-path": "/data/north", "client": "north"}))
    assert unpack_identity(reply.content) == ("north", None, False)


def test_nodes_of_flowers_simulation_are_known_by_their_partition():
    reply = client_app.identify(*asked({"partition-id": 3, "num-partitions": 5}, {"state-dir": "/tmp/states"}))
    assert unpack_identity(reply.content) == ("partition-3", 3, False)


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
