"""The judgement of protections by the figures of their runs: what is judged, what is met, what is chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from shoal.core.errors import require
from shoal.core.settings import Count, Fraction, Positive, PositiveFloat, settings
from shoal.data.preferences import View
from shoal.protection.ladder import DELTA, UNPROTECTED, Rung, mu_of, mu_of_accuracy

LOOKS = 2
"""Times, at most, that the seeds of one protection are judged: as asked, and with further seeds."""

_CONFIDENCE = 1 - 0.10 / LOOKS
"""Of each interval, of which the upper end counts, so that both looks together err in one case of twenty."""

MAX_CHOSEN = 5
"""Protections, at most, that are attacked on all choosing seeds."""

SLACK = 0.02
"""Accuracy and exposure by which one seed may be misleading: protections this close to price and limit stay."""

MAX_SEEDS = 100
"""Judging seeds, at most, that are asked for."""


@settings
class Demand:
    """What a protection must keep.

    Args:
        limit: on the exposure of the most exposed group: a balanced accuracy in [0.5, 1]; strictly inside with
            ``promise``.
        max_cost: of accuracy over all clients, as a share.
        view: whose exposure it is.
        references: reference federations of each run.
        choosing: seeds that choose; they follow the configuration's own.
        judging: other seeds that judge, at least 2; up to twice as many where these leave it open.
        epsilon: that every client's must not exceed, in this view; None: any.
        promise: whether the limit is on the balanced accuracy of any attack, by differential privacy, and not on what
            was measured.
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


DEMAND = Demand()
"""The default demand."""


@dataclass(frozen=True)
class Protection:
    """The outcome of a search.

    Args:
        rung: the name of the protection; "as it is" where none keeps the price.
        words: what it changes.
        outcome: "met" (the interval of a further run is below the limit, or with a promise the bound is), "not met"
            (above it), or "open".
        group: the most exposed group on the judging seeds.
        exposure, exposure_low, exposure_high: its mean there, and where 95 % of further seeds would be (Student's t).
        before: the exposure of the most exposed group without the protection, on the seeds that chose, or the first.
        group_before: that group.
        accuracy, accuracy_before: on the judging seeds, over all clients.
        payer: the group that loses most accuracy there, or gains least.
        payer_accuracy, payer_accuracy_before: of that group.
        alone: accuracy of the labelled shadow set without any client there; NaN: there is none.
        epsilon: that the protected runs state in the demand's view, the largest; NaN: none.
        bound: on the balanced accuracy of any attack in that view, the largest; NaN: none.
        seeds: that judged.
        more_seeds: further judging seeds that would show that the limit is met at this mean and standard deviation; 0:
            none are needed, or `MAX_SEEDS` in all would not show it.
    """

    rung: str
    words: str
    outcome: str
    group: str
    exposure: float
    exposure_low: float
    exposure_high: float
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
    seeds = figures.exposures.loc[own, now["group"]].to_numpy()
    spread = float(seeds.std(ddof=1))
    mean, width = float(now["exposure"]), _width(spread, len(seeds))
    low, high = max(0.0, mean - width), min(1.0, mean + width)
    least, most = (now["bound"], now["bound"]) if demand.promise else (low, high)
    # Without a bound nothing is promised.
    outcome = "met" if most <= demand.limit else "open" if least <= demand.limit else "not met"
    more = _needed(demand.limit - float(now["exposure"]), spread, len(seeds)) if outcome == "open" else 0
    payer = figures.attacked.loc[own, f"accuracy.{now['payer']}"].mean()
    return Protection(
        rung=rung.name,
        words=rung.words,
        outcome=outcome,
        group=str(now["group"]),
        exposure=float(now["exposure"]),
        exposure_low=float(low),
        exposure_high=float(high),
        before=float(before["exposure"]),
        group_before=str(before["group"]),
        accuracy=float(now["accuracy"]),
        accuracy_before=float(now["accuracy"] - now["change"]),
        payer=str(now["payer"]),
        payer_accuracy=float(payer),
        payer_accuracy_before=float(payer - now["payer_change"]),
        alone=alone,
        epsilon=float(now["epsilon"]),
        bound=float(now["bound"]),
        seeds=len(seeds),
        more_seeds=more,
    )


def chosen(judgements: Sequence[Protection]) -> Protection:
    """The first that is within the limit, or else the least exposed of them."""
    met = [judgement for judgement in judgements if judgement.outcome == "met"]
    return met[0] if met else min(judgements, key=lambda judgement: judgement.exposure)


def _width(spread: float, seeds: int) -> float:
    """Half the width of the interval of a further run, by so many with this standard deviation (Student's t)."""
    return float(stdtrit(seeds - 1, 0.5 + _CONFIDENCE / 2)) * spread * sqrt(1 + 1 / seeds)


def _needed(gap: float, spread: float, seeds: int) -> int:
    """The fewest further seeds after which `_width` is below ``gap``; 0: `MAX_SEEDS` in all are too few."""
    return next((n - seeds for n in range(seeds + 1, MAX_SEEDS) if _width(spread, n) < gap), 0)
