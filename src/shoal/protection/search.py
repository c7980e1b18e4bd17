"""`shoal protect`: the cheapest protection that keeps a limit, chosen on some seeds and judged on others.

choosing/, judging-*/   the sweeps, whose finished runs are kept: an interrupted search goes on
protected.toml          the configuration with the chosen protection
protection.json         the figures of `Protection`
protection.html         the page
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

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
        more_seeds: judging seeds that would decide an "open" outcome, by their standard deviation; 0: none needed.
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
    protection. Of those whose mean accuracy is no more than ``max_cost`` below that of the unprotected federation the
    most accurate one with a mean exposure within the limit is judged, or else the least exposed. Where a judged rung
    is not within the limit the next less exposed one is judged.

    Raises:
        InputError: a federation that cannot be replayed, or a directory of another search.
    """
    require(config.property_attack is None, "'property_attack' cannot be protected against here; leave it out")
    data = load_data(config.data, data_dir)
    federation = resolve(config, data).simulation().federation
    steps = ladder(config, tuple(federation.clients.x.shape[1:]), len(federation.shadow))
    rungs = [UNPROTECTED, *possible_rungs(config, data, steps)]
    groups = [federation.groups[g] for g in federation.groups_with_clients]
    watched = {"workers": workers, "data_dir": data_dir, "on_start": on_start, "on_run_end": on_run_end}
    evaluation = replace(
        config.evaluation,
        every=config.algorithm.rounds,
        reference_federations=demand.references,
        view=demand.view,
    )
    table, first = replace(config, evaluation=evaluation).table(), config.seed
    seeds = range(first, first + demand.choosing)
    figures = _swept(out / "choosing", table, rungs, seeds, watched)
    by_name, judges = {rung.name: rung for rung in rungs}, range(seeds.stop, seeds.stop + demand.judging)
    judgements = []
    for name in candidates(figures, groups, demand)[:MOST_JUDGED]:
        pair = [UNPROTECTED] if name == UNPROTECTED.name else [UNPROTECTED, by_name[name]]
        folder = out / f"judging-{name.replace(',', '').replace(' ', '-')}"
        judgements.append(judged(by_name[name], _swept(folder, table, pair, judges, watched), groups, demand))
        if judgements[-1].outcome == "met":
            break
    met = [judgement for judgement in judgements if judgement.outcome == "met"]
    best = met[0] if met else min(judgements, key=lambda judgement: judgement.exposure)
    front = by_setting(figures, groups)
    write_text(out / "protected.toml", tomli_w.dumps(by_name[best.rung].applied(config.table())))
    shown = {key: None if isinstance(value, float) and isnan(value) else value for key, value in asdict(best).items()}
    write_text(out / "protection.json", json.dumps({**shown, **asdict(demand)}, indent=2) + "\n")
    page = protection_page(front, best.rung, sentences(best, demand), asdict(demand), str(out / "protected.toml"))
    write_text(out / "protection.html", page)
    return best


def sentences(best: Protection, demand: Demand) -> list[str]:
    """What to change, what it costs and what it does not cover, in plain words."""
    kept = {"met": "is within", "not met": "is above", "open": "may or may not be within"}[best.outcome]
    interval = f"{best.exposure_low:.3f} to {best.exposure_high:.3f}"
    change = (
        f"Train the federation with {best.words}" if best.rung != UNPROTECTED.name else "Nothing on the ladder pays"
    )
    more = f"; {best.more_seeds} more judging seeds would decide it" if best.more_seeds else ""
    cost = best.accuracy - best.accuracy_before
    covers = {
        "outsider": "It does not cover other clients, who see every round, nor the server.",
        "client": "It does not cover the server, who sees each client's update.",
        "server": "The server's view covers what others see too.",
    }[demand.view]
    promise = "a measurement, not a promise" if isnan(best.epsilon) else f"epsilon {best.epsilon:.2f}"
    return [
        f"{change}.",
        f"The exposure of {best.group}, the most exposed group, goes from {best.before:.3f} to {best.exposure:.3f} "
        f"({interval}, 95 % over {demand.judging} seeds that chose nothing), which {kept} the limit of "
        f"{demand.limit:g}{more}.",
        f"Accuracy over all clients goes from {best.accuracy_before:.3f} to {best.accuracy:.3f} ({cost:+.3f}).",
        f"This is {promise}, against the strongest attack of the {demand.view}'s view with {demand.references} "
        f"reference federations. {covers}",
    ]


