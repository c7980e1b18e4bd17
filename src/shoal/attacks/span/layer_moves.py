"""Updates of clients and clusters' models, and their sums of gradients in one dense layer."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shoal.attacks.span.candidates import Candidates
from shoal.attacks.span.dense_layers import DenseLayer, dense_layers, layer_inputs
from shoal.attacks.span.knowledge import Knowledge, fitted_decay, mean_updates, without_variates
from shoal.attacks.span.row_space import ROUNDING, RowSpace, row_spaces
from shoal.engine import Engine, RoundUpdates

_RIDGE = 1e-4
"""The ridge on the inputs' second moments, as a fraction of the mean eigenvalue."""


@dataclass(eq=False)
class Move:
    """A client's update, or the mean update of a cluster's model, in one round.

    Args:
        row: the index of the client or cluster.
        number: the round.
        start: the parameters before the update, (P,).
        move: the update, (P,).
        summed: the number of clients' updates in the mean; 0 for a client's update.
        amplified: the amplification of rounding errors by inverting pooling and the server's optimizer.
        clients: the ids of the clients in the mean, (n,); empty if unknown.
        weights: the weights of the clients in the mean, (n,); empty if unknown.
    """

    row: int
    number: int
    start: Tensor
    move: Tensor
    summed: int = 0
    amplified: float = 1.0
    clients: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    weights: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))


@dataclass(eq=False)
class LayerMove:
    """An update in one layer: the sum of gradients ``matrix`` (h, d) float32 and its row space ``space``."""

    move: Move
    matrix: Tensor
    space: RowSpace


def moves_of_updates(recorded: Sequence[RoundUpdates], clients: Tensor, *, continued: bool) -> list[Move]:
    """List the clients' updates from the cluster's model or, if ``continued``, from the client's own last model."""
    moves, last, alone = list[Move](), dict[int, Tensor](), torch.ones(1)
    for updates in recorded:
        rows, models = torch.searchsorted(clients, updates.clients).tolist(), updates.models.unbind()
        for row, cluster, update in zip(rows, updates.assignment.tolist(), updates.updates, strict=True):
            client_move = partial(Move, row, updates.round, clients=clients[row : row + 1], weights=alone)
            if not continued:
                moves.append(client_move(models[cluster], update))
                continue
            end = models[cluster] + update
            if row in last:
                moves.append(client_move(last[row], end - last[row]))
            last[row] = end
    return moves


