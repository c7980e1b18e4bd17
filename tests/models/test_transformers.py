"""Transformers, padded words, pictures, tied weights and bf16; and models of `peft` against plain loops."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.attacks.span.dense_layers import dense_layers
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import resolve_backend
from shoal.engine.backends.gradient_clipping import PerExampleClipper
from shoal.models import DigitsCNN, MnistCNN, cross_entropy

peft = pytest.importorskip("peft")

WORDS = 12
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def bert(attention_dropout: float = 0.0, **settings: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415 - takes seconds to import

    config = BertConfig(
        **SMALL, vocab_size=WORDS, num_labels=3, max_position_embeddings=8, initializer_range=0.3,
        attention_probs_dropout_prob=attention_dropout, **settings,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415 - takes seconds to import

    config = ViTConfig(**SMALL, image_size=6, patch_size=3, num_channels=1, num_labels=3, hidden_dropout_prob=0.1)
    return ViTForImageClassification(config)


class Encoder(nn.Module):
    """PyTorch's own, whose words without padding are averaged; its output layer's weights are those of the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        layer.self_attn.dropout = 0.0
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(8, WORDS, bias=False)
        self.output.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        padding = words == 0
        states = self.encoder(self.words(words), src_key_padding_mask=padding)
        kept = (~padding)[..., None].to(states.dtype)
        return self.output((states * kept).sum(dim=1) / kept.sum(dim=1))


def logits(result: Any) -> Tensor:
    return result.logits


def masked(words: Tensor) -> dict[str, Tensor]:
    return {"input_ids": words, "attention_mask": words != 0}


MODELS = {
    "bert": shoal.Model(bert, outputs=logits, inputs=masked),
    "vit": shoal.Model(vit, outputs=logits),
    "encoder": shoal.Model(Encoder),
}


def federation(case: str, extra_padding: int = 0) -> shoal.Federation:
    draw, clients = torch.Generator().manual_seed(0), []
    for _ in range(4):
        y = torch.randint(0, 3, (8,), generator=draw)
        if case == "vit":
            x = torch.randn(8, 1, 6, 6, generator=draw)
        else:
            x = torch.randint(4, WORDS, (8, 4), generator=draw)
            x[:, 0] = y + 1
            x[::2, 3] = 0
            x = nn.functional.pad(x, (0, extra_padding))
        clients.append((x, y))
    return shoal.Federation.from_tensors(clients, test=clients[0], classes=3)


def trained(case: str, model: shoal.Model | None = None, extra_padding: int = 0, **engine: Any) -> Tensor:
    settings = shoal.EngineSettings(**{"threads": 1} | engine)
    local = shoal.LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)
    of = federation(case, extra_padding)
    return shoal.simulate(
        of, model or MODELS[case], shoal.IFCA(clusters=2), local, rounds=2, engine=settings
    ).state.models


@pytest.mark.parametrize("case", list(MODELS))
def test_a_transformer_trains_the_same_with_any_number_of_threads(case):
    assert torch.equal(trained(case), trained(case, threads=3))


@pytest.mark.parametrize("case", list(MODELS))
def test_bf16_is_near_float32(case):
    """No further from it than a tenth of what training moves."""
    exact, rounded = trained(case), trained(case, precision="bf16")
    start = torch.stack([MODELS[case].init(Stream(0)("init")("model", k)) for k in range(2)])
    assert float((rounded - exact).norm()) < 0.1 * float((exact - start).norm())
    assert not torch.equal(rounded, exact)


