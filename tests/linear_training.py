"""A network whose loss is linear: no gradient depends on the parameters, so what one record moves is exact."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from shoal.engine import Aggregate, Training
from shoal.models import Model


class Linear(nn.Module):
    """Two linear layers beside each other: 6x6 images in 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(36, 3, bias=False)
        self.output = nn.Linear(36, 3, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.hidden(images.flatten(1)) + self.output(images.flatten(1))


def linear_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return -outputs.gather(1, labels[:, None])[:, 0]


MODEL = Model(Linear, loss=linear_loss)


@dataclass(frozen=True, eq=False)
class Kept(Training):
    """A training that keeps what the clients' part of each round gave."""

    aggregates: list[Aggregate] = field(default_factory=list)

    def _trained(self, *given: Any, **more: Any) -> tuple[Aggregate, Any]:
        aggregate, adversary = super()._trained(*given, **more)
        self.aggregates.append(aggregate)
        return aggregate, adversary
