"""Frozen tensors: once in memory, in no row, file or message but once, and never changed."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import shoal
from shoal import DPSGD, IFCA, Federation, FedRep, LocalSGD, Model, Stream, simulate
from shoal.attacks.span.dense_layers import dense_layers
from shoal.core.errors import InputError
from shoal.engine import Engine
from shoal.engine.backends.bound_network import BoundNetwork

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
TWO = IFCA(clusters=2)
HEAD = frozenset({"2.weight", "2.bias", "4.weight", "4.bias"})


def pretrained(frozen: bool = True, seed: int = 5) -> nn.Module:
    """A body that is the same whenever it is built, and a head that is not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Linear(6, 50)
    body.requires_grad_(not frozen)
    return nn.Sequential(body, nn.ReLU(), nn.Linear(50, 4), nn.ReLU(), nn.Linear(4, 3))


def random_body() -> nn.Module:
    network = pretrained()
    network[0] = nn.Linear(6, 50).requires_grad_(False)
    return network


@pytest.fixture(scope="module")
def federation() -> Federation:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, 6, generator=draw) for size in (9, 6, 7, 8, 12)]
    *clients, test = [(x, x[:, :3].argmax(dim=1)) for x in inputs]
    return Federation.from_tensors(clients, test=test, classes=3)


def fit(federation: Federation, model: Model, algorithm=TWO, local: LocalSGD = LOCAL, **engine):
    settings = shoal.EngineSettings(**engine)
    return shoal.Run(simulation(federation, model, algorithm, local), engine=settings).train()


def simulation(federation: Federation, model: Model, algorithm=TWO, local: LocalSGD = LOCAL, **more):
    return shoal.Simulation(federation, model, algorithm, local, rounds=2, **more)


# --- rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_the_trained_part_moves_as_with_the_body_in_the_row(federation, backend):
    """To the last bit in the loop; under vmap the one body is multiplied at once for all owners."""
    ends = {}
    for frozen in (True, False):
        model = Model(partial(pretrained, frozen=frozen))
        local = LOCAL if frozen else replace(LOCAL, tensors=HEAD)
        shards = federation.clients
        with Engine(model, backend=backend) as engine:
            starts = torch.stack([model.init(Stream(k)) for k in range(2)])
            randomness = local.randomness(shards, torch.arange(4), Stream(1))
            rows = torch.empty(4, model.layout.size)
            for owners, moved in engine.train(starts, torch.tensor([0, 1, 0, 1]), shards, randomness, local):
                rows[owners] = moved
            ends[frozen] = {name: model.layout.views(rows)[name] for name in HEAD}
            ends[frozen]["loss"] = engine.losses(rows, shards)
    for name, tensor in ends[True].items():
        assert not torch.equal(tensor[0], tensor[1])
        if backend == "loop":
            assert torch.equal(tensor, ends[False][name])
        torch.testing.assert_close(tensor, ends[False][name])


def test_a_federation_with_a_frozen_body_gives_what_a_plain_loop_gives(federation):
    result = fit(federation, model := Model(pretrained), shoal.FedAvg(), replace(LOCAL, batch_size="all", momentum=0))
    network = pretrained()
    network.load_state_dict(model.state_dict(model.init(Stream(0)("init", "model", 0))))
    sizes = federation.clients.sizes.tolist()
    for _ in range(2):
        ends, start = [], {name: tensor.clone() for name, tensor in network.state_dict().items()}
        for x, y in zip(federation.clients.x.split(sizes), federation.clients.y.split(sizes), strict=True):
            network.load_state_dict(start)
            optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()
            ends.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        network.load_state_dict(
            {name: sum(n * end[name] for n, end in zip(sizes, ends, strict=True)) / sum(sizes) for name in start}
        )
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(result.models[0][name], tensor)


