"""The span attack: a record is a member exactly when it lies in the span of the rows of a dense layer's moves.

With the gradient ``sum_i e_i a_i'`` of a dense layer, whose inputs are the records themselves or the features that the
model computes of them, every sum of gradients has rows that are combinations of the inputs. So with V the leading right
singular vectors of the moves of ``[W | b]``, stacked over rounds, and x with a last element of 1,

    score(x) = -|x - V V'x| / |x|

is 0 for what was trained on, up to rounding, and clearly below 0 for everything else, while the layer can tell: as long
as ``min(outputs x rounds, inputs)`` exceeds the number of distinct inputs in the sum. No shadow model is needed, and
neither clipping nor momentum nor weights of aggregation change a span. Weight decay adds a multiple of W, which is
subtracted (`Knowledge.decay_multiple`).

Source: the span check of Dimitrov, Baader, Müller, Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning", NeurIPS 2024, arXiv:2403.03945; as a test of membership "ProjRes", arXiv:2604.21197. Ours: moves of several
steps and rounds, sums over clients, and thresholds.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from shoal.attacks.reference_scores import View
from shoal.attacks.span.dense_layers import DenseLayer, dense_layers, layer_inputs
from shoal.attacks.span.knowledge import Knowledge, fitted_decay, mean_updates, without_variates
from shoal.attacks.span.row_space import ROUNDING, RowSpace, joined, row_spaces
from shoal.attacks.span.transform_search import TransformFamily, searched_residuals
from shoal.attacks.updates.update_scores import check_updates
from shoal.core.errors import require
from shoal.core.representation import one_line
from shoal.core.settings import settings
from shoal.engine import Engine, RoundUpdates

_LEAST_KNOWN = 20
"""Known non-members of a stratum, at least, for a threshold of its own."""

_SEARCHED_KNOWN = 20
"""Known non-members, at most, that are searched for by transforms."""

_FLOORS = 20.0
"""A residual below so many times what rounding leaves counts as 0."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Records whose membership is asked.

    Args:
        x: inputs (M, ...).
        known: inputs (Z, ...) of records that surely nobody trained on, for thresholds; None: none.
        stratum, known_stratum: (M,) and (Z,) int64, such as labels: a threshold is of known non-members of the record's
            stratum, if it has twenty. None: all are of one.
        row: (M,) int64, the one client or cluster of which each record is asked, by its place in the scores; -1: none.
            None: all are asked of all.

    Raises:
        InputError: no records, or columns of other lengths.
    """

    x: Tensor
    known: Tensor | None = None
    stratum: Tensor | None = None
    known_stratum: Tensor | None = None
    row: Tensor | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require(len(self.x) > 0, "there are no records to attack")
        for name, count in (("stratum", len(self.x)), ("row", len(self.x)), ("known_stratum", self.known_count)):
            column: Tensor | None = getattr(self, name)
            fits = column is None or tuple(column.shape) == (count,)
            require(fits, f"'{name}' must have shape ({count},); got {() if column is None else tuple(column.shape)}")

    @property
    def known_count(self) -> int:
        """Z."""
        return 0 if self.known is None else len(self.known)


@dataclass(frozen=True, eq=False)
class SpanScores:
    """The scores of N clients or clusters and M records.

    Args:
        score: (N, M) float64, in [-1, 0], with noise in [0, 1]: higher for members; NaN where a client or cluster sent
            no move, or a record was not asked of it.
        threshold: (N, M) float64, the largest score of a non-member; NaN like ``score``.
        exact: (N,) bool, whether some records lie in the span up to rounding, which no known non-member does by chance.
        rank: (N,) int64, the dimensions of the span; 0 without a move.
        layer: the dense layer's name in the network.
        inputs: its inputs, with the bias as one of them.
        direct: whether its inputs are the same in all rounds, as those of a first layer are.
        noisy: whether scores are leverages, since noise hides the span.
    """

    score: NDArray[np.float64]
    threshold: NDArray[np.float64]
    exact: NDArray[np.bool_]
    rank: NDArray[np.int64]
    layer: str
    inputs: int
    direct: bool
    noisy: bool
    __repr__ = one_line


@settings
class _SpanAttack:
    """What both attacks have in common.

    Args:
        layer: the name of the dense layer that is attacked; None: the one that the spectrum shows to tell most.
        false_alarms: where nothing is exact, the share of known non-members above the threshold.
    """

    layer: str | None = None
    false_alarms: Annotated[float, Field(gt=0, lt=0.5, strict=True)] = 0.05


@settings
class UpdateSpan(_SpanAttack):
    """The span attack of a server on each client's updates, stacked over the rounds that it recorded.

    Args:
        layer: the name of the dense layer that is attacked; None: the one that the spectrum shows to tell most.
        false_alarms: where nothing is exact, the share of known non-members above the threshold.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Candidates, UpdateSpan
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(20, 50, generator=draw), [0, 1] * 10))
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=50, classes=2), hidden=16)
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, record_every=1)
        ...     _, report = training.round(training.start())
        ...     asked = Candidates(federation.clients.x, known=federation.test.x)
        ...     found = UpdateSpan().score([report.updates], asked, engine)
        ...
        >>> (found.score > found.threshold).sum(axis=1).tolist(), found.exact.tolist()
        ([4, 4, 4, 4, 4], [True, True, True, True, True])
    """

    name: ClassVar[str] = "span-updates"
    title: ClassVar[str] = "span of updates"
    view: ClassVar[View] = "server"

    def score(
        self, rounds: Iterable[RoundUpdates], candidates: Candidates, engine: Engine, knowledge: Knowledge | None = None
    ) -> SpanScores:
        """Scores (N, M) of the clients that sent something, in the order of their ids.

        Args:
            rounds: recorded updates. SCAFFOLD needs all of them from the first.
            candidates: M records.
            engine: of the model that was trained.
            knowledge: of training; None: plain SGD.

        Raises:
            InputError: no round, updates of another size or not finite, or a network without a dense layer.
        """
        recorded = sorted(rounds, key=lambda updates: updates.round)
        require(bool(recorded), "no round's updates were recorded")
        for updates in recorded:
            check_updates(updates, engine.model.layout.size)
        clients, known = torch.cat([updates.clients for updates in recorded]).unique(), knowledge or Knowledge()
        moves = _of_updates(recorded, clients, continued=known.continued)
        return _scores(self, moves, len(clients), candidates, engine, known)


@settings
class ModelSpan(_SpanAttack):
    """The span attack of a client on the moves of each cluster's model, stacked over rounds; moves are sums of clients.

    With the models of two rounds alone, which an outsider may have, it is the same with one move.

    Args:
        layer: the name of the dense layer that is attacked; None: the one that the spectrum shows to tell most.
        false_alarms: where nothing is exact, the share of known non-members above the threshold.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Candidates, ModelSpan
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(20, 50, generator=draw), [0, 1] * 10))
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=50, classes=2), hidden=16)
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     state = training.start()
        ...     models = [state.models, *(after.models for after, _ in training.rounds(state, 3))]
        ...     asked = Candidates(torch.cat([federation.clients.x, federation.test.x]), known=federation.test.x)
        ...     found = ModelSpan().score(models, asked, engine)
        ...
        >>> int((found.score > found.threshold).sum()), found.rank.tolist(), found.inputs
        (20, [20], 51)
    """

    name: ClassVar[str] = "span-models"
    title: ClassVar[str] = "span of models' moves"
    view: ClassVar[View] = "client"

    def score(
        self,
        models: Tensor | Sequence[Tensor],
        candidates: Candidates,
        engine: Engine,
        knowledge: Knowledge | None = None,
        first: int = 1,
    ) -> SpanScores:
        """Scores (K, M) of the clusters' models.

        Args:
            models: (T + 1, K, P), before the first and after each of T rounds; NaN in numbers that are not sent. A
                model that did not move in a round has no move there.
            candidates: M records.
            engine: of the model that was trained.
            knowledge: of training; None: plain SGD.
            first: the number of the first of the T rounds.

        Raises:
            InputError: fewer than two models, models of another size, or a network without a dense layer.
        """
        size, stacked = engine.model.layout.size, models if isinstance(models, Tensor) else torch.stack(list(models))
        fits = stacked.dim() == 3 and len(stacked) >= 2 and stacked.shape[2] == size
        require(fits, f"'models' must have shape (rounds + 1, K, {size}), with a round; got {tuple(stacked.shape)}")
        known = knowledge or Knowledge()
        updates, amplified = mean_updates(stacked.cpu(), None if first > 1 else known.server)
        summed = max(1, (known.clients or 1) // stacked.shape[1])
        moves = [
            _Move(k, first + t, stacked[t, k].cpu(), updates[t, k], summed, float(amplified[t, k]))
            for k in range(stacked.shape[1])
            for t in range(len(updates))
        ]
        return _scores(self, moves, stacked.shape[1], candidates, engine, known)


@dataclass(eq=False)
class _Move:
    """A move of ``row``'s parameters in round ``number`` from ``start`` (P,).

    It is a client's update, or the mean of ``summed`` of them, whose rounding an inverted optimizer made ``amplified``
    times as large.
    """

    row: int
    number: int
    start: Tensor
    move: Tensor
    summed: int = 0
    amplified: float = 1.0


_Spaces = list[tuple[_Move, RowSpace]]


def _of_updates(recorded: Sequence[RoundUpdates], clients: Tensor, *, continued: bool) -> list[_Move]:
    """The moves of clients, from a cluster's model or from what each sent last."""
    moves, last = list[_Move](), dict[int, Tensor]()
    for updates in recorded:
        rows = torch.searchsorted(clients, updates.clients).tolist()
        for row, cluster, update in zip(rows, updates.assignment.tolist(), updates.updates, strict=True):
            start = updates.models[cluster]
            sent = start + update
            if not continued:
                moves.append(_Move(row, updates.round, start, update))
            elif row in last:
                moves.append(_Move(row, updates.round, last[row], sent - last[row]))
            last[row] = sent
    return moves


