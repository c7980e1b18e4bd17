"""The training of a run with checkpoints and recorded updates, and the measurement of its final models."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from shoal.core.errors import InputError, ShoalError
from shoal.core.processes import SEQUENTIAL, Workers
from shoal.engine import Engine, RoundReport, Tensors
from shoal.replay.reference_store import AuditWatch, attack_with_references
from shoal.runs.checkpoint import save_checkpoint, stored_observations
from shoal.runs.result import named_models, write_models
from shoal.runs.updates import FOLDER, megabytes, write_updates
from shoal.simulation.distillation import apply_release
from shoal.simulation.measure import FinalMeasurement, measure_final
from shoal.simulation.play import SimulationState, Watch, add_seconds, run_rounds
from shoal.simulation.round_metrics import changed_directives
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger("shoal")


def train(
    simulation: Simulation,
    engine: Engine,
    progress: SimulationState,
    checkpoints: Path | None,
    *,
    every: int,
    watch: Watch | None,
) -> tuple[SimulationState, dict[int, Tensors]]:
    """Run the remaining rounds, with a checkpoint every ``every`` rounds and after the last round.

    Recorded updates are written to the parent directory of ``checkpoints``. Without ``checkpoints``, no file is
    written.

    Returns:
        The state after the last round, and the round attack's observations by round.
    """
    if simulation.record_updates:
        LOG.info("updates: %s MB in %s/ at the end", f"{megabytes(simulation):,.1f}", FOLDER)
    if watch is not None:
        watch(simulation, progress, None)
    saved, fresh = progress.state.round, dict[int, Tensors]()

    def save() -> None:
        nonlocal saved
        if checkpoints is not None and progress.state.round > saved:
            save_checkpoint(checkpoints, progress, fresh, engine.model.frozen_hash)
            saved = progress.state.round
            fresh.clear()

    try:
        for after, report in run_rounds(simulation, engine, progress):
            progress, left = after, time.perf_counter()
            fresh |= {} if progress.observation is None else {progress.state.round: progress.observation}
            done = progress.state.round
            if report.updates is not None and checkpoints is not None:
                # Before the checkpoint, so that every finished round has its updates.
                write_updates(checkpoints.parent, report.updates)
            LOG.info("%s", _log_line(progress, report))
            if done % every == 0 or done == simulation.last_round:
                save()
            if watch is not None:
                watch(simulation, progress, report)
            if done == simulation.last_round:
                # `run_rounds` adds this time to the next round, and the last round has none.
                progress = progress.with_files(time.perf_counter() - left, last=True)
    finally:
        # Interrupted or diverged: keep the last good round, whatever the interval.
        save()
    return progress, fresh if checkpoints is None else stored_observations(checkpoints)


def _log_line(progress: SimulationState, report: RoundReport) -> str:
    state = progress.state
    sizes = torch.bincount(report.assignment, minlength=len(state.models)).tolist()
    risks = ", ".join(f"{risk:.3f}" for risk in state.risks.tolist()) if report.risks_estimated else "not estimated"
    changed = changed_directives(progress.rows)
    by_name = [f"{name} {', '.join(f'{strength:.2f}' for strength in values)}" for name, values in changed.items()]
    directives = f"; directives {'; '.join(by_name)}" if changed else ""
    about = f"clients by cluster {sizes}; risks {risks}{directives}"
    return f"round {state.round}: {about}; {progress.seconds['total']:.1f} s"


class MeasurementError(InputError):
    """A failure to measure the final models, for example in a user's network, loss or attack.

    Attributes:
        models: the trained tensors of each cluster by name, for `torch.nn.Module.load_state_dict`.

    Example:
        >>> import dataclasses
        >>> import shoal.toy
        >>> def metric(outputs, labels):
        ...     assert len(labels) < 8, "eight examples at once"
        ...     return shoal.models.accuracy(outputs, labels)
        ...
        >>> federation, model, local = shoal.toy.two_groups()
        >>> model = dataclasses.replace(model, metric=metric)
        >>> try:
        ...     shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=1)
        ... except shoal.MeasurementError as error:
        ...     print(error.models[0].keys())
        ...
        dict_keys(['output.weight', 'output.bias'])
    """

    def __init__(self, models: Mapping[int, Mapping[str, Tensor]], sentence: str) -> None:
        super().__init__(sentence)
        self.models = models


def measure_trained(
    simulation: Simulation,
    engine: Engine,
    progress: SimulationState,
    observations: Mapping[int, Tensors],
    *,
    out: Path | None = None,
    watch: AuditWatch | None = None,
    workers: Workers = SEQUENTIAL,
) -> FinalMeasurement:
    """Measure the models after the last round, with reference federations if the simulation has them.

    Args:
        out: the run's directory, where models.safetensors is written first. ``None`` writes no files.
        watch: a function that is called before the first reference federation and after each federation.

    Raises:
        MeasurementError: the measurement failed for any reason except an error of the operating system.
    """
    began = time.perf_counter()
    progress = replace(progress, state=apply_release(simulation.release, simulation.on(engine), progress.state))
    elapsed = time.perf_counter() - began
    spent = {"defenses": elapsed, "train": elapsed, "total": elapsed}
    progress = replace(progress, seconds=add_seconds(progress.seconds, spent))
    models = named_models(simulation.setup.model, progress.state)
    path = None if out is None else write_models(out, models, simulation.setup.model.frozen_names)
    try:
        folder = None if out is None else out / "references"
        progress, references = attack_with_references(
            simulation, engine, progress, folder=folder, watch=watch, workers=workers
        )
        return measure_final(simulation, engine, progress, observations, references)
    except OSError:
        raise
    except Exception as error:
        if type(error) is ShoalError:
            # Neither the models nor their figures are at fault.
            raise
        LOG.info("measuring the final models failed", exc_info=True)
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}".splitlines()[0]
        where = f"in {path}; resume the run to measure them again"
        if path is None:
            where = "the attribute 'models' of this error"
        raise MeasurementError(models, f"measuring failed: {reason}; the trained models are {where}") from error
