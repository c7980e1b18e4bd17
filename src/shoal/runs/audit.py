"""`shoal audit`: of a run directory, with reference federations trained for it, or of a score file."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.attacks import Gap, ShadowModelAttack
from shoal.config.build import load_data, resolve
from shoal.config.kinds import algorithm_title, name_of
from shoal.config.schema import SIMULATION, Config, read_config
from shoal.config.validation import read_toml
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import ClientDataset
from shoal.engine import Engine
from shoal.runs.audit_files import AboutAudited, AuditFiles, write_audit
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.directory import logged
from shoal.runs.files import read_summary
from shoal.runs.lock import locked
from shoal.runs.reference_scores import digest_of, read_reference, write_reference
from shoal.runs.score_file import read_scores
from shoal.simulation.audit import OUTSIDER, AttackScores, Audit, AuditRecords, audit_records
from shoal.simulation.reference_federations import AttackedRun, FederationScores, join_scores
from shoal.simulation.simulation import SimulationState, move_to_engine

LOG = logging.getLogger("shoal")

AuditWatch = Callable[[int, int], None]
"""Called with the number of reference federations that are done, and of all."""

MOST_EXPOSED = 20
"""Records that the page shows as pictures."""


def audit_run(
    run: Path,
    *,
    references: int = 16,
    out: Path | None = None,
    data_dir: Path | None = None,
    watch: AuditWatch | None = None,
) -> AuditFiles:
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
        about = AboutAudited(
            title=f"{algorithm_title(config.algorithm.name)} on {config.data.source}, seed {config.seed}",
            stated=stated,
            seconds=spent,
            pictures=_pictures(attacked, audit, records),
        )
        return write_audit(run if out is None else out, audit, about, records)


def audit_scores(path: Path, *, out: Path | None = None) -> AuditFiles:
    """Audit the records of a score file, of any framework.

    Args:
        path: see `shoal.runs.score_file`.
        out: where the audit's files are written; None: beside ``path``.

    Raises:
        InputError: the file cannot be used, or the directory cannot be written.
    """
    records = read_scores(path)
    audit = audit_records(records, Stream(0)("thresholds"))
    return write_audit(path.parent if out is None else out, audit, AboutAudited(path.name))


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


def _pictures(attacked: AttackedRun, audit: Audit, records: AuditRecords) -> dict[str, NDArray[np.uint8]]:
    """Images of the most exposed records, by name; none where the data are no images."""
    x = attacked.records.federation.clients.x
    if x.dim() != 4:
        return {}
    shown = audit.records["record"].head(MOST_EXPOSED).tolist()
    place = {name: i for i, name in enumerate(records.record.tolist())}
    rows = attacked.records.rows[[place[name] for name in shown]]
    images = x[rows.to(x.device)].float().clamp(0, 1).mul(255).round().to(torch.uint8).cpu().contiguous().numpy()
    return dict(zip(shown, images, strict=True))