def _scores(
    attack: _SpanAttack, moves: list[_Move], count: int, candidates: Candidates, engine: Engine, knowledge: Knowledge
) -> SpanScores:
    """The scores of ``count`` rows by the layer that tells most."""
    layers = dense_layers(engine.model, attack.layer)
    layer, spaces = max(
        ((layer, _spaces(layer, moves, engine, knowledge)) for layer in layers), key=lambda pair: _worth(*pair)
    )
    features = _Features(layer, candidates, engine, knowledge)
    direct = features.is_direct([move.start for move, _ in spaces])
    of_row: dict[int, _Spaces] = defaultdict(list)
    for move, space in spaces:
        of_row[move.row].append((move, space))
    score, threshold = np.full((2, count, len(candidates.x)), np.nan)
    exact, rank = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    for row, parts in of_row.items():
        if features.family is not None:
            # Every pass has other transforms, so more rounds have more inputs, not more of the same.
            used = [min(parts, key=lambda part: part[1].rank)]
        else:
            used = [(parts[0][0], joined([space for _, space in parts]))] if direct else parts
        rank[row] = max(space.rank for _, space in used)
        asked = torch.arange(len(candidates.x))
        if candidates.row is not None:
            asked = torch.nonzero(candidates.row == row).flatten()
        if len(asked):
            values, cut, exact[row] = _judged(attack, features, used, asked)
            score[row, asked], threshold[row, asked] = values, cut
    return SpanScores(score, threshold, exact, rank, layer.name, layer.width, direct=direct, noisy=knowledge.noisy)


