"""All clients' examples in two arrays: the same federation and the same run, from memory or from mapped files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import shoal
from full_simulation import simulate_with
from shoal.audit import final_attacks, model_scores
from shoal.data import Shards, content
from shoal.engine import engine as engine_module

SIZES = [3, 5, 1, 4]
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(sum(SIZES), 3, generator=DRAW)
Y = torch.tensor([0, 1, 2, 0] * 3 + [1])
PICTURES = torch.rand(sum(SIZES), 2, 6, 6, generator=DRAW)
GROUPS = ["north", "south", "north", "south"]


class SmallCNN(nn.Module):
    """6x6 pictures of two channels in 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.output = nn.Linear(4 * 36, 3)

    def forward(self, images):
        return self.output(torch.relu(self.convolution(images)).flatten(1))


MODELS = {"rows": shoal.Model(lambda: nn.Linear(3, 3)), "pictures": shoal.Model(SmallCNN)}
INPUTS = {"rows": X, "pictures": PICTURES}


@pytest.fixture(params=list(MODELS))
def kind(request):
    return request.param


def saved(folder: Path, kind: str = "rows", y: torch.Tensor = Y) -> shoal.ClientArrays:
    """Files, and what is mapped of them."""
    x = INPUTS[kind].numpy()
    np.save(folder / "x.npy", x.transpose(0, 2, 3, 1) if kind == "pictures" else x)
    np.save(folder / "y.npy", y.numpy())
    mapped = np.load(folder / "x.npy", mmap_mode="c").transpose(0, 3, 1, 2) if kind == "pictures" else folder / "x.npy"
    return shoal.ClientArrays(mapped, folder / "y.npy", SIZES)


def federation(clients, kind="rows", **given) -> shoal.Federation:
    x = INPUTS[kind][:8]
    return shoal.Federation.from_tensors(
        clients, test=shoal.Examples(x, Y[:8], ["north", "south"] * 4), groups=GROUPS, classes=3, **given
    )


def pairs(kind="rows"):
    return list(zip(INPUTS[kind].split(SIZES), Y.split(SIZES), strict=True))


def run(given: shoal.Federation, kind: str, algorithm=None, **settings):
    local = shoal.LocalSGD(epochs=2, batch_size=2)
    return simulate_with(
        given, MODELS[kind], algorithm or shoal.IFCA(clusters=2), local, rounds=3, participation=0.75, **settings
    )


def require_same(one, other):
    assert torch.equal(one.state.models, other.state.models)
    assert one.clients.equals(other.clients)
    assert one.rounds.equals(other.rounds)
    assert one.roc.equals(other.roc)
    assert one.description == other.description
    found = [{k: v for k, v in each.summary.overall.items() if not k.startswith("seconds")} for each in (one, other)]
    np.testing.assert_equal(*found)
    np.testing.assert_equal(one.summary.by_group, other.summary.by_group)
    np.testing.assert_equal(one.summary.by_cluster, other.summary.by_cluster)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_from_mapped_files_is_the_run_from_memory_bit_for_bit(kind, precision, tmp_path):
    mapped, in_memory = federation(saved(tmp_path, kind), kind), federation(pairs(kind), kind)
    assert content.fingerprint(mapped) == content.fingerprint(in_memory)
    require_same(run(mapped, kind, precision=precision), run(in_memory, kind, precision=precision))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_canaries_and_reference_federations_of_mapped_files_are_those_from_memory(precision, tmp_path):
    found = []
    for clients in (saved(tmp_path), pairs()):
        given, canaries = shoal.MislabelledCanaries(per_client=1).insert(federation(clients), shoal.Stream(0))
        assert given.clients.memory_mapped == isinstance(clients, shoal.ClientArrays)
        found.append(run(given, "rows", canaries=canaries, reference_federations=2, precision=precision))
    require_same(*found)
    assert found[0].summary.overall["references"] == 2
    assert found[0].canaries.equals(found[1].canaries)


def test_client_arrays_in_memory_equal_pairs(kind):
    together = federation(shoal.ClientArrays(INPUTS[kind], Y, SIZES), kind)
    assert content.fingerprint(together) == content.fingerprint(federation(pairs(kind), kind))
    assert not together.clients.memory_mapped


