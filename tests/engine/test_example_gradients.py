"""The gradients of single examples, with and without vmap, against autograd of each."""

import pytest
import torch
from torch import nn

from shoal.core.randomness import Stream
from shoal.engine import Engine
from shoal.models import Model, cross_entropy


class Recurrent(nn.Module):
    """A recurrent layer, whose backward pass torch.func does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.layer(x)[0][:, -1])


def partly_frozen() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    network[1].requires_grad_(False)
    return network


@pytest.mark.parametrize("build", [Recurrent, partly_frozen], ids=["recurrent", "partly frozen"])
@pytest.mark.parametrize("batch", [1, 2, 4, 5, 9])
def test_each_example_has_its_own_gradient_in_batches_of_any_size(build, batch, monkeypatch):
    monkeypatch.setattr("shoal.engine.engine.batch_of_gradients", lambda _: batch)
    model = Model(build)
    row, x, y = model.init(Stream(0)), torch.randn(9, 2, 3, generator=Stream(1).generator()), torch.arange(9) % 3
    with Engine(model, threads=1) as engine:
        found = torch.cat(list(engine.example_gradients_into(torch.clone, row, x, y)))
    network = build().eval()
    network.load_state_dict(model.state_dict(row))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for i, gradient in enumerate(found):
        loss = cross_entropy(network(x[i : i + 1]), y[i : i + 1]).sum()
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained)])
        torch.testing.assert_close(gradient, expected)
