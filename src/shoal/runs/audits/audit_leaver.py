"""The command `shoal audit RUN --left CLIENT`, an audit of whether a run forgot a client that left."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.attacks import ReferenceScores
from shoal.audit import RecordTable, measure, record_exposure
from shoal.core.atomic_files import write_text
from shoal.core.errors import file_errors, integer, path_of, require
from shoal.core.formats import csv_text, one_line
from shoal.core.processes import Workers
from shoal.core.randomness import Stream
from shoal.data.swap_pairs import OTHER_CLIENTS
from shoal.engine import Engine
from shoal.metrics.intervals import Estimate, Floats, mean_interval
from shoal.metrics.run_auc import auc_over_runs
from shoal.replay.leaver_federations import LeaverRun
from shoal.replay.leaver_figures import (
    attacks_on_leaver,
    client_accuracies,
    exposures_of_others,
    strongest_attack,
)
from shoal.replay.reference_federations import FederationScores
from shoal.replay.reference_store import AuditWatch, reference_scores
from shoal.runs.audits.audit_files import make_directory
from shoal.runs.audits.audit_run import finished_run
from shoal.runs.audits.gate import Gate, parse_gates
from shoal.runs.directory import lock_folder, log_to_file
from shoal.simulation.baselines import difference, group_values, mean_accuracy
from shoal.simulation.play import move_to_engine

LEAST = 8
"""The smallest number of federations with the client, and of those without. With 4, one audit in ten falsely says
"recognisable" if the scores of the client's records rise and fall together (tests/metrics/test_run_auc.py)."""

WHEN = ("before", "after")
"""The times of measurement: before and after the client left."""

OTHER_COLUMNS = ("client", "group", "accuracy_before", "accuracy_after", "exposure_before", "exposure_after")
"""The columns of others.csv."""