def moves_of_models(
    models: Tensor, candidates: Candidates, engine: Engine, knowledge: Knowledge, first: int
) -> list[Move]:
    """List the mean updates of models (T + 1, K, P) from round ``first`` on.

    The effects of pooling and of the server's optimizer are removed. A model that did not train in a round has an
    update of 0.
    """
    models = models.cpu()
    moves, rounding = _without_pooling(models, candidates, engine, knowledge)
    updates, amplified = mean_updates(moves, None if first > 1 else knowledge.server)
    moving = updates.nan_to_num().ne(0).any(dim=2).sum(dim=1).clamp(min=1).tolist()
    summed = [max(1, (knowledge.clients or 1) // count) for count in moving]
    return [
        Move(k, first + t, models[t, k], updates[t, k], summed[t], rounding * float(amplified[t, k]))
        for k in range(models.shape[1])
        for t in range(len(updates))
    ]


def _without_pooling(
    models: Tensor, candidates: Candidates, engine: Engine, knowledge: Knowledge
) -> tuple[Tensor, float]:
    """Return the models' changes (T, K, P) before pooling, and the inversion's amplification of rounding errors."""
    share, layers = knowledge.pooling, dense_layers(engine.model)
    widest = max(layers, key=lambda layer: layer.outputs * layer.width)
    matrices = widest.matrices(engine.model, models.flatten(0, 1)).unflatten(0, models.shape[:2])
    if not 0 < share < 1 or models.shape[1] == 1 or not bool(torch.isfinite(matrices).all()):
        return models.double().diff(dim=0), 1.0
    x = candidates.x if candidates.known is None else torch.cat([candidates.x, candidates.known])
    inputs, _ = layer_inputs(engine.model, torch.nan_to_num(models[0, 0]), widest, x, knowledge.dtype)
    moves = moves_without_pooling(models, share, knowledge.cohort, matrices, inputs.flatten(0, -2))
    return moves, (1 + share) / (1 - share)


def moves_without_pooling(models: Tensor, share: float, cohort: int | None, layers: Tensor, inputs: Tensor) -> Tensor:
    """Return the changes (T, K, P) float64 of models (T + 1, K, P) before pooling.

    `Pooling` turns the models ``theta'_k`` of a round into ``theta_k = (1 - rho) theta'_k + rho sum_j w_j theta'_j``,
    with w_j the fraction of clients that trained model j. Pooling does not change the models' weighted mean, so that:

        theta'_k = (theta_k - rho sum_j w_j theta_j) / (1 - rho)

    A client knows rho and all models, but not w. A dense layer's gradients are short in directions where the inputs
    vary little; differences of two models are not. The estimate of w therefore minimises the squared length of the
    changes, weighted by the inverse second moments of the inputs. If ``cohort`` is known, w is rounded to multiples of
    1 / ``cohort``.

    Args:
        models: the models before the first round and after each of T rounds, with K >= 2.
        share: rho, in [0, 1).
        cohort: the number of clients per round, or ``None`` if unknown.
        layers: the models' weights in a dense layer, (T + 1, K, h, d).
        inputs: the layer's inputs for some records, (M, d).

    Example:
        >>> import torch
        >>> from shoal.attacks.span.layer_moves import moves_without_pooling
        >>> start, step = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.5, 0.0], [0.2, 0.0]])
        >>> weights = torch.tensor([0.25, 0.75])
        >>> after = 0.5 * (start + step) + 0.5 * weights @ (start + step)
        >>> models, inputs = torch.stack([start, after]), torch.tensor([[1.0, 0.0], [2.0, 1e-3]])
        >>> moves_without_pooling(models, 0.5, 4, models[:, :, None], inputs)[0].round(decimals=4) + 0.0
        tensor([[0.5000, 0.0000],
                [0.2000, 0.0000]], dtype=torch.float64)
    """
    inputs = inputs.double()
    values, vectors = torch.linalg.eigh(inputs.T @ inputs)
    metric = vectors / (values.clamp(min=0) + _RIDGE * values.mean()).sqrt()
    moves = models.double().diff(dim=0)
    for t, (before, after, ends) in enumerate(zip(layers[:-1], layers[1:], models[1:].double(), strict=True)):
        start, end = before.double() @ metric, after.double() @ metric
        # The mean over k of theta_k / (1 - rho) - start_k, less rho / (1 - rho) sum_j w_j theta_j, is to be short; the
        # weights sum to 1, so one of them is left out.
        target = (end / (1 - share) - start).mean(dim=0) - share / (1 - share) * end[-1]
        columns = share / (1 - share) * (end[:-1] - end[-1]).flatten(1).T
        free = torch.linalg.lstsq(columns, target.flatten()[:, None]).solution.flatten()
        weights = torch.cat([free, 1 - free.sum()[None]])
        if cohort is not None:
            weights = _of_counts(weights, cohort)
        moves[t] += share / (1 - share) * (ends - weights @ ends)
    return moves


def _of_counts(weights: Tensor, cohort: int) -> Tensor:
    """Round weights (K,) to multiples of 1 / ``cohort`` by the largest-remainder method."""
    exact = weights.clamp(min=0) * cohort / weights.clamp(min=0).sum()
    counts = exact.floor()
    missing = cohort - int(counts.sum())
    counts[(exact - counts).argsort(descending=True)[:missing]] += 1
    return counts / cohort


def layer_moves(
    layer: DenseLayer, moves: Sequence[Move], engine: Engine, knowledge: Knowledge, *, spans: bool
) -> list[LayerMove]:
    """List the sums of gradients in a layer; updates that are zero or not finite are left out.

    If ``spans`` is false, row spaces have no directions, only the noise deviation.
    """
    matrices = [layer.matrices(engine.model, move.move) for move in moves]
    if knowledge.control_variates and moves and moves[0].summed == 0:
        matrices = _without_variates(matrices, moves, knowledge)
    # A maximum that is not a number is not less than infinity.
    sent = [i for i, matrix in enumerate(matrices) if 0 < float(matrix.abs().max()) < float("inf")]
    cleaned, deviations, sizes = list[Tensor](), list[float](), dict[int, float]()
    for i in sent:
        move, matrix = moves[i], matrices[i].double()
        weight = layer.matrices(engine.model, move.start)
        if id(move.start) not in sizes:
            sizes[id(move.start)] = float(weight.double().square().mean().sqrt())
        # Rounding of the parameters by each step, and of gradients by their precision.
        steps = (knowledge.steps or 1) ** 0.5
        computed = float(torch.finfo(knowledge.dtype).eps) / 6 * float(matrix.square().mean().sqrt())
        rounding = ROUNDING * sizes[id(move.start)] * max(1.0, steps / 4) * move.amplified + computed
        noise = float(knowledge.deviation(move.number, move.move.nan_to_num().norm(), len(move.move)))
        deviations.append((rounding**2 + noise**2 / max(1, move.summed)) ** 0.5)
        if knowledge.decays:
            multiple = knowledge.decay_multiple(move.number)
            matrix = matrix - (fitted_decay(matrix, weight) if multiple is None else multiple) * weight.double()
        cleaned.append(matrix)
    if spans:
        spaces = row_spaces(cleaned, deviations, above=1.0 if knowledge.noisy else 2.0)
    else:
        none = torch.empty(layer.width, 0, dtype=torch.float64)
        spaces = [RowSpace(none, none[0], layer.outputs, deviation) for deviation in deviations]
    return [LayerMove(moves[i], matrix.float(), space) for i, matrix, space in zip(sent, cleaned, spaces, strict=True)]


def _without_variates(matrices: Sequence[Tensor], moves: Sequence[Move], knowledge: Knowledge) -> list[Tensor]:
    """Remove SCAFFOLD's control variates from clients' updates (h, d), which must include the first round."""
    of_round: dict[int, list[int]] = defaultdict(list)
    for i, move in enumerate(moves):
        of_round[move.number].append(i)
    groups = [of_round[number] for number in sorted(of_round)]
    flat = [torch.stack([matrices[i] for i in group]).flatten(1) for group in groups]
    senders = [torch.tensor([moves[i].row for i in group]) for group in groups]
    total = max(knowledge.clients or 0, 1 + max(move.row for move in moves))
    rates = [1.0 if knowledge.local is None else knowledge.local.at_round(n).learning_rate for n in sorted(of_round)]
    cleaned = list(matrices)
    for group, part in zip(groups, without_variates(flat, senders, total, rates), strict=True):
        for i, row in zip(group, part, strict=True):
            cleaned[i] = row.view_as(matrices[i])
    return cleaned


def layer_information(
    layer: DenseLayer, moves: Sequence[LayerMove], *, noisy: bool, direct: bool
) -> tuple[bool, float]:
    """Return a sort key of a layer, larger for a more informative layer.

    The first element is whether the updates' rank is below ``min(T (h - 1), d)``, so that the span contains all inputs.
    The second element is then the fraction of the space outside the span, otherwise ``min(T (h - 1), d)``. T is the
    number of rounds if the inputs are the same in all rounds (``direct``), otherwise 1. The numbers h and d exclude
    rows and columns of zeros. The term h - 1 is the rank of softmax errors, which sum to 0. With noise, the largest
    layer is the most informative.
    """
    if not moves:
        return False, -1.0
    if noisy:
        return False, float(layer.outputs * layer.width)
    of_row: dict[int, list[RowSpace]] = defaultdict(list)
    for part in moves:
        of_row[part.move.row].append(part.space)
    rows = max(int(part.matrix.any(dim=1).sum()) for part in moves)
    columns = int(torch.stack([part.matrix.any(dim=0) for part in moves]).any(dim=0).sum())
    ranks = np.array([min(sum(space.rank for space in parts), columns) for parts in of_row.values()])
    capacity = np.array([min(len(parts) * max(1, rows - 1), columns) for parts in of_row.values()])
    if np.median(capacity - ranks) > 0:
        return True, float(np.median(1 - ranks / layer.width))
    return False, float(np.median(capacity) if direct else min(rows - 1, columns))
