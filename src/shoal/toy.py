"""Small federations for the examples in docstrings."""

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import LocalSGD
from shoal.models import Model, VectorShape, create_model


def two_groups(*, beta: float = 0.5, threshold: float = 0.65) -> tuple[Federation, Model, LocalSGD]:
    """Return four clients in two groups, with two examples each, a linear classifier and five large local steps.

    The labels of the last two clients are swapped. One model for all clients is correct on half of the examples, and
    one model per group is correct on all examples. The test and shadow examples are the first client's examples.

    Args:
        beta, threshold: the risk weight and risk threshold of every client.

    >>> federation, model, local = two_groups()
    >>> federation.clients.x.flatten().tolist(), federation.clients.y.tolist()
    ([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0], [0, 1, 0, 1, 1, 0, 1, 0])
    """
    one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])
    federation = Federation.from_tensors([one, one, other, other], test=one, shadow=one, beta=beta, threshold=threshold)
    return federation, _logistic(), LocalSGD(steps=5, learning_rate=1.0)


def one_group() -> tuple[Federation, Model, LocalSGD]:
    """Return three clients with the same two examples, a linear classifier and twenty local steps.

    >>> federation, model, local = one_group()
    >>> federation.clients.x.flatten().tolist(), federation.clients.y.tolist()
    ([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0], [0, 1, 0, 1, 0, 1])
    """
    federation = Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
    return federation, _logistic(), LocalSGD(steps=20, learning_rate=0.5)


def noisy_groups() -> tuple[Federation, Model, LocalSGD]:
    """Return six clients with 7 to 12 noisy examples each, a small network and two local epochs.

    The labels of the last three clients are swapped. No two examples are equal.

    >>> federation, model, local = noisy_groups()
    >>> federation.clients.x.shape, federation.clients.sizes.tolist()
    (torch.Size([57, 2]), [7, 8, 9, 10, 11, 12])
    """
    draw = Stream(0)("toy").generator()

    def examples(count: int, swapped: bool = False) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 2, generator=draw)
        return x, ((x[:, 0] > 0) != swapped).long()

    clients = [examples(7 + i, swapped=i > 2) for i in range(6)]
    federation = Federation.from_tensors(clients, test=examples(20), shadow=examples(20))
    model = create_model("mlp", VectorShape(inputs=2, classes=2), hidden=4)
    return federation, model, LocalSGD(epochs=2, batch_size=5, learning_rate=0.2)


def _logistic() -> Model:
    return create_model("logistic", VectorShape(inputs=1, classes=2))
