"""`shoal protect`: the cheapest protection that keeps a limit, chosen on some seeds and judged on others.

base.toml               the configuration as it is measured
runs/                   the directories of its runs, which are kept: an interrupted search goes on
runs.csv                their figures, by setting and seed
protected.toml          the configuration with the chosen protection
protection.json         the figures of `Protection`
protection.html         the page
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from shoal.config.build import load_data, resolve
from shoal.config.schema import Config, parse_config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, file_errors, require
from shoal.core.processes import Workplace
from shoal.data import Federation, SourceData
from shoal.data.preferences import VIEWS
from shoal.protection.judgement import (
    DEMAND,
    LOOKS,
    Demand,
    Figures,
    Protection,
    affordable,
    candidates,
    chosen,
    judgement_of,
    shortlist,
)
from shoal.protection.ladder import UNPROTECTED, Ladder, Rung
from shoal.protection.recommendation import sentences
from shoal.reports.protection_page import protection_page
from shoal.sweeps.plan import planned_runs
from shoal.sweeps.runner import SweepWatch, finish_runs
from shoal.sweeps.sweep_file import SweepPoint

LOG = logging.getLogger(__name__)

BASE = "base.toml"

MAX_JUDGED = 3
"""Rungs, at most, that are judged one after another."""

FIRST_JUDGED = 3
"""Judging seeds after which a rung whose mean is above the limit is given up."""


def protect(config: Config, place: Workplace[SweepWatch], demand: Demand = DEMAND) -> Protection:
    """Search the ladder of ``config`` in the directory of ``place``, and write what was found.

    Screening: every rung is trained on the first choosing seed, at each of its learning rates, and attacked nowhere;
    those that cannot be within the price are left out. Choosing: the others are attacked there, with reference
    federations that train under the same protection, and those that may be within the limit on the other choosing
    seeds too. Rungs that are slow are tried where no quicker one is within limit and price. Judging: `candidates` are
    judged on other seeds, on a few first, one after another until one is within the limit; where none is, but more
    seeds may show it, the best has up to twice as many.

    Raises:
        InputError: a federation that cannot be replayed, or a directory of another search; nothing is written then.
        ShoalError: a run failed; what is done is kept.
    """
    require(config.property_attack is None, "'property_attack' cannot be protected against here; leave it out")
    out = place.out
    _check_directory(out)
    data = load_data(config.data, place.data_dir)
    evaluation = replace(
        config.evaluation,
        every=max(config.algorithm.rounds, 1_000),
        reference_federations=demand.references,
        view=demand.view,
    )
    measured = replace(config, evaluation=evaluation)
    federation = resolve(measured, data).simulation.federation
    steps = ladder_of(measured, federation, demand)
    rungs = possible_rungs(measured, data, steps.rungs)
    promised = [f"an epsilon of {demand.epsilon:g}"] if demand.epsilon is not None else []
    promised += [f"a limit of {demand.limit:g} on every attack"] if demand.promise else []
    require(
        bool(rungs) or not promised,
        f"no protection with noise in sums fits this configuration, so none has {' and '.join(promised)}",
    )
    _write_base(out, measured)
    groups = [federation.groups[g] for g in federation.groups_with_clients]
    runs = _Runs(replace(place, out=out / "runs"), measured, groups)
    figures, tried, left_out = _chosen_on_seeds(runs, rungs, demand)
    by_name = {rung.name: rung for rung in tried}
    alone = next(iter(possible_rungs(measured, data, (steps.server_alone,))), None) if steps.server_alone else None
    before = figures.means().loc[UNPROTECTED.name].to_dict()
    judgements: list[Protection] = []
    names = candidates(figures, demand)
    for name in names[:MAX_JUDGED]:
        judgements.append(_judgement(runs, by_name[name], alone, demand, before, min(FIRST_JUDGED, demand.judging)))
        if getattr(judgements[-1], demand.limited) <= demand.limit:
            judgements[-1] = _judgement(runs, by_name[name], alone, demand, before, demand.judging)
        if judgements[-1].outcome == "met":
            break
    best = chosen(judgements)
    if 0 < best.more_seeds <= (LOOKS - 1) * demand.judging:
        best = _judgement(runs, by_name[best.rung], alone, demand, before, best.seeds + best.more_seeds)
    _write(out, config, by_name[best.rung], best, demand, pd.concat([figures.means(), left_out]), runs)
    return best


def ladder_of(config: Config, federation: Federation, demand: Demand) -> Ladder:
    """The ladder of a configuration on its federation.

    Example:
        >>> from shoal.config.build import load_data, resolve
        >>> from shoal.config.schema import parse_config
        >>> from shoal.protection import Demand
        >>> from shoal.protection.search import ladder_of
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "shadow_examples": 100}
        >>> data["test_examples"] = 20
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 4}}
        >>> config = parse_config(table, "example")
        >>> federation = resolve(config, load_data(config.data)).simulation.federation
        >>> [rung.name for rung in ladder_of(config, federation, Demand(epsilon=4.0)).rungs][-1]
        '32 components, private clusters, noise 6.84'
    """
    participating = federation.cohort_size(config.algorithm.participation) / len(federation)
    sizes = [int((federation.group == g).sum()) for g in federation.groups_with_clients]
    return Ladder(
        config,
        tuple(federation.clients.x.shape[1:]),
        participating * len(federation),
        participating * min(sizes, default=len(federation)),
        len(federation.shadow),
        demand.view,
        demand.mu,
    )


@dataclass(eq=False)
class _Runs:
    """The runs of a search, in its directory."""

    place: Workplace[SweepWatch]
    config: Config
    groups: Sequence[str]
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, rungs: Sequence[Rung], seeds: Sequence[int], *, attacked: bool) -> pd.DataFrame:
        """The figures of rungs on seeds, a row a run; without reference federations where nobody is ``attacked``."""
        asked: list[SweepPoint] = []
        for rung in rungs:
            config = parse_config(rung.applied(self.config.table()), rung.name)
            if not attacked:
                evaluation = replace(config.evaluation, reference_federations=0, view=VIEWS[0])
                config = replace(config, evaluation=evaluation)
            asked += [SweepPoint({"setting": rung.name}, seed, replace(config, seed=seed)) for seed in seeds]
        planned = planned_runs(asked, "protect", self.place.data_dir)
        left = [job for job in planned if job.digest not in self.rows]
        if left:
            ended = finish_runs(left, self.place, pages=False)
            ended.require_all()
            self.rows |= {str(row["run"]): row for row in ended.rows}
        return pd.DataFrame([{**self.rows[job.digest], **job.run.settings} for job in planned])

    def figures(self, attacked: Sequence[pd.DataFrame], seeds: Sequence[int]) -> Figures:
        """The figures of ``attacked`` runs, beside the unprotected federation on these seeds."""
        plain = self.of([UNPROTECTED], seeds, attacked=False)
        return Figures(pd.concat(attacked, ignore_index=True), plain, self.groups, self.config.evaluation.view)


def _chosen_on_seeds(runs: _Runs, rungs: Sequence[Rung], demand: Demand) -> tuple[Figures, list[Rung], pd.DataFrame]:
    """The figures on the choosing seeds, the rungs that were attacked, and `Figures.means` of those left out."""
    first = runs.config.seed
    seeds = range(first, first + demand.choosing)
    tried, attacked, left_out = list[Rung](), list[pd.DataFrame](), list[pd.DataFrame]()
    for slow in (False, True):
        tier = [rung for rung in rungs if rung.slow == slow]
        kept, means = _screened(runs, tier, seeds[:1], demand)
        left_out.append(means)
        kept = kept if tried else [UNPROTECTED, *kept]
        if kept:
            tried += kept
            attacked.append(runs.of(kept, seeds[:1], attacked=True))
            names = shortlist(runs.figures(attacked[-1:], seeds[:1]), demand)
            again = [rung for rung in kept if rung.name in names]
            if seeds[1:] and again:
                attacked.append(runs.of(again, seeds[1:], attacked=True))
        figures = runs.figures(attacked, seeds)
        means = figures.means()
        kept_both = means[(means["change"] >= -demand.max_cost) & (means[demand.limited] <= demand.limit)]
        if not kept_both.empty:
            break
    return figures, tried, pd.concat(left_out)


def _screened(
    runs: _Runs, rungs: Sequence[Rung], seeds: Sequence[int], demand: Demand
) -> tuple[list[Rung], pd.DataFrame]:
    """The rungs that may be within the price, each at the most accurate of its learning rates; and the means of the
    others, without exposure.
    """
    if not rungs:
        return [], pd.DataFrame()
    variants = {variant.name: rung.name for rung in rungs for variant in rung.at_rates()}
    figures = runs.figures([runs.of([v for rung in rungs for v in rung.at_rates()], seeds, attacked=False)], seeds)
    means = figures.means()
    best = means["accuracy"].groupby(means.index.map(variants), sort=False).idxmax()
    cheap = affordable(figures, demand)
    kept = [
        replace(variant, name=rung.name, words=rung.words)
        for rung in rungs
        for variant in rung.at_rates()
        if best[rung.name] == variant.name and variant.name in cheap
    ]
    rest = means.loc[[name for name in best if name not in cheap]].assign(exposure=nan, group="")
    return kept, rest.rename(index=variants)


def _judgement(
    runs: _Runs, rung: Rung, alone: Rung | None, demand: Demand, before: Mapping[Any, Any], judging: int
) -> Protection:
    """The judgement of a rung on so many judging seeds."""
    first = runs.config.seed + demand.choosing
    seeds = range(first, first + judging)
    figures = runs.figures([runs.of([rung], seeds, attacked=True)], seeds)
    without = nan if alone is None else float(runs.of([alone], seeds, attacked=False)["accuracy.overall"].mean())
    return judgement_of(rung, figures, demand, before, without)


def possible_rungs(config: Config, data: SourceData, rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs that the configuration's data and other keys allow, and that change something."""
    kept: list[Rung] = []
    configs = [config]
    for rung in rungs:
        try:
            changed = [parse_config(variant.applied(config.table()), rung.name) for variant in rung.at_rates()]
            for variant in changed:
                resolve(variant, data)
        except InputError as error:
            LOG.info("'%s' is left out: %s", rung.name, error)
            continue
        if not any(variant in configs for variant in changed):
            kept.append(rung)
            configs += changed
    return kept


