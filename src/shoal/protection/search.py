"""The command `shoal protect`: a search for the cheapest protection that keeps a limit on exposure.

Files in the directory of a search:

- base.toml: the measured configuration
- runs/: the run directories, from which an interrupted search resumes
- runs.csv: one row of figures per protection and seed
- protected.toml: the configuration with the chosen protection
- protection.json: the fields of `Protection`
- protection.html: the page
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
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
    MAX_JUDGED,
    Demand,
    Figures,
    Protection,
    affordable,
    by_price,
    candidates,
    chosen,
    judgement_of,
    least_exposed,
    sentences,
    shortlist,
)
from shoal.protection.ladder import UNPROTECTED, Ladder, Rung
from shoal.reports.protection_page import protection_page
from shoal.reports.run.description import metric_of_task
from shoal.runs.directory import drop_repeated_warnings
from shoal.sweeps.plan import planned_runs
from shoal.sweeps.runner import SweepWatch, finish_runs, run_one
from shoal.sweeps.sweep_file import SweepPoint

LOG = logging.getLogger(__name__)

BASE = "base.toml"

ATTACKED_TOGETHER = 4
"""The number of protections to attack before less accurate ones."""


def protect(config: Config, place: Workplace[SweepWatch], demand: Demand) -> Protection:
    """Search the protections for ``config`` in the directory of ``place``, and write the result.

    Without a required guarantee, the unprotected federation is tested first. If the exposure of the unprotected
    federation is within the limit, the search ends. The search among protections has three steps:

    - Screening: train every protection on the first choosing seed at each learning rate, and drop protections that cost
      too much.
    - Choosing: attack the remaining protections in groups on the choosing seeds, the most accurate group first.
    - Judging: test the `candidates` of a group on the judging seeds. The first protection within the limit ends the
      search.

    Slow protections are tried last. Each test adds seeds until `Demand.test_of` decides or cannot decide with all
    seeds.

    Raises:
        InputError: the federation cannot be repeated, or the directory has a different search; no file is written.
        ShoalError: a run failed; finished runs stay.
    """
    require(config.property_attack is None, "a search for a protection needs a run without [property_attack]")
    out = place.out
    _check_directory(out)
    data = load_data(config.data, place.data_dir)
    evaluation = replace(
        config.evaluation,
        every=max(config.algorithm.rounds, 1_000),
        reference_federations=demand.references,
        view=demand.view,
        baselines=False,
    )
    measured = replace(config, evaluation=evaluation)
    federation = resolve(measured, data).simulation.federation
    ladder = ladder_of(measured, federation, demand)
    promised = [f"an epsilon of {demand.epsilon:g}"] if demand.epsilon is not None else []
    promised += [f"a limit of {demand.limit:g} on every attack"] if demand.promise else []
    fitting = fitting_candidates(measured, data, ladder.rungs) if promised else []
    require(
        bool(fitting) or not promised,
        f"no available protection guarantees {' and '.join(promised)}; choose a model and a number of clients that "
        "allow noise in the sum over clients",
    )
    _write_base(out, measured)
    groups = [federation.groups[g] for g in federation.groups_with_clients]
    search = _Search(replace(place, out=out / "runs"), measured, groups, demand)
    with drop_repeated_warnings():
        best = search.judge(UNPROTECTED.name) if demand.mu is None else None
        if best is not None and best.outcome == "within the limit":
            best = replace(best, searched=False)
        else:
            best = search.best(fitting or fitting_candidates(measured, data, ladder.rungs), best)
        for alone in fitting_candidates(measured, data, ladder.server_alone):
            best = replace(best, alone=search.accuracy_of(alone))
    front = pd.concat([search.plain.means(), *search.fronts])
    front = front[~front.index.duplicated(keep="last")]
    best = replace(best, metric=metric_of_task(config.data.task))
    write_text(out / "protected.toml", tomli_w.dumps(search.tried[best.rung].rung.apply(config.table())))
    write_text(out / "runs.csv", pd.DataFrame([*search.rows.values()]).to_csv(index=False))
    document = {
        key: None if isinstance(value, float) and isnan(value) else value
        for key, value in (best.json | asdict(demand)).items()
    }
    write_text(out / "protection.json", json.dumps(document, indent=2) + "\n")
    page = protection_page(front, document, sentences(best, demand), str(out / "protected.toml"))
    write_text(out / "protection.html", page)
    return best


def ladder_of(config: Config, federation: Federation, demand: Demand) -> Ladder:
    """Return the ladder of a configuration on its federation.

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
    sizes = [int(federation.with_group(g).sum()) for g in federation.groups_with_clients]
    return Ladder(
        config,
        tuple(federation.clients.x.shape[1:]),
        participating * len(federation),
        participating * min(sizes, default=len(federation)),
        len(federation.shadow),
        demand.view,
        demand.mu,
    )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A protection at one of its learning rates, with the protected configuration."""

    name: str
    rung: Rung
    config: Config


def fitting_candidates(config: Config, data: SourceData, rungs: Sequence[Rung]) -> list[Candidate]:
    """List the protections that fit the configuration and change it, at each of their learning rates."""
    fitting, known, table = list[Candidate](), [config], config.table()
    for rung in rungs:
        try:
            variants = [
                Candidate(rung.name, variant, parse_config(variant.apply(table), rung.name))
                for variant in rung.at_rates()
            ]
            for variant in variants:
                resolve(variant.config, data, draft=True)
        except InputError as error:
            LOG.info("'%s' is left out: %s", rung.name, error)
            continue
        if not any(variant.config in known for variant in variants):
            fitting += variants
            known += [variant.config for variant in variants]
    return fitting


@dataclass(eq=False)
class _Search:
    """The runs of a search in its directory, and its stages.

    Args:
        place: the place with the runs' directory.
        config: the configuration without a protection.
        groups: the names of groups with clients.
        demand: the requirements on the protection.
        rows: the rows of results, by run.
        tried: the candidates that may be judged, by name.
        fronts: the `Figures.means` of screened and of attacked settings.
    """

    place: Workplace[SweepWatch]
    config: Config
    groups: Sequence[str]
    demand: Demand
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    tried: dict[str, Candidate] = field(default_factory=dict)
    fronts: list[pd.DataFrame] = field(default_factory=list)
    # A new one per search: its worker processes keep the data set, whose file may change before the next search.
    work: Callable[..., tuple[str, str | None]] = field(default_factory=lambda: partial(run_one, pages=False))

    def __post_init__(self) -> None:
        self.tried[UNPROTECTED.name] = Candidate(UNPROTECTED.name, UNPROTECTED, self.config)

    @property
    def judging(self) -> range:
        """The seeds for tests of protections."""
        first = self.config.seed + self.demand.choosing
        return range(first, first + self.demand.judging)

    @property
    def compared(self) -> range:
        """The judging seeds on which a protection is compared with the unprotected federation."""
        return self.judging[: self.demand.test_of(UNPROTECTED.name).looks[0]]

    @property
    def plain(self) -> Figures:
        """The figures of the unprotected federation on the seeds in `compared`."""
        runs = self.runs({UNPROTECTED.name: self.config}, self.compared, attacked=True)
        return Figures(runs, runs, self.groups, self.demand.view)

    def runs(self, settings: Mapping[str, Config], seeds: Sequence[int], *, attacked: bool) -> pd.DataFrame:
        """Return the figures of ``settings`` on ``seeds``, one row per run. Without ``attacked``, no reference
        federations are trained.
        """
        off = {} if attacked else {"reference_federations": 0, "view": VIEWS[0]}
        points = [
            SweepPoint(
                {"setting": name}, seed, replace(config, seed=seed, evaluation=replace(config.evaluation, **off))
            )
            for name, config in settings.items()
            for seed in seeds
        ]
        planned = planned_runs(points, "protect", self.place.data_dir)
        left = [job for job in planned if job.digest not in self.rows]
        if left:
            ended = finish_runs(left, self.place, work=self.work)
            ended.require_all()
            self.rows |= {str(row["run"]): row for row in ended.rows}
        return pd.DataFrame([{**self.rows[job.digest], **job.run.settings} for job in planned])

    def figures(self, attacked: Sequence[pd.DataFrame]) -> Figures:
        """Return the figures of runs, with the accuracy of the unprotected federation on their seeds."""
        runs = pd.concat(attacked, ignore_index=True)
        plain = self.runs({UNPROTECTED.name: self.config}, sorted({int(seed) for seed in runs["seed"]}), attacked=False)
        return Figures(runs, plain, self.groups, self.demand.view)

    def best(self, fitting: Sequence[Candidate], as_it_is: Protection | None) -> Protection:
        """Return the first protection within the limit, or the least exposed of the tested protections.

        ``as_it_is`` is the test of the unprotected federation, or None if a guarantee is required.
        """
        judgements = [] if as_it_is is None else [as_it_is]
        most, attacked = MAX_JUDGED + len(judgements), list[pd.DataFrame]()
        for slow in (False, True):
            screened = self._screened([one for one in fitting if one.rung.slow == slow])
            for start in range(0, len(screened), ATTACKED_TOGETHER):
                group = screened[start : start + ATTACKED_TOGETHER]
                figures = self._attacked(group)
                attacked.append(figures.attacked)
                self.fronts.append(figures.means())
                for name in candidates(figures, self.demand):
                    if len(judgements) < most:
                        judgements.append(self.judge(name))
                    if judgements[-1].outcome == "within the limit" or len(judgements) == most:
                        return chosen(judgements)
        name = least_exposed(self.figures(attacked), self.demand) if attacked else None
        if name is not None or not judgements:
            judgements.append(self.judge(name or UNPROTECTED.name))
        return chosen(judgements)

    def _screened(self, tier: Sequence[Candidate]) -> list[Candidate]:
        """List each protection at its most accurate learning rate, without protections that cost too much."""
        if not tier:
            return []
        variants = {one.rung.name: one for one in tier}
        configs = {name: one.config for name, one in variants.items()}
        figures = self.figures([self.runs(configs, [self.config.seed], attacked=False)])
        means = figures.means()
        names = {variant: one.name for variant, one in variants.items()}
        best = means.loc[means["accuracy"].groupby(means.index.map(names), sort=False).idxmax()]
        within = by_price(best.loc[best.index.isin(affordable(figures, self.demand))])
        self.fronts.append(best.assign(exposure=nan, group="").rename(index=names))
        kept = [variants[str(name)] for name in within]
        self.tried |= {one.name: one for one in kept}
        return kept

    def _attacked(self, group: Sequence[Candidate]) -> Figures:
        """Attack candidates on the first choosing seed, and promising candidates on all choosing seeds."""
        first, configs = self.config.seed, {one.name: one.config for one in group}
        attacked = [self.runs(configs, [first], attacked=True)]
        names = shortlist(self.figures(attacked), self.demand)
        if names and self.demand.choosing > 1:
            further = range(first + 1, first + self.demand.choosing)
            attacked.append(self.runs({name: configs[name] for name in names}, further, attacked=True))
        return self.figures(attacked)

    def judge(self, name: str) -> Protection:
        """Test a candidate, adding judging seeds until the test decides or cannot decide with all seeds."""
        judgement, candidate = None, self.tried[name]
        for number in self.demand.test_of(name).looks:
            attacked = self.runs({name: candidate.config}, self.judging[:number], attacked=True)
            figures = replace(self.plain, attacked=attacked)
            judgement = judgement_of(replace(candidate.rung, name=name), figures, self.demand)
            if judgement.outcome != "not decided" or judgement.hopeless:
                break
        assert judgement is not None
        return judgement

    def accuracy_of(self, alone: Candidate) -> float:
        """Return the mean accuracy of a candidate on the seeds in `compared`."""
        runs = self.runs({alone.name: alone.config}, self.compared, attacked=False)
        return float(runs["accuracy.overall"].mean())


def _check_directory(out: Path) -> None:
    """Check that ``out`` is new or the directory of a search."""
    require(not out.exists() or out.is_dir(), f"{out}: is not a directory; choose another --out")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    ours = BASE in names and names.isdisjoint(("summary.json", "sweep.toml"))
    require(not names or ours, f"{out}: exists and is not the directory of a search; choose another --out")


def _write_base(out: Path, config: Config) -> None:
    """Write the measured configuration, or compare it with the stored one."""
    base, text = out / BASE, tomli_w.dumps(config.table())
    require(
        not base.exists() or base.read_text(encoding="utf-8") == text,
        f"{out}: has a search with another configuration, view or number of references; choose another --out",
    )
    with file_errors(out, "; choose another --out", action="written"):
        (out / "runs").mkdir(parents=True, exist_ok=True)
        write_text(base, text)
