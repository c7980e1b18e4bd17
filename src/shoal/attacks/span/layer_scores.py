"""Scores of records by the moves of a dense layer, and thresholds: exact where the span decides, else calibrated."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.attacks.span.candidates import Candidates, SpanScores
from shoal.attacks.span.dense_layers import DenseLayer, clipped_factors, dense_layers, layer_inputs
from shoal.attacks.span.knowledge import Knowledge
from shoal.attacks.span.layer_moves import LayerMove, Move, layer_information, layer_moves
from shoal.attacks.span.matched_filter import Clutter
from shoal.attacks.span.row_space import join_row_spaces
from shoal.attacks.span.transform_search import TransformFamily, searched_residuals
from shoal.engine import Engine
from shoal.metrics.intervals import Floats, Ints

_MIN_OF_STRATUM = 5
"""Known non-members of a stratum, at least, by which thresholds are set."""

_MAX_SEARCHED = 40
"""Known non-members, at most, that are searched for by transforms."""

_MAX_FILTERED = 100
"""Known non-members, at most, that the matched filter is asked of under noise, in all rounds."""

_COPIES = 8
"""Transformed copies of a record in the matched filter."""

_FLOORS = 20.0
"""A residual below so many times what rounding leaves counts as 0."""


def scores_of_moves(
    layer: str | None,
    false_alarms: float,
    moves: list[Move],
    count: int,
    candidates: Candidates,
    engine: Engine,
    knowledge: Knowledge,
) -> SpanScores:
    """The scores of ``count`` rows by the dense layer of this name, or by the one that tells most.

    See `shoal.attacks.UpdateSpan` for ``layer`` and ``false_alarms``.
    """
    layers = dense_layers(engine.model, layer)
    spans = not (knowledge.noisy and candidates.filters)
    pairs = ((layer, layer_moves(layer, moves, engine, knowledge, spans=spans)) for layer in layers)

    def information(pair: tuple[DenseLayer, list[LayerMove]]) -> tuple[bool, float]:
        layer, parts = pair
        direct = not parts or _is_direct(layer, candidates.x[:4], parts[0].move.start, engine, knowledge)
        return layer_information(layer, parts, noisy=knowledge.noisy, direct=direct)

    chosen, parts = max(pairs, key=information)
    seen = _LayerView(chosen, candidates, engine, knowledge, parts)
    of_row: dict[int, list[LayerMove]] = defaultdict(list)
    for part in parts:
        of_row[part.move.row].append(part)
    score, threshold = np.full((2, count, len(candidates.x)), np.nan)
    known = np.full((count, len(seen.known)), np.nan)
    exact, rank = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    undecided = list[tuple[_RowView, _Residuals | None]]()
    for row, own in of_row.items():
        asked = torch.arange(len(candidates.x))
        if candidates.row is not None:
            asked = torch.nonzero(candidates.row == row).flatten()
        of_moves = _RowView(row, seen, own, asked)
        rank[row] = max(part.space.rank for part in of_moves.used)
        if not len(asked):
            continue
        residuals = None if seen.knowledge.noisy and seen.filters else _Residuals.of(of_moves)
        if residuals is not None and residuals.exact:
            exact[row] = True
            values, cut = residuals.exact_scores()
            # As arrays: NumPy takes a tensor of one element for a number.
            score[row, asked.numpy()], threshold[row, asked.numpy()] = values[: len(asked)], cut
            known[row, of_moves.judged.numpy()] = values[len(asked) :]
        else:
            undecided.append((of_moves, residuals))
    filtered = seen.filtered([of_moves for of_moves, _ in undecided])
    for (of_moves, residuals), by_filter in zip(undecided, filtered, strict=True):
        values = _unsure_scores(of_moves, residuals, by_filter)
        row, asked = of_moves.row, of_moves.asked
        score[row, asked.numpy()] = values[: len(asked)]
        threshold[row, asked.numpy()] = of_moves.cuts(values, false_alarms)
        known[row, of_moves.judged.numpy()] = values[len(asked) :]
    found = score, threshold, exact, rank, known, chosen.name, chosen.width
    return SpanScores(*found, direct=seen.direct, noisy=knowledge.noisy)


def calibrate_scores(others: Floats, of_others: Ints, of_asked: Ints, rate: float) -> Floats:
    """Thresholds (m,) that a share ``rate`` of the non-members among m records exceeds.

    A further non-member exceeds the k-th of n known ones, in order, with probability ``(n + 1 - k) / (n + 1)``, so the
    threshold is at ``k = (1 - rate) (n + 1)``. It is interpolated between two; conformal prediction would round k up.
    Known ones are weighted to the mix of strata of the records that are asked, since who is asked of a client has its
    labels: those of a stratum have the weight of the records there, and n is their effective number.

    Source: Tibshirani, Barber, Candès, Ramdas, "Conformal Prediction Under Covariate Shift", NeurIPS 2019.

    Args:
        others: (Z,) scores of known non-members, Z >= 1.
        of_others, of_asked: strata (Z, S) and (m, S), coarse columns first; see `Candidates`. A record is
            compared within its last stratum that has five known non-members.
        rate: of false alarms.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks.span.layer_scores import calibrate_scores
        >>> even, scores = np.arange(38)[:, None] % 2, np.arange(38.0)
        >>> calibrate_scores(scores, even, np.array([[0], [1], [2]]), 0.05).round(1)
        array([36. , 37. , 36.1])
    """
    order, cuts = np.argsort(others), np.empty(len(of_asked))
    part = of_asked[:, 0] if of_asked.shape[1] else np.zeros(len(of_asked), dtype=np.int64)
    for value in np.unique(part):
        weights, rest = np.zeros(len(others)), part == value
        for column, known in zip(of_asked.T[::-1], of_others.T[::-1], strict=True):
            for stratum, count in zip(*np.unique(column[rest], return_counts=True), strict=True):
                same = known == stratum
                if same.sum() >= _MIN_OF_STRATUM:
                    weights += same * count / same.sum()
                    rest = rest & (column != stratum)
        weights += rest.sum() / len(others)
        places = np.cumsum(weights[order]) / (weights.sum() + (weights**2).sum() / weights.sum())
        used = weights[order] > 0
        cuts[part == value] = np.interp(1 - rate, places[used], others[order][used])
    return cuts


def _is_direct(layer: DenseLayer, few: Tensor, start: Tensor, engine: Engine, knowledge: Knowledge) -> bool:
    """Whether a few records' inputs of a layer are the same of another model."""
    start = torch.nan_to_num(start)
    here, there = (
        layer_inputs(engine.model, row, layer, few, knowledge.dtype)[0]
        for row in (start, start + torch.linspace(-0.1, 0.1, len(start)))
    )
    return here.equal(there)


