"""The stored scores of reference federations, from which a killed audit or run resumes."""

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from shoal.attacks import LossTrajectory
from shoal.audit.attacked_records import AttackedRecords, attack_records
from shoal.audit.record_table import OUTSIDER, SERVER, RecordTable, views_within
from shoal.audit.update_audit import all_attacks
from shoal.core.atomic_files import remove_unfinished, write_bytes
from shoal.core.errors import file_errors
from shoal.core.processes import SEQUENTIAL, Workers
from shoal.data.content import fingerprint
from shoal.data.preferences import View
from shoal.engine import Engine
from shoal.metrics.intervals import Floats
from shoal.replay.attack_inputs import records_of_run, trajectory_attack
from shoal.replay.leaver_federations import LeaverRun
from shoal.replay.reference_federations import NOT_REPEATED, AttackedRun, FederationScores
from shoal.replay.span_scores import SPAN_NAMES, SpansOfRun, spans_to_repeat
from shoal.simulation.play import SimulationState
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger("shoal")

AuditWatch = Callable[[int, int], None]
"""A function of the finished and total numbers of reference federations, called initially and after each training."""

_VERSION = 4
"""The version of the files; federations with files of other versions are trained again."""

_FIELDS = ("score", "member", "model", "population", "trajectory")
"""The tensors of a file; further tensors are `FederationScores.spans`."""

REPLAY = -1
"""The number of the repeated run itself."""


def reference_scores(
    attacked: AttackedRun | LeaverRun,
    target: FederationScores,
    count: int,
    engine: Engine,
    *,
    folder: Path | None,
    watch: AuditWatch | None = None,
    workers: Workers = SEQUENTIAL,
    rounds: bool = True,
    spans: Collection[str] = SPAN_NAMES,
) -> list[FederationScores]:
    """Return the scores of the first ``count`` reference federations, training the federations that ``folder`` lacks.

    Args:
        attacked: the attacked run, or the run that a client left (without ``rounds``).
        folder: the folder of the scores. ``None`` keeps the scores in memory.
        watch: a function that is called before the first training and after each training.
        rounds: whether the caller attacks rounds, which needs the repeated run (`replayed_scores`) and the span attacks
            ``spans``.
        spans: the names of span attacks; see `spans_to_repeat`.

    Raises:
        InputError: the folder cannot be written, or training diverged.
        ShoalError: a worker process was killed from outside.
    """
    store, spans = _Store(folder, _digest(attacked, target)), tuple(spans) if rounds else ()
    with file_errors(folder, action="written"):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
        stored = ((number, store.read(number)) for number in range(count))
        scores = {number: found for number, found in stored if found is not None and {*spans} <= {*found.spans}}
        if watch is not None and count > 0:
            watch(len(scores), count)
        missing = [number for number in range(count) if number not in scores]
        if rounds and count and folder is not None and store.read(REPLAY) is None:
            # The last, since it is the shortest.
            missing.append(REPLAY)
        workers = workers.at_most(len(missing))
        with nullcontext(engine) if workers.here else engine.reopened(workers.threads) as shared:
            training = _Training(attacked, shared, store, spans)
            for number, trained in workers.unordered(_train_and_store, training, missing):
                if number == REPLAY:
                    continue
                scores[number] = trained
                LOG.info("reference federation %d of %d: %.1f s", number + 1, count, trained.seconds)
                if watch is not None:
                    watch(len(scores), count)
    return [scores[number] for number in range(count)]


