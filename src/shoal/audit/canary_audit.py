"""Canary audits: a lower bound on epsilon from one training run.

Each canary is scored on the model that its client trained last. The score is the logit of the probability of the
canary's wrong label.

Source: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, Theorem 5.2 and Algorithm 1. Each of the m canaries is included
independently with probability 1/2. If training is (epsilon, delta)-DP for adding or removing one canary, then at least
v of at most r guesses are correct with probability at most

    f(v) + 2 m delta max_{i = 1..m} (f(v - i) - f(v)) / i,    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from shoal.attacks import logit_confidence
from shoal.audit.measurement import FinishedTraining
from shoal.audit.record_table import RecordTable, measure
from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.data import Canaries
from shoal.metrics import canary_rate, exposure_of_canaries
from shoal.metrics.intervals import Bools, Floats
from shoal.metrics.summary import Summary

CANARY_COLUMNS = ("client", "record", "model", "label", "true_label", "member", "score", "exposure")
"""The columns of `canaries.csv`."""

CLIENT_CANARY_COLUMNS = ("canaries", "canaries_found")
"""The columns that canaries add to `clients.csv`."""

DELTA = 1e-5
"""The default delta of an audit."""

_STEPS = 128
"""The number of epsilons in each search grid."""

_CELLS = 1 << 22
"""The largest number of probabilities computed at once."""


@dataclass(frozen=True, eq=False)
class CanaryExposure:
    """A measurement of a run's canaries.

    Args:
        delta: the delta of the bound on epsilon.
    """

    canaries: Canaries
    delta: float = DELTA
    name, title = "canaries", "Canaries"

    def measure(self, finished: FinishedTraining) -> Summary:
        """Return the metrics of `canary_summary`."""
        table = finished.tables["canaries"] = self._table(finished)
        outside = table["score"][~table["member"]].max()
        trained = table[table["member"] & table["score"].notna()]
        # Without left-out canaries, no canary counts as found.
        for column, rows in zip(CLIENT_CANARY_COLUMNS, (trained, trained[trained["score"] > outside]), strict=True):
            counts = rows["client"].value_counts()
            finished.clients[column] = finished.clients["client"].map(counts).fillna(0).astype(int)
        return canary_summary(table, self.delta)

    def _table(self, finished: FinishedTraining) -> pd.DataFrame:
        """Return one row per canary; ``model`` is -1 and the score NaN if the client trained no model recently."""
        canaries, engine = self.canaries, finished.training.engine
        ids, position = finished.federation.ids.sort()
        model = finished.members.latest[position[torch.searchsorted(ids, canaries.client)]]
        score = torch.full((len(canaries),), np.nan, dtype=torch.float64)
        for s in model[model >= 0].unique().tolist():
            rows = torch.nonzero(model == s).flatten()
            outputs = engine.outputs(finished.deployed.models[s], canaries.x, rows).cpu()
            score[rows] = logit_confidence(outputs, canaries.y[rows])
        values = canaries.client, canaries.record, model, canaries.y, canaries.true_label, canaries.member, score
        columns = {name: value.numpy() for name, value in zip(CANARY_COLUMNS, values, strict=False)}
        return pd.DataFrame({**columns, "exposure": exposure_of_canaries(score.numpy(), canaries.member.numpy())})


def canary_summary(table: pd.DataFrame, delta: float) -> Summary:
    """Measure a run's canaries from the rows of `canaries.csv`.

    ``canaries.found`` is the fraction of trained canaries that score above every left-out canary.
    ``canaries.epsilon_low`` is a lower bound, at 95 % confidence, on the epsilon of per-record (epsilon,
    delta)-differential privacy.
    """
    scores, member = table["score"].to_numpy(), table["member"].to_numpy(dtype=bool)
    audit, scored = one_run_audit(scores, member, delta=delta), ~np.isnan(scores)
    records = RecordTable.from_columns(scores[scored], member[scored])
    measured = measure(records)
    metrics: dict[str, float] = {"canaries.members": measured.members, "canaries.non_members": measured.non_members}
    metrics["canaries.auc"] = measured.auc
    for name, max_fpr in {"found": 0.0, "tpr_at_fpr_0.1": 0.1, "tpr_at_fpr_0.01": 0.01}.items():
        rate = canary_rate(records.score, records.member, max_fpr)
        metrics |= {f"canaries.{name}{end}": value for end, value in zip(("", ".low", ".high"), rate, strict=True)}
    return Summary(overall={**metrics, "canaries.epsilon_low": audit.epsilon, "canaries.delta": delta})


@dataclass(frozen=True)
class OneRunAudit:
    """A lower bound on epsilon, from guesses about which canaries one training run used.

    Args:
        delta: the delta of the tested (epsilon, delta)-differential privacy.
        canaries: the number m of canaries.
        guesses: the number of guesses that gave the best bound.
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    __repr__ = one_line


