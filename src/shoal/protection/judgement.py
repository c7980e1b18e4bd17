"""The judgement of protections by the figures of their runs: which are judged, what is decided, and its sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import stdev
from typing import Any

import pandas as pd

from shoal.audit.finding import (
    VERDICTS,
    Estimate,
    Finding,
    Verdict,
    exposure_summary,
    most_exposed,
    sentence,
)
from shoal.core.errors import require
from shoal.core.formats import capitalized
from shoal.core.settings import Count, Fraction, Positive, PositiveFloat, settings
from shoal.data.preferences import View
from shoal.metrics.intervals import reach_of_seeds
from shoal.protection.ladder import DELTA, UNPROTECTED, Rung, mu_of, mu_of_accuracy
from shoal.reports.exposure import limit_sentence

MAX_CHOSEN = 5
"""Protections, at most, that are attacked on all choosing seeds."""

SLACK = 0.02
"""Accuracy and exposure by which one seed may be misleading: protections this close to price and limit stay."""

MAX_SEEDS = 100
"""Judging seeds, at most, that are asked for."""

_COVERAGE: dict[View, str] = {
    "outsider": "It does not cover other clients, who see every round, nor the server, which sees each update.",
    "client": "It does not cover the server, which sees each client's updates; where the server sees their sums alone, "
    "by secure aggregation, it has the view of a client that sends nothing.",
    "server": "It covers what outsiders and other clients see too. Secure aggregation was not counted on: with it the "
    "server has a client's view, in which less is enough.",
}


@settings
class Demand:
    """What a protection must keep.

    Args:
        limit: on the exposure of every group: a balanced accuracy in [0.5, 1]; strictly inside with ``promise``.
        max_cost: of accuracy over all clients, as a share.
        view: whose exposure it is.
        references: reference federations of each run.
        choosing: seeds that choose; they follow the configuration's own.
        judging: other seeds that judge, at least 2; up to twice as many where these do not decide.
        epsilon: that every client's must not exceed, in this view; None: any.
        promise: whether the limit is on the balanced accuracy of any attack, by differential privacy, and not on what
            was measured.

    Example:
        >>> import shoal
        >>> demand = shoal.protection.Demand(limit=0.55, promise=True)
        >>> demand.limited, round(demand.mu, 3)
        ('bound', 0.251)
    """

    limit: Fraction = 0.55
    max_cost: Fraction = 0.02
    view: View = "outsider"
    references: Positive = 2
    choosing: Positive = 2
    judging: Count = 8
    epsilon: PositiveFloat | None = None
    promise: bool = False

    def __post_init__(self) -> None:
        require(self.limit >= 0.5, f"'limit' must be in [0.5, 1], where 0.5 is chance; got {self.limit:g}")
        require(
            not self.promise or 0.5 < self.limit < 1,
            f"with 'promise', 'limit' must be above 0.5 and below 1; got {self.limit:g}",
        )
        require(self.judging >= 2, f"'judging' must be at least 2, for an interval; got {self.judging}")

    @property
    def mu(self) -> float | None:
        """The largest mu of Gaussian mechanisms that keeps the promise, None where no promise is asked for."""
        of_limit = [mu_of_accuracy(self.limit)] if self.promise else []
        return min([*of_limit, *([] if self.epsilon is None else [mu_of(self.epsilon, DELTA)])], default=None)

    @property
    def limited(self) -> str:
        """The figure that the limit is on, of `Figures.means` and `Protection`."""
        return "bound" if self.promise else "exposure"


@dataclass(frozen=True)
class Protection:
    """The outcome of a search.

    Args:
        rung: the name of the protection; "as it is" where none keeps the price.
        words: what it changes.
        outcome: "within the limit", "above the limit" or "not decided": the worst verdict of the findings, or with a
            promise that of the bound.
        findings: one per group on the judging seeds (`Estimate.of_seeds`), the most exposed first. They are compared
            with the limit, or where it is on any attack, with chance.
        before: the exposure of the most exposed group without the protection, on the seeds that chose, or the first.
        group_before: that group.
        accuracy, accuracy_before: on the judging seeds, over all clients.
        payer: the group that loses most accuracy there, or gains least.
        payer_accuracy, payer_accuracy_before: of that group.
        alone: accuracy of the labelled shadow set without any client there; NaN: there is none.
        epsilon: that the protected runs state in the demand's view, the largest; NaN: none.
        bound: on the balanced accuracy of any attack in that view, the largest; NaN: none.
        seeds: that judged.
        more_seeds: further judging seeds that would show every group to be within the limit at these means and standard
            deviations; 0: none are needed, or `MAX_SEEDS` in all would not show it.
    """

    rung: str
    words: str
    outcome: Verdict
    findings: tuple[Finding, ...]
    before: float
    group_before: str
    accuracy: float
    accuracy_before: float
    payer: str
    payer_accuracy: float
    payer_accuracy_before: float
    alone: float
    epsilon: float
    bound: float
    seeds: int
    more_seeds: int

    @property
    def exposure(self) -> float:
        """The attack accuracy on the most exposed group."""
        return self.findings[0].accuracy.value

    @property
    def json(self) -> dict[str, Any]:
        """What protection.json has: the fields, and those of the most exposed group."""
        worst = self.findings[0]
        exposure = {"exposure": self.exposure, "exposure_low": worst.accuracy.low, "exposure_high": worst.accuracy.high}
        return {**vars(self), "findings": [one.json for one in self.findings], "group": worst.group, **exposure}


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of runs of a search, a row a run with its ``setting`` and ``seed``.

    Args:
        attacked: the runs of protections, with exposures.
        plain: the unprotected federation's, on at least the same seeds, for its accuracy.
        groups: with clients.
        view: of the demand.
    """

    attacked: pd.DataFrame
    plain: pd.DataFrame
    groups: Sequence[str]
    view: View = "outsider"

    @property
    def exposures(self) -> pd.DataFrame:
        """The groups' exposures, a row a run; 0.5 where nobody trained on a group's records."""
        columns = {f"exposure.{group}": group for group in self.groups}
        return self.attacked.reindex(columns=[*columns]).astype(float).fillna(0.5).rename(columns=columns)

    def means(self) -> pd.DataFrame:
        """Means over seeds by setting.

        Columns: the number of ``seeds``, ``accuracy``, ``exposure`` of the most exposed group and its name, ``group``,
        the largest ``epsilon`` and ``bound``, and, against the unprotected federation on the same seeds, ``change`` of
        accuracy over all clients, and ``payer_change`` of the group that loses most, ``payer``.
        """
        setting = self.attacked["setting"]
        exposures = self.exposures.groupby(setting, sort=False).mean()
        changes = self._changes().groupby(setting, sort=False).mean()
        of_groups = changes[list(self.groups)]

        def largest(*names: str) -> pd.Series | float:
            name = next((name for name in names if name in self.attacked), None)
            return nan if name is None else self.attacked.groupby(setting, sort=False)[name].max()

        return pd.DataFrame(
            {
                "seeds": setting.groupby(setting, sort=False).size(),
                "accuracy": self.attacked.groupby(setting, sort=False)["accuracy.overall"].mean(),
                "exposure": exposures.max(axis=1),
                "group": exposures.idxmax(axis=1),
                "epsilon": largest(f"epsilon.{self.view}", "epsilon"),
                "bound": largest(f"bound.{self.view}.accuracy"),
                "change": changes["overall"],
                "payer": of_groups.idxmin(axis=1),
                "payer_change": of_groups.min(axis=1),
            }
        )

    def _changes(self) -> pd.DataFrame:
        """Accuracies less the unprotected federation's of the same seed, a row a run; of a group without any: 0."""
        names = ["overall", *self.groups]
        columns = [f"accuracy.{name}" for name in names]
        before = self.plain.drop_duplicates("seed").set_index("seed").reindex(columns=columns).astype(float)
        now = self.attacked.reindex(columns=columns).astype(float)
        changes = now.to_numpy() - before.loc[self.attacked["seed"]].to_numpy()
        return pd.DataFrame(changes, columns=names, index=self.attacked.index).fillna(0.0)