@pytest.mark.parametrize("form", [tuple, torch.tensor, np.array, lambda sizes: np.array(sizes, "uint8")])
def test_sizes_may_be_integers_of_any_type(form):
    assert federation(shoal.ClientArrays(X, Y, form(SIZES))).clients.sizes.tolist() == SIZES
    equal = shoal.Federation.from_tensors(shoal.ClientArrays(X[:12], Y[:12], 4), test=(X, Y))
    assert equal.clients.sizes.tolist() == [4, 4, 4], "one size is of all clients"


def test_labels_of_other_types_and_targets_are_read_from_files_too(tmp_path):
    np.save(tmp_path / "y.npy", Y.numpy().astype("uint8"))
    given = shoal.ClientArrays(X, tmp_path / "y.npy", SIZES)
    assert torch.equal(federation(given).clients.y, Y)
    targets = shoal.Federation.from_tensors(given, test=(X, Y), task="regression").clients.y
    assert torch.equal(targets, Y[:, None].float())


def test_a_holdout_may_be_mapped(tmp_path):
    held = federation(pairs(), holdout=saved(tmp_path)).holdout
    assert held.memory_mapped
    assert held.sizes.tolist() == SIZES
    assert torch.equal(held.x, X)


def test_mapped_files_stay_unchanged_and_are_never_copied_whole(kind, tmp_path):
    given = saved(tmp_path, kind)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for path in before:
        path.chmod(0o444)
    mapped = federation(given, kind)
    with shoal.Engine(MODELS[kind], precision="bf16") as engine:
        ready = engine.prepare(mapped)
    assert mapped.clients.memory_mapped
    assert ready.clients.x.data_ptr() == mapped.clients.x.data_ptr()
    assert mapped.take(torch.tensor([2, 0])).clients.x.data_ptr() == mapped.clients.x.data_ptr()
    result = run(mapped, kind)
    result.simulation.federation.clients.x.add_(1)  # Nor would a network that changes its inputs in place.
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-1])
    return path


def file(folder: Path, array: np.ndarray) -> Path:
    np.save(folder / "x.npy", array)
    return folder / "x.npy"


def text(folder: Path) -> Path:
    (folder / "x.npy").write_text("1,2\n")
    return folder / "x.npy"


def mapped_for_writing(folder: Path) -> np.ndarray:
    return np.load(file(folder, X.numpy()), mmap_mode="r+")


WRONG_FILES = {
    "missing": (lambda folder: folder / "x.npy", "cannot be read: No such file or directory"),
    "cut off": (lambda folder: cut(file(folder, X.numpy())), r"x\.npy: the file must be a complete \.npy file of"),
    "another form": (text, r"x\.npy: the file must be a complete \.npy file of numbers, as written by numpy\.save"),
    "empty": (lambda folder: (folder / "x.npy").touch() or folder / "x.npy", r"of numbers, as written by numpy\.save"),
    "a folder": (lambda folder: folder, "cannot be read"),
    "objects": (lambda folder: file(folder, np.array([{}, {}])), r"x\.npy: the file must be a complete \.npy file of"),
    "float64": (lambda folder: file(folder, X.double().numpy()), r"x\.npy: inputs in a mapped file must be float32"),
    "columns": (lambda folder: file(folder, np.asfortranarray(X.numpy())), r"x\.npy: inputs in a mapped file must be"),
    "channels first": (
        lambda folder: file(folder, PICTURES.numpy()),
        r"x\.npy: inputs in a mapped file must be saved as pictures \(examples, height, width, channels\) and passed",
    ),
    "writable": (mapped_for_writing, r"'r\+'\)"),
}