@dataclass(frozen=True, eq=False)
class LeaverFiles:
    """The audit of a client that left, and the paths of the audit's files.

    Args:
        answer: the verdicts in sentences.
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
    """Audit whether a run forgot a client that left.

    The audit compares reference federations with the client until its departure and federations without the client.

    Args:
        run: the directory of a finished run whose configuration has events.
        client: the name or number of a client that left.
        references: the number of reference federations with the client, an even number; the audit trains the same
            number without the client.
        out: the directory of the audit's files. ``None`` means ``run/left-CLIENT``. CLIENT is the client's number
            if the name cannot be part of a path. An interrupted audit in ``out`` resumes.
        data_dir, jobs, cluster, watch, gates, allow_code: see `audit_run`.

    Raises:
        InputError: the run is not finished, the client did not leave, or clients have personal models.

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
        ...     audit = shoal.audit_leaver(run, 3, references=8)
        ...
        >>> audit.flat["leaver.method"], audit.flat["views.outsider.leaver.verdict"]
        ('continue', 'recognisable')
    """
    # Here, so that what writes no page does not load matplotlib and jinja2.
    from shoal.reports.audit.leaver_page import headlines, leaver_page  # noqa: PLC0415

    run, asked = path_of("run", run), parse_gates(gates)
    references = integer("references", references, "such as 16", 0)
    even = references >= LEAST and references % 2 == 0
    require(even, f"'references' with --left must be an even number of at least {LEAST} (got {references})")
    config, simulation, progress = finished_run(run, data_dir, allow_code=allow_code)
    workers = Workers(integer("jobs", jobs, "such as 2", 1), cluster)
    with config.engine.engine(simulation.setup.model) as engine:
        left = LeaverRun.from_run(move_to_engine(simulation, engine), progress, str(client), engine)
        federation = left.simulation.federation
        name = federation.names[left.leaver] if federation.names else ""
        # A name that cannot be part of a path gives way to the number.
        name = name if re.fullmatch(r"\w[\w.-]*", name) else str(int(federation.ids[left.leaver]))
        folder = run / f"left-{name}" if out is None else path_of("out", out)
        make_directory(folder)
        with lock_folder(folder), log_to_file(folder / "run.log"):
            wanted: dict[str, Any] = {"rounds": False, "watch": watch, "workers": workers}
            target, at = left.scores(engine), folder / "references"
            trained = reference_scores(left, target, 2 * references, engine, folder=at, **wanted)
            records, figures = _against_never(left, target, trained)
            attacked, exchanged = left.others(engine), list[FederationScores]()
            if attacked is not None:
                # Of their own: other records of the others would hide what is left of the client.
                most, own = max(LEAST, references // 2), attacked.scores(engine)
                exchanged = reference_scores(attacked, own, most, engine, folder=at / "others", **wanted)
            exposures = None if attacked is None else exposures_of_others(attacked, exchanged)
            others, of_groups = _others(left, exposures, engine)
            figures |= _pair(left, engine) | of_groups
            by_cluster = getattr(simulation.forgetting, "by_cluster", None)
            if by_cluster is not None:
                figures["leaver.retrained"] = "clusters" if by_cluster(simulation.on(engine)) else "federation"
    flat = {"leaver.client": str(client), "leaver.round": left.round, "leaver.records": len(left.records)}
    flat |= {"leaver.method": simulation.forgetting.name, "references": references, **figures}
    flat["seconds.references"] = round(sum(scores.seconds for scores in (*trained, *exchanged)), 3)
    for name in ("client_rounds", "full_client_rounds", "choices", "changed_choices") if left.departure else ():
        flat[f"leaver.{name}"] = getattr(left.departure, name)
    federation = left.simulation.federation
    warnings = [OTHER_CLIENTS] if federation.own_inputs and left.records.within == "group" else []
    notes = [*(gate.verdict(flat)[0] for gate in asked), *(f"{note}." for note in warnings)]
    with file_errors(folder, "; choose another --out", action="written"):
        write_text(folder / "audit.json", json.dumps(flat, indent=2, allow_nan=False) + "\n")
        for name, table in (("records", records), ("others", others)):
            write_text(folder / f"{name}.csv", csv_text(table))
        write_text(folder / "audit.html", leaver_page(flat, notes))
    return LeaverFiles(flat, [found.text for found in headlines(flat)], folder / "audit.html", asked)


def _against_never(
    left: LeaverRun, target: FederationScores, trained: Sequence[FederationScores]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the table records.csv, and figures that compare federations with and without the client.

    An outsider attacks before and after the departure, another client only after the departure.
    """
    count, figures, views = len(left.records), dict[str, Any](), ["outsider", "client", "before"]
    scores = np.stack([[each.score.numpy(), *each.trajectory.numpy()] for each in trained], axis=1)
    populations = np.stack([each.population.numpy() for each in trained], axis=1)
    for view, of_view, population in zip(views[: 2 + (left.departure is not None)], scores, populations, strict=False):
        records, whole = of_view[:, :count], of_view[:, :count].mean(axis=1, keepdims=True)
        suffix = "" if view == "outsider" else f"-{view}"
        figures |= _view(view, {f"{k}{suffix}": v for k, v in attacks_on_leaver(records, population).items()})
        figures |= _ends(f"client-membership.{view}.auc", auc_over_runs((whole[::2], whole[1::2])))
        held_out = of_view[::2, count:], of_view[1::2, count:]
        figures |= _ends(f"control.{view}.held_out_auc", auc_over_runs(held_out))
    # The run itself among federations that never had the client: an exact test.
    score, final = target.score[:count].numpy(), scores[0, :, :count]
    never = final[1::2].mean(axis=1)
    figures["leaver.p"] = (1 + int((never >= score.mean()).sum())) / (1 + len(never))
    had = np.broadcast_to(np.arange(len(final)) % 2 == 0, final.T.shape)
    matrix = ReferenceScores(score, np.ones(count, dtype=bool), final.T, had, np.zeros(count, dtype=np.int64))
    exposure, low = record_exposure(matrix, Stream(left.simulation.seed)("audit", "leaver records"))
    name_of = left.simulation.federation.origins.get("clients", "clients-{}".format)
    table = pd.DataFrame({"record": [name_of(row) for row in left.records.rows[:count].tolist()]})
    outsider = [auc_over_runs((record[::2, None], record[1::2, None])).value for record in final.T]
    table = table.assign(exposure=exposure, exposure_low=low, outsider=outsider)
    if np.isfinite(low).all():
        worst = int(np.argmax(low))
        figures |= {"worst.record": table["record"].tolist()[worst], "worst.exposure": float(exposure[worst])}
        figures["worst.exposure.low"] = float(low[worst])
    return table, figures