class _LayerView:
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
        self.filters = candidates.filters
        self.known = candidates.x[:0] if candidates.known is None else candidates.known
        self.family: TransformFamily | None = None
        self._copies: Tensor | None = None
        self._of: dict[int, tuple[Tensor, Tensor]] = {}
        self._moments: tuple[Clutter, Tensor] | None = None
        self._kept: list[Tensor] = []
        start = parts[0].move.start if parts else None
        self.direct = start is None or _is_direct(layer, candidates.x[:4], start, engine, knowledge)
        if start is not None:
            self._transformed(torch.nan_to_num(start))

    def _transformed(self, start: Tensor) -> None:
        """Which transforms to search, and the transformed copies of all records."""
        few = self.candidates.x[:4]
        transforms = None if self.knowledge.local is None else self.knowledge.local.augmentation
        if few.is_floating_point() and isinstance(transforms, TransformFamily) and transforms.varied:
            pixels = few.cpu().to(self.knowledge.dtype).float().flatten(1)
            here, _ = layer_inputs(self.engine.model, start, self.layer, few, self.knowledge.dtype)
            as_they_are = here.dim() == 2 and here[:, : self.layer.inputs].equal(pixels)
            self.family = transforms if as_they_are and not self.knowledge.noisy else None
            everyone = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
            if self.filters and everyone.dim() == 4:
                # The same transforms of all records, spread evenly.
                draws = torch.quasirandom.SobolEngine(7).draw(_COPIES + 1)[1:].repeat(len(everyone), 1)
                self._copies = transforms.transformed(everyone.repeat_interleave(_COPIES, dim=0), draws)

    def of(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs of the M candidates and then Z known non-members, and the places of these.

        All, so that a candidate that is no member is treated as a known one is. Models are kept, so moves from one
        share them.
        """
        key = start.data_ptr()
        if key not in self._of:
            self._kept.append(start)
            x = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
            row = torch.nan_to_num(start)
            inputs, _ = layer_inputs(self.engine.model, row, self.layer, x, self.knowledge.dtype)
            self._of[key] = inputs, torch.arange(len(self.candidates.x), len(x))
        return self._of[key]

    def moments(self, start: Tensor) -> tuple[Clutter, Tensor, Tensor]:
        """The moments of all inputs and errors, and the inputs and errors themselves: of transformed copies, where
        clients train on such, and clipped as clients clip.
        """
        assert self.candidates.y is not None
        assert self.candidates.known_y is not None
        x = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
        labels = torch.cat([self.candidates.y.cpu(), self.candidates.known_y.cpu()])
        if self._copies is not None:
            x, labels = self._copies, labels.repeat_interleave(_COPIES, dim=0)
        row, bound = torch.nan_to_num(start), self.knowledge.max_grad_norm
        inputs, errors = clipped_factors(self.engine, row, self.layer, x, labels, self.knowledge.dtype, bound)
        if self._copies is not None:
            inputs, errors = (part.unflatten(0, (-1, _COPIES)).flatten(1, -2) for part in (inputs, errors))
        before = self._moments
        if before is not None and before[1].equal(inputs):
            # Of a first layer the inputs are the same of every model, and their moments take the longest.
            clutter, inputs = before[0].with_errors(errors), before[1]
        else:
            clutter = Clutter.of_records(inputs, errors)
        self._moments = clutter, inputs
        return clutter, inputs, errors

    def judged_by(self, asked: Tensor) -> Tensor:
        """The places of the known non-members by which ``asked`` are judged: of a search, or in all rounds, few, first
        of their kinds.
        """
        places, noisy = torch.arange(len(self.known)), self.knowledge.noisy and self.filters
        most = _MAX_FILTERED if noisy else len(places) if self.family is None else _MAX_SEARCHED
        if most >= len(places):
            return places
        kinds, of_known = (strata[:, :1] for strata in self.candidates.strata)
        other = ~np.isin(of_known, kinds[asked.numpy()]).all(axis=1)
        return places[np.argsort(other, kind="stable")[:most]]

    def residuals(self, part: LayerMove, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals and their floors: of candidates and of known non-members."""
        if self.family is not None:
            images = torch.cat([self.candidates.x.cpu()[asked], self.known[self.judged_by(asked)].cpu()])
            return searched_residuals(
                part.space, images, self.family, bias=self.layer.bias, dtype=self.knowledge.dtype
            )[:2]
        inputs, known = self.of(part.move.start)
        return part.space.residuals(inputs[torch.cat([asked, known])])

    def weighted(self, part: LayerMove, asked: Tensor) -> Tensor:
        """Soft residuals, or under noise leverages, of the same records."""
        inputs, known = self.of(part.move.start)
        weighted = part.space.leverages if self.knowledge.noisy else part.space.soft_residuals
        return weighted(inputs[torch.cat([asked, known])])

    def filtered(self, rows: "Sequence[_RowView]") -> list[Floats | None]:
        """The matched filter's scores of each row, over its moves, in standard units of known non-members; None
        without labels. Moves from one model come one after another, so that one model's gradients are in memory.
        """
        if not self.filters:
            return [None] * len(rows)
        first = len(self.candidates.x)
        chosen = [torch.cat([of_moves.asked, first + of_moves.judged]) for of_moves in rows]
        sums = [torch.zeros(2, len(asked), dtype=torch.float64) for asked in chosen]
        of_start: dict[int, list[tuple[LayerMove, int]]] = defaultdict(list)
        for i, of_moves in enumerate(rows):
            for part in of_moves.own:
                of_start[part.move.start.data_ptr()].append((part, i))
        for same in of_start.values():
            clutter, inputs, errors = self.moments(same[0][0].move.start)
            for part, i in same:
                own = inputs[chosen[i]], errors[chosen[i]] * self._rate(part.move.number)
                sums[i] += torch.stack(clutter.evidence(part.matrix, part.space.deviation, *own))
        scores = list[Floats | None]()
        for of_moves, (found, own) in zip(rows, sums, strict=True):
            total = found / own.clamp(min=1e-300).sqrt()
            others = total[len(of_moves.asked) :]
            scores.append(((total - others.mean()) / others.std().clamp(min=1e-300)).numpy())
        return scores

    def _rate(self, number: int) -> float:
        local = self.knowledge.local
        return 1.0 if local is None else local.at_round(number).learning_rate


class _RowView:
    """The moves of one client or cluster, and the records that are asked of it.

    Args:
        row: its place in the scores.
        seen: the layer.
        own: its moves.
        asked: (m,) int64, the candidates.
    """

    def __init__(self, row: int, seen: _LayerView, own: Sequence[LayerMove], asked: Tensor) -> None:
        self.row, self.seen, self.own, self.asked = row, seen, own, asked
        self.judged = seen.judged_by(asked)
        self.used: Sequence[LayerMove] = own
        if seen.family is not None:
            # Every pass has other transforms, so more rounds have more inputs, not more of the same.
            self.used = [min(own, key=lambda part: part.space.rank)]
        elif seen.direct and own[0].space.rank:
            self.used = [replace(own[0], space=join_row_spaces([part.space for part in own]))]

    def weighted(self) -> Floats:
        """Soft residuals, or under noise leverages, of the records and of the known non-members."""
        return torch.stack([self.seen.weighted(part, self.asked) for part in self.used]).mean(dim=0).numpy()

    def complete(self) -> bool:
        """Whether moves show all their inputs: each has fewer directions than rows, or directions come again."""
        seen, parts = self.seen, self.own if self.seen.family is None else self.used
        again = seen.direct and seen.family is None and self.used[0].space.rank < sum(p.space.rank for p in self.own)
        return again or all(part.space.rank < int(part.matrix.any(dim=1).sum()) for part in parts)

    def cuts(self, values: Floats, rate: float) -> Floats:
        """Thresholds (m,) of scores (m + z,) with a ``rate`` of false alarms."""
        others, (strata, of_known) = values[len(self.asked) :], self.seen.candidates.strata
        if not len(others):
            return np.full(len(self.asked), np.quantile(values, 1 - rate))
        return calibrate_scores(others, of_known[self.judged.numpy()], strata[self.asked.numpy()], rate)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """The residuals (m + z,) of the records asked of a row and of known non-members, what rounding leaves of them, and
    the level of non-members' residuals.
    """

    residual: Floats
    floor: Floats
    level: float
    exact: bool

    @staticmethod
    def of(row: _RowView) -> "_Residuals":
        """The residuals by a row's moves, and whether its span is exact."""
        seen, count = row.seen, len(row.asked)
        columns = zip(*(seen.residuals(part, row.asked) for part in row.used), strict=True)
        residual, floor = (torch.stack(column).mean(dim=0).numpy() for column in columns)
        # Without known non-members, all records stand for them.
        ordinary = residual[count:] if len(residual) > count else residual
        if len(residual) > count and seen.candidates.strata[0].shape[1]:
            groups, of_known = (strata[:, 0] for strata in seen.candidates.strata)
            groups, of_known = groups[row.asked.numpy()], of_known[row.judged.numpy()]
            # All of a group's records may lie in a span that others lie outside of, as turned images do.
            ordinary = ordinary[np.isin(of_known, groups)] if np.isin(groups, of_known).all() else ordinary
        level = float(np.quantile(ordinary, 0.01 if len(residual) > count else 0.9))
        # Rounding may be as large as residuals, where a space has directions of small values.
        inside = residual < np.minimum(_FLOORS * floor, level / 10)
        # Of the records that lie further inside than others do, beyond the few in a hundred that do by chance, most
        # must lie inside up to rounding.
        clear = int((residual[:count] < level).sum()) - 0.02 * count
        most = 2 * int(inside[:count].sum()) >= max(1.0, clear)
        clean = level > 3 * _FLOORS * float(np.median(floor))
        exact = not seen.knowledge.noisy and row.complete() and most and clean
        return _Residuals(residual, floor[:count], level, exact)

    def exact_scores(self) -> tuple[Floats, Floats]:
        """Scores (m + z,), and thresholds (m,) half way, in digits, from rounding to the residuals of others."""
        return -self.residual, -np.sqrt(np.minimum(_FLOORS * self.floor, self.level) * self.level)


def _unsure_scores(row: _RowView, residuals: _Residuals | None, filtered: Floats | None) -> Floats:
    """Scores (m + z,) of a row whose span is not exact, by the matched filter's, where there are any."""
    if row.seen.knowledge.noisy:
        return row.weighted() if filtered is None else filtered
    assert residuals is not None
    whole = residuals.residual if row.seen.family is not None else row.weighted()
    digits, count = np.log10(whole.clip(min=1e-8)), len(row.asked)
    if filtered is not None:
        # Two kinds of evidence, each in standard units of known non-members.
        digits = digits - filtered * digits[count:].std()
    return -(10**digits)
