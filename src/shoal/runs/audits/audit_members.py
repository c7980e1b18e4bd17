"""Audits of a simulation, of a score file and of a trace."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import UpdateAttack
from shoal.audit.attacked_records import AuditRecords
from shoal.audit.audit import Audit, audit_records
from shoal.audit.update_audit import WITHOUT_ROUNDS, ScoredUpdates, all_attacks, audit_server, with_server
from shoal.core.errors import path_of, require
from shoal.core.processes import Workers, Workplace
from shoal.core.randomness import Stream
from shoal.data.shards import to_pixels
from shoal.data.swap_pairs import OTHER_CLIENTS
from shoal.engine import Engine
from shoal.replay.attack_inputs import join_scores, records_of_run, site_figures
from shoal.replay.reference_federations import AttackedRun
from shoal.replay.reference_store import AuditWatch, reference_scores, view_scores, warn_of_records
from shoal.replay.span_scores import spans_to_repeat
from shoal.replay.trace_attacks import attacks_on_rounds
from shoal.runs.audits.audit_files import AboutAudited, Attack, AuditFiles, AuditRequest, read_scores, write_audit
from shoal.runs.audits.gate import CONFIDENCE, MAX_REFERENCES, looks, parse_gates, require_measurable
from shoal.runs.audits.trace import Trace, read_trace, update_scores_of_trace
from shoal.simulation.distillation import apply_release
from shoal.simulation.final_warnings import warn_of_small_clusters
from shoal.simulation.play import SimulationState, move_to_engine
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger(__name__)

UPDATES_NOTE = (
    "attacks on recorded updates compare members with test examples from any client; if clients have different kinds "
    "of inputs, the figures of these attacks are too high, and only an exact attack calls a record exposed"
)
"""The warning for clients with different kinds of inputs."""

PICTURES = 20
"""The largest number of records with a picture on the page."""


def audit_members(
    simulation: Simulation,
    progress: SimulationState,
    engine: Engine,
    request: AuditRequest,
    place: Workplace[AuditWatch],
    about: AboutAudited,
    *,
    home: Path | None = None,
    recorded: Trace | None = None,
) -> AuditFiles:
    """Train reference federations, attack a simulation's members, and write the audit's files.

    Args:
        progress: the simulation's state after the last round.
        place: the directory of the audit's files, and the workers that train reference federations.
        home: the parent directory of ``references``, the folder that stores the reference federations' scores. ``None``
            means ``place.out``.
        recorded: the trace of clients' updates that the server attacks, or ``None`` if no updates were recorded.
    """
    copies, queries = request.duplicates or simulation.duplicates, request.queries
    simulation = replace(simulation, duplicates=copies, attacks=(*simulation.attacks, *request.attacks))
    simulation = move_to_engine(simulation, engine)
    state = apply_release(simulation.release, simulation.on(engine), progress.state)
    attacked = AttackedRun.from_run(simulation, state, progress.rows, engine, queries=queries)
    warn_of_records(attacked)
    clustered = (simulation.federation, attacked.deployed.assignment, simulation.min_clients)
    warnings = [*warn_of_small_clusters(*clustered)] if len(state.models) > 1 else []
    require(
        len(attacked.records) >= 2,
        f"an attack needs at least two members (got {len(attacked.records)}); use more clients that hold out "
        "examples and train in the last rounds",
    )
    copied = attacked.records.members_with_copies() if copies == "keep" else 0
    if copied:
        warnings.append(
            f"{copied:,} of the {len(attacked.records):,} attacked members have copies in the data, which hide "
            'exposure; --leave-out-duplicates (in Python: duplicates="leave-out") excludes these members'
        )
        LOG.warning("%s", warnings[-1])
    group = attacked.records.group[: len(attacked.records)]
    names = simulation.federation.groups
    require_measurable(request.gates, {names[g]: int((group == g).sum()) for g in group.unique().tolist()})
    target, folder = attacked.scores(engine), (home or place.out) / "references"
    folder = folder if queries == 1 else folder / f"queries-{queries}"
    sites = site_figures(attacked, engine) if request.site else {}
    spans, most = attacked.spans(engine), request.references
    on_scores, on_updates = all_attacks(simulation.attacks)
    alone = records_of_run(attacked, target, [], engine)

    @cache
    def of_trace(spans: bool) -> Audit:
        assert recorded is not None
        return _audit_updates(recorded, engine, on_updates, spans=spans)

    outer = place.watch
    watch = None if outer is None else lambda done, _: outer(done, most)
    options = {"folder": folder, "watch": watch, "workers": place.workers, "spans": spans_to_repeat(spans, most)}

    def attack(count: int) -> tuple[AuditRecords, Audit, float]:
        """Return the records, the audit with ``count`` reference federations, and the training time in seconds."""
        references = reference_scores(attacked, target, count, engine, **options)
        by_view, omitted = view_scores(attacked, target, references, engine, folder=folder, spans=spans)
        records = replace(
            alone,
            scores=join_scores(target, references, attacked.records.client),
            further={**alone.further, **by_view},
            omitted={**alone.omitted, **omitted},
            notes=(*alone.notes, *spans.notes),
        )
        audit = audit_records(records, attacked.stream("thresholds"), attacks=on_scores)
        audit = audit.mark_other_clients(OTHER_CLIENTS) if OTHER_CLIENTS in attacked.notes else audit
        seconds = round(sum(scores.seconds for scores in references), 3)
        if recorded is None:
            return records, replace(audit, omitted={**audit.omitted, **WITHOUT_ROUNDS}), seconds
        # Where the run can be repeated, its own records have the span attacks already.
        return records, with_server(audit, of_trace(not by_view)), seconds

    if request.gates:
        records, audit, seconds = _attack_until_decided(attack, request, place.workers)
    else:
        records, audit, seconds = attack(most)
    audit = replace(audit, guesses={**audit.guesses, **sites})
    about = replace(
        about,
        seconds={**about.seconds, "seconds.references": seconds},
        pictures=_pictures(attacked, audit, records),
        kind=simulation.federation.kind,
        warnings=warnings,
    )
    return write_audit(place.out, audit, about, request, records)


def audit_scores(
    path: str | Path, *, out: str | Path | None = None, gates: Sequence[str] = (), attacks: Sequence[Attack] = ()
) -> AuditFiles:
    """Audit the records of a score file from any framework.

    Args:
        path: the score file; docs/files.md lists its columns.
        out: the directory of the audit's files. ``None`` means the folder of ``path``.
        gates, attacks: see `audit_run`.

    Raises:
        InputError: the file is missing or damaged, or the directory cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import pandas as pd
        >>> import shoal
        >>> table = pd.DataFrame({"record": range(40), "client": "a", "group": "all", "member": [1, 0] * 20})
        >>> table["score"] = 2.0 * table["member"]
        >>> with TemporaryDirectory() as folder:
        ...     table.to_csv(Path(folder, "scores.csv"), index=False)
        ...     files = shoal.audit_scores(f"{folder}/scores.csv")
        ...
        >>> files.flat["attacks.loss.all.auc"]
        1.0
    """
    path, request = path_of("path", path), AuditRequest(parse_gates(gates), attacks)
    folder = path.parent if out is None else path_of("out", out)
    audit = audit_records(read_scores(path), Stream(0)("thresholds"), attacks=all_attacks(attacks)[0])
    return write_audit(folder, audit, AboutAudited(path.name), request)


def audit_trace(
    trace: str | Path | Trace,
    *,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    gates: Sequence[str] = (),
    attacks: Sequence[Attack] = (),
    allow_code: bool = False,
) -> AuditFiles:
    """Audit recorded client updates of a run or of any framework.

    Args:
        trace: a trace or its directory; see `shoal.runs.audits.trace.read_trace` and docs/trace.md.
        out: the directory of the audit's files. ``None`` means the directory of the trace.
        data_dir: the folder that is searched first for a run's data.
        gates, attacks: see `audit_run`.
        allow_code: see `shoal.load`.

    Raises:
        InputError: the trace is missing or damaged, or the directory cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 200}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}
        >>> table["red_team"], table["record"] = {"every": 0, "attack": "gap"}, {"updates": 1}
        >>> table["local"] = {"epochs": 100, "learning_rate": 0.3}
        >>> with TemporaryDirectory() as folder:
        ...     out = shoal.run(parse_config(table, "the example"), Path(folder, "run"))
        ...     files = shoal.audit_trace(out)
        ...
        >>> files.flat["attacks.grad-cosine.all.auc"] > 0.7
        True
    """
    request = AuditRequest(parse_gates(gates), attacks)
    home = trace.files[0].parent if isinstance(trace, Trace) else path_of("trace", trace)
    folder = home if out is None else path_of("out", out)
    recorded = trace if isinstance(trace, Trace) else read_trace(home, data_dir, allow_code=allow_code)
    with Engine(recorded.model) as engine:
        audit = _audit_updates(recorded, engine, all_attacks(attacks)[1])
    return write_audit(folder, audit, AboutAudited(home.name, run=home), request)


def _audit_updates(trace: Trace, engine: Engine, attacks: Sequence[UpdateAttack], *, spans: bool = True) -> Audit:
    """Audit recorded updates in the server's view, with only one round in memory."""
    scores = update_scores_of_trace(trace, engine)
    exact, omitted = list[ScoredUpdates](), dict[str, str]()
    if spans:
        known = trace.knowledge(engine)
        exact, omitted = attacks_on_rounds(trace.rounds(), trace.records, scores.clients, engine, known)
    audit = audit_server(scores, trace.preferences, attacks=[*exact, *attacks])
    audit = replace(audit, omitted={**audit.omitted, **omitted})
    different = trace.simulation is not None and trace.simulation.federation.own_inputs
    return audit.mark_other_clients(UPDATES_NOTE) if different else audit