def affordable(figures: Figures, demand: Demand) -> list[str]:
    """The settings whose accuracy may be within the price, by one seed or more; where a promise is asked for, all."""
    change = figures.means()["change"]
    if demand.mu is not None:
        return change.index.tolist()
    return change.index[change >= -demand.max_cost - SLACK].tolist()


def shortlist(figures: Figures, demand: Demand) -> list[str]:
    """The settings that may be within limit and price, by one seed or more: those whose groups pay least, and the least
    exposed; where there is none, the two least exposed.
    """
    means = figures.means()
    exposure = means["exposure"].sort_values(kind="stable")
    close = means[(means[demand.limited] <= demand.limit + SLACK) & means.index.isin(affordable(figures, demand))]
    best = close.sort_values(["payer_change", "exposure"], ascending=[False, True], kind="stable").index[:MAX_CHOSEN]
    return [*dict.fromkeys([*best, exposure.index[0]])] if len(best) else exposure.index[:2].tolist()


def candidates(figures: Figures, demand: Demand) -> list[str]:
    """The settings to be judged, in this order, by their means on all choosing seeds.

    Of those within the price and the limit, first the one whose group that pays most pays least, then those of the
    others that are less exposed than all before. Where none is within the limit, the least exposed of those within the
    price, unless nothing changed is less exposed than it. Where a promise is asked for, those that keep it alone count,
    and where none of these is within the price, the most accurate one.
    """
    means = figures.means()
    means = means[means["seeds"] == means["seeds"].max()]
    if demand.epsilon is not None:
        means = means[means["epsilon"] <= demand.epsilon]
    if demand.promise:
        means = means[means["bound"] <= demand.limit]
    paid = means[means["change"] >= -demand.max_cost]
    if paid.empty:
        return [UNPROTECTED.name if means.empty or demand.mu is None else str(means["accuracy"].idxmax())]
    within = paid[paid[demand.limited] <= demand.limit]
    if within.empty:
        return [str(paid["exposure"].idxmin())]
    cheapest = within.sort_values(["payer_change", "exposure"], ascending=[False, True], kind="stable")
    lowest = cheapest["exposure"].cummin().shift(fill_value=float("inf"))
    return cheapest.index[cheapest["exposure"] < lowest].tolist()


