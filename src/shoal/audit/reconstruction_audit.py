"""How near the updates that are reconstructed from released models come to those that clients sent.

Clients of one federation move alike, so a cosine alone says nothing: the mean move of the models that a client trained,
which anybody has without solving anything, has one too. The recorded updates are read only to judge both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from shoal.attacks import UpdateScores
from shoal.attacks.updates.centroid_reconstruction import ReconstructedUpdates, moves_between, reconstruct_updates
from shoal.attacks.updates.source_inference import client_groups
from shoal.core.errors import InputError
from shoal.core.representation import one_line
from shoal.engine import RoundUpdates
from shoal.metrics import mean_interval

RECONSTRUCTION = "reconstruction"
"""Its key in audit.json."""


@dataclass(frozen=True, eq=False)
class ReconstructionAudit:
    """The outcome of a reconstruction for N clients.

    Args:
        clients: (N,) int64 ids, ascending.
        cosine: (N,) float64, of each reconstructed update with the mean of those that the client sent.
        baseline: (N,) float64, of the mean move of the models that it trained with the same.
        resolution: (N,) float64, see `ReconstructedUpdates`.
        explained: see `ReconstructedUpdates`.
        rounds: number of rounds with the models before and after them.
    """

    clients: Tensor
    cosine: Tensor
    baseline: Tensor
    resolution: Tensor
    explained: float
    rounds: int
    __repr__ = one_line


def audit_reconstruction(rounds: Iterable[RoundUpdates], sizes: Mapping[int, float]) -> ReconstructionAudit:
    """Reconstruct the updates of every client, and compare with what it sent.

    The attacker has the models before and after each round and who trained which. Whether the server weighs clients
    equally or by their examples it decides by which explains the moves better. Two rounds' updates are in memory at a
    time, beside their sums.

    Args:
        rounds: recorded, in order; a round counts if the next one is there too.
        sizes: the number of examples of each client, by its id.

    Raises:
        InputError: as `reconstruct_from_rounds`.

    Example:
        >>> import torch
        >>> from shoal.audit import audit_reconstruction
        >>> from shoal.engine import RoundUpdates
        >>> sent, rounds, model = torch.eye(3), [], torch.zeros(1, 3)
        >>> for number, some in ((1, [0, 1, 2]), (2, [0, 1]), (3, [0]), (4, [0])):
        ...     clients = torch.tensor(some)
        ...     rounds.append(RoundUpdates(number, clients, torch.zeros_like(clients), model, sent[clients]))
        ...     model = model + sent[clients].mean(dim=0)
        ...
        >>> found = audit_reconstruction(rounds, {0: 10, 1: 10, 2: 10})
        >>> found.cosine.round(decimals=2), found.baseline.round(decimals=2)
        (tensor([1., 1., 1.], dtype=torch.float64), tensor([0.9000, 0.6800, 0.5800], dtype=torch.float64))
    """
    released = list[RoundUpdates]()
    sent, moved = dict[int, Tensor](), dict[int, Tensor]()
    before: RoundUpdates | None = None
    for each in rounds:
        if before is not None and each.round == before.round + 1 and each.models.shape == before.models.shape:
            moves = each.models - before.models
            for client, cluster, update in zip(
                before.clients.tolist(), before.assignment.tolist(), before.updates, strict=True
            ):
                sent[client] = sent.get(client, 0) + update
                moved[client] = moved.get(client, 0) + moves[cluster]
        before = each
        # Not a view, which would keep all updates in memory.
        released.append(replace(each, updates=each.updates.new_empty(0, each.updates.shape[1])))
    moves, assignment, clients = moves_between(released)
    by_examples = torch.tensor([float(sizes[client]) for client in clients.tolist()])
    found = _explaining(moves, assignment, clients, by_examples)
    truth, blind = (torch.stack([sums[client] for client in clients.tolist()]).double() for sums in (sent, moved))
    return ReconstructionAudit(
        clients=clients,
        cosine=cosine_similarity(found.updates, truth, dim=1),
        baseline=cosine_similarity(blind, truth, dim=1),
        resolution=found.resolution,
        explained=found.explained,
        rounds=len(moves),
    )


def _explaining(moves: Tensor, assignment: Tensor, clients: Tensor, sizes: Tensor) -> ReconstructedUpdates:
    """The reconstruction with equal weights or by ``sizes``, whichever explains more; equal where both do alike."""
    equal = reconstruct_updates(moves, assignment, clients)
    if bool((sizes == sizes[0]).all()):
        return equal
    weighed = reconstruct_updates(moves, assignment, clients, sizes)
    return weighed if weighed.explained > equal.explained + 1e-6 else equal


def reconstruction_metrics(
    scores: UpdateScores, rounds: Iterable[RoundUpdates]
) -> tuple[dict[str, float], dict[str, str]]:
    """The keys and values of audit.json, over all clients and by group; or why there are none.

    Means over clients with intervals over them (Student's t), which take clients as independent: they are of the same
    moves. ``gain`` is the cosine minus that of the mean move, of each client.

    Args:
        scores: of the same rounds: how many records each client has, and of which group they are.
        rounds: recorded, in order.
    """
    owned = np.bincount(scores.client[scores.client >= 0], minlength=len(scores.clients))
    try:
        found = audit_reconstruction(rounds, dict(zip(scores.clients.tolist(), owned.tolist(), strict=True)))
    except InputError as error:
        return {}, {RECONSTRUCTION: str(error)}
    group = client_groups(scores)[np.searchsorted(scores.clients, found.clients.numpy())]
    flat = {"explained": found.explained, "rounds": float(found.rounds)}
    scopes = {"all": group >= 0, **{scores.groups[g]: group == g for g in np.unique(group[group >= 0])}}
    cosine, baseline = found.cosine.numpy(), found.baseline.numpy()
    for name, which in scopes.items():
        for metric, values in (("cosine", cosine), ("baseline", baseline), ("gain", cosine - baseline)):
            low, high = mean_interval(values[which])
            flat |= {f"{name}.{metric}": float(values[which].mean())}
            flat |= {f"{name}.{metric}.low": low, f"{name}.{metric}.high": high}
        flat |= {f"{name}.largest": float(cosine[which].max()), f"{name}.clients": float(which.sum())}
        flat |= {f"{name}.resolution": float(found.resolution.numpy()[which].mean())}
    return {f"{RECONSTRUCTION}.{key}": value for key, value in flat.items() if not np.isnan(value)}, {}