def _swept(
    out: Path, table: Mapping[str, Any], rungs: Sequence[Rung], seeds: Sequence[int], watched: Mapping[str, Any]
) -> pd.DataFrame:
    """The rows of results.csv of these rungs of the configuration ``table`` on these seeds, in a sweep's directory."""
    out.mkdir(parents=True, exist_ok=True)
    # A setting of a sweep changes something.
    same = {"algorithm.rounds": table["algorithm"]["rounds"]}
    settings_of = {rung.name: dict(rung.changes) or same for rung in rungs}
    asked = {"base": BASE, "seeds": list(seeds), "grid": {"setting": settings_of}}
    base = out.parent / BASE
    text = tomli_w.dumps(dict(table))
    require(
        not base.exists() or base.read_text(encoding="utf-8") == text,
        f"{out.parent}: holds a search of another configuration or demand; choose another --out",
    )
    write_text(base, text)
    write_text(out.with_suffix(".toml"), tomli_w.dumps(asked))
    outcome = run_sweep(read_sweep(out.with_suffix(".toml")), out, **watched)
    for run, reason in outcome.failed.items():
        raise ShoalError(f"{run}: {reason}")
    return pd.read_csv(out / "results.csv")


def possible_rungs(config: Config, data: SourceData, rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs that the configuration's data and other keys allow."""
    kept = []
    for rung in rungs:
        try:
            resolve(parse_config(rung.applied(config.table()), rung.name), data)
        except InputError as error:
            LOG.info("'%s' is left out: %s", rung.name, error)
        else:
            kept.append(rung)
    return kept


def candidates(figures: pd.DataFrame, groups: Sequence[str], demand: Demand) -> list[str]:
    """The rungs to be judged, the best first, by their means on the choosing seeds.

    Those within the price: of those within the limit the most accurate first, then the others by their exposure. Only
    where none is within the price the least exposed of all.
    """
    means = by_setting(figures, groups)
    price = means.loc[UNPROTECTED.name, "accuracy"] - demand.max_cost
    paid = means[means["accuracy"] >= price].drop(index=UNPROTECTED.name)
    if paid.empty:
        return [UNPROTECTED.name]
    within = paid[paid["exposure"] <= demand.limit].sort_values("accuracy", ascending=False, kind="stable")
    return [*within.index, *paid[paid["exposure"] > demand.limit].sort_values("exposure", kind="stable").index]


def by_setting(figures: pd.DataFrame, groups: Sequence[str]) -> pd.DataFrame:
    """Means over seeds by setting: ``accuracy``, ``exposure`` of the most exposed group, and its name, ``group``."""
    means = figures.groupby("setting", sort=False).mean(numeric_only=True)
    exposures = means[[f"exposure.{group}" for group in groups if f"exposure.{group}" in means]]
    worst = exposures.max(axis=1).fillna(0.5)
    return pd.DataFrame(
        {
            "accuracy": means["accuracy.overall"],
            "exposure": worst,
            "group": exposures.fillna(0.5).idxmax(axis=1).str.removeprefix("exposure."),
            "epsilon": means.get("epsilon", nan),
        }
    )


def judged(rung: Rung, figures: pd.DataFrame, groups: Sequence[str], demand: Demand) -> Protection:
    """The judgement of a rung on the judging seeds, beside the unprotected federation there."""
    means = by_setting(figures, groups)
    now, before = means.loc[rung.name], means.loc[UNPROTECTED.name]
    # NaN: nobody's records were attacked, since nobody trained on them.
    seeds = figures.loc[figures["setting"] == rung.name, f"exposure.{now['group']}"].fillna(0.5).to_numpy()
    low, high = mean_interval(seeds)
    outcome = "met" if high <= demand.limit else "not met" if low > demand.limit else "open"
    gap, spread = abs(demand.limit - float(now["exposure"])), float(seeds.std(ddof=1))
    # A normal interval of n seeds is 2 * 1.96 * spread / sqrt(n) wide.
    needed = ceil((1.96 * spread / gap) ** 2) if outcome == "open" and gap > 0 else len(seeds)
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
        more_seeds=max(0, needed - len(seeds)) if outcome == "open" else 0,
    )