def test_networks_of_threads_and_all_models_have_the_same_memory(federation):
    model = Model(random_body)
    cpu, result = torch.device("cpu"), fit(federation, model)
    networks = [BoundNetwork(model, cpu, torch.float32).network for _ in range(3)] + [model.structure()]
    pointers = {network[0].weight.data_ptr() for network in networks}
    pointers |= {tensors["0.weight"].data_ptr() for tensors in result.models.values()}
    assert pointers == {model.frozen["0.weight"].data_ptr()}
    low = {BoundNetwork(model, cpu, torch.bfloat16).network[0].weight.data_ptr() for _ in range(3)}
    assert len(low) == 1
    assert model.parameters == model.layout.size == result.state.models.shape[1] == 50 * 4 + 4 + 4 * 3 + 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_random_frozen_body_is_the_same_in_all_models_and_never_moves(federation, precision):
    model = Model(random_body)
    before = model.network().state_dict()["0.weight"]
    result = fit(federation, model, precision=precision)
    first, second = result.models.values()
    assert torch.equal(before, first["0.weight"])
    assert torch.equal(before, second["0.weight"])
    assert not torch.equal(first["2.weight"], second["2.weight"])


def test_a_body_made_once_outside_is_not_copied_and_not_changed():
    body = nn.Sequential(nn.Linear(6, 50), nn.BatchNorm1d(50), nn.Dropout(0.5)).requires_grad_(False)
    model = Model(lambda: nn.Sequential(body, nn.Linear(50, 3)))
    assert model.structure()[0][0].weight.data_ptr() == body[0].weight.data_ptr()
    assert model.layout.slots[-1].name == "0.1.running_var", "training changes the statistics of a frozen batch norm"
    one, other = model.structure(), model.structure()
    assert one[0][1].running_mean.data_ptr() != other[0][1].running_mean.data_ptr()
    assert type(body[2]) is nn.Dropout
    trained = nn.Linear(6, 3)
    with pytest.raises(InputError, match=r"the same network twice\)"):
        _ = Model(lambda: nn.Sequential(body, trained)).layout


def test_what_a_user_writes_into_a_network_stays_there():
    model = Model(pretrained)
    frozen = model.frozen["0.weight"].clone()
    network = model.network()
    with torch.no_grad():
        network[0].weight.zero_()
    network.load_state_dict(model.state_dict(model.init(Stream(0))))
    assert torch.equal(network[0].weight, frozen)
    assert torch.equal(model.frozen["0.weight"], frozen)
    model.structure().to(torch.float64)
    model.require_frozen()


def test_frozen_convolutions_give_the_same_numbers_in_the_state_dict():
    model = Model(lambda: nn.Sequential(nn.Conv2d(2, 3, 3).requires_grad_(False), nn.Flatten(), nn.Linear(3, 2)))
    expected, found = model.network().state_dict(), model.state_dict(model.init(Stream(0)))
    assert torch.equal(expected["0.weight"], found["0.weight"])


def test_a_frozen_tensor_under_two_names_is_written_under_both(tmp_path, federation):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.two.weight = self.one.weight
            self.one.requires_grad_(False)
            self.two.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(self.one(x)))

    result = fit(federation, Model(Tied))
    saved = load_file(result.save(tmp_path / "run") / "models.safetensors")
    assert torch.equal(saved["frozen.one.weight"], saved["frozen.two.weight"])
    assert not {"0.one.weight", "1.two.weight"} & {*saved}


# --- what changes all the same -----------------------------------------------------------------------------------


