"""One linear term that a local step adds to the gradient: proximal pull, control variate, per-client regularisation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class LinearTerm:
    """Adds ``strength_i * (theta - anchor_i) + offset_i`` to every gradient of client i.

    With ``offset`` = 0 it is the gradient of ``strength_i / 2 * |theta - anchor_i|^2`` (FedProx, Ditto); with
    ``strength`` = 0 it is a control variate (SCAFFOLD). Buffers (batch norm's statistics) are left alone.

    Args:
        strength: (n,) at least 0.
        anchors: (A, P), and
        anchor: (n,) int64, the index of each client's anchor; None: client i has ``anchors[i]``.
        offset: (n, P); None: 0.

    Example:
        >>> import torch
        >>> from shoal.engine import LinearTerm
        >>> term = LinearTerm(strength=torch.tensor([0.5]), anchors=torch.tensor([[1.0, 3.0]]))
        >>> theta = torch.tensor([[3.0, 3.0]])
        >>> strength, constant = term.constants(torch.tensor([0]))
        >>> strength * theta - constant
        tensor([[1., 0.]])
    """

    strength: Tensor
    anchors: Tensor
    anchor: Tensor | None = None
    offset: Tensor | None = None

    def take(self, clients: Tensor) -> "LinearTerm":
        """The term of ``clients`` (u,)."""
        anchor = clients if self.anchor is None else self.anchor[clients]
        offset = None if self.offset is None else self.offset[clients]
        return LinearTerm(self.strength[clients], self.anchors, anchor, offset)

    def constants(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """The term as ``strength * theta - constant``: strength (u, 1) and constant (u, P) of the clients (u,)."""
        some = self.take(clients)
        strength = some.strength[:, None].to(self.anchors)
        constant = strength * self.anchors[some.anchor]
        return strength, constant if some.offset is None else constant - some.offset.to(constant)
