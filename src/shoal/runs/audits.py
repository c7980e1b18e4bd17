"""`shoal audit`: of a run, with reference federations trained for it; of a score file; or of clients' updates."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import ReferenceAttack, UpdateAttack
from shoal.audit.audit import Audit, audit_records
from shoal.audit.gate import gates_of
from shoal.audit.reference_records import AuditRecords
from shoal.audit.score_file import read_scores
from shoal.audit.update_audit import AllAttacks, all_attacks, audit_server, with_server, without_server
from shoal.config.build import load_data, resolve
from shoal.config.schema import SIMULATION, Config, read_config
from shoal.config.toml_files import read_toml
from shoal.core.errors import described, path_of, require, whole
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.data.content import fingerprint
from shoal.data.memory_format import to_pixels
from shoal.data.paired_records import Duplicates
from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun, FederationScores
from shoal.replay.reference_store import (
    AuditWatch,
    StoredScores,
    reference_scores,
    replayed_scores,
    warn_of_records,
)
from shoal.replay.run_records import records_of_run, trajectory_attack
from shoal.reports.run.description import RunDescription
from shoal.runs.audit_files import AboutAudited, AuditFiles, make_directory, write_audit
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.directory import locked, logged
from shoal.runs.files import read_summary
from shoal.runs.hashes import require_same_examples, require_unchanged
from shoal.runs.result import Result, report_of
from shoal.runs.trace import Trace, read_trace, trace_of, update_scores_of_trace
from shoal.simulation.simulation import Simulation, SimulationState, move_to_engine

Attack = ReferenceAttack | UpdateAttack
"""What a user's own attack on an audit may be."""

MOST_EXPOSED = 20
"""Records that the page shows as pictures."""