@dataclass(frozen=True)
class _Store:
    """The stored scores of federations, one file each.

    Args:
        folder: the folder of the files, or ``None`` to store nothing.
        attacked: a digest of the attacked models and records.
    """

    folder: Path | None
    attacked: str

    def read(self, number: int) -> FederationScores | None:
        """Read the scores of federation ``number``, or None if the file is missing, damaged or from another run."""
        path = self._path(number)
        if path is None or not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
            if about.get("attacked") != self.attacked:
                return None
            tensors = load_file(path)
            if about.get("hash") != _fingerprint(tensors):
                LOG.warning("%s: is damaged; the federation is trained again", path)
                return None
            fields = {name: tensors.pop(name) for name in _FIELDS}
            return FederationScores(**fields, spans=tensors, seconds=float(about["seconds"]))
        except (SafetensorError, KeyError, ValueError):
            return None

    def write(self, number: int, scores: FederationScores) -> None:
        path, fields = self._path(number), {name: getattr(scores, name).contiguous() for name in _FIELDS}
        if path is not None:
            tensors = {**fields, **scores.spans}
            about = {"attacked": self.attacked, "seconds": f"{scores.seconds:.3f}", "hash": _fingerprint(tensors)}
            write_bytes(path, save(tensors, about))

    def _path(self, number: int) -> Path | None:
        name = "attacked" if number == REPLAY else f"{number:03d}"
        return None if self.folder is None else self.folder / f"{name}.safetensors"


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    return fingerprint(tuple(tensors[name] for name in sorted(tensors)))


@dataclass(frozen=True, eq=False)
class _Training:
    """The input of a worker process that trains federations; see `reference_scores` for ``spans``."""

    attacked: AttackedRun | LeaverRun
    engine: Engine
    store: _Store
    spans: tuple[str, ...]


def _train_and_store(training: _Training, number: int) -> tuple[int, FederationScores]:
    """Train a federation and store its scores."""
    attacked, engine, stored = training.attacked, training.engine, training.store.read(number)
    began = time.perf_counter()
    if isinstance(attacked, AttackedRun) and number == REPLAY:
        scores = attacked.replay(engine)
    elif isinstance(attacked, AttackedRun) and stored is not None:
        scores = attacked.with_spans(stored, number, engine, training.spans)
    else:
        scores = attacked.train_reference(number, engine, spans=training.spans)
    scores = replace(scores, seconds=scores.seconds + time.perf_counter() - began)
    training.store.write(number, scores)
    return number, scores


def attack_with_references(
    simulation: Simulation,
    engine: Engine,
    progress: SimulationState,
    *,
    folder: Path | None = None,
    watch: AuditWatch | None = None,
    workers: Workers = SEQUENTIAL,
) -> tuple[SimulationState, AttackedRecords | None]:
    """Train a simulation's reference federations, and attack its members with the federations' scores.

    The attacks include all attacks that the simulation's view allows.

    Returns:
        ``progress`` with the training time in seconds, and the attacked records. The records are None with fewer than
        two members, or if the view is an outsider's and no reference federation is configured.
    """
    view = simulation.widest_view
    if simulation.reference_federations == 0 and view == OUTSIDER:
        return progress, None
    attacked = AttackedRun.from_run(simulation, progress.state, progress.rows, engine)
    warn_of_records(attacked)
    target = attacked.scores(engine)
    members = int(target.member.sum())
    if members < 2:
        LOG.warning(
            "no reference federation is trained: an attack needs at least two members, but the last rounds trained "
            "on only %d of the exchangeable examples", members,
        )  # fmt: skip
        return progress, None
    count = simulation.reference_federations
    spans = SpansOfRun({}, {}) if view == OUTSIDER else attacked.spans(engine)
    wanted = {"folder": folder, "watch": watch, "workers": workers, "rounds": view != OUTSIDER}
    stored = reference_scores(attacked, target, count, engine, spans=spans_to_repeat(spans, count), **wanted)
    began = time.perf_counter()
    records = records_of_run(attacked, target, stored, engine)
    if view != OUTSIDER:
        seen, _ = view_scores(attacked, target, stored, engine, view=view, folder=folder, spans=spans)
        records = replace(records, further={**records.further, **seen}, notes=(*records.notes, *spans.notes))
    attacked_records = attack_records(records, all_attacks(simulation.attacks)[0])
    _warn_of_unmeasured_views(simulation, attacked_records)
    attacking = time.perf_counter() - began
    # The time includes trainings before an interruption.
    spent = sum(scores.seconds for scores in stored)
    LOG.info("reference federations: %d in %.1f s; attacks in %.1f s", len(stored), spent, attacking)
    before = progress.seconds
    seconds = {
        "references": spent,
        "measurement": before.get("measurement", 0.0) + attacking,
        "total": before["total"] + spent + attacking,
    }
    return replace(progress, seconds=before | seconds), attacked_records


