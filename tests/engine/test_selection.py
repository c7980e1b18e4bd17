"""The trial of vmap on a few examples, network by network (what users' networks become: tests/models)."""

import pytest
import torch
from torch import nn

from shoal.core.randomness import Stream
from shoal.engine.backends.selection import vmap_obstacle
from shoal.models import Model


class Centred(nn.Linear):
    """A linear layer of inputs without the mean of their batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


class Branching(nn.Linear):
    """A linear layer that looks at its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize(
    ("network", "obstacle"),
    [
        (lambda: nn.Linear(4, 3), None),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), None),
        (lambda: Centred(4, 3), "what it gives for an example depends on the others of the batch"),
        (lambda: Branching(4, 3), "PyTorch says: It looks like you"),
        (lambda: nn.Linear(5, 3), None),
    ],
    ids=["linear", "layers", "mean of the batch", "if", "neither backend"],
)
def test_vmap_is_refused_where_it_would_not_give_the_loop_s_gradients(network, obstacle, count):
    x, y = torch.randn(count, 4, generator=Stream(0).generator()), torch.arange(count) % 3
    found = vmap_obstacle(Model(network), x, y)
    assert found is None if obstacle is None else found.startswith(obstacle)
