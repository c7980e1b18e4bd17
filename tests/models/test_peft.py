"""Models of `peft` as they come: what is trained, its merged weights, and training of adapters against plain loops."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.attacks.span.dense_layers import dense_layers
from shoal.engine.backends.gradient_clipping import PerExampleClipper
from shoal.models import DigitsCNN, MnistCNN, cross_entropy

peft = pytest.importorskip("peft")


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