def _attack_until_decided(
    attack: Callable[[int], tuple[AuditRecords, Audit, float]], request: AuditRequest, workers: Workers
) -> tuple[AuditRecords, Audit, float]:
    """Attack with more reference federations until all gates are decided or the maximum is reached."""
    most, jobs = request.references, workers.jobs
    for count, confidence in looks(most, max(2, jobs + jobs % 2)):
        records, audit, seconds = attack(count)
        audit = replace(audit, guesses={**audit.guesses, CONFIDENCE: confidence, MAX_REFERENCES: most})
        figures = audit.flat()
        if count == most or all(gate.decision(figures) is not None for gate in request.gates):
            return records, audit, seconds
    raise AssertionError("the last test uses all reference federations")


def _pictures(attacked: AttackedRun, audit: Audit, records: AuditRecords) -> dict[str, NDArray[np.uint8]]:
    """Return the images of the most exposed records by name; empty if the data are not images."""
    x = attacked.records.federation.clients.x
    if x.dim() != 4:
        return {}
    names = audit.records["record"].head(PICTURES).tolist()
    index = {name: i for i, name in enumerate(records.record.tolist())}
    rows = attacked.records.rows[[index[name] for name in names]]
    return dict(zip(names, to_pixels(x[rows.to(x.device)]), strict=True))
