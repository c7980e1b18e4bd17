"""`shoal audit RUN --left CLIENT`: whether a client that left a finished run was forgotten."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.attacks import ReferenceScores
from shoal.audit import record_exposure
from shoal.core.atomic_files import write_text
from shoal.core.errors import file_errors, integer, path_of, require
from shoal.core.formats import one_line
from shoal.core.processes import Workers
from shoal.core.randomness import Stream
from shoal.metrics.intervals import Estimate, Floats
from shoal.metrics.run_auc import auc_over_runs
from shoal.replay.leaver_federations import LeaverRun
from shoal.replay.leaver_figures import SCORE, attacks_on_leaver, strongest_attack
from shoal.replay.reference_federations import FederationScores
from shoal.replay.reference_store import AuditWatch, reference_scores
from shoal.reports.audit.leaver_page import answers, leaver_page
from shoal.runs.audits.audit_files import make_directory
from shoal.runs.audits.audit_run import finished_run
from shoal.runs.audits.gate import Gate, parse_gates
from shoal.runs.directory import lock_folder, log_to_file
from shoal.simulation.baselines import difference, mean_accuracy
from shoal.simulation.play import move_to_engine

LEAST = 4
"""Federations of each kind, at least: two in each half, so that attacks on a half have an interval."""

_Flat = dict[str, Any]
"""Keys and values of audit.json."""
"""Keys and values of audit.json."""


@dataclass(frozen=True, eq=False)
class LeaverFiles:
    """An audit of a leaver that was written.

    Args:
        flat: the keys and values of audit.json.
        answer: the verdicts in sentences.
        page: the path of audit.html.
        gates: that were asked for.
    """

    flat: Mapping[str, Any]
    answer: Sequence[str]
    page: Path
    gates: Sequence[Gate] = ()
    __repr__ = one_line


def audit_leaver(
    run: str | Path,
    client: str | int,
    *,
    references: int = 16,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    watch: AuditWatch | None = None,
    gates: Sequence[str] = (),
    allow_code: bool = False,
) -> LeaverFiles:
    """Audit whether the finished run in ``run`` forgot a client: train federations with it and without it, and compare.

    Args:
        run: directory of a finished run of a configuration with events.
        client: name or number of a client that left.
        references: R, the federations of each kind: R that had the client until it left and R that never had it.
        out: where the audit's files are written; None: into ``run/left-NUMBER``, also the scores of federations, so
            that an interrupted audit resumes.
        data_dir, jobs, cluster, watch, gates, allow_code: as of `audit_run`.

    Raises:
        InputError: no finished run, a client that did not leave, or clients with models of their own.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 100}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 2}}
        >>> table |= {"red_team": {"every": 0, "attack": "gap"}, "events": [{"round": 2, "leave": [3]}]}
        >>> with TemporaryDirectory() as folder:
        ...     run = shoal.run(parse_config(table, "the example"), Path(folder, "run"))
        ...     audit = shoal.audit_leaver(run, 3, references=4)
        ...
        >>> audit.flat["leaver.method"], audit.flat["views.outsider.leaver.verdict"]
        ('continue', 'recognisable')
    """
    run, asked = path_of("run", run), parse_gates(gates)
    references = integer("references", references, "such as 16", 0)
    even = references >= LEAST and references % 2 == 0
    require(even, f"'references' with --left must be an even number of at least {LEAST}; got {references}")
    workers = Workers(integer("jobs", jobs, "such as 2", 1), cluster)
    config, simulation, progress = finished_run(run, data_dir, allow_code=allow_code)
    with config.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(simulation, engine)
        left = LeaverRun.from_run(simulation, progress, str(client), engine)
        folder = run / f"left-{simulation.federation.ids[left.leaver]}" if out is None else path_of("out", out)
        make_directory(folder)
        with lock_folder(folder), log_to_file(folder / "audit.log"):
            target = left.scores(engine)
            trained = reference_scores(
                left, target, 2 * references, engine,
                folder=folder / "references", watch=watch, workers=workers, rounds=False, spans=(),
            )  # fmt: skip
            figures = _figures(left, target, trained) | _pair(left.attacks_on_pair(engine)) | _others(left, engine)
    flat = {**_about(left, str(client), references, trained), **figures}
    sentences = answers(flat)
    means = [float(scores.score[: len(left.records)].mean()) for scores in (target, *trained)]
    page = leaver_page(flat, means, gates=[gate.judged(flat) for gate in asked], notes=left.notes)
    with file_errors(folder, "; choose another --out", action="written"):
        write_text(folder / "audit.json", json.dumps(flat, indent=2, allow_nan=False) + "\n")
        write_text(folder / "audit.html", page)
    return LeaverFiles(flat, sentences, folder / "audit.html", asked)


def _about(left: LeaverRun, client: str, references: int, trained: Sequence[FederationScores]) -> _Flat:
    departure = left.departure
    about: _Flat = {"leaver.client": client, "leaver.round": left.round, "leaver.records": len(left.records)}
    about["leaver.method"] = left.simulation.forgetting.name if departure is None else departure.method
    if departure is not None:
        costs = ("client_rounds", "full_client_rounds", "choices", "changed_choices")
        about |= {f"leaver.{name}": getattr(departure, name) for name in costs}
    spent = round(sum(scores.seconds for scores in trained), 3)
    return {**about, "references": references, "seconds.references": spent}


def _figures(left: LeaverRun, target: FederationScores, trained: Sequence[FederationScores]) -> _Flat:
    """The figures of federations that had the client against those that never had it."""
    count, figures = len(left.records), _Flat()
    final = np.stack([scores.score.numpy() for scores in trained])
    over_rounds = np.stack([scores.trajectory[0].numpy() for scores in trained])
    populations = np.stack([scores.population.numpy() for scores in trained], axis=1)
    for v, (view, scores) in enumerate({"outsider": final, "client": over_rounds}.items()):
        records, held_out = scores[:, :count], scores[:, count:]
        attacks = attacks_on_leaver(records, populations[v])
        figures |= _view(view, attacks, "" if view == "outsider" else f"-{view}")
        # Where forgetting overshoots, records are less probable than without the client.
        erased = attacks[SCORE].among(len(attacks)).high < 0.5
        if erased and figures[f"views.{view}.leaver.verdict"] != "recognisable":
            name = SCORE if view == "outsider" else f"{SCORE}-{view}"
            figures |= {f"views.{view}.leaver.verdict": "erased", f"views.{view}.leaver.attack": name}
            figures |= _ends(f"views.{view}.leaver.auc", attacks[SCORE].among(len(attacks)))
        whole = records.mean(axis=1, keepdims=True)
        figures |= _ends(f"client-membership.{view}.auc", auc_over_runs((whole[::2], whole[1::2])))
        figures |= _ends(f"control.{view}.held_out_auc", auc_over_runs((held_out[::2], held_out[1::2])))
    # The run itself among those that never had the client: an exact test of one run.
    run, never = float(target.score[:count].mean()), final[1::2, :count].mean(axis=1)
    figures["leaver.p"] = (1 + int((never >= run).sum())) / (1 + len(never))
    return figures | _worst(left, target.score[:count].numpy(), final[:, :count])


def _worst(left: LeaverRun, score: Floats, references: Floats) -> _Flat:
    """The most exposed record."""
    had = np.broadcast_to(np.arange(len(references)) % 2 == 0, references.T.shape)
    everyone, model = np.ones(len(score), dtype=bool), np.zeros(len(score), dtype=np.int64)
    matrix = ReferenceScores(score, everyone, references.T, had, model)
    exposure, low = record_exposure(matrix, Stream(left.simulation.seed)("audit")("leaver records"))
    if not np.isfinite(low).all():
        return {}
    worst, federation = int(np.argmax(low)), left.simulation.federation
    name_of = federation.origins.get("clients", "clients-{}".format)
    name = name_of(int(left.records.rows[worst]))
    return {"worst.record": name, "worst.exposure": float(exposure[worst]), "worst.exposure.low": float(low[worst])}


def _pair(attacks: Mapping[str, Estimate]) -> _Flat:
    return _view("pair", attacks, "") if attacks else {}


def _view(view: str, attacks: Mapping[str, Estimate], suffix: str) -> _Flat:
    """The figures of a view's attacks, and its verdict by the one that decides."""
    figures = _Flat()
    for name, estimate in attacks.items():
        figures |= _ends(f"attacks.{name}{suffix}.leaver.auc", estimate)
    name, decisive = strongest_attack(attacks)
    verdict = {"exposed": "recognisable", "at chance": "indistinguishable"}.get(decisive.verdict, "not decided")
    figures |= {f"views.{view}.leaver.attack": f"{name}{suffix}", f"views.{view}.leaver.verdict": verdict}
    return figures | _ends(f"views.{view}.leaver.auc", decisive)


def _others(left: LeaverRun, engine: Any) -> _Flat:  # noqa: ANN401
    """The accuracy of those who stay, before and after, the smallest group first."""
    before, after = left.others(engine)
    figures = _Flat()
    for group in sorted(before, key=lambda group: before[group].share):
        ends = difference({group: after[group]}, {group: before[group]})
        figures[f"others.{group}.accuracy.before"] = mean_accuracy({group: before[group]})
        figures[f"others.{group}.accuracy.after"] = mean_accuracy({group: after[group]})
        figures |= _ends(f"others.{group}.accuracy.difference", Estimate(*ends))
    return figures


def _ends(key: str, estimate: Estimate) -> _Flat:
    """A figure and the ends of its interval, where they are known."""
    named = {key: estimate.value, f"{key}.low": estimate.low, f"{key}.high": estimate.high}
    return {name: float(value) for name, value in named.items() if np.isfinite(value)}
