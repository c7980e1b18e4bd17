"""`shoal protect`: the cheapest protection that keeps a limit, chosen on some seeds and judged on others.

base.toml               the configuration as it is measured
choosing/, judging/     the sweeps, whose finished runs are kept: an interrupted search goes on
protected.toml          the configuration with the chosen protection
protection.json         the figures of `Protection`
protection.html         the page
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan, nan, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
from scipy.special import stdtrit

from shoal.attacks.reference_scores import View
from shoal.config.build import load_data, resolve
from shoal.config.schema import Config, parse_config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, ShoalError, require
from shoal.core.settings import Count, Fraction, Positive, settings
from shoal.data import SourceData
from shoal.metrics.intervals import mean_interval
from shoal.protection.ladder import UNPROTECTED, Rung, ladder
from shoal.reports.protection_page import protection_page
from shoal.sweeps import SweepProgress, Workers, read_sweep, run_sweep
from shoal.sweeps.runner import OnStart

LOG = logging.getLogger(__name__)

BASE = "base.toml"

MOST_JUDGED = 3
"""Rungs, at most, that are judged one after another."""

MOST_SEEDS = 100
"""Judging seeds, at most, that are asked for."""


@settings
class Demand:
    """What a protection must keep.

    Args:
        limit: on the exposure of the most exposed group: a balanced accuracy in [0.5, 1].
        max_cost: of accuracy over all clients, as a share.
        view: whose exposure it is.
        references: reference federations of each run.
        choosing: seeds that choose; they follow the configuration's own.
        judging: other seeds that judge, at least 2 for an interval.
    """

    limit: Fraction = 0.55
    max_cost: Fraction = 0.02
    view: View = "outsider"
    references: Positive = 2
    choosing: Positive = 2
    judging: Count = 3

    def __post_init__(self) -> None:
        require(self.limit >= 0.5, f"'limit' must be in [0.5, 1], where 0.5 is chance; got {self.limit:g}")
        require(self.judging >= 2, f"'judging' must be at least 2, for an interval; got {self.judging}")


DEMAND = Demand()
"""The default demand."""


@dataclass(frozen=True)
class Protection:
    """The outcome of a search.

    Args:
        rung: the name of the protection; "as it is" where none keeps the price.
        words: what it changes.
        outcome: "met" (the interval of the judging seeds is below the limit), "not met" (above it), or "open".
        group: the most exposed group on the judging seeds.
        exposure, exposure_low, exposure_high: of that group there, with a 95 % interval over seeds (Student's t).
        before: its exposure there without the protection.
        accuracy, accuracy_before: there, over all clients.
        epsilon: that the protected runs state, the largest; NaN: none.
        more_seeds: further judging seeds that would decide an "open" outcome at this mean and standard deviation, as
            far as `MOST_SEEDS` in all do; 0: none needed.
    """

    rung: str
    words: str
    outcome: str
    group: str
    exposure: float
    exposure_low: float
    exposure_high: float
    before: float
    accuracy: float
    accuracy_before: float
    epsilon: float
    more_seeds: int


def protect(
    config: Config,
    out: Path,
    demand: Demand = DEMAND,
    *,
    workers: Workers | None = None,
    data_dir: Path | None = None,
    on_start: OnStart | None = None,
    on_run_end: Callable[[SweepProgress], None] | None = None,
) -> Protection:
    """Search the ladder of ``config`` in the directory ``out``, and write what was found.

    Every rung is trained and attacked on the choosing seeds, with reference federations that train under the same
    protection. `candidates` says which are judged then, one after another until one is within the limit.

    Raises:
        InputError: a federation that cannot be replayed, or a directory of another search; nothing is written then.
        ShoalError: a run failed; what is done is kept.
    """
    require(config.property_attack is None, "'property_attack' cannot be protected against here; leave it out")
    _check_directory(out)
    data = load_data(config.data, data_dir)
    evaluation = replace(
        config.evaluation,
        every=config.algorithm.rounds,
        reference_federations=demand.references,
        view=demand.view,
    )
    measured = replace(config, evaluation=evaluation)
    federation = resolve(measured, data).simulation().federation
    steps = ladder(config, tuple(federation.clients.x.shape[1:]), len(federation.shadow))
    rungs = [UNPROTECTED, *possible_rungs(measured, data, steps)]
    groups = [federation.groups[g] for g in federation.groups_with_clients]
    watched = {"workers": workers, "data_dir": data_dir, "on_start": on_start, "on_run_end": on_run_end}
    table, first = measured.table(), config.seed
    seeds = range(first, first + demand.choosing)
    figures = _swept(out / "choosing", table, rungs, seeds, watched)
    by_name, judges = {rung.name: rung for rung in rungs}, range(seeds.stop, seeds.stop + demand.judging)
    judgements: list[Protection] = []
    asked = [UNPROTECTED]
    for name in candidates(figures, groups, demand)[:MOST_JUDGED]:
        asked += [by_name[name]] if name != UNPROTECTED.name else []
        judgements.append(judged(by_name[name], _swept(out / "judging", table, asked, judges, watched), groups, demand))
        if judgements[-1].outcome == "met":
            break
    best = chosen(judgements)
    front = by_setting(figures, groups)
    write_text(out / "protected.toml", tomli_w.dumps(by_name[best.rung].applied(config.table())))
    shown = {key: None if isinstance(value, float) and isnan(value) else value for key, value in asdict(best).items()}
    write_text(out / "protection.json", json.dumps({**shown, **asdict(demand)}, indent=2) + "\n")
    page = protection_page(front, asdict(best), sentences(best, demand), asdict(demand), str(out / "protected.toml"))
    write_text(out / "protection.html", page)
    return best


def sentences(best: Protection, demand: Demand) -> list[str]:
    """What to change, what it costs and what it does not cover, in plain words.

    Example:
        >>> from math import nan
        >>> from shoal.protection import Demand, Protection, sentences
        >>> exposure = {"exposure": 0.52, "exposure_low": 0.5, "exposure_high": 0.54, "before": 0.61}
        >>> accuracy = {"accuracy": 0.80, "accuracy_before": 0.79}
        >>> rest = {"outcome": "met", "group": "north", "epsilon": nan, "more_seeds": 0}
        >>> best = Protection(rung="a", words="5 rounds instead of 15", **exposure, **accuracy, **rest)
        >>> for sentence in sentences(best, Demand(limit=0.55))[:3:2]:
        ...     print(sentence)
        ...
        Train the federation with 5 rounds instead of 15.
        Accuracy over all clients goes from 0.790 to 0.800 (+0.010), within the price of 0.02.
    """
    kept = {"met": "is within", "not met": "is above", "open": "may or may not be within"}[best.outcome]
    interval = f"{best.exposure_low:.3f} to {best.exposure_high:.3f}"
    more = f"; {demand.judging + best.more_seeds} judging seeds may decide it" if best.more_seeds else ""
    judges = f"95 % interval over {demand.judging} seeds that chose nothing"
    stands = f"{best.exposure:.3f} ({interval}, {judges}), which {kept} the limit of {demand.limit:g}{more}."
    attacks = f"the strongest attack of the {demand.view}'s view with {demand.references} reference federations"
    covers = {
        "outsider": "It does not cover other clients, who see every round, nor the server, which sees each update.",
        "client": "It does not cover the server, which sees each client's updates.",
        "server": "It covers what outsiders and other clients see too.",
    }[demand.view]
    promise = "a measurement, not a promise" if isnan(best.epsilon) else f"beside the epsilon of {best.epsilon:.2f}"
    what = f"This is {promise}, by {attacks}; stronger attacks may find more. {covers}"
    if best.rung == UNPROTECTED.name:
        within = best.exposure <= demand.limit
        helps = "the federation is within the limit as it is" if within else "nothing tried helps at this price"
        return [
            f"Change nothing: {helps}.",
            f"The exposure of {best.group}, the most exposed group, is {stands}",
            f"Accuracy over all clients is {best.accuracy:.3f}.",
            what,
        ]
    cost = best.accuracy - best.accuracy_before
    price = "more than" if -cost > demand.max_cost else "within"
    return [
        f"Train the federation with {best.words}."
        if best.outcome == "met"
        else f"Nothing tried is shown to keep the limit. The best that was judged: {best.words}.",
        f"The exposure of {best.group}, the most exposed group, goes from {best.before:.3f} to {stands}",
        f"Accuracy over all clients goes from {best.accuracy_before:.3f} to {best.accuracy:.3f} ({cost:+.3f}), "
        f"{price} the price of {demand.max_cost:g}.",
        what,
    ]


def _check_directory(out: Path) -> None:
    """Raise `InputError` where ``out`` is something else than a search's directory, or cannot be written."""
    require(not out.exists() or out.is_dir(), f"{out}: is not a directory; choose another --out")
    foreign = out.exists() and any(out.iterdir()) and not (out / BASE).exists()
    require(not foreign, f"{out}: exists already and holds no search; choose another --out")
    require(
        not out.exists() or not any((out / name).exists() for name in ("summary.json", "sweep.toml")),
        f"{out}: exists already and is a run's or a sweep's; choose another --out",
    )


def _swept(
    out: Path, table: Mapping[str, Any], rungs: Sequence[Rung], seeds: Sequence[int], watched: Mapping[str, Any]
) -> pd.DataFrame:
    """The rows of results.csv of these rungs of the configuration ``table`` on these seeds, in a sweep's directory."""
    # A setting of a sweep changes something.
    same = {"algorithm.rounds": table["algorithm"]["rounds"]}
    settings_of = {rung.name: dict(rung.changes) or same for rung in rungs}
    asked = {"base": BASE, "seeds": list(seeds), "grid": {"setting": settings_of}}
    base, text = out.parent / BASE, tomli_w.dumps(dict(table))
    require(
        not base.exists() or base.read_text(encoding="utf-8") == text,
        f"{out.parent}: holds a search of another configuration, view or number of references; choose another --out",
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(base, text)
        write_text(out.with_suffix(".toml"), tomli_w.dumps(asked))
    except OSError as error:
        raise InputError(f"{out.parent}: cannot be written: {error.strerror}; choose another --out") from error
    outcome = run_sweep(read_sweep(out.with_suffix(".toml")), out, **watched)
    for run, reason in outcome.failed.items():
        raise ShoalError(f"{run}: failed: {' '.join(reason.split())}")
    return pd.read_csv(out / "results.csv", dtype={"setting": str}, keep_default_na=False, na_values=[""])


def possible_rungs(config: Config, data: SourceData, rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs that the configuration's data and other keys allow, and that change something."""
    kept: list[Rung] = []
    configs = [config]
    for rung in rungs:
        try:
            changed = parse_config(rung.applied(config.table()), rung.name)
            resolve(changed, data)
        except InputError as error:
            LOG.info("'%s' is left out: %s", rung.name, error)
            continue
        if changed not in configs:
            kept.append(rung)
            configs.append(changed)
    return kept


def candidates(figures: pd.DataFrame, groups: Sequence[str], demand: Demand) -> list[str]:
    """The rungs to be judged, in this order, by their means on the choosing seeds.

    Of those that cost at most ``max_cost`` of the unprotected federation's accuracy and are within the limit, the most
    accurate one, then those of the others that are less exposed than all before. Where none is within the limit, the
    least exposed of those within the price, unless nothing changed is less exposed than it.
    """
    means = by_setting(figures, groups)
    now = means.loc[UNPROTECTED.name]
    paid = means[means["accuracy"] >= now["accuracy"] - demand.max_cost]
    within = paid[paid["exposure"] <= demand.limit]
    if within.empty:
        return [str(paid["exposure"].idxmin())]
    by_accuracy = within.sort_values(["accuracy", "exposure"], ascending=[False, True], kind="stable")
    lowest = by_accuracy["exposure"].cummin().shift(fill_value=float("inf"))
    return by_accuracy.index[by_accuracy["exposure"] < lowest].tolist()


def chosen(judgements: Sequence[Protection]) -> Protection:
    """The first that is within the limit, or else the least exposed of them."""
    met = [judgement for judgement in judgements if judgement.outcome == "met"]
    return met[0] if met else min(judgements, key=lambda judgement: judgement.exposure)


def by_setting(figures: pd.DataFrame, groups: Sequence[str]) -> pd.DataFrame:
    """Means over seeds by setting: ``accuracy``, ``exposure`` of the most exposed group, and its name, ``group``."""
    columns = {f"exposure.{group}": group for group in groups}
    means = figures.groupby("setting", sort=False).mean(numeric_only=True)
    exposures = _exposures(figures, groups).groupby(figures["setting"], sort=False).mean()
    return pd.DataFrame(
        {
            "accuracy": means["accuracy.overall"],
            "exposure": exposures.max(axis=1),
            "group": exposures.idxmax(axis=1).map(columns),
            "epsilon": figures.groupby("setting", sort=False)["epsilon"].max() if "epsilon" in figures else nan,
        }
    )


def _exposures(figures: pd.DataFrame, groups: Sequence[str]) -> pd.DataFrame:
    """The groups' exposures, a row a run; where nobody trained on a group's records, there is nothing to find: 0.5."""
    columns = [f"exposure.{group}" for group in groups]
    return figures.reindex(columns=columns).astype(float).fillna(0.5)


def judged(rung: Rung, figures: pd.DataFrame, groups: Sequence[str], demand: Demand) -> Protection:
    """The judgement of a rung on the judging seeds, beside the unprotected federation there."""
    means = by_setting(figures, groups)
    now: dict[Any, Any] = means.loc[rung.name].to_dict()
    before: dict[Any, Any] = means.loc[UNPROTECTED.name].to_dict()
    seeds = _exposures(figures, groups)[f"exposure.{now['group']}"][figures["setting"] == rung.name].to_numpy()
    low, high = mean_interval(seeds)
    outcome = "met" if high <= demand.limit else "not met" if low > demand.limit else "open"
    gap, spread = abs(demand.limit - float(now["exposure"])), float(seeds.std(ddof=1))
    return Protection(
        rung=rung.name,
        words=rung.words,
        outcome=outcome,
        group=str(now["group"]),
        exposure=float(now["exposure"]),
        exposure_low=float(low),
        exposure_high=float(high),
        before=float(before["exposure"]),
        accuracy=float(now["accuracy"]),
        accuracy_before=float(before["accuracy"]),
        epsilon=float(now["epsilon"]),
        more_seeds=_needed(gap, spread, len(seeds)) - len(seeds) if outcome == "open" else 0,
    )


def _needed(gap: float, spread: float, seeds: int) -> int:
    """The fewest seeds, more than ``seeds``, whose interval of Student's t is narrower than ``gap`` on each side."""
    enough = (n for n in range(seeds + 1, MOST_SEEDS) if stdtrit(n - 1, 0.975) * spread / sqrt(n) < gap)
    return next(enough, max(seeds + 1, MOST_SEEDS))
