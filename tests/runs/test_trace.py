"""Traces of another framework: what a plain PyTorch loop writes is read as what Shoal records itself."""

import io
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from shoal.core.errors import InputError
from shoal.core.formats import LONGEST
from shoal.engine import Engine
from shoal.models import cross_entropy
from shoal.runs.audits.trace import read_trace, update_scores_of_trace

DOCS = Path(__file__).parents[2] / "docs" / "trace.md"
TOML = """
classes = 3
shape = [1, 4, 4]
model = { name = "tracing:Normed" }
"""
OWN = """
from torch import nn

class Normed(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(shape.channels, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.output = nn.Linear(2 * shape.height * shape.width, shape.classes)

    def forward(self, x):
        return self.output(self.norm(self.convolution(x)).flatten(1))

def doubled(outputs, labels):
    return 2 * nn.functional.cross_entropy(outputs, labels, reduction="none")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, with a network that has a convolution, buffers and an integer in its state_dict."""
    (tmp_path / "tracing.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tracing", raising=False)
    return pytest.importorskip("tracing")


def flat(network):
    return np.concatenate([each.numpy().ravel() for each in network.state_dict().values()]).astype(np.float32)


def records():
    draw = np.random.default_rng(0)
    client = np.array([0, 0, 5, 5, 8, -1, -1, -1])
    x, y = draw.random((8, 1, 4, 4), dtype=np.float32), draw.integers(0, 3, 8)
    return {"x": x, "y": y, "client": client, "group": np.array(["a", "b"] * 4)}


def trained(network, arrays, client):
    """One step on a client's records, in plain PyTorch."""
    own = arrays["client"] == client
    loss = cross_entropy(network.train()(torch.from_numpy(arrays["x"][own])), torch.from_numpy(arrays["y"][own])).mean()
    names = [name for name, _ in network.named_parameters()]
    for name, gradient in zip(names, torch.autograd.grad(loss, list(network.parameters())), strict=True):
        network.get_parameter(name).data.sub_(0.1 * gradient)
    return network.eval()


@pytest.fixture
def written(own, tmp_path):
    """A trace of two rounds of three clients; and its networks: (server, by client) of each round."""
    folder, arrays, networks = tmp_path / "trace", records(), []
    folder.mkdir()
    (folder / "trace.toml").write_text(TOML)
    np.savez(folder / "records.npz", **arrays)
    shape = SimpleNamespace(channels=1, height=4, width=4, classes=3)
    for number in (1, 2):
        torch.manual_seed(number)
        server = own.Normed(shape).eval()
        clients = {}
        for client in (5, 0, 8):
            clients[client] = own.Normed(shape)
            clients[client].load_state_dict(server.state_dict())
            trained(clients[client], arrays, client)
        parameters = np.stack([flat(each) for each in clients.values()])
        np.savez(
            folder / f"round-{number:04d}.npz", clients=np.array([5, 0, 8]), models=flat(server), parameters=parameters
        )
        networks.append((server, clients))
    return folder, networks


def scores_of(folder):
    trace = read_trace(folder, allow_code=True)
    with Engine(trace.model) as engine:
        return update_scores_of_trace(trace, engine)


def test_the_values_are_those_of_the_networks_that_wrote_them(written):
    folder, networks = written
    scores, arrays = scores_of(folder), records()
    assert scores.clients.tolist() == [0, 5, 8]
    assert scores.client.tolist() == [0, 0, 1, 1, 2, -1, -1, -1]
    assert (scores.groups, scores.group.tolist()) == (("a", "b"), [0, 1] * 4)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    for t, (server, clients) in enumerate(networks):
        for client, network in clients.items():
            i = [0, 5, 8].index(client)
            losses = cross_entropy(network(x), y).detach().numpy()
            np.testing.assert_allclose(scores.loss[t, i], losses, rtol=1e-4, atol=1e-5)
            step = [before - after for before, after in zip(server.parameters(), network.parameters(), strict=True)]
            step = torch.cat([each.detach().flatten() for each in step])
            for m in range(len(y)):
                gradients = torch.autograd.grad(cross_entropy(server(x[m : m + 1]), y[m : m + 1]).sum(),
                                                list(server.parameters()))  # fmt: skip
                gradient = torch.cat([each.flatten() for each in gradients])
                cosine = torch.cosine_similarity(step, gradient, dim=0)
                assert scores.cosine[t, i, m] == pytest.approx(float(cosine), abs=1e-4)


