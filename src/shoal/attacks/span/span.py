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
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from shoal.attacks.reference_scores import View
from shoal.attacks.span.dense_layers import DenseLayer, dense_layers, layer_inputs
from shoal.attacks.span.knowledge import Knowledge, mean_updates
from shoal.attacks.span.layer_moves import LayerMove, Move, layer_moves, moves_of_updates, worth
from shoal.attacks.span.matched_filter import Clutter
from shoal.attacks.span.row_space import joined
from shoal.attacks.span.transform_search import TransformFamily, searched_residuals
from shoal.attacks.updates.update_scores import check_updates
from shoal.core.errors import require
from shoal.core.representation import one_line
from shoal.core.settings import settings
from shoal.engine import Engine, RoundUpdates

_LEAST_KNOWN = 20
"""Known non-members of a stratum, at least, for a threshold of its own."""

_SEARCHED = 20
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
        y, known_y: labels (M,) and (Z,), or targets; with them the model's error on each record is used where the span
            does not decide alone. None: it is not.
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
    y: Tensor | None = None
    known_y: Tensor | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require(len(self.x) > 0, "there are no records to attack")
        known = 0 if self.known is None else len(self.known)
        for name, count in (("stratum", len(self.x)), ("row", len(self.x)), ("known_stratum", known)):
            column: Tensor | None = getattr(self, name)
            fits = column is None or tuple(column.shape) == (count,)
            require(fits, f"'{name}' must have shape ({count},); got {() if column is None else tuple(column.shape)}")
        for name, count in (("y", len(self.x)), ("known_y", known)):
            labels: Tensor | None = getattr(self, name)
            require(labels is None or len(labels) == count, f"'{name}' must have {count} labels")