def audit_run(
    run: str | Path,
    *,
    references: int = 16,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    duplicates: Duplicates | None = None,
    watch: AuditWatch | None = None,
    gates: Sequence[str] = (),
    attacks: Sequence[Attack] = (),
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
        watch: called before the first reference federation that is trained, and after each.
        gates: limits on the figures, such as ``"tpr_at_fpr_0.01 <= 0.05"``; the page says whether they hold.
        attacks: your own, on the scores of reference models or on clients' updates, beside all others and those of the
            run's configuration.

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
        (2, 14, 14, 28)
    """
    run, references = path_of("run", run), whole("references", references, "such as 16", 0)
    out = run if out is None else path_of("out", out)
    limits = gates_of(gates)
    config, progress = _finished(run)
    home = run if os.access(run, os.W_OK) else out
    resolved = resolve(config, load_data(config.data, data_dir))
    simulation = _asked(resolved.simulation(), duplicates, attacks)
    require_same_examples(run, fingerprint(simulation.federation))
    del resolved  # and with it the data set, which the federation has copied
    stated = {key: value for key, value in read_summary(run).overall.items() if key in {"epsilon", "delta"}}
    title = f"Audit of {RunDescription.of(config).title}"
    model = simulation.setup.model
    make_directory(out)
    with locked(home), logged(home / "run.log"), config.engine.engine(model) as engine:
        attacked = AttackedRun.of(move_to_engine(simulation, engine), progress.state, progress.rows, engine)
        trained = _trained_again(attacked, references, engine, home / "references", watch)
        recorded = trace_of(run, simulation.federation, model) if simulation.record_updates else None
        spent = {"seconds.train": round(progress.seconds["train"], 3)}
        about = AboutAudited(title, stated, spent, gates=limits, run=run, rounds=config.algorithm.rounds)
        files = _audited(attacked, trained, recorded, engine, out, about)
    if out.resolve() == run.resolve() and (run / "report.html").exists():
        # Its verdict is the audit's from now on.
        report_of(run)
    return files


def audit_result(
    result: Result,
    out: str | Path,
    *,
    references: int = 16,
    duplicates: Duplicates | None = None,
    watch: AuditWatch | None = None,
    attacks: Sequence[Attack] = (),
) -> AuditFiles:
    """See `shoal.Result.audit`."""
    simulation, state = result.simulation, result.state
    references = whole("references", references, "such as 16", 0)
    require(watch is None or callable(watch), f"'watch' must be a function; got {described(watch)}")
    require(
        simulation is not None,
        "the result was read from a directory or unpickled, and neither has the examples of every run; give the "
        "directory of a configuration's run to shoal.audit_run",
    )
    assert simulation is not None
    assert state is not None
    assert result.engine is not None
    out = path_of("out", out)
    simulation = _asked(simulation, duplicates, attacks)
    stated = {key: value for key, value in result.summary.overall.items() if key in {"epsilon", "delta"}}
    about = AboutAudited(f"Audit of {result.description.title}", stated)
    rows = [{str(name): value for name, value in row.items()} for row in result.rounds.to_dict("records")]
    with result.engine.reopened() as engine:
        attacked = AttackedRun.of(move_to_engine(simulation, engine), state, rows, engine)
        trained = _trained_again(attacked, references, engine, out / "references", watch)
        return _audited(attacked, trained, None, engine, out, about)


def _asked(simulation: Simulation, duplicates: Duplicates | None, attacks: Sequence[Attack]) -> Simulation:
    copies = simulation.duplicates if duplicates is None else duplicates
    return replace(simulation, duplicates=copies, attacks=(*simulation.attacks, *attacks))


@dataclass(frozen=True, eq=False)
class _Trained:
    """The scores of the attacked run, of the reference federations, and of the run repeated, if it was."""

    target: FederationScores
    references: Sequence[StoredScores]
    replayed: FederationScores | None
    __repr__ = one_line


def _trained_again(
    attacked: AttackedRun, references: int, engine: Engine, folder: Path, watch: AuditWatch | None
) -> _Trained:
    """Train what an audit with so many reference federations needs; ``folder`` keeps it."""
    warn_of_records(attacked)
    require(
        len(attacked.records) >= 2,
        "an attack is measured on at least two members; of the examples that could be exchanged only "
        f"{len(attacked.records)} was trained on lately",
    )
    target = attacked.scores(engine)
    found = reference_scores(attacked, target, references, engine, folder=folder, watch=watch)
    return _Trained(target, found, replayed_scores(attacked, target, engine, folder=folder) if references else None)


def _audited(
    attacked: AttackedRun,
    trained: _Trained,
    recorded: Trace | None,
    engine: Engine,
    out: Path,
    about: AboutAudited,
) -> AuditFiles:
    """Attack the members with what the references say, and with recorded updates, and write the files."""
    found = [each.scores for each in trained.references]
    records = records_of_run(attacked, trained.target, found, engine)
    over_rounds = None if trained.replayed is None else trajectory_attack(trained.replayed, found)
    if over_rounds is None:
        records = replace(records, omitted={**records.omitted, "trajectory": _without_trajectory(trained)})
    else:
        records = replace(records, further={**records.further, "trajectory": over_rounds})
    attacks = all_attacks(attacked.simulation.attacks)
    audit = audit_records(records, attacked.stream("thresholds"), attacks=attacks[0])
    audit = without_server(audit) if recorded is None else with_server(audit, _audited_trace(recorded, engine, attacks))
    spent = {"seconds.references": round(sum(each.seconds for each in trained.references), 3)}
    about = replace(
        about,
        seconds={**about.seconds, **spent},
        pictures=_pictures(attacked, audit, records),
        kind=attacked.simulation.federation.kind,
    )
    return write_audit(out, audit, about, records)


def _without_trajectory(trained: _Trained) -> str:
    """Why the trajectory attack was not computed."""
    if not trained.references:
        return "needs 1 reference models; there are 0"
    if trained.replayed is None:
        return "needs the models of every round, and the run cannot be repeated bit for bit here"
    if trained.target.personal:
        return "clients use models of their own"
    return "needs the same number of models in every round"


def audit_scores(
    path: str | Path, *, out: str | Path | None = None, gates: Sequence[str] = (), attacks: Sequence[Attack] = ()
) -> AuditFiles:
    """Audit the records of a score file, of any framework.

    Args:
        path: see `shoal.audit.score_file`.
        out: where the audit's files are written; None: beside ``path``.
        gates, attacks: as of `audit_run`.

    Raises:
        InputError: the file cannot be used, or the directory cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import pandas as pd
        >>> import shoal
        >>> table = pd.DataFrame({"record": range(40), "client": "a", "group": "all", "member": [1, 0] * 20})
        >>> table["score"] = 2.0 * table["member"]
        >>> with TemporaryDirectory() as folder:
        ...     table.to_csv(Path(folder, "scores.csv"), index=False)
        ...     found = shoal.audit_scores(f"{folder}/scores.csv")
        ...
        >>> found.flat["attacks.loss.all.auc"]
        1.0
    """
    path = path_of("path", path)
    limits = gates_of(gates)
    folder = path.parent if out is None else path_of("out", out)
    audit = audit_records(read_scores(path), Stream(0)("thresholds"), attacks=all_attacks(attacks)[0])
    return write_audit(folder, audit, AboutAudited(path.name, gates=limits))


def audit_trace(
    trace: str | Path,
    *,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    gates: Sequence[str] = (),
    attacks: Sequence[Attack] = (),
) -> AuditFiles:
    """Audit clients' updates that a server recorded, of a run or of any framework.

    Args:
        trace: see `shoal.runs.trace.read_trace` and docs/trace.md.
        out: where the audit's files are written; None: into ``trace``.
        data_dir: where to look for a run's data first.
        gates, attacks: as of `audit_run`.

    Raises:
        InputError: the trace cannot be used, or the directory cannot be written.

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
        ...     found = shoal.audit_trace(out)
        ...
        >>> found.flat["attacks.grad-cosine.all.auc"] > 0.7
        True
    """
    trace = path_of("trace", trace)
    limits = gates_of(gates)
    folder = trace if out is None else path_of("out", out)
    given = read_trace(trace, data_dir)
    with Engine(given.model) as engine:
        audit = _audited_trace(given, engine, all_attacks(attacks))
    return write_audit(folder, audit, AboutAudited(trace.name, gates=limits, run=trace))


def _audited_trace(trace: Trace, engine: Engine, attacks: AllAttacks) -> Audit:
    """What the server finds in recorded updates; they are read twice, so that few are in memory."""
    scores = update_scores_of_trace(trace, engine)
    return audit_server(scores, trace.rounds(), trace.preferences, attacks=attacks[1])


def _finished(run: Path) -> tuple[Config, SimulationState]:
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
    config, progress = read_config(run / "config.toml"), load_checkpoint(run / "checkpoint")
    require(
        progress is not None and progress.state.round == config.algorithm.rounds,
        f"{run}: cannot be audited, since the checkpoint of its last round is gone; run it anew in another directory",
    )
    assert progress is not None
    return config, progress


def _pictures(attacked: AttackedRun, audit: Audit, records: AuditRecords) -> dict[str, NDArray[np.uint8]]:
    """Images of the most exposed records, by name; none where the data are no images."""
    x = attacked.records.federation.clients.x
    if x.dim() != 4:
        return {}
    shown = audit.records["record"].head(MOST_EXPOSED).tolist()
    place = {name: i for i, name in enumerate(records.record.tolist())}
    rows = attacked.records.rows[[place[name] for name in shown]]
    return dict(zip(shown, to_pixels(x[rows.to(x.device)]), strict=True))