def _spaces(layer: DenseLayer, moves: Sequence[_Move], engine: Engine, knowledge: Knowledge) -> _Spaces:
    """The row space of each move in a layer, without what is no gradient; zero moves and unsent ones are left out."""
    matrices = [layer.matrices(engine.model, move.move) for move in moves]
    if knowledge.control_variates and moves and moves[0].summed == 0:
        matrices = _without_variates(matrices, moves, knowledge)
    sent = [i for i, matrix in enumerate(matrices) if bool(torch.isfinite(matrix).all()) and bool(matrix.any())]
    cleaned, deviations = list[Tensor](), list[float]()
    for i in sent:
        move, matrix = moves[i], matrices[i].double()
        weight = layer.matrices(engine.model, move.start).double()
        # Rounding of the parameters by each step, and of gradients by what they are computed in.
        steps = (knowledge.steps or 1) ** 0.5
        computed = float(torch.finfo(knowledge.dtype).eps) / 6 * float(matrix.square().mean().sqrt())
        rounding = ROUNDING * float(weight.square().mean().sqrt()) * max(1.0, steps / 4) * move.amplified + computed
        noise = knowledge.deviation(move.number, move.move.norm(), len(move.move)) / max(1, move.summed) ** 0.5
        deviations.append((rounding**2 + noise**2) ** 0.5)
        if knowledge.decays:
            multiple = knowledge.decay_multiple(move.number)
            matrix = matrix - (fitted_decay(matrix, weight) if multiple is None else multiple) * weight
        cleaned.append(matrix)
    spaces = row_spaces(cleaned, deviations, above=1.0 if knowledge.noisy else 2.0)
    return [(moves[i], space) for i, space in zip(sent, spaces, strict=True)]


def _without_variates(matrices: Sequence[Tensor], moves: Sequence[_Move], knowledge: Knowledge) -> list[Tensor]:
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


def _worth(layer: DenseLayer, spaces: _Spaces) -> tuple[bool, float]:
    """How much a layer tells, to be compared: whether the spectrum ends below ``min(T (h - 1), d)``, as it does when it
    has all inputs, and then the share of the space that is left to others; otherwise how large that minimum is.

    Errors that sum to 0, as those of a softmax do, have a rank of h - 1.
    """
    if not spaces:
        return False, -1.0
    of_row: dict[int, list[RowSpace]] = defaultdict(list)
    for move, space in spaces:
        of_row[move.row].append(space)
    ranks = np.array([min(sum(space.rank for space in parts), layer.width) for parts in of_row.values()])
    capacity = np.array([min(len(parts) * max(1, layer.outputs - 1), layer.width) for parts in of_row.values()])
    ended = bool(np.median(capacity - ranks) > 0)
    return ended, float(np.median(1 - ranks / layer.width)) if ended else float(np.median(capacity))