def _check_directory(out: Path) -> None:
    """Raise `InputError` where ``out`` is something else than a search's directory, or cannot be written."""
    require(not out.exists() or out.is_dir(), f"{out}: is not a directory; choose another --out")
    foreign = out.exists() and any(out.iterdir()) and not (out / BASE).exists()
    require(not foreign, f"{out}: exists already and holds no search; choose another --out")
    require(
        not out.exists() or not any((out / name).exists() for name in ("summary.json", "sweep.toml")),
        f"{out}: exists already and is a run's or a sweep's; choose another --out",
    )


def _write_base(out: Path, config: Config) -> None:
    """Write the configuration as it is measured, or find it."""
    base, text = out / BASE, tomli_w.dumps(config.table())
    require(
        not base.exists() or base.read_text(encoding="utf-8") == text,
        f"{out}: holds a search of another configuration, view or number of references; choose another --out",
    )
    with file_errors(out, "; choose another --out", action="written"):
        (out / "runs").mkdir(parents=True, exist_ok=True)
        write_text(base, text)


def _write(
    out: Path, config: Config, rung: Rung, best: Protection, demand: Demand, front: pd.DataFrame, runs: _Runs
) -> None:
    """Write what was found."""
    write_text(out / "protected.toml", tomli_w.dumps(rung.applied(config.table())))
    write_text(out / "runs.csv", pd.DataFrame([*runs.rows.values()]).to_csv(index=False))
    shown = {
        key: None if isinstance(value, float) and isnan(value) else value
        for key, value in (asdict(best) | asdict(demand)).items()
    }
    write_text(out / "protection.json", json.dumps(shown, indent=2) + "\n")
    page = protection_page(front, asdict(best), sentences(best, demand), asdict(demand), str(out / "protected.toml"))
    write_text(out / "protection.html", page)