def _pair(left: LeaverRun, engine: Engine) -> dict[str, Any]:
    """Return the figures of an attacker who kept the earlier models, for members paired with held-out examples."""
    pair, member = np.tile(np.arange(len(left.records)), 2), np.arange(2 * len(left.records)) < len(left.records)
    columns = left.pair_scores(engine).items()
    found = {name: measure(RecordTable.from_columns(score, member, pair=pair)) for name, score in columns}
    return _view("pair", {k: Estimate(v.auc, v.auc_low, v.auc_high) for k, v in found.items()}) if found else {}


def _view(view: str, attacks: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the figures of a view's attacks, and the verdict of the strongest attack."""
    figures, key = dict[str, Any](), f"views.{view}.leaver"
    for name, estimate in attacks.items():
        figures |= _ends(f"attacks.{name}.leaver.auc", estimate)
    name, decisive = strongest_attack(attacks)
    verdict = {"exposed": "recognisable", "at chance": "indistinguishable"}.get(decisive.verdict, "not decided")
    return figures | {f"{key}.attack": name, f"{key}.verdict": verdict} | _ends(f"{key}.auc", decisive)


def _others(
    left: LeaverRun, exposures: tuple[Floats, Floats] | None, engine: Engine
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the table others.csv with one row per remaining client, and figures by group, smallest group first.
    ``exposures`` (N,) come from `exposures_of_others`.
    """
    training, deployed = left.deployed_models(engine)
    federation, names = training.federation, training.federation.names or training.federation.ids.tolist()
    table = pd.DataFrame({"client": names, "group": [federation.groups[g] for g in federation.group.tolist()]})
    values, figures = [group_values(each, federation, engine) for each in deployed], dict[str, Any]()
    unknown = np.full(len(left.simulation.federation), np.nan)
    for when, each, exposure in zip(WHEN, deployed, exposures or (unknown, unknown), strict=False):
        table[f"accuracy_{when}"] = client_accuracies(each, federation, engine)
        table[f"exposure_{when}"] = exposure[left.staying.numpy()]
    table = table.reindex(columns=OTHER_COLUMNS)
    for group in sorted(values[0], key=lambda group: values[0][group].share) if values else ():
        then, now = ({group: value[group]} for value in values)
        figures |= {f"others.{group}.accuracy.before": mean_accuracy(then)}
        figures |= {f"others.{group}.accuracy.after": mean_accuracy(now)}
        figures |= _ends(f"others.{group}.accuracy.difference", Estimate(*difference(now, then)))
        both = table.loc[table["group"] == group, ["exposure_before", "exposure_after"]].dropna().to_numpy(float)
        if len(both):
            mean, change = both.mean(axis=0), np.diff(both, axis=1)[:, 0]
            figures |= {f"others.{group}.exposure.{when}": float(mean[i]) for i, when in enumerate(WHEN)}
            estimate = Estimate(float(change.mean()), *mean_interval(change))
            figures |= _ends(f"others.{group}.exposure.difference", estimate)
    return table, figures


def _ends(key: str, estimate: Estimate) -> dict[str, float]:
    """Return a figure and the ends of its interval, if finite."""
    named = zip((key, f"{key}.low", f"{key}.high"), estimate, strict=True)
    return {name: float(value) for name, value in named if np.isfinite(value)}
