"""Adapters: LoRA against its formula and against `peft`, what is trained, merged weights, and a federation of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.core.errors import InputError
from shoal.engine.backends.gradient_clipping import PerExampleClipper
from shoal.models import Adapter, DigitsCNN, MnistCNN, Network, Shape
from shoal.models.adapters import LoRALayer


class Attention(nn.Module):
    """Words to classes: an embedding, attention, and a head."""

    def __init__(self, kdim: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, kdim=kdim, vdim=kdim)
        self.kdim, self.head = kdim, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x)
        keys = words[..., : self.kdim]
        return self.head(self.attention(words, keys, keys, need_weights=False)[0].mean(dim=1))


class Encoder(nn.Module):
    """PyTorch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(x)).mean(dim=1))


class Images(nn.Module):
    """A convolution with every option, and a head."""

    def __init__(self, dilation: int = 2) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 6, 3, stride=2, padding=1, dilation=dilation)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolution(x).flatten(2).mean(dim=2))


def words() -> Tensor:
    return torch.randint(0, 11, (5, 4), generator=torch.Generator().manual_seed(3))


def images() -> Tensor:
    return torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(3))


def filled(network: nn.Module) -> nn.Module:
    """The network with B that is not 0."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "lora_" in name:
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return network


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], list[shoal.models.adapters.Target]]] = {
    "linear": (Attention, words, ["head"]),
    "embedding": (Attention, words, [nn.Embedding]),
    "convolution": (Images, images, ["Conv2d"]),
    "plain convolution": (lambda: Images(1), images, ["Conv2d"]),  # of which `peft` can make an adapter
    "attention": (Attention, words, ["attention"]),
    "other keys": (lambda: Attention(6), words, ["MultiheadAttention", "Linear"]),
    "encoder": (Encoder, words, ["layers.*", "words"]),
    "everything": (Encoder, words, [nn.Linear, nn.MultiheadAttention, nn.Embedding]),
}


def plain(case: str) -> tuple[nn.Module, Tensor]:
    build, x, _ = CASES[case]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return build(), x()


def adapted(case: str, rank: int = 3, alpha: float | None = 6.0) -> nn.Module:
    network, _ = plain(case)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return shoal.lora(network, rank, alpha, CASES[case][2])


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("training", [False, True])
def test_lora_starts_as_the_network_and_its_merged_weights_are_the_same_function(case: str, training: bool) -> None:
    network, x = plain(case)
    expected = network.train(training)(x)
    changed = adapted(case).train(training)
    assert torch.allclose(changed(x), expected, atol=1e-6)
    model = shoal.Model(lambda: adapted(case))
    row = model.layout.pack(dict(filled(changed).named_parameters()))
    outputs = changed(x)
    assert not torch.allclose(outputs, expected, atol=1e-2)
    network.load_state_dict(shoal.merged(model, row))
    assert torch.allclose(network(x), outputs, atol=1e-5)
    with torch.inference_mode():  # in which PyTorch's transformer reads weights instead of calling layers
        assert torch.allclose(changed.eval()(x), outputs, atol=1e-5)


def test_a_linear_layer_is_w_plus_alpha_over_r_times_b_a() -> None:
    network = filled(adapted("linear"))
    head: Any = network.head  # pyright: ignore[reportAttributeAccessIssue]
    x = torch.randn(7, 8)
    weight = head.base_layer.weight + 6.0 / 3 * head.lora_B.weight @ head.lora_A.weight
    assert torch.allclose(head(x), x @ weight.T + head.base_layer.bias, atol=1e-6)


@pytest.mark.parametrize("case", list(CASES))
def test_gradients_reach_a_and_b_alone(case: str) -> None:
    network, (_, x) = filled(adapted(case)), plain(case)
    network(x).square().sum().backward()
    reached = {name for name, tensor in network.named_parameters() if tensor.grad is not None}
    assert reached == {name for name, _ in network.named_parameters() if "lora_" in name}
    assert all(bool(tensor.grad.any()) for tensor in network.parameters() if tensor.grad is not None)


@pytest.fixture(scope="module")
def peft() -> Any:
    """Here, since it takes seconds to import."""
    return pytest.importorskip("peft")


@pytest.mark.parametrize(
    ("case", "target"),
    [("linear", "head"), ("embedding", "words"), ("plain convolution", "convolution"), ("attention", "attention")],
)
def test_lora_is_that_of_peft(peft: Any, case: str, target: str) -> None:
    """On the same A and B; of attention on those of its input projections, for `peft` adds the output's twice."""
    network, x = plain(case)
    theirs: Any = peft.get_peft_model(network, peft.LoraConfig(r=3, lora_alpha=6, target_modules=[target]))
    ours = filled(adapted(case))
    layer, mine = theirs.get_submodule(f"base_model.model.{target}"), ours.get_submodule(target)
    with torch.no_grad():
        if case == "attention":
            mine.out_proj.lora_B.weight.zero_()
            mine = mine.parametrizations.in_proj_weight[0]
        for name in ("lora_A", "lora_B"):
            matrix = getattr(getattr(mine, name), "weight", getattr(mine, name))
            if case == "embedding":
                getattr(layer, name.replace("lora", "lora_embedding"))["default"].copy_(
                    matrix.T if name == "lora_A" else matrix
                )
            else:
                getattr(layer, name)["default"].weight.copy_(matrix)
    assert torch.allclose(ours(x), theirs(x), rtol=1e-6, atol=1e-6)
    for one in (ours, theirs):
        one(x).square().sum().backward()
    if case != "attention":
        sizes = [sorted(float(p.grad.norm()) for p in one.parameters() if p.grad is not None) for one in (ours, theirs)]
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-5)