def _warn_of_unmeasured_views(simulation: Simulation, attacked: AttackedRecords) -> None:
    """Name the requested views without a measured attack."""
    asked = {simulation.view, *simulation.federation.preferences.views(simulation.view)}
    for view in sorted(asked - {OUTSIDER, *attacked.views.values()}):
        LOG.warning(
            "no attack of the %s could be measured on this run, so its figures come from weaker views; reference "
            "federations or a dense first layer allow such attacks",
            view,
        )


def warn_of_records(attacked: AttackedRun) -> None:
    """Log the caveats about the attacked records."""
    for note in attacked.notes:
        LOG.warning("%s", note)


def view_scores(
    attacked: AttackedRun,
    target: FederationScores,
    references: Sequence[FederationScores],
    engine: Engine,
    *,
    view: View = SERVER,
    folder: Path | None = None,
    spans: SpansOfRun | None = None,
) -> tuple[dict[str, RecordTable], dict[str, str]]:
    """Return the scores of a view's additional attacks, by attack name, and the reasons for missing attacks.

    The attacks repeat the run's first rounds, or all rounds if there are reference federations.

    Args:
        target: the run's scores, which the repeated run must reproduce.
        folder: the folder of the repeated run's scores. ``None`` keeps the scores in memory.
        spans: the span attacks on the run (`AttackedRun.spans`). ``None`` computes them.
    """
    spans = attacked.spans(engine) if spans is None else spans
    omitted = dict(spans.omitted)
    scores = {
        name: replace(each, reference=_of_references(name, references)) if name in spans.repeat else each
        for name, each in spans.scores.items()
    }
    replayed = replayed_scores(attacked, target, engine, folder=folder) if references else None
    over_rounds = None if replayed is None else trajectory_attack(replayed, references)
    if over_rounds is not None:
        scores[LossTrajectory.name] = over_rounds
    elif not references:
        omitted[LossTrajectory.name] = "needs 1 reference models; there are 0"
    elif replayed is None:
        omitted[LossTrajectory.name] = NOT_REPEATED
    elif target.personal:
        omitted[LossTrajectory.name] = "clients use models of their own"
    else:
        omitted[LossTrajectory.name] = "needs the same number of models in every round"
    return {name: found for name, found in scores.items() if found.view[0] in views_within(view)}, omitted


def _of_references(span: str, references: Sequence[FederationScores]) -> Floats | None:
    """Return a span attack's scores (2 Q, R) on the reference federations, or None if one federation lacks them."""
    columns = [scores.spans[span].numpy() for scores in references if span in scores.spans]
    return np.stack(columns, axis=1) if columns and len(columns) == len(references) else None


def replayed_scores(
    attacked: AttackedRun, target: FederationScores, engine: Engine, *, folder: Path | None
) -> FederationScores | None:
    """Return the repeated run's scores with their trajectory, or None if the scores differ from ``target``."""
    store = _Store(folder, _digest(attacked, target))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    stored = store.read(REPLAY) or _train_and_store(_Training(attacked, engine, store, ()), REPLAY)[1]
    if not torch.equal(stored.score, target.score):
        LOG.warning("the run cannot be repeated bit for bit here, so the trajectory attack is left out")
        return None
    return stored


def _digest(attacked: AttackedRun | LeaverRun, target: FederationScores) -> str:
    """Return a digest of the attacked models and records, which stored scores must match.

    The digest covers the attacked scores, because clients may have personal models, and the number of queries.
    """
    state, records = attacked.state, attacked.records
    tensors = (state.models, state.assignment, records.entry, records.test, target.score)
    content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
    about = f"{state.round} {attacked.simulation.seed} {_VERSION}"
    about += f" {attacked.queries} queries" if attacked.queries > 1 else ""
    about += " leaver 2" if isinstance(attacked, LeaverRun) else ""
    return hashlib.sha256(content + about.encode()).hexdigest()[:16]
