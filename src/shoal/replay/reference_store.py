"""Scores of reference federations in a folder: one file each, so that an audit or a run can be killed and resumed."""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from shoal.audit.reference_records import AttackedRecords, attack_records
from shoal.audit.update_audit import all_attacks
from shoal.core.atomic_files import remove_unfinished, write_bytes
from shoal.core.errors import InputError
from shoal.data.content import fingerprint
from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun, FederationScores
from shoal.replay.run_records import records_of_run
from shoal.simulation.simulation import Simulation, SimulationState

LOG = logging.getLogger("shoal")

AuditWatch = Callable[[int, int], None]
"""Called with the number of reference federations that are done, and of all; first with those that an audit left."""

_VERSION = 3
"""Version of the files; scores of another one are trained anew."""

_FIELDS = ("score", "member", "model", "population", "trajectory", "span_models", "span_updates")


def reference_scores(
    attacked: AttackedRun,
    target: FederationScores,
    count: int,
    engine: Engine,
    *,
    folder: Path | None,
    watch: AuditWatch | None = None,
) -> list[FederationScores]:
    """The scores of the first ``count`` reference federations; those that are not in ``folder`` are trained.

    Args:
        attacked: the run that they replay.
        target: its own scores.
        count: R, their number.
        engine: with its network.
        folder: where they are; made where it is missing. None: they are kept in memory alone.
        watch: called before the first that is trained, and after each.
    """
    digest, numbers = _digest(attacked, target), range(count)
    paths = [] if folder is None else [folder / f"{number:03d}.safetensors" for number in numbers]
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
        scores = {number: stored for number, path in enumerate(paths) if (stored := _read(path, digest)) is not None}
        if watch is not None and count > 0:
            watch(len(scores), count)
        for number in sorted({*numbers} - {*scores}):
            scores[number] = _timed(lambda number=number: attacked.train_reference(number, engine))
            if paths:
                _write(paths[number], digest, scores[number])
            LOG.info("reference federation %d of %d: %.1f s", number + 1, count, scores[number].seconds)
            if watch is not None:
                watch(len(scores), count)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from error
    return [scores[number] for number in numbers]


def attack_with_references(
    simulation: Simulation,
    engine: Engine,
    progress: SimulationState,
    *,
    folder: Path | None = None,
    watch: AuditWatch | None = None,
) -> tuple[SimulationState, AttackedRecords | None]:
    """Train the reference federations of a simulation after its last round, and attack its members with their scores.

    Returns ``progress`` with the seconds that it took, and the attacked records; None where no reference federation is
    asked for, or where hardly anybody trained, so that there are no members to tell.
    """
    if simulation.reference_federations == 0:
        return progress, None
    attacked = AttackedRun.from_run(simulation, progress.state, progress.rows, engine)
    warn_of_records(attacked)
    target = attacked.scores(engine)
    members = int(target.member.sum())
    if members < 2:
        LOG.warning(
            "no reference federation is trained: an attack is measured on at least two members, and only %d of the "
            "examples that could be exchanged was trained on lately", members,
        )  # fmt: skip
        return progress, None
    stored = reference_scores(attacked, target, simulation.reference_federations, engine, folder=folder, watch=watch)
    began = time.perf_counter()
    records = records_of_run(attacked, target, stored, engine)
    attacked_records = attack_records(records, all_attacks(simulation.attacks)[0])
    attacking = time.perf_counter() - began
    # Those that were trained before an interruption count too: a resumed run says what an uninterrupted one does.
    spent = sum(scores.seconds for scores in stored)
    LOG.info("reference federations: %d in %.1f s; attacks in %.1f s", len(stored), spent, attacking)
    before = progress.seconds
    seconds = {
        "references": spent,
        "measurement": before.get("measurement", 0.0) + attacking,
        "total": before["total"] + spent + attacking,
    }
    return replace(progress, seconds=before | seconds), attacked_records


def warn_of_records(attacked: AttackedRun) -> None:
    """Say what must be known of the records that are attacked."""
    for note in attacked.notes:
        LOG.warning("%s", note)


def replayed_scores(
    attacked: AttackedRun, target: FederationScores, engine: Engine, *, folder: Path
) -> FederationScores | None:
    """The scores of the run repeated, with their trajectory, kept in ``folder``; None where they are not the
    ``target``.
    """
    digest, path = _digest(attacked, target), folder / "attacked.safetensors"
    stored = _read(path, digest)
    if stored is None:
        stored = _timed(lambda: attacked.replay(engine))
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, digest, stored)
    if not torch.equal(stored.score, target.score):
        LOG.warning("the run cannot be repeated bit for bit here, so the trajectory attack is left out")
        return None
    return stored


def _timed(train: Callable[[], FederationScores]) -> FederationScores:
    """Scores with the seconds that they took."""
    began = time.perf_counter()
    scores = train()
    return replace(scores, seconds=time.perf_counter() - began)


def _digest(attacked: AttackedRun, target: FederationScores) -> str:
    """A name for the attacked models and records: scores of references for others are of no use.

    The attacked scores are part of it, since clients may have models of their own beside the same clusters' models.
    """
    state, records = attacked.state, attacked.records
    tensors = (state.models, state.assignment, records.entry, records.test, target.score)
    content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
    about = f"{state.round} {attacked.simulation.seed} {_VERSION}"
    return hashlib.sha256(content + about.encode()).hexdigest()[:16]


def _write(path: Path, attacked: str, stored: FederationScores) -> None:
    tensors = {name: getattr(stored, name).contiguous() for name in _FIELDS}
    about = {"attacked": attacked, "seconds": f"{stored.seconds:.3f}", "hash": fingerprint(tuple(tensors.values()))}
    write_bytes(path, save(tensors, about))


def _read(path: Path, attacked: str) -> FederationScores | None:
    """The scores in a file; None where it is missing, damaged, or of other models, as after a run was extended."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
        if about.get("attacked") != attacked:
            return None
        tensors = load_file(path)
        if about.get("hash") != fingerprint(tuple(tensors[name] for name in _FIELDS)):
            LOG.warning("%s: is not what was written; it is trained again", path)
            return None
        return FederationScores(**{name: tensors[name] for name in _FIELDS}, seconds=float(about["seconds"]))
    except (SafetensorError, KeyError, ValueError):
        return None
