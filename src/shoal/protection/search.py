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
    MAX_JUDGED,
    Demand,
    Figures,
    Protection,
    affordable,
    candidates,
    chosen,
    judgement_of,
    sentences,
    shortlist,
)
from shoal.protection.ladder import UNPROTECTED, Ladder, Rung
from shoal.reports.protection_page import protection_page
from shoal.reports.run.description import metric_of_task
from shoal.runs.directory import repeated_warnings_dropped
from shoal.sweeps.plan import planned_runs
from shoal.sweeps.runner import SweepWatch, finish_runs
from shoal.sweeps.sweep_file import SweepPoint

LOG = logging.getLogger(__name__)

BASE = "base.toml"


def protect(config: Config, place: Workplace[SweepWatch], demand: Demand) -> Protection:
    """Search the ladder of ``config`` in the directory of ``place``, and write what was found.

    The federation as it is is judged first, unless a promise is asked for. Where it is within the limit, nothing else
    is tried. Screening: every rung is trained on the first choosing seed, at each of its learning rates, and attacked
    nowhere; those that cannot be within the price are left out. Choosing: the others are attacked there, with reference
    federations that train under the same protection, and those that may be within the limit on the other choosing
    seeds too. Rungs that are slow are tried where no quicker one is within limit and price. Judging: `candidates` are
    judged on other seeds in turn until one is within the limit. Seeds are added until `Demand.test_of` decides, or a
    candidate is above the limit by more than a standard error.

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
        f"no protection with noise in sums fits this configuration, so none has {' and '.join(promised)}",
    )
    _write_base(out, measured)
    groups = [federation.groups[g] for g in federation.groups_with_clients]
    search = _Search(replace(place, out=out / "runs"), measured, groups, demand)
    alone = next((one.config for one in fitting_candidates(measured, data, ladder.server_alone)), None)
    tried = {UNPROTECTED.name: search.as_it_is}
    with repeated_warnings_dropped():
        best = search.judge(search.as_it_is, alone) if demand.mu is None else None
        if best is not None and best.outcome == "within the limit":
            best, front = replace(best, searched=False), search.judged.means()
        else:
            figures, tried, left_out = search.choose(fitting or fitting_candidates(measured, data, ladder.rungs))
            judgements = list[Protection]()
            for name in candidates(figures, demand)[:MAX_JUDGED]:
                judgements.append(search.judge(tried[name], alone))
                if judgements[-1].outcome == "within the limit":
                    break
            best = chosen(judgements)
            if best.hopeless and best.outcome == "not decided":
                best = search.judge(tried[best.rung], alone, give_up=False)
            front = pd.concat([figures.means(), left_out])
    best = replace(best, metric=metric_of_task(config.data.task))
    write_text(out / "protected.toml", tomli_w.dumps(tried[best.rung].rung.applied(config.table())))
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


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rung at one of its learning rates, and the configuration that it makes."""

    name: str
    rung: Rung
    config: Config