def test_a_client_s_step_is_that_of_the_network_on_its_masked_words():
    model = shoal.Model(lambda: bert(hidden_dropout_prob=0.0), outputs=logits, inputs=masked)
    of, local = federation("bert"), shoal.LocalSGD(steps=1, batch_size="all", learning_rate=0.1)
    found = shoal.simulate(of, model, shoal.FedAvg(), local, rounds=1, seed=5).state.models[0]
    start = model.init(Stream(5)("init")("model", 0))
    network = bert(hidden_dropout_prob=0.0)
    network.load_state_dict(model.state_dict(start))
    for i in range(4):
        x, y = of.clients.x[of.clients.indices_of(i)], of.clients.y[of.clients.indices_of(i)]
        (cross_entropy(network(**masked(x)).logits, y).mean() / 4).backward()
    with torch.no_grad():
        for tensor in network.parameters():
            tensor.sub_(0.1 * (tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)))
    assert torch.allclose(found, model.layout.pack(dict(network.named_parameters())), atol=1e-6)


@pytest.mark.parametrize("case", ["bert", "encoder"])
def test_padding_changes_nothing(case):
    """The columns of padding alone that a batch of longer texts would add."""
    short, model = federation(case).test.x, MODELS[case]
    network = model.network().eval()
    long = nn.functional.pad(short, (0, 3))
    assert torch.allclose(network(long), network(short), atol=1e-6)
    if case == "bert":
        unmasked = shoal.Model(bert, outputs=logits).network().eval()
        assert not torch.allclose(unmasked(long), unmasked(short), atol=1e-3)


def test_tied_weights_are_one_tensor_that_learns():
    model = MODELS["encoder"]
    names = [slot.name for slot in model.layout.slots]
    assert "words.weight" in names
    assert "output.weight" not in names
    whole = model.state_dict(trained("encoder")[0])
    assert torch.equal(whole["output.weight"], whole["words.weight"])


def test_inputs_may_be_a_tuple_or_a_tensor_and_several_in_one():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.layer(first * second)

    x = torch.randn(4, 2, 2)
    model = shoal.Model(Two, inputs=lambda both: (both[:, 0], both[:, 1]))
    expected = model.network().layer(x[:, 0] * x[:, 1])
    assert torch.equal(model.network()(x), expected)
    scaled = shoal.Model(lambda: nn.Linear(2, 3), inputs=lambda x: 2 * x)
    assert torch.equal(scaled.network()(x[0]), scaled.network().forward(2 * x[0]))


def test_attention_s_own_dropout_is_refused_with_what_to_set():
    model = shoal.Model(lambda: bert(0.1), outputs=logits, inputs=masked)
    with pytest.raises(InputError, match=r"BertSelfAttention\) draws from .*attention_probs_dropout_prob=0"):
        trained("bert", model)
    with pytest.raises(InputError, match=r"a Model's inputs must be a function of a batch, .*got 3"):
        shoal.Model(bert, inputs=3)


def test_transformers_train_in_the_loop():
    """By the static rule: vmap is for networks of linear layers alone."""
    assert {resolve_backend(model) for model in MODELS.values()} == {"loop"}