@dataclass(frozen=True, eq=False)
class SpanScores:
    """The scores of N clients or clusters and M records.

    Args:
        score: (N, M) float64, higher for members: minus the residual, where the span does not decide alone as many
            digits smaller as the matched filter says; with noise the filter's score, or without labels the leverage.
            NaN where a client or cluster sent no move, or a record was not asked of it.
        threshold: (N, M) float64, the largest score of a non-member; NaN like ``score``.
        exact: (N,) bool, whether some records lie in the span up to rounding, which no known non-member does by chance.
        rank: (N,) int64, the dimensions of the span; 0 without a move.
        layer: the dense layer's name in the network.
        inputs: its inputs, with the bias as one of them.
        direct: whether its inputs are the same in all rounds, as those of a first layer are.
        noisy: whether noise hides the span, so that scores are no residuals.
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

    name: ClassVar[str] = "span"
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
        moves = moves_of_updates(recorded, clients, continued=known.continued)
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
            Move(k, first + t, stacked[t, k].cpu(), updates[t, k], summed, float(amplified[t, k]))
            for k in range(stacked.shape[1])
            for t in range(len(updates))
        ]
        return _scores(self, moves, stacked.shape[1], candidates, engine, known)


def _scores(
    attack: _SpanAttack, moves: list[Move], count: int, candidates: Candidates, engine: Engine, knowledge: Knowledge
) -> SpanScores:
    """The scores of ``count`` rows by the layer that tells most."""
    layers = dense_layers(engine.model, attack.layer)
    pairs = ((layer, layer_moves(layer, moves, engine, knowledge)) for layer in layers)
    layer, parts = max(pairs, key=lambda pair: worth(*pair, noisy=knowledge.noisy))
    seen = _Seen(layer, candidates, engine, knowledge, parts)
    of_row: dict[int, list[LayerMove]] = defaultdict(list)
    for part in parts:
        of_row[part.move.row].append(part)
    score, threshold = np.full((2, count, len(candidates.x)), np.nan)
    exact, rank = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    for row, own in of_row.items():
        asked = torch.arange(len(candidates.x))
        if candidates.row is not None:
            asked = torch.nonzero(candidates.row == row).flatten()
        if seen.family is not None:
            # Every pass has other transforms, so more rounds have more inputs, not more of the same.
            used = [min(own, key=lambda part: part.space.rank)]
        elif seen.direct:
            used = [replace(own[0], space=joined([part.space for part in own]))]
        else:
            used = own
        rank[row] = max(part.space.rank for part in used)
        if len(asked):
            values, cut, exact[row] = _judged(attack, seen, own, used, asked)
            score[row, asked], threshold[row, asked] = values, cut
    return SpanScores(score, threshold, exact, rank, layer.name, layer.width, direct=seen.direct, noisy=knowledge.noisy)


class _Seen:
    """What a layer sees of candidates and of known non-members, by the model that a move started from."""

    def __init__(
        self,
        layer: DenseLayer,
        candidates: Candidates,
        engine: Engine,
        knowledge: Knowledge,
        parts: Sequence[LayerMove],
    ) -> None:
        self.layer, self.candidates, self.engine, self.knowledge = layer, candidates, engine, knowledge
        self.filters = (
            candidates.y is not None and candidates.known_y is not None and len(candidates.known_y) >= _LEAST_KNOWN
        )
        self.known = candidates.x[:0] if candidates.known is None else candidates.known
        self.family: TransformFamily | None = None
        self._of: dict[int, tuple[Tensor, Tensor, Tensor, Clutter | None]] = {}
        self._kept: list[Tensor] = []
        self.direct = not parts or self._is_direct(parts[0].move.start)

    def _is_direct(self, start: Tensor) -> bool:
        """Whether a few records' inputs of the layer are the same of another model, and which transforms to search."""
        few, start = self.candidates.x[:4], torch.nan_to_num(start)
        here, there = (
            layer_inputs(self.engine.model, row, self.layer, few, self.knowledge.dtype)[0]
            for row in (start, start + torch.linspace(-0.1, 0.1, len(start)))
        )
        transforms = None if self.knowledge.local is None else self.knowledge.local.augmentation
        if few.is_floating_point() and isinstance(transforms, TransformFamily) and transforms.varied:
            pixels = few.cpu().to(self.knowledge.dtype).float().flatten(1)
            as_they_are = here.dim() == 2 and here[:, : self.layer.inputs].equal(pixels)
            self.family = transforms if as_they_are and not self.knowledge.noisy else None
        return here.equal(there)

    def of(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor, Clutter | None]:
        """Inputs and errors of the M candidates and then Z known non-members, and the moments of them all.

        All, so that a candidate that is no member is treated as a known one is. Models are kept, so moves from one
        share them. Without labels there are no errors and no moments.
        """
        key = start.data_ptr()
        if key not in self._of:
            self._kept.append(start)
            row, labels = torch.nan_to_num(start), None
            if self.candidates.y is not None and self.candidates.known_y is not None:
                labels = torch.cat([self.candidates.y.cpu(), self.candidates.known_y.cpu()])
            x = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
            inputs, errors = layer_inputs(self.engine.model, row, self.layer, x, self.knowledge.dtype, labels)
            count = len(self.candidates.x)
            clutter = Clutter.of_records(inputs, errors) if self.filters else None
            self._of[key] = inputs, errors, torch.arange(count, len(x)), clutter
        return self._of[key]

    def residuals(self, part: LayerMove, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Residuals, their floors, and soft ones or under noise leverages: of candidates and of known non-members."""
        if self.family is not None:
            images = torch.cat([self.candidates.x.cpu()[asked], self.known[:_SEARCHED].cpu()])
            outside, floor = searched_residuals(
                part.space, images, self.family, bias=self.layer.bias, dtype=self.knowledge.dtype
            )[:2]
            return outside, floor, outside
        inputs, _, known, _ = self.of(part.move.start)
        chosen = inputs[torch.cat([asked, known])]
        weighted = part.space.leverages if self.knowledge.noisy else part.space.soft_residuals
        return *part.space.residuals(chosen), weighted(chosen)

    def filtered(self, parts: Sequence[LayerMove], asked: Tensor) -> NDArray[np.float64] | None:
        """The matched filter's scores, summed over moves, in standard units of known non-members; None without."""
        if not self.filters or self.family is not None:
            return None
        total = torch.zeros(len(asked) + len(self.known), dtype=torch.float64)
        for part in parts:
            inputs, errors, known, clutter = self.of(part.move.start)
            assert clutter is not None
            chosen = torch.cat([asked, known])
            total += clutter.scores(part.matrix, part.space.deviation, inputs[chosen], errors[chosen])
        others = total[len(asked) :]
        return ((total - others.mean()) / others.std().clamp(min=1e-300)).numpy()


def _complete(seen: _Seen, own: Sequence[LayerMove], used: Sequence[LayerMove]) -> bool:
    """Whether moves show all their inputs: each has fewer directions than rows, or directions come again."""
    parts = own if seen.family is None else used
    again = seen.direct and seen.family is None and used[0].space.rank < sum(part.space.rank for part in own)
    return again or all(part.space.rank < int(part.matrix.any(dim=1).sum()) for part in parts)


def _judged(
    attack: _SpanAttack, seen: _Seen, own: Sequence[LayerMove], used: Sequence[LayerMove], asked: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Scores and thresholds (m,) of the records ``asked`` of one row, and whether its span is exact."""
    candidates, count = seen.candidates, len(asked)
    columns = zip(*(seen.residuals(part, asked) for part in used), strict=True)
    residual, floor, weighted = (torch.stack(column).mean(dim=0).numpy() for column in columns)
    if seen.knowledge.noisy:
        filtered = seen.filtered(own, asked)
        score = weighted if filtered is None else filtered
    else:
        # Without known non-members, all records stand for them.
        ordinary = residual[count:] if len(residual) > count else residual
        level = float(np.quantile(ordinary, 0.01 if len(residual) > count else 0.9))
        # Rounding may be as large as residuals, where a space has directions of small values.
        inside = residual < np.minimum(_FLOORS * floor, level / 10)
        # Of the records that lie further inside than others do, beyond the few in a hundred that do by chance, most
        # must lie inside up to rounding.
        clear = int((residual[:count] < level).sum()) - 0.02 * count
        most = 2 * int(inside[:count].sum()) >= max(1.0, clear)
        if _complete(seen, own, used) and most and level > 3 * _FLOORS * float(np.median(floor)):
            # Half way, in digits, from rounding to the residuals of others.
            return -residual[:count], -np.sqrt(np.minimum(_FLOORS * floor[:count], level) * level), True
        filtered, digits = seen.filtered(own, asked), np.log10(weighted.clip(min=1e-8))
        if filtered is not None:
            # Two kinds of evidence, each in standard units of known non-members.
            digits = digits - filtered * digits[count:].std()
        score = -(10**digits)
    others = score[count:]
    if not len(others):
        return score[:count], np.full(count, np.quantile(score, 1 - attack.false_alarms)), False
    cut = np.full(count, np.quantile(others, 1 - attack.false_alarms))
    if candidates.stratum is not None and candidates.known_stratum is not None:
        own_stratum, theirs = (
            candidates.stratum[asked].numpy(),
            candidates.known_stratum[: len(others)].numpy(),
        )
        for value in np.unique(own_stratum):
            same = others[theirs == value]
            if len(same) >= _LEAST_KNOWN:
                cut[own_stratum == value] = np.quantile(same, 1 - attack.false_alarms)
    return score[:count], cut, False