class Counting(nn.Module):
    """Writes to its buffer in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return self.layer(x)


class Named(Counting):
    changing_buffers = ("seen",)


def test_a_buffer_that_changes_is_an_error_until_its_module_names_it(federation):
    with pytest.raises(InputError, match=r"'seen'.*changing_buffers = \('seen',\)"):
        fit(federation, Model(Counting))
    assert float(fit(federation, Model(Named), shoal.FedAvg(), backend="loop").models[0]["seen"]) > 0


def test_a_frozen_weight_that_is_written_to_is_an_error_in_the_engine(federation):
    model, shards = Model(Counting), federation.clients
    randomness, start = LOCAL.randomness(shards, torch.arange(4), Stream(1)), model.init(Stream(0))[None]
    with Engine(model, backend="loop") as engine:
        ends = engine.train(start, torch.zeros(4, dtype=torch.int64), shards, randomness, LOCAL)
        with pytest.raises(InputError, match="frozen tensor 'seen'"):
            list(ends)


# --- files -------------------------------------------------------------------------------------------------------


def test_models_are_written_with_the_frozen_part_once_and_read_back(tmp_path, federation):
    model = Model(pretrained)
    result = fit(federation, model)
    path = result.save(tmp_path / "run") / "models.safetensors"
    assert {*load_file(path)} == {"frozen.0.weight", "frozen.0.bias", *(f"{k}.{name}" for k in (0, 1) for name in HEAD)}
    read = shoal.load(path.parent)
    for k, tensors in result.models.items():
        assert {*read.models[k]} == {*tensors}
        assert all(torch.equal(read.models[k][name], tensor) for name, tensor in tensors.items())
    assert read.save(tmp_path / "again").joinpath("models.safetensors").read_bytes() == path.read_bytes()


def test_models_of_the_older_format_are_read_and_gone_on_from(tmp_path, federation):
    model = Model(pretrained)
    result = fit(federation, model)
    path = result.save(tmp_path / "run") / "models.safetensors"
    save_file({f"{k}.{n}": tensor.clone() for k, named in result.models.items() for n, tensor in named.items()}, path)
    start = shoal.load(path.parent).start()
    assert torch.equal(start.fitted(model).state.models, result.state.models)
    with pytest.raises(InputError, match=r"'start' has models of a different network: the frozen tensor '0\.weight'"):
        start.fitted(Model(lambda: pretrained(seed=6)))


def test_a_checkpoint_has_no_frozen_tensor_and_is_gone_on_from_with_the_same_body_alone(tmp_path, federation):
    wide = [lambda seed=seed: _wide(seed) for seed in (1, 2)]
    out = tmp_path / "run"
    run = {"rounds": 1, "out": out}
    simulate(federation, Model(wide[0]), IFCA(clusters=2), LOCAL, **run)
    size = sum(path.stat().st_size for path in (out / "checkpoint").iterdir())
    assert size < 20_000 < 4 * Model(wide[0]).frozen["0.weight"].numel()
    with pytest.raises(InputError, match="frozen tensors must have the hash"):
        simulate(federation, Model(wide[1]), IFCA(clusters=2), LOCAL, **run | {"rounds": 2, "resume": True})
    simulate(federation, Model(wide[0]), IFCA(clusters=2), LOCAL, **run | {"rounds": 2, "resume": True})


def _wide(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Linear(6, 5000).requires_grad_(False)
    return nn.Sequential(body, nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Linear(8, 3))


# --- with everything else ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["dp-sgd", "fedrep", "dropout", "audit", "updates"])
def test_frozen_bodies_compose(federation, tmp_path, case):
    model = Model(pretrained)
    if case == "dp-sgd":
        result = shoal.Run(simulation(federation, model, defenses=[DPSGD(1.0, 1.0)])).train()
    elif case == "fedrep":
        result = fit(federation, model, FedRep())
    elif case == "dropout":
        result = shoal.Run(simulation(federation, model, defenses=[shoal.Dropout(0.2)])).train()
    elif case == "updates":
        result = shoal.Run(simulation(federation, model, record_updates=1), tmp_path / "run").train()
        recorded = load_file(tmp_path / "run" / "updates" / "round-0001.safetensors")
        assert recorded["updates"].shape[1] == recorded["models"].shape[1] == model.parameters
    else:
        result = fit(federation, model)
        assert len(result.audit(references=2).attacks) > 0
    for tensors in result.models.values():
        assert torch.equal(tensors["0.weight"], model.frozen["0.weight"])


def test_the_span_attack_looks_at_the_first_layer_that_is_trained():
    assert [layer.name for layer in dense_layers(Model(pretrained))] == ["2", "4"]
    convolution = Model(lambda: nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.LayerNorm(4)))
    with pytest.raises(InputError, match="no trained dense layer"):
        dense_layers(convolution)
