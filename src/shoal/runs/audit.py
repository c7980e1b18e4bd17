"""`shoal audit`: of a run directory, with reference federations trained for it, or of a score file.

audit.json   the figures, under flat keys; see `Audit.flat`
audit.csv    a row for each attack on all records, on each group and on each model, and for each client
scores.csv   the scores that all figures are computed from: a score file
references/  the scores of each reference federation
audit.html   all of it, to look at
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.attacks import Gap, ShadowModelAttack
from shoal.config.build import load_data, resolve
from shoal.config.kinds import name_of
from shoal.config.schema import SIMULATION, Config, read_config
from shoal.config.validation import read_toml
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data import ClientDataset
from shoal.engine import Engine
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.directory import logged
from shoal.runs.files import read_summary
from shoal.runs.lock import locked
from shoal.runs.reference_scores import digest_of, read_reference, write_reference
from shoal.runs.score_file import read_scores, write_scores
from shoal.simulation.audit import OUTSIDER, AttackScores, Audit, AuditRecords, audit_records
from shoal.simulation.reference_federations import AttackedRun, FederationScores, join_scores
from shoal.simulation.simulation import SimulationState, move_to_engine

LOG = logging.getLogger("shoal")

AuditWatch = Callable[[int, int], None]
"""Called with the number of reference federations that are done, and of all."""


def audit_run(
    run: Path,
    *,
    references: int = 16,
    out: Path | None = None,
    data_dir: Path | None = None,
    watch: AuditWatch | None = None,
) -> Audit:
    """Audit the finished run in ``run``: train reference federations, and attack its members with what they say.

    Each reference federation costs one training of the run, without evaluation and red team. Its scores are kept in
    ``run/references``, so an audit that was interrupted, or one with more of them, goes on where the last one ended.

    Args:
        run: directory of a finished run.
        references: R, the number of reference federations; 0: none.
        out: where the audit's files are written; None: into ``run``.
        data_dir: where to look for data first.
        watch: called before the first and after each reference federation.

    Raises:
        InputError: no finished run of a configuration, one with a property attack, or a directory that cannot be
            written.
    """
    require(references >= 0, f"'references' must be at least 0; got {references}")
    config, progress = _finished(run)
    resolved = resolve(config, load_data(config.data, data_dir))
    simulation = resolved.simulation()
    names = resolved.data.client_names if isinstance(resolved.data, ClientDataset) else None
    del resolved  # and with it the data set, which the federation has copied
    asked = config.engine
    with (
        locked(run),
        logged(run / "run.log"),
        Engine(
            simulation.setup.model,
            device=asked.device,
            threads=asked.threads,
            precision=asked.precision,
            backend=None if asked.backend == "auto" else asked.backend,
        ) as engine,
    ):
        attacked = AttackedRun.of(move_to_engine(simulation, engine), progress.state, progress.rows)
        target = attacked.scores(engine)
        found, seconds = _reference_scores(run / "references", attacked, references, engine, watch)
        records = _records(attacked, target, found, engine, names)
        audit = audit_records(records, attacked.stream("thresholds"))
        spent = {"seconds.references": round(sum(seconds), 3), "seconds.train": round(progress.seconds["train"], 3)}
        stated = {key: value for key, value in read_summary(run).overall.items() if key in {"epsilon", "delta"}}
        write_audit(run if out is None else out, audit, records, {**stated, **spent})
    return audit


def audit_scores(path: Path, *, out: Path | None = None) -> Audit:
    """Audit the records of a score file, of any framework.

    Args:
        path: see `shoal.runs.score_file`.
        out: where the audit's files are written; None: beside ``path``.

    Raises:
        InputError: the file cannot be used, or the directory cannot be written.
    """
    records = read_scores(path)
    audit = audit_records(records, Stream(0)("thresholds"))
    write_audit(path.parent if out is None else out, audit)
    return audit


def write_audit(
    out: Path, audit: Audit, records: AuditRecords | None = None, further: Mapping[str, float] | None = None
) -> None:
    """Write the files of an audit into ``out``, which is made where it is missing; each whole or not at all.

    Args:
        out: the directory.
        audit: what attackers find.
        records: that it is of; None: they are in a score file already.
        further: more keys of audit.json.

    Raises:
        InputError: ``out`` cannot be written.
    """
    flat = audit.flat() | dict(further or {})
    try:
        out.mkdir(parents=True, exist_ok=True)
        if records is not None:
            write_scores(out / "scores.csv", records)
        write_text(out / "audit.csv", audit.attacks.to_csv(index=False))
        write_text(out / "audit.json", json.dumps(flat, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error


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
    config, progress = read_config(run / "config.toml"), load_checkpoint(run / "checkpoint")
    require(
        progress is not None and progress.state.round == config.algorithm.rounds,
        f"{run}: cannot be audited, since the checkpoint of its last round is gone; run it anew in another directory",
    )
    assert progress is not None
    return config, progress


def _reference_scores(
    folder: Path, attacked: AttackedRun, count: int, engine: Engine, watch: AuditWatch | None
) -> tuple[list[FederationScores], list[float]]:
    """The scores of the first ``count`` reference federations, and the seconds that each took; those that are not in
    ``folder`` are trained.
    """
    folder.mkdir(exist_ok=True)
    digest = digest_of(attacked.state, attacked.simulation.seed)
    found, seconds = list[FederationScores](), list[float]()
    for number in range(count):
        if watch is not None:
            watch(number, count)
        stored = read_reference(folder, number, digest)
        if stored is None:
            began = time.perf_counter()
            scores = attacked.train_reference(number, engine)
            stored = scores, time.perf_counter() - began
            write_reference(folder, number, digest, *stored)
            LOG.info("reference federation %d of %d: %.1f s", number + 1, count, stored[1])
        found.append(stored[0])
        seconds.append(stored[1])
    if watch is not None:
        watch(count, count)
    return found, seconds


def _records(
    attacked: AttackedRun,
    target: FederationScores,
    references: Sequence[FederationScores],
    engine: Engine,
    names: Sequence[str] | None,
) -> AuditRecords:
    """The records with their names: where each lies among the clients' examples and the test set."""
    paired, federation = attacked.records, attacked.simulation.federation
    client = paired.client
    identity = federation.ids[client].tolist()
    team = attacked.simulation.red_team
    further = {}
    for attack in (team.attack, Gap()):
        name = "posterior" if isinstance(attack, ShadowModelAttack) else name_of(type(attack))
        scores, margins = attacked.fitted_attack(attack, target.model, engine)
        further[name] = AttackScores(OUTSIDER, scores.numpy(), margins.numpy())
    places = [*(f"client-{i}" for i in paired.entry.tolist()), *(f"test-{i}" for i in paired.test.tolist())]
    return AuditRecords(
        scores=join_scores(target, references, client),
        record=np.array(places, dtype=object),
        client=np.array([str(i) if names is None else names[i] for i in identity], dtype=object),
        group=np.array([federation.groups[g] for g in federation.group[client].tolist()], dtype=object),
        all_models=attacked.all_models(engine).numpy(),
        further=further,
    )