def judgement_of(
    rung: Rung, figures: Figures, demand: Demand, before: Mapping[Any, Any], alone: float = nan
) -> Protection:
    """The judgement of a rung by the ``figures`` of its runs on the judging seeds.

    ``before`` is the unprotected federation on the choosing seeds, a row of `Figures.means`; ``alone`` is the accuracy
    without any client.
    """
    now: dict[Any, Any] = figures.means().loc[rung.name].to_dict()
    own = figures.attacked["setting"] == rung.name
    exposures, limit = figures.exposures[own], None if demand.promise else demand.limit
    seeds, groups = len(exposures), len(figures.groups)
    title = f"the strongest attack on {seeds} seeds that were not used for the choice"
    estimates = {group: Estimate.of_seeds(exposures[group].tolist(), groups) for group in figures.groups}
    found = most_exposed(
        Finding(demand.view, group, "", estimate, title=title, limit=limit) for group, estimate in estimates.items()
    )
    verdicts = {one.verdict for one in found}
    outcome: Verdict = next(verdict for verdict in VERDICTS if verdict in verdicts)
    if demand.promise:
        # Without a bound an attack may be right about every record.
        bound = 1.0 if isnan(now["bound"]) else float(now["bound"])
        outcome = Estimate(bound, bound, bound).against(demand.limit)
    needed = [
        _further_seeds(demand.limit - one.accuracy.value, stdev(exposures[one.group]), seeds, groups)
        for one in found
        if outcome == one.verdict == "not decided"
    ]
    payer = float(figures.attacked.loc[own, f"accuracy.{now['payer']}"].mean())
    return Protection(
        rung=rung.name,
        words=rung.words,
        outcome=outcome,
        findings=tuple(found),
        before=float(before["exposure"]),
        group_before=str(before["group"]),
        accuracy=float(now["accuracy"]),
        accuracy_before=float(now["accuracy"] - now["change"]),
        payer=str(now["payer"]),
        payer_accuracy=payer,
        payer_accuracy_before=payer - float(now["payer_change"]),
        alone=alone,
        epsilon=float(now["epsilon"]),
        bound=float(now["bound"]),
        seeds=seeds,
        more_seeds=max(needed, default=0) if all(needed) else 0,
    )