def fitting_candidates(config: Config, data: SourceData, rungs: Sequence[Rung]) -> list[Candidate]:
    """The rungs that the configuration's data and other keys allow, and that change something, at each of their rates.

    ``name`` is that of the rung without its rate.
    """
    fitting, known, table = list[Candidate](), [config], config.table()
    for rung in rungs:
        try:
            variants = [
                Candidate(rung.name, variant, parse_config(variant.applied(table), rung.name))
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
    """The runs of a search in its directory, and its stages."""

    place: Workplace[SweepWatch]
    config: Config
    groups: Sequence[str]
    demand: Demand
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    judged: Figures = field(init=False)

    @property
    def as_it_is(self) -> Candidate:
        """The federation without a protection."""
        return Candidate(UNPROTECTED.name, UNPROTECTED, self.config)

    def runs(self, settings: Mapping[str, Config], seeds: Sequence[int], *, attacked: bool) -> pd.DataFrame:
        """The figures of settings on seeds, a row a run; without reference federations where nobody is ``attacked``."""
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
            ended = finish_runs(left, self.place, pages=False)
            ended.require_all()
            self.rows |= {str(row["run"]): row for row in ended.rows}
        return pd.DataFrame([{**self.rows[job.digest], **job.run.settings} for job in planned])

    def figures(self, attacked: Sequence[pd.DataFrame], seeds: Sequence[int]) -> Figures:
        """The figures of ``attacked`` runs, beside the unprotected federation on these seeds."""
        plain = self.runs({UNPROTECTED.name: self.config}, seeds, attacked=False)
        return Figures(pd.concat(attacked, ignore_index=True), plain, self.groups, self.demand.view)

    def choose(self, fitting: Sequence[Candidate]) -> tuple[Figures, dict[str, Candidate], pd.DataFrame]:
        """The figures on the choosing seeds, the candidates attacked, and `Figures.means` of those left out."""
        first, demand = self.config.seed, self.demand
        seeds = range(first, first + demand.choosing)
        attacked, left_out = list[pd.DataFrame](), list[pd.DataFrame]()
        tried = dict[str, Candidate]()
        for slow in (False, True):
            tier = {} if tried else {UNPROTECTED.name: self.as_it_is}
            screened, dear = self._screened([one for one in fitting if one.rung.slow == slow], seeds[:1])
            tier |= screened
            left_out.append(dear)
            if tier:
                tried |= tier
                configs = {name: one.config for name, one in tier.items()}
                attacked.append(self.runs(configs, seeds[:1], attacked=True))
                names = shortlist(self.figures(attacked[-1:], seeds[:1]), demand)
                again = {name: config for name, config in configs.items() if name in names}
                if seeds[1:] and again:
                    attacked.append(self.runs(again, seeds[1:], attacked=True))
            figures = self.figures(attacked, seeds)
            means = figures.means()
            if ((means["change"] >= -demand.max_cost) & (means[demand.limited] <= demand.limit)).any():
                break
        return figures, tried, pd.concat(left_out)

    def _screened(self, tier: Sequence[Candidate], seeds: Sequence[int]) -> tuple[dict[str, Candidate], pd.DataFrame]:
        """The most accurate candidate of each rung that may be within the price, and the means of the other rungs."""
        if not tier:
            return {}, pd.DataFrame()
        variants = {one.rung.name: one for one in tier}
        configs = {name: one.config for name, one in variants.items()}
        figures = self.figures([self.runs(configs, seeds, attacked=False)], seeds)
        means = figures.means()
        names = {variant: one.name for variant, one in variants.items()}
        best = means["accuracy"].groupby(means.index.map(names), sort=False).idxmax()
        cheap = affordable(figures, self.demand)
        kept = {str(name): variants[variant] for name, variant in best.items() if variant in cheap}
        rest = means.loc[[variant for variant in best if variant not in cheap]].assign(exposure=nan, group="")
        return kept, rest.rename(index=names)

    def judge(self, candidate: Candidate, alone: Config | None, *, give_up: bool = True) -> Protection:
        """The judgement of a candidate on as many judging seeds as decide; ``alone`` is the baseline, if there is one.

        ``give_up`` says whether a candidate that is hopeless has no further seeds; the answer of a search has them.

        The federation as it is is attacked on the same seeds, and is not trained again for its accuracy.
        """
        first = self.config.seed + self.demand.choosing
        seeds, judgement = range(first, first), None
        for number in self.demand.test_of(candidate.name).looks:
            seeds = range(first, first + number)
            plain = self.runs({UNPROTECTED.name: self.config}, seeds, attacked=True)
            attacked = self.runs({candidate.name: candidate.config}, seeds, attacked=True)
            self.judged = Figures(attacked, plain, self.groups, self.demand.view)
            judgement = judgement_of(replace(candidate.rung, name=candidate.name), self.judged, self.demand)
            if judgement.outcome != "not decided" or (give_up and judgement.hopeless):
                break
        assert judgement is not None
        if alone is None:
            return judgement
        without = self.runs({"shadow set alone": alone}, seeds, attacked=False)
        return replace(judgement, alone=float(without["accuracy.overall"].mean()))


def _check_directory(out: Path) -> None:
    """Raise `InputError` where ``out`` is something else than a search's directory."""
    require(not out.exists() or out.is_dir(), f"{out}: is not a directory; choose another --out")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    ours = BASE in names and names.isdisjoint(("summary.json", "sweep.toml"))
    require(not names or ours, f"{out}: exists already and holds no search; choose another --out")


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
