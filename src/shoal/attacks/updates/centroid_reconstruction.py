"""Reconstruction of clients' updates from the models that a server releases and from clients' choices of a model.

A server that releases every model of every round, as IFCA's must, releases means over known sets of clients. Where the
sets change from round to round, their differences tell single clients apart: with points that stay,
``m * mean - (m - 1) * mean without i = point_i``. Yang, Luo, Li 2025, arXiv:2511.07073 (TAR) solve the linear system of
released centroids of k-means, whose points stay, exactly; Lam, Wei, Brooks, Reddi, Mitzenmacher 2021, arXiv:2106.06089
(gradient disaggregation) that of sums of updates, where who took part is to be found out first. Here who trained which
model is known, and updates do not stay, so the system is solved by least squares: both papers' idea, neither's method.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from shoal.core.errors import require
from shoal.core.representation import one_line
from shoal.engine import RoundUpdates, averaging_weights


@dataclass(frozen=True, eq=False)
class ReconstructedUpdates:
    """Reconstructed updates, one per client, from the moves of the models alone.

    Args:
        clients: (N,) int64 ids, ascending.
        updates: (N, P) float64: what each client's update would be if it sent the same in all these rounds.
        resolution: (N,) in [0, 1], the client's share of its reconstructed update; 1: its alone, 1 / m: only the mean
            of m clients who were never apart.
        explained: in [0, 1], the share of the squared lengths of the moves that these updates explain; 1 where each
            client sent the same every time.
    """

    clients: Tensor
    updates: Tensor
    resolution: Tensor
    explained: float
    __repr__ = one_line

    def cosines(self, rounds: Sequence[RoundUpdates]) -> Tensor:
        """Cosines (N,) of each reconstructed update with the mean of the updates that the client did send."""
        truth = torch.stack([_sent(rounds, client).mean(dim=0) for client in self.clients.tolist()])
        return cosine_similarity(self.updates, truth, dim=1)


def reconstruct_updates(
    moves: Tensor, assignment: Tensor, clients: Tensor, sizes: Tensor | None = None
) -> ReconstructedUpdates:
    """The updates U (N, P) that explain best how the models moved: ``moves_tk = sum_i W_tki U_i``.

    W are the weights of the averages. Of all least-squares solutions it is the shortest; so a client that was alone in
    a model is exact, clients who were always together share the mean of theirs, and what changes from round to round
    in what a client sends is noise. It needs a pseudo-inverse of (T * K, N), whatever P is.

    Args:
        moves: (T, K, P), each model after a round minus that before it.
        assignment: (T, N) int64, the model that each client trained; -1: it took no part.
        clients: (N,) int64 ids.
        sizes: (N,) numbers of examples, where the server weighs by them; None: equal weights.

    Raises:
        InputError: arrays of other shapes than these, or nobody who took part.
    """
    rounds, count = assignment.shape
    require(
        moves.dim() == 3 and len(moves) == rounds and len(clients) == count,
        "'moves' (T, K, P), 'assignment' (T, N) and 'clients' (N,) must be of the same rounds and clients; got shapes "
        f"{tuple(moves.shape)}, {tuple(assignment.shape)} and {tuple(clients.shape)}",
    )
    require(bool((assignment >= 0).any()), "a reconstruction needs clients that took part; nobody did")
    models, weights = moves.shape[1], torch.ones(count) if sizes is None else sizes
    averages = list[Tensor]()
    for chosen in assignment:
        there = torch.nonzero(chosen >= 0).flatten()
        row = torch.zeros(models, count, dtype=torch.float64)
        row[:, there] = averaging_weights(chosen[there], weights[there], models)
        averages.append(row)
    system = torch.cat(averages)
    inverse, moved = torch.linalg.pinv(system), moves.double().flatten(0, 1)
    updates = inverse @ moved
    left = float((moved - system @ updates).square().sum() / moved.square().sum().clamp(min=1e-300))
    return ReconstructedUpdates(clients, updates, (inverse @ system).diagonal().clamp(0, 1), max(0.0, 1 - left))


def reconstruct_from_rounds(rounds: Sequence[RoundUpdates], sizes: Tensor | None = None) -> ReconstructedUpdates:
    """`reconstruct_updates` of recorded rounds, of which only the models and who trained which are read.

    Args:
        rounds: at least two; a round counts if the next one is there too, which has the models after it.
        sizes: by client id, where the server weighs by examples; None: equal weights.

    Raises:
        InputError: no two consecutive rounds, a changed number of models, or updates of one client for two models.

    Example:
        >>> import torch
        >>> from shoal.attacks import reconstruct_from_rounds
        >>> from shoal.engine import RoundUpdates
        >>> sent, rounds, model = torch.tensor([[1.0], [3.0], [8.0]]), [], torch.zeros(1, 1)
        >>> for number, some in ((1, [0, 1, 2]), (2, [0, 1]), (3, [0])):
        ...     clients = torch.tensor(some)
        ...     rounds.append(RoundUpdates(number, clients, torch.zeros_like(clients), model, sent[clients]))
        ...     model = model + sent[clients].mean(dim=0)
        ...
        >>> made = reconstruct_from_rounds(rounds)
        >>> made.updates.flatten().round(decimals=3), made.resolution.round(decimals=3)
        (tensor([2., 2., 8.], dtype=torch.float64), tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64))
    """
    moves, assignment, clients = moves_between(rounds)
    return reconstruct_updates(moves, assignment, clients, None if sizes is None else sizes[clients])


def moves_between(rounds: Sequence[RoundUpdates]) -> tuple[Tensor, Tensor, Tensor]:
    """The moves, the assignment and the clients of recorded rounds, as `reconstruct_updates` takes them.

    Raises:
        InputError: as `reconstruct_from_rounds`.
    """
    by_number = {updates.round: updates for updates in rounds}
    pairs = [(by_number[n], by_number[n + 1]) for n in sorted(by_number) if n + 1 in by_number]
    require(bool(pairs), "a reconstruction needs the models before and after a round; got no two consecutive rounds")
    shapes = {tuple(updates.models.shape) for pair in pairs for updates in pair}
    require(len(shapes) == 1, f"a reconstruction needs the same models in all rounds; got shapes {sorted(shapes)}")
    twice = [updates.round for updates, _ in pairs if len(updates.clients.unique()) < len(updates)]
    require(not twice, f"a reconstruction takes one update of a client in a round; in round {twice[:1]} there are two")
    clients = torch.cat([updates.clients for updates, _ in pairs]).unique()
    assignment = torch.full((len(pairs), len(clients)), -1)
    for chosen, (updates, _) in zip(assignment, pairs, strict=True):
        chosen[torch.searchsorted(clients, updates.clients)] = updates.assignment
    moves = torch.stack([after.models.double() - before.models.double() for before, after in pairs])
    return moves, assignment, clients


def _sent(rounds: Sequence[RoundUpdates], client: int) -> Tensor:
    """(r, P) float64, the updates that a client sent in the rounds that have a next one."""
    numbers = {updates.round for updates in rounds}
    return torch.cat(
        [updates.updates[updates.clients == client] for updates in rounds if updates.round + 1 in numbers]
    ).double()
