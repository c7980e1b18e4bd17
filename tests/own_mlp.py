"""A network of one's own, whose gradients nobody has written out, so that vmap or the loop differentiates it."""

import pytest
import torch
from torch import nn

from shoal.models import Model


class TinyMLP(nn.Module):
    """Two linear layers on 6x6 images, as `MLP(36, 8, 3)`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(36, 8)
        self.output = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(images.flatten(1))))


@pytest.fixture
def mlp() -> Model:
    return Model(TinyMLP)


@pytest.fixture(params=["cnn", "mlp"])
def model(request: pytest.FixtureRequest) -> Model:
    return request.getfixturevalue(request.param)
