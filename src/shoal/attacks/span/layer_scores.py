"""Scores and thresholds of records from a dense layer's updates."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.attacks.span.candidates import Candidates, SpanScores
from shoal.attacks.span.dense_layers import DenseLayer, clip_layer_factors, dense_layers, layer_inputs
from shoal.attacks.span.knowledge import Knowledge
from shoal.attacks.span.layer_moves import LayerMove, Move, layer_information, layer_moves
from shoal.attacks.span.matched_filter import Clutter
from shoal.attacks.span.row_space import join_row_spaces
from shoal.attacks.span.transform_search import TransformFamily, search_residuals
from shoal.engine import Engine
from shoal.metrics.intervals import Floats, Ints

_MIN_OF_STRATUM = 5
"""The smallest number of known non-members per stratum for a threshold."""

_MAX_SEARCHED = 40
"""The largest number of known non-members in a search over transforms."""

_MAX_FILTERED = 100
"""The largest number of known non-members for a matched filter under noise."""

_COPIES = 8
"""The number of transformed copies per record in the matched filter."""

_FLOORS = 20.0
"""A residual below this multiple of the rounding error counts as 0."""


def scores_of_moves(
    layer: str | None,
    false_alarms: float,
    moves: list[Move],
    count: int,
    candidates: Candidates,
    engine: Engine,
    knowledge: Knowledge,
) -> SpanScores:
    """Score the candidates for ``count`` clients or clusters from one dense layer's updates.

    ``layer`` is the layer's name; ``None`` selects the most informative layer.
    """
    layers = dense_layers(engine.model, layer)
    spans = not (knowledge.noisy and candidates.filters)
    pairs = ((layer, layer_moves(layer, moves, engine, knowledge, spans=spans)) for layer in layers)

    def information(pair: tuple[DenseLayer, list[LayerMove]]) -> tuple[bool, float]:
        layer, parts = pair
        direct = not parts or _is_direct(layer, candidates.x[:4], parts[0].move.start, engine, knowledge)
        return layer_information(layer, parts, noisy=knowledge.noisy, direct=direct)

    chosen, parts = max(pairs, key=information)
    layer_view = _LayerView(chosen, candidates, engine, knowledge, parts)
    of_row: dict[int, list[LayerMove]] = defaultdict(list)
    for part in parts:
        of_row[part.move.row].append(part)
    score, threshold = np.full((2, count, len(candidates.x)), np.nan)
    known = np.full((count, len(layer_view.known)), np.nan)
    exact, rank = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    undecided = list[tuple[_RowView, _Residuals | None]]()
    for row, row_moves in of_row.items():
        places = torch.arange(len(candidates.x))
        if candidates.row is not None:
            places = torch.nonzero(candidates.row == row).flatten()
        view = _RowView(row, layer_view, row_moves, places)
        rank[row] = max(part.space.rank for part in view.used)
        if not len(places):
            continue
        residuals = None if knowledge.noisy and layer_view.filters else _Residuals.of(view)
        if residuals is not None and residuals.exact:
            exact[row] = True
            values, cut = residuals.exact_scores()
            # As arrays: NumPy takes a tensor of one element for a number.
            score[row, places.numpy()], threshold[row, places.numpy()] = values[: len(places)], cut
            known[row, view.references.numpy()] = values[len(places) :]
        else:
            undecided.append((view, residuals))
    filter_scores = layer_view.filter_scores([view for view, _ in undecided])
    for (view, residuals), by_filter in zip(undecided, filter_scores, strict=True):
        values = _unsure_scores(view, residuals, by_filter)
        row, places = view.row, view.places
        score[row, places.numpy()] = values[: len(places)]
        threshold[row, places.numpy()] = view.cuts(values, false_alarms)
        known[row, view.references.numpy()] = values[len(places) :]
    columns = score, threshold, exact, rank, known, chosen.name, chosen.width
    return SpanScores(*columns, direct=layer_view.direct, noisy=knowledge.noisy)


def calibrate_scores(references: Floats, reference_strata: Ints, strata: Ints, rate: float) -> Floats:
    """Return thresholds (m,) for m records with the false alarm rate ``rate``.

    A new non-member exceeds the k-th of n known scores with probability ``(n + 1 - k) / (n + 1)``. The threshold is
    therefore at ``k = (1 - rate) (n + 1)``, interpolated between two scores. Known non-members are weighted to match
    the records' mix of strata, and n is the effective number of known non-members.

    Source: Tibshirani, Barber, Candès, Ramdas, "Conformal Prediction Under Covariate Shift", NeurIPS 2019.

    Args:
        references: the scores of known non-members, (Z,), with Z >= 1.
        reference_strata, strata: the strata of known non-members and of records, (Z, S) and (m, S), coarsest first. The
            finest stratum with at least five known non-members is used for a record.
        rate: the fraction of non-members with scores above the threshold.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks.span.layer_scores import calibrate_scores
        >>> even, scores = np.arange(38)[:, None] % 2, np.arange(38.0)
        >>> calibrate_scores(scores, even, np.array([[0], [1], [2]]), 0.05).round(1)
        array([36. , 37. , 36.1])
    """
    order, cuts = np.argsort(references), np.empty(len(strata))
    part = strata[:, 0] if strata.shape[1] else np.zeros(len(strata), dtype=np.int64)
    for value in np.unique(part):
        weights, rest = np.zeros(len(references)), part == value
        for column, known in zip(strata.T[::-1], reference_strata.T[::-1], strict=True):
            for stratum, count in zip(*np.unique(column[rest], return_counts=True), strict=True):
                same = known == stratum
                if same.sum() >= _MIN_OF_STRATUM:
                    weights += same * count / same.sum()
                    rest = rest & (column != stratum)
        weights += rest.sum() / len(references)
        places = np.cumsum(weights[order]) / (weights.sum() + (weights**2).sum() / weights.sum())
        used = weights[order] > 0
        cuts[part == value] = np.interp(1 - rate, places[used], references[order][used])
    return cuts


def _is_direct(layer: DenseLayer, few: Tensor, start: Tensor, engine: Engine, knowledge: Knowledge) -> bool:
    """Return whether a layer has the same inputs under two different models, for a few records."""
    start = torch.nan_to_num(start)
    here, there = (
        layer_inputs(engine.model, row, layer, few, knowledge.dtype)[0]
        for row in (start, start + torch.linspace(-0.1, 0.1, len(start)))
    )
    return here.equal(there)


class _LayerView:
    """A layer's inputs and errors for candidates and known non-members, for each model that an update started from."""

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
        self._starts: list[Tensor] = []
        start = parts[0].move.start if parts else None
        self.direct = start is None or _is_direct(layer, candidates.x[:4], start, engine, knowledge)
        if start is not None:
            self._set_transforms(torch.nan_to_num(start))

    def _set_transforms(self, start: Tensor) -> None:
        """Set the family of transforms to search, and create transformed copies of all records."""
        few = self.candidates.x[:4]
        transforms = None if self.knowledge.local is None else self.knowledge.local.augmentation
        if few.is_floating_point() and isinstance(transforms, TransformFamily) and transforms.varied:
            pixels = few.cpu().to(self.knowledge.dtype).float().flatten(1)
            here, _ = layer_inputs(self.engine.model, start, self.layer, few, self.knowledge.dtype)
            reads_pixels = here.dim() == 2 and here[:, : self.layer.inputs].equal(pixels)
            self.family = transforms if reads_pixels and not self.knowledge.noisy else None
            records = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
            if self.filters and records.dim() == 4:
                # The same transforms of all records, spread evenly.
                draws = torch.quasirandom.SobolEngine(7).draw(_COPIES + 1)[1:].repeat(len(records), 1)
                self._copies = transforms.transformed(records.repeat_interleave(_COPIES, dim=0), draws)

    def of(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of M candidates, followed by Z known non-members, and the non-members' indices."""
        key = start.data_ptr()
        if key not in self._of:
            # A reference to the model, so that no other tensor gets its address.
            self._starts.append(start)
            x = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
            row = torch.nan_to_num(start)
            inputs, _ = layer_inputs(self.engine.model, row, self.layer, x, self.knowledge.dtype)
            self._of[key] = inputs, torch.arange(len(self.candidates.x), len(x))
        return self._of[key]

    def moments(self, start: Tensor) -> tuple[Clutter, Tensor, Tensor]:
        """Return the second moments of the layer's inputs and clipped errors over all records, the inputs, and the
        errors.

        If clients train on transformed images, inputs and errors are computed on transformed copies.
        """
        assert self.candidates.y is not None
        assert self.candidates.known_y is not None
        x = torch.cat([self.candidates.x.cpu(), self.known.cpu()])
        labels = torch.cat([self.candidates.y.cpu(), self.candidates.known_y.cpu()])
        if self._copies is not None:
            x, labels = self._copies, labels.repeat_interleave(_COPIES, dim=0)
        row, bound = torch.nan_to_num(start), self.knowledge.max_grad_norm
        factors = clip_layer_factors(self.engine, row, [self.layer], x, labels, self.knowledge.dtype, bound)
        inputs, errors = factors[0]
        if self._copies is not None:
            inputs, errors = (part.unflatten(0, (-1, _COPIES)).flatten(1, -2) for part in (inputs, errors))
        last = self._moments
        if last is not None and last[1].equal(inputs):
            # A first layer has the same inputs for every model, and their moments take the longest.
            clutter, inputs = last[0].with_errors(errors), last[1]
        else:
            clutter = Clutter.of_records(inputs, errors)
        self._moments = clutter, inputs
        return clutter, inputs, errors

    def references(self, places: Tensor) -> Tensor:
        """Return the indices of the known non-members for comparison; the candidates' strata come first.

        A transform search uses at most `_MAX_SEARCHED` known non-members; a filter under noise uses at most
        `_MAX_FILTERED`.
        """
        known, noisy = torch.arange(len(self.known)), self.knowledge.noisy and self.filters
        most = _MAX_FILTERED if noisy else len(known) if self.family is None else _MAX_SEARCHED
        if most >= len(known):
            return known
        strata, known_strata = (column[:, :1] for column in self.candidates.strata)
        other = ~np.isin(known_strata, strata[places.numpy()]).all(axis=1)
        return known[np.argsort(other, kind="stable")[:most]]

    def residuals(self, part: LayerMove, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals of candidates, followed by known non-members, and the residuals' rounding floors."""
        if self.family is not None:
            images = torch.cat([self.candidates.x.cpu()[places], self.known[self.references(places)].cpu()])
            bias, dtype = self.layer.bias, self.knowledge.dtype
            return search_residuals(part.space, images, self.family, bias=bias, dtype=dtype)[:2]
        inputs, known = self.of(part.move.start)
        return part.space.residuals(inputs[torch.cat([places, known])])

    def soft_scores(self, part: LayerMove, places: Tensor) -> Tensor:
        """Return the soft residuals, or the leverages under noise, of candidates, followed by known non-members."""
        inputs, known = self.of(part.move.start)
        weigh = part.space.leverages if self.knowledge.noisy else part.space.soft_residuals
        return weigh(inputs[torch.cat([places, known])])

    def filter_scores(self, rows: "Sequence[_RowView]") -> list[Floats | None]:
        """Return each row's matched-filter scores, standardised by known non-members; ``None`` if the filter is off."""
        if not self.filters:
            return [None] * len(rows)
        first = len(self.candidates.x)
        chosen = [torch.cat([view.places, first + view.references]) for view in rows]
        sums = [torch.zeros(2, len(places), dtype=torch.float64) for places in chosen]
        of_start: dict[int, list[tuple[LayerMove, int]]] = defaultdict(list)
        for i, view in enumerate(rows):
            for part in view.moves:
                of_start[part.move.start.data_ptr()].append((part, i))
        for same in of_start.values():
            clutter, inputs, errors = self.moments(same[0][0].move.start)
            for part, i in same:
                local = self.knowledge.local
                rate = 1.0 if local is None else local.at_round(part.move.number).learning_rate
                factors = inputs[chosen[i]], errors[chosen[i]] * rate
                sums[i] += torch.stack(clutter.evidence(part.matrix, part.space.deviation, *factors))
        scores = list[Floats | None]()
        for view, (found, own) in zip(rows, sums, strict=True):
            total = found / own.clamp(min=1e-300).sqrt()
            known = total[len(view.places) :]
            scores.append(((total - known.mean()) / known.std().clamp(min=1e-300)).numpy())
        return scores


class _RowView:
    """One client's or cluster's updates, and the indices ``places`` (m,) int64 of its candidates."""

    def __init__(self, row: int, layer_view: _LayerView, moves: Sequence[LayerMove], places: Tensor) -> None:
        self.row, self.layer_view, self.moves, self.places = row, layer_view, moves, places
        self.references = layer_view.references(places)
        self.used: Sequence[LayerMove] = moves
        if layer_view.family is not None:
            # Every pass has other transforms, so more rounds have more inputs, not more of the same.
            self.used = [min(moves, key=lambda part: part.space.rank)]
        elif layer_view.direct and moves[0].space.rank:
            self.used = [replace(moves[0], space=join_row_spaces([part.space for part in moves]))]

    def soft_scores(self) -> Floats:
        """Return the soft residuals, or the leverages under noise, of candidates, followed by known non-members."""
        parts = [self.layer_view.soft_scores(part, self.places) for part in self.used]
        return torch.stack(parts).mean(dim=0).numpy()

    def complete(self) -> bool:
        """Return whether the updates contain all inputs, because directions repeat or are fewer than rows."""
        view, parts = self.layer_view, self.moves if self.layer_view.family is None else self.used
        repeat = view.direct and view.family is None
        repeat = repeat and self.used[0].space.rank < sum(part.space.rank for part in self.moves)
        return repeat or all(part.space.rank < int(part.matrix.any(dim=1).sum()) for part in parts)

    def cuts(self, values: Floats, rate: float) -> Floats:
        """Return thresholds (m,) for scores (m + z,) with the false alarm rate ``rate``."""
        known, (strata, known_strata) = values[len(self.places) :], self.layer_view.candidates.strata
        if not len(known):
            return np.full(len(self.places), np.quantile(values, 1 - rate))
        return calibrate_scores(known, known_strata[self.references.numpy()], strata[self.places.numpy()], rate)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """A row's residuals of candidates and known non-members (m + z,), rounding floors, and the non-members' level."""

    residual: Floats
    floor: Floats
    level: float
    exact: bool

    @staticmethod
    def of(row: _RowView) -> "_Residuals":
        """Compute the residuals of one client or cluster, and whether the span is exact."""
        view, count = row.layer_view, len(row.places)
        columns = zip(*(view.residuals(part, row.places) for part in row.used), strict=True)
        residual, floor = (torch.stack(column).mean(dim=0).numpy() for column in columns)
        # Without known non-members, all records stand for them.
        ordinary = residual[count:] if len(residual) > count else residual
        if len(residual) > count and view.candidates.strata[0].shape[1]:
            groups, known_groups = (strata[:, 0] for strata in view.candidates.strata)
            groups, known_groups = groups[row.places.numpy()], known_groups[row.references.numpy()]
            # All of a group's records, such as rotated images, may lie in a span that other groups lie outside.
            ordinary = ordinary[np.isin(known_groups, groups)] if np.isin(groups, known_groups).all() else ordinary
        level = float(np.quantile(ordinary, 0.01 if len(residual) > count else 0.9))
        # Rounding may be as large as residuals if a space has directions of small values.
        inside = residual < np.minimum(_FLOORS * floor, level / 10)
        # Beyond 2 % by chance, most records below the level must lie inside up to rounding.
        clear = int((residual[:count] < level).sum()) - 0.02 * count
        most = 2 * int(inside[:count].sum()) >= max(1.0, clear)
        clean = level > 3 * _FLOORS * float(np.median(floor))
        exact = not view.knowledge.noisy and row.complete() and most and clean
        return _Residuals(residual, floor[:count], level, exact)

    def exact_scores(self) -> tuple[Floats, Floats]:
        """Return scores (m + z,), and thresholds (m,) between the rounding error and the non-members' level."""
        return -self.residual, -np.sqrt(np.minimum(_FLOORS * self.floor, self.level) * self.level)


def _unsure_scores(row: _RowView, residuals: _Residuals | None, filtered: Floats | None) -> Floats:
    """Return the scores (m + z,) without an exact span, including the matched filter's scores if they exist."""
    if row.layer_view.knowledge.noisy:
        return row.soft_scores() if filtered is None else filtered
    assert residuals is not None
    whole = residuals.residual if row.layer_view.family is not None else row.soft_scores()
    digits, count = np.log10(whole.clip(min=1e-8)), len(row.places)
    if filtered is not None:
        # Two kinds of evidence, each in standard units of known non-members.
        digits = digits - filtered * digits[count:].std()
    return -(10**digits)