def one_run_audit(
    scores: Floats,
    included: Bools,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    guesses: Sequence[tuple[int, int]] | None = None,
) -> OneRunAudit:
    """Compute a lower bound on epsilon from the scores of m canaries.

    The auditor guesses "in" (used for training) for the highest scores, and "out" for the lowest scores. The result is
    the best bound over several numbers of guesses, with a Bonferroni correction of the confidence. Among equal scores,
    wrong guesses are counted first.

    Args:
        scores: the canaries' scores, higher for canaries used for training, (m,). NaN means no guess.
        included: whether training used each canary, (m,), drawn independently with probability 1/2.
        delta: the delta of the tested (epsilon, delta)-differential privacy.
        guesses: pairs (number of guesses "in", number of guesses "out"), or ``None`` for `default_guesses`.

    Example:
        >>> import numpy as np
        >>> from shoal.audit import one_run_audit
        >>> audit = one_run_audit(np.arange(100.0), np.arange(100) >= 50, guesses=[(50, 50)])
        >>> audit.correct, round(audit.epsilon, 2)
        (100, 3.49)
    """
    require(
        scores.ndim == 1 and scores.shape == included.shape,
        f"'scores' and 'included' must have the same shape (m,) (got {scores.shape} and {included.shape})",
    )
    count, choices = len(scores), default_guesses(len(scores)) if guesses is None else guesses
    require(
        count > 0 and len(choices) > 0,
        f"'scores' and 'guesses' must not be empty (got {count} and {len(choices)})",
    )
    require(0 < confidence < 1, f"'confidence' must be above 0 and below 1 (got {confidence:g})")
    for high, low in choices:
        fits = high >= 0 and low >= 0 and 1 <= high + low <= count
        require(fits, f"'guesses' must be pairs (in, out) with a sum from 1 to {count} (got ({high}, {low}))")
    level = (1 - confidence) / len(choices)
    audits = []
    for high, low in choices:
        correct = correct_guesses(scores, included, high, low)
        bound = one_run_epsilon(count, high + low, correct, delta, 1 - level)
        audits.append(OneRunAudit(bound, delta, confidence, count, high + low, correct))
    return max(audits, key=lambda audit: audit.epsilon)


def default_guesses(canaries: int) -> list[tuple[int, int]]:
    """Return three pairs (guesses "in", guesses "out"); both numbers are 2/5, 1/5 or 1/20 of the canaries."""
    ends = [max(1, canaries * part // 20) for part in (8, 4, 1)]
    return list(dict.fromkeys((end, min(end, canaries - end)) for end in ends))


def correct_guesses(scores: Floats, included: Bools, high: int, low: int) -> int:
    """Count the correct guesses if the ``high`` highest scores are guessed "in" and the ``low`` lowest scores "out".

    If NaN leaves fewer scores than guesses, ``high`` and ``low`` are reduced in proportion.
    """
    scored = ~np.isnan(scores)
    score, member = scores[scored], included[scored]
    if high + low > len(score):
        high = len(score) * high // (high + low)
        low = len(score) - high
    # Among equal scores, wrong guesses come first.
    highest, lowest = np.lexsort((member, -score))[:high], np.lexsort((~member, score))[:low]
    return int(member[highest].sum() + (~member[lowest]).sum())


def p_value(canaries: int, guesses: int, correct: int, epsilon: Floats, delta: float = 0.0) -> Floats:
    """Return the largest probability of at least ``correct`` correct guesses under (epsilon, delta)-DP, per epsilon.

    Source: Theorem 5.2.

    >>> p_value(100, 10, 9, np.array([0.0])).round(4)
    array([0.0107])
    """
    from scipy import special, stats  # noqa: PLC0415 - takes half a second to import

    rate = special.expit(epsilon)
    tail = stats.binom.sf(correct - 1, guesses, rate)
    if delta == 0 or correct == 0:
        return np.minimum(tail, 1.0)
    # f(v - i) - f(v) is constant beyond i = v, so the quotient by i decreases.
    steps, largest = np.arange(1, correct + 1), np.zeros(len(rate))
    for begin in range(0, len(rate), max(1, _CELLS // correct)):
        some = slice(begin, begin + max(1, _CELLS // correct))
        below = stats.binom.pmf(correct - steps, guesses, rate[some, None]).cumsum(axis=1)
        largest[some] = (below / steps).max(axis=1)
    return np.minimum(tail + 2 * canaries * delta * largest, 1.0)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return the largest epsilon such that `p_value` rejects all smaller values, or 0 if no value is rejected."""
    from scipy import special, stats  # noqa: PLC0415 - takes half a second to import

    require(
        0 <= correct <= guesses <= canaries,
        f"0 <= 'correct' <= 'guesses' <= 'canaries' must hold (got {correct}, {guesses} and {canaries})",
    )
    require(0 <= delta < 1, f"'delta' must be at least 0 and below 1 (got {delta:g})")
    level = 1 - confidence
    # With delta = 0, this is the lower Clopper-Pearson limit of the rate of correct guesses.
    rate = stats.beta.ppf(level, correct, guesses - correct + 1) if correct else 0.0
    most = float(special.logit(rate)) if rate > 0.5 else 0.0
    if delta == 0 or most == 0:
        return most
    low, high = 0.0, most
    # The first crossing counts. Each of three nested grids refines it, to a millionth of the range.
    for _ in range(3):
        grid = np.linspace(low, high, _STEPS)
        over = np.flatnonzero(p_value(canaries, guesses, correct, grid, delta) > level)
        if len(over) == 0:
            return high
        if over[0] == 0:
            return low
        low, high = float(grid[over[0] - 1]), float(grid[over[0]])
    return low