class Words(nn.Module):
    """Words to classes: an embedding, attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x)
        return self.head(self.attention(words, words, words, need_weights=False)[0].mean(dim=1))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def words() -> Tensor:
    return torch.randint(0, 11, (5, 4), generator=torch.Generator().manual_seed(3))


def rows() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(3))


def images() -> Tensor:
    return torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(3))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], list[str], list[str]]] = {
    "dense": (dense, rows, ["0"], ["2"]),
    "embedding": (Words, words, ["words"], ["head"]),
    "attention": (Words, words, ["attention"], ["head"]),
    "convolutions": (lambda: DigitsCNN(side=28), images, ["first", "hidden"], ["output"]),
    "the engine's order of images": (MnistCNN, images, ["first", "second"], ["output"]),
}


def adapted(body: nn.Module, targets: list[str], train: list[str]) -> Any:
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets, modules_to_save=train or None)
    return peft.get_peft_model(body, config)


def model_of(case: str) -> tuple[shoal.Model, Tensor]:
    build, x, targets, train = CASES[case]
    return shoal.Model(lambda: adapted(build(), targets, train)), x()


def with_numbers(model: shoal.Model, row: Tensor) -> Any:
    network = model.network()
    network.load_state_dict(model.state_dict(row))
    return network.eval()


@pytest.mark.parametrize("case", list(CASES))
def test_an_adapter_trains_alone_and_its_merged_network_is_the_same_function(case: str) -> None:
    model, x = model_of(case)
    assert model.frozen
    assert not any("lora_" in name for name in model.frozen)
    assert all("lora_" in slot.name or "modules_to_save" in slot.name for slot in model.layout.slots)
    frozen = {name: tensor.clone() for name, tensor in model.frozen.items()}
    client = (x, torch.arange(len(x)) % 2)
    federation = shoal.Federation.from_tensors([client] * 2, test=client)
    local = shoal.LocalSGD(epochs=5, batch_size=2, learning_rate=0.02 if len(x.shape) == 4 else 0.5)
    row = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2).state.models[0]
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in model.frozen.items())
    outputs = shoal.Engine(model).outputs(row, x)
    untrained = shoal.Engine(model).outputs(model.init(shoal.Stream(0)), x)
    assert not torch.allclose(outputs, untrained, atol=1e-3)
    network = with_numbers(model, row)
    torch.testing.assert_close(network(x).detach(), outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(network.merge_and_unload()(x).detach(), outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["dense", "convolutions", "the engine's order of images"])
def test_dp_sgd_clips_examples_of_adapters(case: str) -> None:
    """The sum of clipped gradients, by the fast formulas where the layers have them, is that of single examples."""
    model, x = model_of(case)
    network, y = with_numbers(model, model.init(shoal.Stream(0)) + 0.1), torch.arange(len(x)) % 2
    trained = {name: tensor for name, tensor in network.named_parameters() if tensor.requires_grad}
    clipped = PerExampleClipper(network, cross_entropy, torch.float32)(network, x, y, 0.5)
    total = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}
    for one, label in zip(x, y, strict=True):
        gradients = torch.autograd.grad(cross_entropy(network(one[None]), label[None]).sum(), list(trained.values()))
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for name, gradient in zip(trained, gradients, strict=True):
            total[name] += gradient * min(1.0, 0.5 / float(norm))
    torch.testing.assert_close(clipped, total, rtol=1e-4, atol=1e-5)


def test_copies_share_a_body_that_is_loaded_once_and_leave_it_as_it_is() -> None:
    body, x = Words(), words()
    before = deepcopy(body.state_dict())
    shared = {id(tensor): tensor for tensor in body.parameters()}
    model = shoal.Model(lambda: adapted(deepcopy(body, shared.copy()), ["words"], ["head"]))
    name = "base_model.model.words.base_layer.weight"
    assert model.frozen[name].data_ptr() == body.words.weight.data_ptr()
    federation = shoal.Federation.from_tensors([(x, torch.arange(5) % 3)] * 2, test=(x, torch.arange(5) % 3))
    shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(learning_rate=1.0), rounds=1)
    torch.testing.assert_close(body.state_dict(), before, rtol=0, atol=0)


def test_span_attacks_know_the_first_factor_as_a_dense_layer() -> None:
    model, _ = model_of("dense")
    assert any("lora_A" in layer.name for layer in dense_layers(model))


def test_pytorchs_fast_path_leaves_adapters_of_its_encoder_out_of_evaluation_unless_it_is_off() -> None:
    """The sharp edge of docs/sharp-edges.md: `peft`'s layer has the frozen ``weight``, which the fast path reads."""

    def build() -> Any:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        network = nn.Sequential(nn.Embedding(11, 8), layer, nn.Flatten(), nn.Linear(32, 3))
        return adapted(network, ["linear1", "linear2"], [])

    model, x = shoal.Model(build), words()
    row = model.init(shoal.Stream(0)) + 0.3
    merged = with_numbers(model, row).merge_and_unload()(x).detach()
    fast = torch.backends.mha.get_fastpath_enabled()
    differs = {}
    try:
        for enabled in (True, False):
            torch.backends.mha.set_fastpath_enabled(enabled)
            differs[enabled] = not torch.allclose(shoal.Engine(model).outputs(row, x), merged, atol=1e-4)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    assert differs == {True: True, False: False}
