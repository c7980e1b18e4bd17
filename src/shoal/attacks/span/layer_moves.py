"""Moves of clients and of clusters' models, and what is left of them in one dense layer: sums of gradients."""

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
"""Added to second moments, in means of their eigenvalues."""


@dataclass(eq=False)
class Move:
    """A move of ``row``'s parameters in round ``number`` from ``start`` (P,).

    It is a client's update, or the mean of ``summed`` of them, whose rounding an inverted optimizer made ``amplified``
    times as large. ``clients`` (n,) are the ids of whose updates it is the mean by ``weights`` (n,); empty: unknown.
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
    """A move in one layer.

    Args:
        move: of all parameters.
        matrix: (h, d) float32, without what is no gradient.
        space: of its rows.
    """

    move: Move
    matrix: Tensor
    space: RowSpace


def moves_of_updates(recorded: Sequence[RoundUpdates], clients: Tensor, *, continued: bool) -> list[Move]:
    """The moves of clients, from a cluster's model or from what each sent last."""
    moves, last, alone = list[Move](), dict[int, Tensor](), torch.ones(1)
    for updates in recorded:
        rows, models = torch.searchsorted(clients, updates.clients).tolist(), updates.models.unbind()
        for row, cluster, update in zip(rows, updates.assignment.tolist(), updates.updates, strict=True):
            of_whom = partial(Move, row, updates.round, clients=clients[row : row + 1], weights=alone)
            if not continued:
                moves.append(of_whom(models[cluster], update))
                continue
            sent = models[cluster] + update
            if row in last:
                moves.append(of_whom(last[row], sent - last[row]))
            last[row] = sent
    return moves


def moves_of_models(
    models: Tensor, candidates: Candidates, engine: Engine, knowledge: Knowledge, first: int
) -> list[Move]:
    """The moves of models (T + 1, K, P), from round ``first`` on, without pooling and the server's optimizer.

    Each is a mean of clients' updates; a model that rested in a round has a move of 0.
    """
    models = models.cpu()
    moved, rounding = _without_pooling(models, candidates, engine, knowledge)
    updates, amplified = mean_updates(moved, None if first > 1 else knowledge.server)
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
    """The moves (T, K, P) of models without pooling, and by how much its inversion makes rounding larger."""
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
    """The moves (T, K, P) in float64 of models (T + 1, K, P) from what was sent to what was made before pooling.

    `Pooling` turns the models ``theta'_k`` of a round into ``theta_k = (1 - rho) theta'_k + rho sum_j w_j theta'_j``,
    where w_j is the share of the clients that trained model j. Their mean is that of what they were made of, so

        theta'_k = (theta_k - rho sum_j w_j theta_j) / (1 - rho)

    A client knows rho, and is sent all models, but not w. A gradient of a dense layer has little length in directions
    in which inputs vary little, unlike the difference of two models: so w is the least-squares solution for moves that
    are short in the metric of the inputs' inverse second moments. In a federation of known size it is a fraction of
    that.

    Args:
        models: before the first and after each of T rounds; K >= 2.
        share: rho, in [0, 1).
        cohort: the number of clients of a round; None: unknown.
        layers: (T + 1, K, h, d), the models in a dense layer.
        inputs: (M, d), what comes into it for some records.

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
    for t, (before, after, made) in enumerate(zip(layers[:-1], layers[1:], models[1:].double(), strict=True)):
        sent, there = before.double() @ metric, after.double() @ metric
        # The mean over k of theta_k / (1 - rho) - start_k, less rho / (1 - rho) sum_j w_j theta_j, is to be short; the
        # weights sum to 1, so one of them is left out.
        target = (there / (1 - share) - sent).mean(dim=0) - share / (1 - share) * there[-1]
        columns = share / (1 - share) * (there[:-1] - there[-1]).flatten(1).T
        free = torch.linalg.lstsq(columns, target.flatten()[:, None]).solution.flatten()
        weights = torch.cat([free, 1 - free.sum()[None]])
        if cohort is not None:
            weights = _of_counts(weights, cohort)
        moves[t] += share / (1 - share) * (made - weights @ made)
    return moves


def _of_counts(weights: Tensor, cohort: int) -> Tensor:
    """The nearest weights (K,) that are numbers of clients, in all ``cohort``, by largest remainder."""
    exact = weights.clamp(min=0) * cohort / weights.clamp(min=0).sum()
    counts = exact.floor()
    missing = cohort - int(counts.sum())
    counts[(exact - counts).argsort(descending=True)[:missing]] += 1
    return counts / cohort


def layer_moves(
    layer: DenseLayer, moves: Sequence[Move], engine: Engine, knowledge: Knowledge, *, spans: bool
) -> list[LayerMove]:
    """Each move in a layer, without what is no gradient; zero moves and unsent ones are left out.

    ``spans`` is whether row spaces are computed; else they are empty, and know the noise alone.
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
        # Rounding of the parameters by each step, and of gradients by what they are computed in.
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
    """The matrices (h, d) of clients' moves of all rounds from the first, without SCAFFOLD's variates."""
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
    """How much a layer tells, to be compared: whether the spectrum ends below ``min(T (h - 1), d)``, as it does when it
    has all inputs, and then the share of the space that is left to others; otherwise how large that minimum is, with
    T = 1 unless its inputs are ``direct``, the same in all rounds: only then do rounds add up.

    Rows and columns that never move, such as those of pixels that are always 0, do not count among h and d. Under noise
    the largest layer tells most. Errors that sum to 0, as those of a softmax do, have a rank of h - 1.
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
