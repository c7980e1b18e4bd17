"""A run is a directory: what was asked, how far it got, and what came out. It can be killed and resumed.

config.toml          the complete configuration; running it again gives the same results
checkpoint/          the last rounds' states, until the run is done
rounds.csv           a row a round and cluster
clients.csv          a row a client
summary.json         every figure, under flat keys; written last, so it marks a finished run
roc.csv              the attack's ROC curves by group
property.csv         a row an aggregated update, where somebody looks for a property
samples.safetensors  a few test images of each group, for the report
models.safetensors   the K final models, each tensor under "k.name"
report.html          all of it, to look at; a step of its own after the run: `shoal.runs.report`
run.log              what happened when
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save as serialize

from shoal.attacks import RoundObservation
from shoal.config.build import load_data, resolve
from shoal.config.schema import Config, read_config
from shoal.config.tables import in_table
from shoal.core.atomic_files import remove_unfinished, write_bytes, write_text
from shoal.core.errors import InputError, require
from shoal.data import ClientDataset, Federation, LabelledDataset
from shoal.engine import Engine, RoundReport
from shoal.runs.checkpoint import load_checkpoint, save_checkpoint, stored_observations
from shoal.simulation.result import CLIENT_COLUMNS, EXPOSURE_COLUMNS, Result
from shoal.simulation.simulation import (
    Simulation,
    SimulationState,
    Watch,
    initial_state,
    measure_final,
    move_to_engine,
    run_rounds,
)
from shoal.simulation.summary import Summary, flatten

LOG = logging.getLogger("shoal")

SAMPLES = 8
"""Images of each group in the report."""


def run(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    dataset: LabelledDataset | ClientDataset | None = None,
    watch: Watch | None = None,
) -> Path:
    """Run ``config`` in the directory ``out``, from its last checkpoint if ``resume``; returns ``out``.

    Nothing is written before the configuration has been built; an existing directory is only touched to resume
    the same configuration in it. The page is not written: that is `shoal.runs.report.report_of`.

    Args:
        config: what to run.
        out: its directory.
        resume: whether ``out`` may exist, with the same run in it.
        data_dir: where to look for data first.
        dataset: the examples of [data], where they are loaded already.
        watch: called before the first round and after each.

    Raises:
        InputError: a configuration that cannot be run, or a directory that exists, cannot be written, or holds
            another run; or training that diverged, with the last good checkpoint left in place.
    """
    out = Path(out)
    if not resume:
        require(not out.exists(), f"{out}: exists already; choose another --out, or continue it with --resume")
    found = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    decided, simulation, description = found.config, found.simulation(), tuple(found.description())
    del found  # and with it the data set, which the federation has copied
    if resume and out.exists():
        require(out.is_dir(), f"{out}: is not a directory; choose another --out")
        _same_run(out, decided)
        if is_finished(out):
            return out
    with in_table("engine"):
        engine = Engine(
            simulation.setup.model,
            device=decided.engine.device,
            threads=decided.engine.threads,
            precision=decided.engine.precision,
            backend=None if decided.engine.backend == "auto" else decided.engine.backend,
        )
    with engine:
        checkpoints = _open(out, decided)
        with _logged(out / "run.log"):
            simulation = move_to_engine(simulation, engine)
            progress = load_checkpoint(checkpoints)
            if progress is None:
                progress = initial_state(simulation, engine)
                LOG.info("begin: %s on %s, seed %d", decided.algorithm.name, decided.data.source, decided.seed)
                for line in description:
                    LOG.info("%s", line)
            else:
                LOG.info("resume after round %d", progress.state.round)
            if watch is not None:
                watch(simulation, progress, None)
            saved = progress.state.round
            fresh: list[RoundObservation] = []
            try:
                for after, report in run_rounds(simulation, engine, progress):
                    progress = after
                    fresh += [] if progress.observation is None else [progress.observation]
                    done = progress.state.round
                    LOG.info("%s", _line(progress, report))
                    if done % decided.checkpoint.every == 0 or done == simulation.rounds:
                        save_checkpoint(checkpoints, progress, fresh)
                        saved = done
                        fresh.clear()
                    if watch is not None:
                        watch(simulation, progress, report)
            finally:
                # Interrupted or diverged: keep the last good round, whatever the interval.
                if progress.state.round > saved:
                    save_checkpoint(checkpoints, progress, fresh)
            result = measure_final(simulation, engine, progress, stored_observations(checkpoints))
            _write(out, decided, simulation, result)
            LOG.info("done in %.1f s", result.summary.overall["seconds.total"])
    return out


def is_finished(out: Path) -> bool:
    """Whether the directory holds a run that is done: its summary is written last."""
    return (out / "summary.json").exists()


def _open(out: Path, config: Config) -> Path:
    """Make the run directory with its configuration; returns its folder of checkpoints."""
    checkpoints = out / "checkpoint"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        for folder in (out, checkpoints):
            remove_unfinished(folder)
        if not (out / "config.toml").exists():
            write_text(out / "config.toml", config.toml())
        (out / "run.log").touch()
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    return checkpoints


def _same_run(out: Path, config: Config) -> None:
    """Raise unless ``out`` holds a run of ``config``; what only decides how fast it goes may differ."""
    written = out / "config.toml"
    if not written.exists():
        # Killed before its first file, or somebody else's directory.
        others = [
            path for path in out.iterdir() if path.name != "checkpoint" and not path.name.startswith(".config.toml.")
        ]
        require(not others, f"{out}: is not a run directory (no config.toml); choose another --out")
        return
    before, now = read_config(written), config
    engine = replace(before.engine, threads=now.engine.threads)
    before = replace(before, engine=engine, checkpoint=now.checkpoint)
    if before != now:
        key, old, new = next(_differences(before.table(), now.table()))
        raise InputError(f"{out}: holds a run with {key} = {old!r}, but the config says {new!r}; choose another --out")


def _differences(before: dict, now: dict, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new


def _write(out: Path, config: Config, simulation: Simulation, result: Result) -> None:
    """Everything a finished run holds; the summary last, since it marks the run as finished."""
    write_text(out / "rounds.csv", result.rounds.to_csv(index=False))
    columns = [name for name in (*CLIENT_COLUMNS, *EXPOSURE_COLUMNS, "epsilon") if name in result.clients]
    write_text(out / "clients.csv", result.clients[columns].to_csv(index=False))
    write_text(out / "roc.csv", result.roc.to_csv(index=False))
    if result.updates is not None:
        write_text(out / "property.csv", result.updates.to_csv(index=False))
    named = [simulation.setup.model.state_dict(row) for row in result.state.models]
    models = {f"{k}.{name}": tensor for k, tensors in enumerate(named) for name, tensor in tensors.items()}
    write_bytes(out / "models.safetensors", serialize(models))
    write_bytes(out / "samples.safetensors", _samples(simulation.federation))
    summary = Summary(run={"algorithm": config.algorithm.name, "dataset": config.data.source}) | result.summary
    write_text(out / "summary.json", json.dumps(flatten(summary), indent=2, allow_nan=False) + "\n")
    for left in (out / "checkpoint").glob("*.safetensors"):
        left.unlink()


def _samples(federation: Federation) -> bytes:
    samples = {}
    for g, name in enumerate(federation.groups):
        images = federation.test.of_group(g).x[:SAMPLES]
        if images.dim() == 4:
            samples[name] = (images.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()
    return serialize(samples)


def _line(progress: SimulationState, report: RoundReport) -> str:
    state = progress.state
    sizes = torch.bincount(report.assignment, minlength=len(state.models)).tolist()
    risks = ", ".join(f"{risk:.3f}" for risk in state.risks.tolist()) if report.risks_estimated else "not estimated"
    return f"round {state.round}: clients by cluster {sizes}; risks {risks}; {progress.seconds['total']:.1f} s"


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Append what Shoal logs to ``path``."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    level = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
        handler.close()