def test_safetensors_and_an_assignment_are_read_as_well(written):
    folder, _ = written
    expected = scores_of(folder)
    for path in sorted(folder.glob("round-*.npz")):
        arrays = dict(np.load(path))
        other = np.zeros_like(arrays["models"])
        arrays["models"], arrays["assignment"] = np.stack([other, arrays["models"]]), np.array([1, 1, 1])
        path.unlink()
        save_file(arrays, path.with_suffix(".safetensors"))
    found = scores_of(folder)
    np.testing.assert_array_equal(found.cosine, expected.cosine)
    assert (found.assignment == 1).all()


def test_the_loss_may_be_one_s_own(written):
    folder, _ = written
    expected = scores_of(folder)
    (folder / "trace.toml").write_text("loss = 'tracing:doubled'\n" + TOML)
    np.testing.assert_allclose(scores_of(folder).loss, 2 * expected.loss, rtol=1e-6)


def test_a_network_of_shoal_takes_vectors_and_texts(tmp_path):
    for name, inputs, x in [
        ("logistic", "shape = [5]", np.ones((3, 5), dtype=np.float32)),
        ("gru", "vocabulary = 9", np.ones((3, 4), dtype=np.int64)),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "trace.toml").write_text(f'classes = 2\n{inputs}\nmodel = {{ name = "{name}" }}\n')
        np.savez(folder / "records.npz", x=x, y=np.array([0, 1, 1]), client=np.array([0, 1, -1]))
        (folder / "round-0001.npz").touch()
        network = read_trace(folder, allow_code=True).model.network()
        row = flat(network)
        np.savez(folder / "round-0001.npz", clients=np.array([0, 1]), models=row, parameters=np.stack([row, 2 * row]))
        scores = scores_of(folder)
        assert scores.groups == ("all",)
        assert np.isfinite(scores.loss).all()
        assert (scores.cosine[0, 0] == 0).all(), "a client that did not move"


def test_a_trace_is_read_round_by_round(written):
    folder, _ = written
    trace = read_trace(folder, allow_code=True)
    rounds = trace.rounds()
    assert next(rounds).round == 1
    trace.files[1].unlink()
    with pytest.raises(InputError, match=r"round-0002.npz: cannot be read: No such file"):
        next(rounds)
    assert len(repr(trace)) <= LONGEST


def changed(folder, name, **arrays):
    given = {**np.load(folder / name), **arrays}
    np.savez(folder / name, **{key: each for key, each in given.items() if each is not None})


def test_what_is_wrong_with_a_round_is_one_sentence_with_its_file(written):
    folder, _ = written
    whole, path = dict(np.load(folder / "round-0002.npz")), folder / "round-0002.npz"
    size = whole["models"].size
    broken = whole["parameters"].copy()
    broken[1, 2] = np.nan
    for wrong, sentence in [
        ({"parameters": broken}, "'parameters' must be finite numbers"),
        (
            {"parameters": broken[:, 1:]},
            rf"'parameters' must be floats of shape \(n, {size}\) .* \(3, {size - 1}\)",
        ),
        ({"models": whole["models"][1:]}, rf"'models' must be floats of shape \(K, {size}\) "),
        ({"parameters": whole["parameters"][:2]}, "'parameters' must have 3 rows"),
        ({"clients": np.array([0.0, 5.0, 8.0])}, "'clients' must be an array of 3 integers"),
        ({"clients": np.array([0, 5, 5])}, "'clients' must hold .* client 5"),
        ({"clients": np.array([0, 5, 6])}, "client 6 has no records"),
        ({"assignment": np.array([0, 1, 0])}, "'assignment' must be model numbers"),
        ({"assignment": np.array([0, 0])}, "'assignment' must be an array of 3 integers"),
        ({"models": None}, "the array 'models' is missing"),
        ({"clients": np.array(["a", None, 1], dtype=object)}, "is damaged or holds objects"),
    ]:
        np.savez(path, **whole)
        changed(folder, path.name, **wrong)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {sentence}"):
            scores_of(folder)
    np.savez_compressed(path, **whole)
    squeezed = bytearray(path.read_bytes())
    squeezed[len(squeezed) // 2] ^= 255
    plain = io.BytesIO()
    np.save(plain, whole["models"])
    for content in (b"", b"nonsense", b"PK\x03\x04", bytes(squeezed), plain.getvalue()):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: is damaged"):
            scores_of(folder)


def test_what_is_wrong_with_the_records_is_one_sentence_with_their_file(written):
    folder, _ = written
    whole, path = records(), folder / "records.npz"
    for wrong, sentence in [
        ({"x": whole["x"] * np.nan}, r"NaN or infinity in 8 of 8 examples\)"),
        ({"x": whole["x"][:, :, 1:]}, r"\(1, 3, 4\); trace.toml requires \(1, 4, 4\)"),
        ({"y": whole["y"] + 1}, "'y' must be labels from 0 to 2"),
        ({"y": whole["y"][1:]}, "8 examples and 7 labels"),
        ({"client": whole["client"] - 1}, "'client' must be integers from 0"),
        ({"client": whole["client"][1:]}, "'client' must be an array of 8 integers"),
        ({"client": None}, "the array 'client' is missing"),
        ({"group": np.arange(8)}, "'group' must be an array of 8 group names"),
        ({"group": np.array(["a", "all"] * 4)}, "'all' cannot be the name of one of several groups"),
        ({key: each[:0] for key, each in whole.items()}, "has no records"),
    ]:
        np.savez(path, **whole)
        changed(folder, path.name, **wrong)
        with pytest.raises(InputError, match=f"{re.escape(str(path))}:? .*{sentence}"):
            read_trace(folder, allow_code=True)
    path.unlink()
    with pytest.raises(InputError, match=r"records.npz: cannot be read: No such file"):
        read_trace(folder, allow_code=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("classes = 3", "classes = 1"), r"'classes' must be at least 2 \(got 1"),
        (("classes", "clases"), "unknown key 'clases'; did you mean 'classes'"),
        (("[1, 4, 4]", "[4, 4]"), r"'shape' must be \[channels, height, width\] or \[numbers\]"),
        (("shape = [1, 4, 4]", ""), "either 'shape'"),
        (("tracing:Normed", "tracing:Other"), "the module has no class or function 'Other'"),
        (("tracing:Normed", "gru"), r"model 'gru' requires texts \(got images\)"),
        (("classes", "loss = 'hinge'\nclasses"), "'loss' must be 'cross-entropy' or 'module:Name'"),
        (("classes", "loss = 'tracing:hinge'\nclasses"), "the module has no class or function 'hinge'"),
        (("classes", "every = 0\nclasses"), r"'every' must be at least 1 \(got 0"),
    ],
)
def test_what_is_wrong_with_trace_toml_is_one_sentence_with_its_name(written, change, sentence):
    folder, _ = written
    path = folder / "trace.toml"
    path.write_text(TOML.replace(*change))
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{sentence}"):
        read_trace(folder, allow_code=True)