def test_a_peft_model_trains_in_a_federation_and_is_merged(peft: Any) -> None:
    def build() -> Any:
        config = peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"])
        return peft.get_peft_model(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), config)

    federation, local = _rows(), shoal.LocalSGD(epochs=3, batch_size=4, learning_rate=0.3)
    model = shoal.Model(build)
    result = shoal.simulate(federation, model, shoal.IFCA(clusters=2), local, rounds=2, seed=1)
    start = model.state_dict(model.init(shoal.Stream(0)))
    row = result.state.models[0]
    moved = {name for name, tensor in model.state_dict(row).items() if not torch.equal(tensor, start[name])}
    assert {name for name in moved if "base_layer" in name or "original_module" in name} <= _random(model)
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    merged = shoal.merged(model, row)
    plain.load_state_dict({name.removeprefix("base_model.model."): tensor for name, tensor in merged.items()})
    x = federation.test.x
    network = model.network()
    network.load_state_dict(model.state_dict(row))
    assert torch.allclose(plain(x), network(x), atol=1e-5)


def _random(model: shoal.Model) -> set[str]:
    """The frozen tensors, which a model draws anew for each start."""
    return {name for name, tensor in model.network().named_parameters() if not tensor.requires_grad}


def _rows() -> shoal.Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 8, 4, generator=generator)
    y = (x[..., 0] > 0).long()
    return shoal.Federation.from_tensors([*zip(x, y, strict=True)], test=(x[0], y[0]))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap has no rule for attention
@pytest.mark.parametrize("case", ["linear", "embedding", "convolution", "encoder"])
def test_dp_sgd_clips_examples_of_adapters(case: str) -> None:
    """The sum of clipped gradients, by the fast formulas where they are for the layers, is that of single examples."""
    network, (_, x) = filled(adapted(case)), plain(case)
    y = torch.arange(len(x)) % 3
    clipped = PerExampleClipper(network, shoal.models.cross_entropy, torch.float32)(network, x, y, 0.5)
    trained = {name: tensor for name, tensor in network.named_parameters() if tensor.requires_grad}
    total = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}
    for one, label in zip(x, y, strict=True):
        loss = shoal.models.cross_entropy(network(one[None]), label[None]).sum()
        gradients = torch.autograd.grad(loss, list(trained.values()))
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for name, gradient in zip(trained, gradients, strict=True):
            total[name] += gradient * min(1.0, 0.5 / float(norm))
    assert clipped.keys() == total.keys()
    assert all(torch.allclose(clipped[name], total[name], atol=1e-5) for name in total)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_client_takes_the_steps_of_plain_sgd_on_a_and_b(backend: Any) -> None:
    federation = _rows()
    model = shoal.Model(lambda: shoal.lora(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), 2, train=["2"]))
    local = shoal.LocalSGD(epochs=3, batch_size="all", learning_rate=0.3)
    engine = shoal.EngineSettings(backend=backend)
    result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=1, seed=4, engine=engine)
    network, total = model.network(), 0.0
    initial = model.init(shoal.Stream(4)("init")("model", 0))
    for i in range(len(federation)):
        network.load_state_dict(model.state_dict(initial))
        optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.3)
        mine = federation.clients.owned(i)
        for _ in range(3):
            optimizer.zero_grad()
            shoal.models.cross_entropy(
                network(federation.clients.x[mine]), federation.clients.y[mine]
            ).mean().backward()
            optimizer.step()
        total = total + model.layout.pack(dict(network.named_parameters())) / len(federation)
    assert torch.allclose(result.state.models[0], torch.as_tensor(total), atol=1e-6)


