"""The audit of a finished run in its directory, `shoal audit RUN`."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.config.schema import Config
from shoal.core.errors import InputError, integer, path_of
from shoal.core.processes import Workers, Workplace
from shoal.data.swap_pairs import Duplicates
from shoal.replay.reference_store import AuditWatch
from shoal.reports.run.description import RunDescription
from shoal.runs.audits.audit_files import (
    AboutAudited,
    Attack,
    AuditFiles,
    AuditRequest,
    make_directory,
    stated_guarantee,
)  # fmt: skip
from shoal.runs.audits.audit_members import audit_members
from shoal.runs.audits.gate import parse_gates
from shoal.runs.audits.trace import trace_of
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.directory import lock_folder, log_to_file
from shoal.runs.files import read_summary
from shoal.runs.result import report_of
from shoal.runs.run_description import rebuild_simulation
from shoal.simulation.play import SimulationState
from shoal.simulation.simulation import Simulation


def audit_run(
    run: str | Path,
    *,
    references: int = 16,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    duplicates: Duplicates | None = None,
    queries: int = 1,
    site: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    watch: AuditWatch | None = None,
    gates: Sequence[str] = (),
    attacks: Sequence[Attack] = (),
    allow_code: bool = False,
) -> AuditFiles:
    """Train reference federations of a finished run, and attack the run's members with the federations' scores.

    Each reference federation takes about as long as the run itself, without evaluation and red team. An interrupted
    audit resumes, because the scores are stored in ``run/references``, or in ``out/references`` if ``run`` is
    read-only.

    Args:
        run: the directory of a finished run of a configuration. For a simulation in Python, use `shoal.Result.audit`.
        references: the number of reference federations, 0 for none. With ``gates``, ``references`` is a maximum, and
            federations are added in pairs until every gate is decided.
        out: the directory of the audit's files. ``None`` means ``run``.
        data_dir: the folder that is searched first for the run's data.
        duplicates: "leave-out" excludes every record with a copy (same inputs and label) at a different client or in
            the test, hold-out or shadow set. ``None`` uses the run's setting.
        queries: the number of flipped and shifted copies per image, at most 18 (2 flips x 9 shifts). Attacks average
            the copies' scores. A different number of copies needs new reference federations.
        site: whether to infer from the models' outputs which client a held-out example belongs to.
        jobs: the number of processes that train reference federations; the results do not depend on the number.
        cluster: the address of a Ray cluster that trains reference federations; see `shoal.sweeps.Workers`. ``None``
            trains on this machine.
        watch: a function of two counts: finished federations and all federations. The audit calls the function before
            the first reference federation and after each federation.
        gates: the limits on the audit's figures, such as ``"tpr_at_fpr_0.01 <= 0.05"``.
        attacks: your own attacks on reference scores or on client updates, run in addition to the shipped and
            configured attacks.
        allow_code: see `shoal.load`.

    Raises:
        InputError: the run is not a finished run of a configuration, has a property attack, or has changed data or
            files; or the directory cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}
        >>> table["red_team"] = {"every": 0, "attack": "gap"}
        >>> with TemporaryDirectory() as folder:
        ...     out = shoal.run(parse_config(table, "the example"), Path(folder, "run"))
        ...     audit = shoal.audit_run(out, references=2).audit
        ...
        >>> audit.references, audit.members, audit.non_members, len(audit.attacks)
        (2, 14, 14, 40)
    """
    run, references = path_of("run", run), integer("references", references, "such as 16", 0)
    out = run if out is None else path_of("out", out)
    request = AuditRequest(parse_gates(gates), attacks, references, duplicates, queries, site)
    place = Workplace(out, Workers(integer("jobs", jobs, "such as 2", 1), cluster), data_dir, watch)
    stated, home = stated_guarantee(read_summary(run).overall), run if os.access(run, os.W_OK) else out
    config, simulation, progress = finished_run(run, data_dir, allow_code=allow_code)
    rounds, model = config.algorithm.rounds, simulation.setup.model
    title = f"Audit of {RunDescription.of(config).title}"
    make_directory(out)
    with lock_folder(home), log_to_file(home / "run.log"), config.engine.engine(model) as engine:
        recorded = None
        if simulation.record_updates:
            recorded = replace(trace_of(run, simulation.federation, model), simulation=simulation)
        spent = {"seconds.train": round(progress.seconds["train"], 3)}
        about = AboutAudited(title, stated, spent, run=run, rounds=rounds)
        files = audit_members(simulation, progress, engine, request, place, about, home=home, recorded=recorded)
    if out.resolve() == run.resolve() and (run / "report.html").exists():
        # The run's page shows the verdict of its audit.
        report_of(run, allow_code=allow_code)
    return files


def finished_run(run: Path, data_dir: Path | None, *, allow_code: bool) -> tuple[Config, Simulation, SimulationState]:
    """Return the configuration of a finished run, its simulation, and its state after the last round.

    Raises:
        InputError: the run is not finished, or its data or files have changed.
    """
    config, simulation = rebuild_simulation(run, data_dir, allow_code=allow_code)
    progress = load_checkpoint(run / "checkpoint")
    if progress is None or progress.state.round != config.algorithm.rounds:
        raise InputError(f"{run}: has no checkpoint of the last round; repeat the run in another directory")
    return config, simulation, progress