@pytest.mark.parametrize(("make", "sentence"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_a_file_that_cannot_be_used_gets_one_sentence(make, sentence, tmp_path):
    with pytest.raises(shoal.InputError, match=sentence) as error:
        federation(shoal.ClientArrays(make(tmp_path), Y, SIZES))
    assert "\n" not in str(error.value)


WRONG = {
    "fewer labels": (lambda: shoal.ClientArrays(X, Y[:-1], SIZES), r"'clients' must have one label per example \(got"),
    "another sum": (
        lambda: shoal.ClientArrays(X, Y, [3, 5, 1, 5]),
        r"'sizes' of 'clients' must sum to the number of examples, 13 \(got 14\)",
    ),
    "no divisor": (lambda: shoal.ClientArrays(X, Y, 4), r"'sizes' of 'clients' must divide the 13 examples \(got 4\)"),
    "negative": (lambda: shoal.ClientArrays(X, Y, [-1, 14]), "'sizes' of 'clients' must be integers from 0"),
    "fractions": (lambda: shoal.ClientArrays(X, Y, [6.5, 6.5]), "'sizes' of 'clients' must be integers from 0"),
    "words": (lambda: shoal.ClientArrays(X, Y, "many"), "'sizes' of 'clients' must be integers from 0"),
    "a client without": (lambda: shoal.ClientArrays(X, Y, [3, 0, 6, 4]), "client 1 has no examples"),
    "nobody": (lambda: shoal.ClientArrays(X[:0], Y[:0], np.array([], int)), "'sizes' of 'clients' must have at least"),
    "not finite": (lambda: shoal.ClientArrays(X.where(X < 1, torch.nan), Y, SIZES), "NaN or infinity in 1 of 5"),
}


@pytest.mark.parametrize(("make", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_client_arrays_that_do_not_match_are_one_sentence(make, sentence):
    with pytest.raises(shoal.InputError, match=sentence):
        federation(make())


def test_a_holdout_of_other_clients_gets_one_sentence():
    with pytest.raises(shoal.InputError, match=r"'holdout' must have 4 clients, like 'clients' \(got 1\)"):
        federation(pairs(), holdout=shoal.ClientArrays(X, Y, 13))


class Largest(TorchDispatchMode):
    """The largest tensor that an operation of PyTorch makes or reads as a whole."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize("clients", [100, 100_000])
def test_taking_a_few_of_many_clients_costs_what_the_few_do(clients):
    shards = Shards.from_contiguous(torch.zeros(2 * clients, 1), torch.zeros(2 * clients), torch.full((clients,), 2))
    with Largest() as largest:
        taken = shards.take(torch.tensor([7, 3]))
    assert taken.indices.tolist() == [14, 15, 6, 7]
    assert largest.numbers <= 4


def test_outputs_in_parts_are_the_outputs_bit_for_bit(monkeypatch):
    monkeypatch.setitem(engine_module._EVALUATED, "vmap", 2)
    monkeypatch.setattr(engine_module, "_TOGETHER", 2)
    model, rows = MODELS["rows"], torch.arange(12, 1, -1)
    with shoal.Engine(model, backend="vmap") as engine:
        row = model.layout.pack(dict(model.network().named_parameters())).detach()
        parts = list(engine.outputs_in_parts(row, X, rows))
        whole = engine.outputs(row, X, rows)
    assert [(where.start, where.stop) for where, _ in parts] == [(0, 4), (4, 8), (8, 11)]
    assert torch.equal(torch.cat([outputs for _, outputs in parts]), whole)


@pytest.mark.parametrize("algorithm", [shoal.FedAvg(), shoal.IFCA(clusters=2)], ids=["fedavg", "ifca"])
def test_predictions_of_members_alone_measure_the_same(algorithm, monkeypatch):
    kept = []
    margins_of = final_attacks.margins_of

    def counted(outputs, *others):
        kept.append(sum(map(len, outputs.members)))
        return margins_of(outputs, *others)

    monkeypatch.setattr(final_attacks, "margins_of", counted)
    given = federation(pairs())
    usual = run(given, "rows", algorithm, member_rounds=1)
    monkeypatch.setattr(model_scores, "MAX_OUTPUTS", 0)
    require_same(run(given, "rows", algorithm, member_rounds=1), usual)
    assert min(kept) < max(kept)


def test_a_fingerprint_up_to_rounding_sees_other_pixels_and_labels_and_no_last_bits():
    x, y = torch.linspace(0.1, 0.9, 24).reshape(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    test = shoal.Examples(x, y, ["a"] * 6)
    given = shoal.Federation.from_tensors([(x, y)] * 3, groups=["a"] * 3, test=test)
    said = content.fingerprint_up_to_rounding(given)

    def changed(**values):
        return replace(given, clients=replace(given.clients, **values))

    clients = given.clients
    other_bits = changed(x=clients.x * (1 + 1e-6))
    assert content.fingerprint(other_bits) != content.fingerprint(given)
    assert content.fingerprint_up_to_rounding(other_bits) == said
    for other in (changed(x=clients.x + 0.01), changed(x=1 - clients.x.square()), changed(y=clients.y.roll(1))):
        assert content.fingerprint_up_to_rounding(other) != said


def test_a_fingerprint_does_not_depend_on_the_parts_that_are_hashed(monkeypatch):
    given = federation(pairs("pictures"), "pictures")
    whole = content.fingerprint(given)
    monkeypatch.setattr(content, "_BLOCK", 1)
    assert content.fingerprint(given) == whole