@dataclass(eq=False)
class _Features:
    """What comes into a layer of candidates and known non-members, by the model that a move started from."""

    layer: DenseLayer
    candidates: Candidates
    engine: Engine
    knowledge: Knowledge

    def __post_init__(self) -> None:
        self.family: TransformFamily | None = None
        self._of: dict[int, tuple[Tensor, Tensor]] = {}
        self._kept: list[Tensor] = []

    def is_direct(self, starts: Sequence[Tensor]) -> bool:
        """Whether a few records' inputs of the layer are the same of all models: of two, if they can differ at all."""
        few, first = self.candidates.x[:4], starts[0] if starts else None
        if first is None:
            return True
        other = first + torch.linspace(-0.1, 0.1, len(first))
        pair = [self._inputs(torch.nan_to_num(row), few) for row in (first, other)]
        direct = pair[0].equal(pair[1])
        transforms = None if self.knowledge.local is None else self.knowledge.local.augmentation
        pixels = few.to(self.knowledge.dtype).float().flatten(1) if few.is_floating_point() else None
        if direct and pixels is not None and isinstance(transforms, TransformFamily) and transforms.varied:
            as_they_are = pair[0][:, : self.layer.inputs]
            self.family = transforms if as_they_are.shape == pixels.shape and as_they_are.equal(pixels) else None
        return direct

    def searched(self, space: RowSpace, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals and floors of the candidates ``asked`` (m,) and of some known non-members, over all transforms."""
        assert self.family is not None
        known = self.candidates.x[:0] if self.candidates.known is None else self.candidates.known[:_SEARCHED_KNOWN]
        images = torch.cat([self.candidates.x[asked], known]).cpu()
        found = searched_residuals(space, images, self.family, bias=self.layer.bias, dtype=self.knowledge.dtype)
        return found[0], found[1]

    def both(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the M candidates and of the Z known non-members; models are kept, so moves of one share them."""
        if start.data_ptr() not in self._of:
            self._kept.append(start)
            row, none = torch.nan_to_num(start), self.candidates.x[:0]
            known = none if self.candidates.known is None else self.candidates.known
            self._of[start.data_ptr()] = self._inputs(row, self.candidates.x), self._inputs(row, known)
        return self._of[start.data_ptr()]

    def _inputs(self, row: Tensor, x: Tensor) -> Tensor:
        if not len(x):
            return torch.empty(0, self.layer.width)
        return layer_inputs(self.engine.model, row, self.layer, x, self.knowledge.dtype)


def _judged(
    attack: _SpanAttack, features: _Features, used: _Spaces, asked: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Scores and thresholds of the records ``asked`` (m,) of one row, and whether its span is exact."""
    candidates, noisy = features.candidates, features.knowledge.noisy
    scores, floors = list[Tensor](), list[Tensor]()
    for move, space in used:
        if features.family is not None and not noisy:
            outside, floor = features.searched(space, asked)
        else:
            inputs, known = features.both(move.start)
            both = torch.cat([inputs[asked], known]) if len(known) else inputs[asked]
            outside, floor = space.residuals(both)
        scores.append(space.leverages(both) if noisy else -outside)
        floors.append(floor)
    score, floor = torch.stack(scores).mean(dim=0).numpy(), torch.stack(floors).mean(dim=0).numpy()
    count = len(asked)
    others = score[count:]
    exact, level = False, 0.0
    if not noisy:
        inside = -score < _FLOORS * floor
        # Without known non-members, records outside stand for them.
        ordinary = others if len(others) else score[~inside]
        level = float(np.quantile(ordinary, 0.99)) if len(ordinary) else 0.0
        # Of the records that lie further inside than others do, beyond the few in a hundred that do by chance, most
        # must lie inside up to rounding.
        clear = int((score[:count] > level).sum()) - 0.02 * count
        most = 2 * int(inside[:count].sum()) >= max(1.0, clear)
        exact = most and -level > 3 * _FLOORS * float(np.median(floor))
    if exact:
        # Half way, in digits, from rounding to the residuals of others.
        return score[:count], -np.sqrt(np.minimum(_FLOORS * floor[:count], -level) * -level), True
    if not len(others):
        return score[:count], np.full(count, np.quantile(score, 1 - attack.false_alarms)), False
    cut = np.full(count, np.quantile(others, 1 - attack.false_alarms))
    if candidates.stratum is not None and candidates.known_stratum is not None:
        own, theirs = candidates.stratum[asked].numpy(), candidates.known_stratum[: len(others)].numpy()
        for value in np.unique(own):
            same = others[theirs == value]
            if len(same) >= _LEAST_KNOWN:
                cut[own == value] = np.quantile(same, 1 - attack.false_alarms)
    return score[:count], cut, False
