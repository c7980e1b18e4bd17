"""Examples of several groups together: the test set and the server's shadow set."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core.representation import one_line
from shoal.data.memory_format import gather


@dataclass(frozen=True, eq=False)
class GroupedExamples:
    """M labelled examples, and the index of the group whose distribution each one follows.

    Shapes: x (M, ...), y (M,) int64 (of a regression (M, d) float32), group (M,) int64. ``client`` (M,) int64 is
    the id of the client that each example is of, -1: of none; None: it is not known.

    Example:
        >>> import torch
        >>> from shoal.data import GroupedExamples
        >>> y, group = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
        >>> examples = GroupedExamples(torch.zeros(3, 2), y, group)
        >>> examples.of_group(0).y, len(examples.take(torch.tensor([2])))
        (tensor([0, 1]), 1)
    """

    x: Tensor
    y: Tensor
    group: Tensor
    # Whose a test example is changes no model, and so not what a fingerprint tells apart.
    client: Tensor | None = field(default=None, compare=False)
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)

    def of_group(self, group: int) -> "GroupedExamples":
        """The examples of one group, in order."""
        return self.take(torch.nonzero(self.group == group).squeeze(1))

    def take(self, indices: Tensor) -> "GroupedExamples":
        """The examples at ``indices`` (m,) int64."""
        client = None if self.client is None else self.client[indices.cpu()]
        return GroupedExamples(gather(self.x, indices), self.y[indices], self.group[indices.cpu()], client)