def test_missing_rounds_are_named(written, tmp_path):
    folder, _ = written
    (folder / "trace.toml").write_text("every = 1\n" + TOML)
    read_trace(folder, allow_code=True)
    (folder / "round-0002.npz").rename(folder / "round-0004.npz")
    with pytest.raises(InputError, match="lacks the file of round 2; recorded rounds must be the multiples of 1"):
        read_trace(folder, allow_code=True)
    (folder / "round-0001.safetensors").touch()
    with pytest.raises(InputError, match=r"round-0001.safetensors: has the same round as round-0001.npz"):
        read_trace(folder, allow_code=True)
    for path in folder.glob("round-*"):
        path.unlink()
    with pytest.raises(InputError, match=r"has no rounds; add files such as round-0001.npz"):
        read_trace(folder, allow_code=True)
    with pytest.raises(InputError, match=r"nothing: is not a trace"):
        read_trace(tmp_path / "nothing", allow_code=True)


def test_flower_s_strategy_in_the_documentation_writes_a_trace(written, monkeypatch, tmp_path):
    """With stand-ins for the two names of Flower that it uses."""
    folder, networks = written
    expected = scores_of(folder)
    flower = {name: ModuleType(name) for name in ("flwr", "flwr.common", "flwr.server", "flwr.server.strategy")}

    class FedAvg:
        def configure_fit(self, server_round, parameters, client_manager):
            return []

        def aggregate_fit(self, server_round, results, failures):
            return None, {}

    flower["flwr.common"].parameters_to_ndarrays = lambda given: given
    flower["flwr.server.strategy"].FedAvg = FedAvg
    for name, module in flower.items():
        monkeypatch.setitem(sys.modules, name, module)
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "Traced" in each]
    names: dict = {}
    exec(code, names)
    strategy = names["Traced"]()
    strategy.folder = tmp_path / "flower"
    strategy.folder.mkdir()
    for name in ("trace.toml", "records.npz"):
        (strategy.folder / name).write_bytes((folder / name).read_bytes())

    def arrays(network):
        return [each.numpy() for each in network.state_dict().values()]

    for number, (server, clients) in enumerate(networks, start=1):
        strategy.configure_fit(number, arrays(server), None)
        results = [
            (None, SimpleNamespace(metrics={"client": client}, parameters=arrays(network)))
            for client, network in clients.items()
        ]
        strategy.aggregate_fit(number, results, [])
    found = scores_of(strategy.folder)
    np.testing.assert_array_equal(found.loss, expected.loss)
    np.testing.assert_array_equal(found.cosine, expected.cosine)