def chosen(judgements: Sequence[Protection]) -> Protection:
    """The first that is within the limit, or else the least exposed of them."""
    within = [judgement for judgement in judgements if judgement.outcome == "within the limit"]
    return within[0] if within else min(judgements, key=lambda judgement: judgement.exposure)


def _further_seeds(gap: float, deviation: float, seeds: int, groups: int) -> int:
    """The fewest further seeds after which an interval reaches less than ``gap``; 0: `MAX_SEEDS` are too few."""
    enough = (n - seeds for n in range(seeds + 1, MAX_SEEDS) if reach_of_seeds(deviation, n, groups) < gap)
    return next(enough, 0)


def sentences(best: Protection, demand: Demand) -> list[str]:
    """What to change, who is how exposed then, what it costs, and what it does not cover."""
    within, none = best.outcome == "within the limit", "no protection that was tried is shown to be within the limit"
    if best.rung == UNPROTECTED.name:
        why = "the federation is within the limit as it is" if within else f"{none} at this price"
        what, before = f"Change nothing: {why}.", ""
        cost = f"Accuracy over all clients is {best.accuracy:.3f}."
    else:
        what = f"Train the federation with {best.words}." if within else f"{capitalized(none)}. The best: {best.words}."
        before = f" As it is, {best.group_before} had {best.before:.3f} on the seeds that chose."
        cost = _cost(best, demand)
    more = f" {best.seeds + best.more_seeds} judging seeds may decide it." if best.more_seeds else ""
    exposed = f"{sentence(best.findings[0])}{more}{before}"
    return [what, exposure_summary(best.findings, unasked=False), exposed, cost, _alone(best), _caveat(best, demand)]


def _cost(best: Protection, demand: Demand) -> str:
    cost = best.accuracy - best.accuracy_before
    price = "more than" if -cost > demand.max_cost else "within"
    paid = "pays most" if best.payer_accuracy < best.payer_accuracy_before else "gains least"
    return (
        f"Accuracy over all clients goes from {best.accuracy_before:.3f} to {best.accuracy:.3f} ({cost:+.3f}), "
        f"{price} the price of {demand.max_cost:g}; {best.payer} {paid}, from {best.payer_accuracy_before:.3f} to "
        f"{best.payer_accuracy:.3f}."
    )


def _alone(best: Protection) -> str:
    """What the labelled shadow set gives without any client."""
    if isnan(best.alone):
        return "No shadow set says how accurate a model would be without any client."
    more = "no less, so" if best.alone >= best.accuracy else "less;"
    return (
        f"The shadow set and its labels alone, without any client, give {best.alone:.3f}: {more} where the server has "
        f"such labels, {'it need not ask clients' if best.alone >= best.accuracy else 'clients add to it'}."
    )


def _caveat(best: Protection, demand: Demand) -> str:
    attacks = f"the strongest attack of the {demand.view}'s view with {demand.references} reference federations"
    promise = "a measurement, not a promise"
    if not isnan(best.epsilon):
        promise = f"a measurement beside a promise, an epsilon of {best.epsilon:.2f} at delta {DELTA:g} for a record"
    limit = limit_sentence(demand.view, {f"bound.{demand.view}.accuracy": best.bound}, [best.exposure])
    if limit and demand.promise:
        limit += f", which is {best.outcome} of {demand.limit:g}"
    said = f"This is {promise}, by {attacks}; stronger attacks may find more. {_COVERAGE[demand.view]}"
    return f"{said} {limit}." if limit else said
