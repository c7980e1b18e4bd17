"""The subspaces that clients' adapters move in: where a layer's low-rank update ``B A`` goes, and how near two are."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from shoal.core.layout import Layout, Slot


def adapter_slots(layout: Layout) -> Iterator[tuple[Slot, Slot]]:
    """The places of A and B of each trained adapter, by the names that `shoal.lora` and `peft` give them."""
    slots = {slot.name: slot for slot in layout.slots if slot.start < layout.trainable}
    for name, a in slots.items():
        b = slots.get(name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B"))
        if b is not None and b is not a:
            yield a, b


def rank_axis(a: Slot, b: Slot) -> int:
    """The axis of A that has the ranks: the second where it is an embedding's table."""
    return 0 if a.shape[0] == b.shape[1] else 1


def side_bases(
    start: Tensor, update: Tensor, layout: Layout, directions: int, moves: Tensor | None = None
) -> list[Tensor]:
    """Of each layer's update the first singular vectors of both sides, outputs and then inputs: each (F, p) float64.

    The update of a layer with an adapter is that of the product ``B A`` between ``start`` (P,) and ``start + update``;
    without any adapter it is of each weight. p is ``directions``, or the rank that the update can have.

    Args:
        start, update: (P,) each.
        layout: of both.
        directions: singular vectors of each side, at most.
        moves: (P,) bool; the ranks of an adapter that are trained; None: all.
    """
    start, update = start.cpu().double(), update.cpu().double()
    found: list[Tensor] = []
    end, pairs = start + update, list(adapter_slots(layout))
    for a, b in pairs:
        trained = torch.ones(b.shape[1], dtype=torch.bool) if moves is None else b.view(moves.cpu())[0].flatten()
        left = torch.cat([b.view(row).flatten(1)[:, trained] for row in (end, start)], dim=1)
        rights = [a.view(row).movedim(rank_axis(a, b), 0).flatten(1)[trained] for row in (end, start)]
        # Of a product of thin matrices, without the product.
        (q, r), (p, s) = torch.linalg.qr(left), torch.linalg.qr(torch.cat([rights[0], -rights[1]]).T)
        u, _, v = torch.linalg.svd(r @ s.T, full_matrices=False)
        found += [q @ u, p @ v.T]
    if not pairs:
        for slot in _weights(layout):
            u, _, v = torch.linalg.svd(slot.view(update).flatten(1), full_matrices=False)
            found += [u, v.T]
    return [side[:, :directions] for side in found]


def kept_bases(
    start: Tensor, layout: Layout, directions: int, moves: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """A function of updates (u, P) from ``start`` to what is kept of them, (u, F directions) float64: the `side_bases`
    of all sides below each other, filled up with 0 where a side has fewer vectors.
    """

    def kept(updates: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for update in updates:
            sides = side_bases(start, update, layout, directions, moves)
            rows.append(torch.cat([torch.nn.functional.pad(side, (0, directions - side.shape[1])) for side in sides]))
        return torch.stack(rows).flatten(1)

    return kept


def sides_of(kept: Tensor, layout: Layout, directions: int) -> Iterator[Tensor]:
    """The sides (n, F, p) of `kept_bases` (n, F directions), without columns of 0."""
    for side in kept.unflatten(1, (-1, directions)).split(_side_sizes(layout), dim=1):
        yield side[:, :, side.ne(0).any(dim=(0, 1))]


def similarity(one: Tensor, other: Tensor, layout: Layout, directions: int) -> Tensor:
    """(n, m) float64 in [0, 1], the mean squared cosine of the principal angles between clients' subspaces (n, F p) and
    (m, F p), of `kept_bases`, averaged over both sides of all layers.
    """
    parts = [
        torch.einsum("ifp,jfq->ijpq", u, v).square().sum(dim=(2, 3)) / max(1, u.shape[2])
        for u, v in zip(sides_of(one, layout, directions), sides_of(other, layout, directions), strict=True)
    ]
    return torch.stack(parts).mean(dim=0)


def _side_sizes(layout: Layout) -> list[int]:
    """The lengths of the singular vectors, of both sides of each matrix in turn."""
    pairs = list(adapter_slots(layout))
    if pairs:
        return [size for a, b in pairs for size in (b.shape[0], a.size // b.shape[1])]
    return [size for slot in _weights(layout) for size in (slot.shape[0], slot.size // slot.shape[0])]


def _weights(layout: Layout) -> list[Slot]:
    return [slot for slot in layout.slots if slot.start < layout.trainable and len(slot.shape) > 1]


def mean_by_cluster(values: Tensor, of: Tensor, clusters: int) -> Tensor:
    """(u, K), the means of values (u, n) over the clients of each cluster; ``of`` (n,) is each client's cluster."""
    members = torch.nn.functional.one_hot(of, clusters).to(values)
    return values @ members / members.sum(dim=0)
