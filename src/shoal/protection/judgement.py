"""Verdicts and sentences on protections."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from statistics import NormalDist, stdev
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
from shoal.core.formats import ACCURACY, capitalize
from shoal.core.settings import Count, Fraction, Positive, PositiveFloat, settings
from shoal.data.preferences import View
from shoal.protection.ladder import DELTA, UNPROTECTED, Rung, mu_of, mu_of_accuracy
from shoal.protection.seed_test import LEVEL, SeedTest
from shoal.reports.exposure import limit_sentence

SLACK = 0.02
"""The tolerance on one seed's accuracy and exposure, within which a protection stays in the search."""

MAX_JUDGED = 3
"""The largest number of protections to judge, in addition to the unchanged federation."""

EQUAL = 2
"""The number of decimals for comparing losses of accuracy; the lowest epsilon breaks a tie."""

_COVERAGE: dict[View, str] = {
    "outsider": "It does not cover other clients, who see every round, or the server, which sees each update.",
    "client": "It does not cover the server, which sees each client's updates unless secure aggregation hides them.",
    "server": "It covers outsiders and other clients too. With secure aggregation, a weaker protection may be enough.",
}


@settings
class Demand:
    """The requirements on a protection.

    Args:
        limit: the limit on the exposure of every group, a balanced accuracy in [0.5, 1]; with ``promise``, above 0.5
            and below 1.
        max_cost: the largest loss of accuracy over all clients, as a fraction. In a regression, accuracy means minus
            the squared error.
        view: the attacker's view for the exposure.
        references: the number of reference federations per run.
        choosing: the number of choosing seeds, which select protections, counted from the configuration's own seed.
        judging: the largest number of judging seeds, which test the selected protections; at least 2.
        epsilon: the largest allowed epsilon of every client in the attacker's view. ``None`` requires no epsilon.
        promise: whether differential privacy must guarantee the limit for every possible attack. If false, the limit
            applies to measured attacks.

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
    judging: Count = 16
    epsilon: PositiveFloat | None = None
    promise: bool = False

    def __post_init__(self) -> None:
        require(self.limit >= 0.5, f"'limit' must be from 0.5 (chance) to 1 (got {self.limit:g})")
        require(
            not self.promise or 0.5 < self.limit < 1,
            f"with 'promise', 'limit' must be above 0.5 and below 1 (got {self.limit:g})",
        )
        require(self.judging >= 2, f"'judging' must be at least 2 (got {self.judging})")

    @property
    def mu(self) -> float | None:
        """The largest mu of Gaussian mechanisms with the required guarantee, or None without a required guarantee."""
        of_limit = [mu_of_accuracy(self.limit)] if self.promise else []
        return min([*of_limit, *([] if self.epsilon is None else [mu_of(self.epsilon, DELTA)])], default=None)

    def test_of(self, name: str) -> SeedTest:
        """Return the sequential test of a protection.

        The error probability of a whole search is at most `LEVEL`: half for the unprotected federation, and half for
        all `MAX_JUDGED` protections together.
        """
        return SeedTest(self.judging, LEVEL / 2 / (1 if name == UNPROTECTED.name else MAX_JUDGED))

    @property
    def limited(self) -> str:
        """The column of `Figures.means` that the limit applies to, "bound" or "exposure"."""
        return "bound" if self.promise else "exposure"


@dataclass(frozen=True)
class Protection:
    """The outcome of a search.

    Args:
        rung: the name of the protection; "as it is" means the unprotected federation.
        outcome: the verdict on the worst finding, or with ``promise`` on the bound: "within the limit", "above the
            limit" or "not decided".
        findings: one finding per group on the judging seeds, the most exposed group first.
        before: the exposure of the most exposed group without the protection, on at most three judging seeds.
        accuracy: the accuracy over all clients on the judging seeds.
        accuracy_before: the accuracy over all clients without the protection.
        payer: the group with the largest loss of accuracy.
        alone: the accuracy of training on the labelled shadow set without clients, or NaN without a shadow set.
        epsilon: the largest epsilon of the protected runs in the demand's view, or NaN without an epsilon.
        bound: the largest bound on the balanced accuracy of any attack in the demand's view, or NaN without a bound.
        seeds: the number of judging seeds.
        hopeless: whether the test cannot decide, even with all seeds and means one standard error lower.
        searched: whether other protections were tried.
    """

    rung: str
    words: str
    outcome: Verdict
    findings: tuple[Finding, ...]
    before: float
    accuracy: float
    accuracy_before: float
    payer: str
    payer_accuracy: float
    payer_accuracy_before: float
    alone: float
    epsilon: float
    bound: float
    seeds: int
    hopeless: bool = False
    searched: bool = True
    metric: str = ACCURACY

    @property
    def exposure(self) -> float:
        """The attack accuracy on the most exposed group."""
        return self.findings[0].accuracy.value

    @property
    def json(self) -> dict[str, Any]:
        """The content of protection.json, with the fields and the figures of the most exposed group."""
        worst = self.findings[0]
        exposure = {"exposure": self.exposure, "exposure_low": worst.accuracy.low, "exposure_high": worst.accuracy.high}
        own = {key: value for key, value in vars(self).items() if key != "hopeless"}
        return {
            **own,
            "findings": [one.json for one in self.findings],
            "group": worst.group,
            **exposure,
            "level": LEVEL,
        }


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of a search's runs, one row per run with its ``setting`` and ``seed``.

    Args:
        attacked: the runs of protections, with exposures.
        plain: the runs of the unprotected federation, paired with protected runs of the same seed.
        groups: the names of groups with clients.
    """

    attacked: pd.DataFrame
    plain: pd.DataFrame
    groups: Sequence[str]
    view: View = "outsider"

    @property
    def exposures(self) -> pd.DataFrame:
        """The groups' exposures under protections, one row per run; 0.5 for a group without members."""
        return self._exposures_of(self.attacked)

    @property
    def exposures_before(self) -> pd.DataFrame:
        """The groups' exposures without a protection, one row per run; 0.5 for a group without members."""
        return self._exposures_of(self.plain)

    def _exposures_of(self, runs: pd.DataFrame) -> pd.DataFrame:
        columns = {f"exposure.{group}": group for group in self.groups}
        return runs.reindex(columns=[*columns]).astype(float).fillna(0.5).rename(columns=columns)

    @property
    def deviations(self) -> pd.DataFrame:
        """The standard deviations of the groups' exposures over records, one row per run."""
        ends = [
            self.attacked.reindex(columns=[f"mia_{end}.{group}" for group in self.groups]).astype(float).to_numpy()
            for end in ("low", "high")
        ]
        widths = (ends[1] - ends[0]) / (2 * NormalDist().inv_cdf(0.975))
        return pd.DataFrame(widths, columns=[*self.groups], index=self.attacked.index).fillna(0.0)

    def means(self) -> pd.DataFrame:
        """Return the means over seeds, one row per setting.

        Columns:

        - ``seeds``: the number of seeds.
        - ``accuracy``: the accuracy over all clients.
        - ``exposure`` and ``group``: the exposure and name of the most exposed group.
        - ``epsilon`` and ``bound``: the largest epsilon and bound.
        - ``change``: the change of accuracy against the unprotected federation on the same seeds.
        - ``payer`` and ``payer_change``: the group with the largest loss of accuracy, and its change of accuracy.
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
        """Return changes of accuracy from the unprotected federation on the same seed, one row per run."""
        names = ["overall", *self.groups]
        columns = [f"accuracy.{name}" for name in names]
        before = self.plain.drop_duplicates("seed").set_index("seed").reindex(columns=columns).astype(float)
        now = self.attacked.reindex(columns=columns).astype(float)
        differences = now.to_numpy() - before.reindex(self.attacked["seed"]).to_numpy()
        changes = pd.DataFrame(differences, columns=names, index=self.attacked.index)
        return changes.fillna({name: 0.0 for name in names if changes[name].isna().all()})


def affordable(figures: Figures, demand: Demand) -> list[str]:
    """List the settings that may lose at most `Demand.max_cost` of accuracy, or all settings with a guarantee."""
    change = figures.means()["change"]
    if demand.mu is not None:
        return change.index.tolist()
    return change.index[change >= -demand.max_cost - SLACK].tolist()


def shortlist(figures: Figures, demand: Demand) -> list[str]:
    """List the settings that may be within the limit and `Demand.max_cost`, cheapest first."""
    means = figures.means()
    return by_price(
        means[(means[demand.limited] <= demand.limit + SLACK) & means.index.isin(affordable(figures, demand))]
    )


def by_price(means: pd.DataFrame) -> list[str]:
    """Order the settings in `Figures.means` by the largest loss of accuracy of a group, by epsilon, and by exposure."""
    keys = means.assign(payer_change=means["payer_change"].round(EQUAL), epsilon=means["epsilon"].fillna(inf))
    order = keys.sort_values(["payer_change", "epsilon", "exposure"], ascending=[False, True, True], kind="stable")
    return order.index.tolist()


def candidates(figures: Figures, demand: Demand) -> list[str]:
    """List the settings to test, in order, by their means on all choosing seeds.

    The first candidate is the cheapest setting (`by_price`) within the limit and `Demand.max_cost`. Each further
    candidate costs more and is less exposed than all earlier candidates.
    """
    means = _promised(figures, demand)
    within = means[(means["change"] >= -demand.max_cost) & (means[demand.limited] <= demand.limit)]
    exposure = within["exposure"].loc[by_price(within)]
    return exposure.index[exposure < exposure.cummin().shift(fill_value=inf)].tolist()


def least_exposed(figures: Figures, demand: Demand) -> str | None:
    """Choose the setting to test if no setting meets the limit: the least exposed affordable setting, or None.

    With a required guarantee, the choice is the most accurate setting that keeps the guarantee.
    """
    means = _promised(figures, demand)
    if demand.mu is not None:
        return None if means.empty else str(means["accuracy"].idxmax())
    paid = means[means["change"] >= -demand.max_cost]
    return None if paid.empty else str(paid["exposure"].idxmin())


def _promised(figures: Figures, demand: Demand) -> pd.DataFrame:
    """Return the means of the settings with the most seeds that keep the required guarantee, if there is one."""
    means = figures.means()
    keep = means["seeds"] == means["seeds"].max()
    if demand.epsilon is not None:
        keep &= means["epsilon"] <= demand.epsilon
    if demand.promise:
        keep &= means["bound"] <= demand.limit
    return means[keep]


def judgement_of(rung: Rung, figures: Figures, demand: Demand, alone: float = nan) -> Protection:
    """Return the outcome for a protection on the judging seeds."""
    now: dict[Any, Any] = figures.means().loc[rung.name].to_dict()
    own = figures.attacked["setting"] == rung.name
    exposures, limit = figures.exposures[own], None if demand.promise else demand.limit
    seeds, test, deviations = len(exposures), demand.test_of(rung.name), figures.deviations[own]
    within = {group: float(deviations[group].mean()) for group in figures.groups}
    title = f"the strongest attack, mean over {seeds} seeds not used for choosing"
    estimates = test.estimates({group: exposures[group].tolist() for group in figures.groups}, within)
    found = most_exposed(
        Finding(demand.view, group, "", estimate, title=title, limit=limit) for group, estimate in estimates.items()
    )
    verdicts = {one.verdict for one in found}
    outcome: Verdict = next(verdict for verdict in VERDICTS if verdict in verdicts)
    if demand.promise:
        # Without a bound an attack may be right about every record.
        bound = 1.0 if isnan(now["bound"]) else float(now["bound"])
        outcome = Estimate(bound, bound, bound).against(demand.limit)
    errors = {group: max(stdev(exposures[group]), within[group]) for group in figures.groups}
    worst = found[0]
    same_seeds = figures.plain["seed"].isin(figures.attacked.loc[own, "seed"])
    payer = float(figures.attacked.loc[own, f"accuracy.{now['payer']}"].mean())
    return Protection(
        rung=rung.name,
        words=rung.description,
        outcome=outcome,
        findings=tuple(found),
        before=float(figures.exposures_before.loc[same_seeds, worst.group].mean()),
        accuracy=float(now["accuracy"]),
        accuracy_before=float(now["accuracy"] - now["change"]),
        payer=str(now["payer"]),
        payer_accuracy=payer,
        payer_accuracy_before=payer - float(now["payer_change"]),
        alone=alone,
        epsilon=float(now["epsilon"]),
        bound=float(now["bound"]),
        seeds=seeds,
        hopeless=not all(
            test.may_decide(demand.limit - one.accuracy.value + errors[one.group] / seeds**0.5, errors[one.group])
            for one in found
        ),
    )


def chosen(judgements: Sequence[Protection]) -> Protection:
    """Return the first outcome within the limit, or the least exposed outcome if no outcome is within the limit."""
    within = [judgement for judgement in judgements if judgement.outcome == "within the limit"]
    return within[0] if within else min(judgements, key=lambda judgement: judgement.exposure)


def sentences(best: Protection, demand: Demand) -> list[str]:
    """Describe the protection, the remaining exposure, the cost in accuracy, and the limits of the claim."""
    within, none = best.outcome == "within the limit", "No tested protection is shown to be within the limit"
    if best.rung == UNPROTECTED.name:
        what, before = f"{none} at this cost.", ""
        if within:
            what = "Change nothing: the federation is within the limit without a protection."
        cost = f"{capitalize(best.metric)} over all clients is {best.accuracy:.3f}."
    else:
        what = f"Train the federation with {best.words}." if within else f"{none}. The best is {best.words}."
        compared = demand.test_of(best.rung).looks[0]
        first = f"the first {compared} of " * (best.seeds > compared)
        before = f" Without the protection, {best.findings[0].group} has {best.before:.3f} on {first}the same seeds."
        cost = _cost(best, demand)
    exposed = f"{sentence(best.findings[0])}{before}"
    who = exposure_summary(best.findings, unasked=False)
    return [what, who, exposed, cost, _alone(best), _level(demand), _caveat(best, demand)]


def _cost(best: Protection, demand: Demand) -> str:
    cost = best.accuracy - best.accuracy_before
    price = "more than" if -cost > demand.max_cost else "within"
    paid = "loses most" if best.payer_accuracy < best.payer_accuracy_before else "gains least"
    payer = f"; {best.payer} {paid}, from {best.payer_accuracy_before:.3f} to {best.payer_accuracy:.3f}"
    change = f"changes from {best.accuracy_before:.3f} to {best.accuracy:.3f} ({cost:+.3f})"
    payer *= len(best.findings) > 1
    return f"{capitalize(best.metric)} over all clients {change}, {price} the maximum cost {demand.max_cost:g}{payer}."


def _alone(best: Protection) -> str:
    """Describe the accuracy of training without clients."""
    if isnan(best.alone):
        return "Without labelled data of the server, the accuracy of training without clients is unknown."
    alone = f"Training on the server's labelled data alone gives {best.alone:.3f}"
    if best.alone >= best.accuracy:
        return f"{alone}, at least as much as with clients ({best.accuracy:.3f}): the clients add nothing."
    return f"{alone}, less than with clients."


def _level(demand: Demand) -> str:
    return (
        f"The verdict uses the mean over at most {demand.judging} seeds. At most {100 * LEVEL:g} % of searches accept "
        "a federation above the limit."
    )


def _caveat(best: Protection, demand: Demand) -> str:
    attacks = f"the strongest attack of the {demand.view}'s view with {demand.references} reference federations"
    promise = "a measurement, not a guarantee"
    if not isnan(best.epsilon):
        promise = f"a measurement, beside a guarantee of epsilon {best.epsilon:.2f} at delta {DELTA:g} for each record"
    limit = limit_sentence(demand.view, {f"bound.{demand.view}.accuracy": best.bound}, [best.exposure])
    if limit and demand.promise:
        limit += f", which is {best.outcome} of {demand.limit:g}"
    said = f"This is {promise}, by {attacks}; stronger attacks may find more. {_COVERAGE[demand.view]}"
    return f"{said} {limit}." if limit else said
