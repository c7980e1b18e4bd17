"""The final models measured, and kept whatever fails in it."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from shoal.core.errors import InputError, ShoalError
from shoal.core.processes import IN_TURN, Workers
from shoal.engine import Engine, Tensors
from shoal.replay.reference_store import AuditWatch, attack_with_references
from shoal.runs.result import named_models, write_models
from shoal.simulation.distillation import released
from shoal.simulation.measure import Outcome, measure_final
from shoal.simulation.play import SimulationState, added
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger("shoal")


class MeasurementError(InputError):
    """Measuring the final models failed, perhaps in a network, a loss or an attack of the user's own.

    Attributes:
        models: that were trained: the tensors of each cluster's by name, for `torch.nn.Module.load_state_dict`.

    Example:
        >>> import shoal
        >>> def metric(outputs, labels):
        ...     assert len(labels) < 4, "four examples at once"
        ...     return shoal.models.accuracy(outputs, labels)
        ...
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.Model(lambda: __import__("torch").nn.Linear(1, 2), metric=metric)
        >>> try:
        ...     shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1)
        ... except shoal.MeasurementError as error:
        ...     print(error.models[0].keys())
        ...
        dict_keys(['weight', 'bias'])
    """

    def __init__(self, models: Mapping[int, Mapping[str, Tensor]], sentence: str) -> None:
        super().__init__(sentence)
        self.models = models


def measured(
    simulation: Simulation,
    engine: Engine,
    progress: SimulationState,
    observations: Mapping[int, Tensors],
    *,
    out: Path | None = None,
    watch: AuditWatch | None = None,
    workers: Workers = IN_TURN,
) -> Outcome:
    """Measure the models after the last round, with reference federations where they are asked for.

    Args:
        simulation: with its data where the engine wants them.
        engine: with its network.
        progress: after the last round.
        observations: what a round attack kept, by round.
        out: the run's directory, where models.safetensors is written first. None: nothing is written.
        watch: called before the first reference federation and after each.
        workers: the processes that train them.

    Raises:
        MeasurementError: whatever else than the operating system failed; the sentence says where the models are.
    """
    began = time.perf_counter()
    progress = replace(progress, state=released(simulation.release, simulation.on(engine), progress.state))
    elapsed = time.perf_counter() - began
    spent = {"defenses": elapsed, "train": elapsed, "total": elapsed}
    progress = replace(progress, seconds=added(progress.seconds, spent))
    models = named_models(simulation.setup.model, progress.state)
    written = None if out is None else write_models(out, models, simulation.setup.model.frozen_names)
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
            # The models are well, and so is what was measured of them.
            raise
        LOG.info("measuring the final models failed", exc_info=True)
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}".splitlines()[0]
        where = "the attribute 'models' of this error"
        if written is not None:
            where = f"in {written}, and resuming measures them again"
        raise MeasurementError(models, f"measuring failed: {reason}; the trained models are {where}") from error
