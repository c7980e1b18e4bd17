"""`shoal audit RUN`: a finished run by configuration, audited in its directory."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.audit.audit import parse_gates
from shoal.config.build import load_data, resolve
from shoal.config.schema import SIMULATION, Config, read_config
from shoal.config.toml_files import read_toml
from shoal.core.errors import integer, path_of, require
from shoal.core.processes import Workers
from shoal.data.content import fingerprint
from shoal.data.paired_records import Duplicates
from shoal.replay.reference_store import AuditWatch
from shoal.reports.run.description import RunDescription
from shoal.runs.audits.audit_files import AboutAudited, AuditFiles, make_directory, stated_guarantee
from shoal.runs.audits.audit_members import Attack, audit_members
from shoal.runs.audits.trace import trace_of
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.directory import locked, logged
from shoal.runs.files import read_summary
from shoal.runs.hashes import require_same_examples, require_unchanged
from shoal.runs.result import report_of
from shoal.simulation.play import SimulationState
from shoal.simulation.simulation import with_features


def audit_run(
    run: str | Path,
    *,
    references: int = 16,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    duplicates: Duplicates | None = None,
    queries: int = 1,
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
        references: R, the number of reference federations; 0: none.
        out: where the audit's files are written; None: into ``run``.
        data_dir: where to look for data first.
        duplicates: as of `shoal.Result.audit`.
        queries: copies in which each image is asked, at most 18 (2 flips x 9 shifts), and their scores averaged. Other
            numbers of them need reference federations of their own.
        jobs: reference federations that are trained at a time, each in a process of its own; results are the same.
        cluster: address of a Ray cluster that trains them, as of `shoal.sweeps.Workers`; None: this machine.
        watch: called before the first reference federation that is trained, and after each.
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
    limits, workers = parse_gates(gates), Workers(integer("jobs", jobs, "such as 2", 1), cluster)
    config, progress = _finished(run, allow_code=allow_code)
    home = run if os.access(run, os.W_OK) else out
    resolved = resolve(config, load_data(config.data, data_dir))
    simulation = resolved.simulation()
    require_same_examples(run, fingerprint(simulation.federation))
    simulation = with_features(simulation, config.engine.threads)
    del resolved  # and with it the data set, which the federation has copied
    stated = stated_guarantee(read_summary(run).overall)
    title = f"Audit of {RunDescription.of(config).title}"
    model = simulation.setup.model
    make_directory(out)
    with locked(home), logged(home / "run.log"), config.engine.engine(model) as engine:
        recorded = None
        if simulation.record_updates:
            recorded = replace(trace_of(run, simulation.federation, model), simulation=simulation)
        spent = {"seconds.train": round(progress.seconds["train"], 3)}
        about = AboutAudited(title, stated, spent, gates=limits, run=run, rounds=config.algorithm.rounds)
        files = audit_members(
            simulation,
            progress,
            engine,
            out,
            about,
            references=references,
            duplicates=duplicates,
            queries=queries,
            home=home,
            watch=watch,
            workers=workers,
            recorded=recorded,
            attacks=attacks,
        )
    if out.resolve() == run.resolve() and (run / "report.html").exists():
        # Its verdict is the audit's from now on.
        report_of(run, allow_code=allow_code)
    return files


def _finished(run: Path, *, allow_code: bool) -> tuple[Config, SimulationState]:
    """The configuration and the last checkpoint of a finished run.

    Raises:
        InputError: there is none.
    """
    read_summary(run)
    require(
        SIMULATION not in read_toml(run / "config.toml"),
        f"{run}: was made from Python, and no file has its examples; audit it there, with Result.audit",
    )
    require_unchanged(run)
    config, progress = read_config(run / "config.toml", allow_code=allow_code), load_checkpoint(run / "checkpoint")
    require(
        progress is not None and progress.state.round == config.algorithm.rounds,
        f"{run}: cannot be audited, since the checkpoint of its last round is gone; run it anew in another directory",
    )
    assert progress is not None
    return config, progress
