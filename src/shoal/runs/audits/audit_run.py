"""`shoal audit RUN`: a finished run by configuration, audited in its directory."""

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
)
from shoal.runs.audits.audit_members import audit_members
from shoal.runs.audits.gate import parse_gates
from shoal.runs.audits.trace import trace_of
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.directory import lock_folder, log_to_file
from shoal.runs.files import read_summary
from shoal.runs.result import report_of
from shoal.runs.run_description import rebuilt
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
    """Audit the finished run in ``run``: train reference federations, and attack its members with what they say.

    Each reference federation costs one training of the run, without evaluation and red team. Its scores are kept in
    ``run/references``, so an audit that was interrupted, or one with more of them, goes on where the last one ended.
    Where ``run`` cannot be written, as in an archive, they are kept in ``out/references``.

    Args:
        run: directory of a finished run of a configuration; see `shoal.Result.audit` for a simulation in Python.
        references: R, the number of reference federations; 0: none. With ``gates`` it is the most: two are added at a
            time until every gate is decided (`shoal.runs.audits.gate`).
        out: where the audit's files are written; None: into ``run``.
        data_dir: where to look for data first.
        duplicates: "leave-out": every record is left out of which a client, or the test, hold-out or shadow set, has a
            copy with the same inputs and label; None: as the configuration says.
        queries: copies in which each image is asked, at most 18 (2 flips x 9 shifts), and their scores averaged. Other
            numbers of them need reference federations of their own.
        site: whether it is also asked which client a held-out example comes from, by its model's outputs.
        jobs: reference federations that are trained at a time, each in a process of its own; results are the same.
        cluster: address of a Ray cluster that trains them, as of `shoal.sweeps.Workers`; None: this machine.
        watch: called before the first reference federation that is trained, and after each, with the numbers that are
            done and in all.
        gates: limits on the figures, such as ``"tpr_at_fpr_0.01 <= 0.05"``; the page says whether they hold.
        attacks: your own, on the scores of reference models or on clients' updates, beside all others and those of the
            run's configuration.
        allow_code: as of `shoal.load`.

    Raises:
        InputError: no finished run of a configuration, one with a property attack, one whose data or files have
            changed since, or a directory that cannot be written.

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
        # Its verdict is the audit's from now on.
        report_of(run, allow_code=allow_code)
    return files


def finished_run(run: Path, data_dir: Path | None, *, allow_code: bool) -> tuple[Config, Simulation, SimulationState]:
    """The configuration of the finished run in ``run``, its simulation, and this after the last round.

    Raises:
        InputError: no finished run, or one whose data or files have changed since.
    """
    config, simulation = rebuilt(run, data_dir, allow_code=allow_code)
    progress = load_checkpoint(run / "checkpoint")
    if progress is None or progress.state.round != config.algorithm.rounds:
        raise InputError(
            f"{run}: cannot be audited, since the checkpoint of its last round is gone; run it anew elsewhere"
        )
    return config, simulation, progress