@pytest.mark.parametrize("build", [MnistCNN, lambda: DigitsCNN(side=28)])
def test_shipped_networks_train_with_adapters(build: Callable[[], nn.Module]) -> None:
    """`MnistCNN` in the engine's own layout of images too."""
    x, y = torch.rand(2, 6, 1, 28, 28), torch.arange(6) % 3
    federation = shoal.Federation.from_tensors([(x[0], y), (x[1], y)], test=(x[0], y))
    model = shoal.Model(lambda: shoal.lora(build(), 2, targets=["Conv2d", "Linear"]))
    result = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(epochs=1), rounds=1)
    network = model.network().eval()
    network.load_state_dict(model.state_dict(result.state.models[0]))
    assert torch.allclose(shoal.Engine(model).outputs(result.state.models[0], x[0]), network(x[0]), atol=1e-5)


def test_the_head_and_the_biases() -> None:
    trained = [name for name, tensor in shoal.head(Attention(), "head").named_parameters() if tensor.requires_grad]
    assert trained == ["head.weight", "head.bias"]
    network = shoal.bitfit(Attention(), train=["head"])
    trained = [name for name, tensor in network.named_parameters() if tensor.requires_grad]
    assert trained == ["attention.in_proj_bias", "attention.out_proj.bias", "head.weight", "head.bias"]


def test_a_configuration_names_an_adapter() -> None:
    adapter = Adapter("lora", rank=2, targets=("output",))
    model = Network("mnist-cnn", adapter=adapter).model(Shape(1, 28, 28, 10))
    layer = model.network().get_submodule("output")
    assert isinstance(layer, LoRALayer)
    assert model.parameters == 2 * (layer.in_features + 10)
    head = Network("mnist-cnn", adapter=Adapter("head", train=("output",))).model(Shape(1, 28, 28, 10))
    assert head.parameters == 3136 * 10 + 10
    assert Network("logistic", adapter=Adapter("bitfit")).model(Shape(1, 2, 2, 3)).parameters == 3


def test_copies_share_a_pretrained_network_that_is_loaded_once_and_leave_it_as_it_is() -> None:
    body, x = Attention(), words()
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    model = shoal.Model(lambda: shoal.lora(body, 2, targets=["attention", "words"], train=["head"]))
    one, other = (shoal.lora(body, 2, targets=["words"], train=["head"]) for _ in range(2))
    assert one.get_parameter("words.base_layer.weight") is other.get_parameter("words.base_layer.weight")
    assert one.get_parameter("head.weight") is not body.head.weight
    assert model.frozen["words.base_layer.weight"].data_ptr() == body.words.weight.data_ptr()
    federation = shoal.Federation.from_tensors([(x, torch.arange(5) % 3)] * 2, test=(x, torch.arange(5) % 3))
    shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(learning_rate=1.0), rounds=1)
    assert body.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (lambda: shoal.lora(Attention(), 0), "LoRA's 'rank' must be at least 1; got 0"),
    "alpha": (lambda: shoal.lora(Attention(), alpha=0.0), "LoRA's 'alpha' must be above 0; got 0.0"),
    "no such target": (lambda: shoal.lora(Attention(), targets=["query"]), "LoRA's target 'query' has no linear layer"),
    "targets of one word": (lambda: shoal.lora(Attention(), targets="head"), "LoRA's targets are a list; got 'head'"),
    "trained whole": (lambda: shoal.lora(Attention(), targets=["head"], train=["head"]), "that is not trained whole"),
    "no such module": (lambda: shoal.head(Attention(), "fc"), "no module 'fc' with parameters; it has 'words', 'att"),
    "no head": (lambda: shoal.head(Attention()), "a head has at least one module that is trained"),
    "no biases": (lambda: shoal.bitfit(nn.Embedding(3, 2)), "the network has no biases for BitFit to train"),
    "keys of lora": (lambda: Adapter("bitfit", rank=2), "'rank', 'alpha' and 'targets' are of 'lora'; 'bitfit' has"),
    "head without modules": (lambda: Adapter("head"), "'train' is missing: the modules of the head"),
    "groups": (lambda: shoal.lora(nn.Conv2d(4, 4, 3, groups=4), targets=["Conv2d"]), "Conv2d of one group"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_be_adapted_is_refused(case: str) -> None:
    call, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        call()


def test_an_update_of_one_of_two_tied_layers_cannot_be_merged() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.output = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.output.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.output(self.words(x).mean(dim=1))

    model = shoal.Model(lambda: shoal.lora(Tied(), 2, targets=["words"]))
    assert model.network()(torch.ones(2, 3, dtype=torch.int64)).shape == (2, 5)
    with pytest.raises(InputError, match=r"'words.base_layer.weight', 'output.weight' are one tensor"):
        shoal.merged(model, model.init(shoal.Stream(0)))


def test_the_network_itself_can_be_a_layer() -> None:
    network = shoal.lora(nn.Linear(3, 2), 1)
    assert isinstance(network, LoRALayer)
    model = shoal.Model(lambda: shoal.lora(nn.Linear(3, 2), 1))
    assert set(shoal.merged(model, model.init(shoal.Stream(0)))) == {"weight", "bias"}
