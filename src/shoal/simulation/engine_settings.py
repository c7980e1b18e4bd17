"""The computation of a simulation: the section [engine] of a configuration, and a value in Python."""

from dataclasses import replace
from typing import Literal

from shoal.algorithms.wrapper import with_bases
from shoal.core.settings import settings
from shoal.engine import Engine, LocalSGD, Precision, check_backend, resolve_backend
from shoal.engine.engine import Device, Threads
from shoal.models import Features, Model
from shoal.simulation.simulation import Simulation, first_examples


@settings
class EngineSettings:
    """The engine. ``threads`` changes no bit of any result, ``device`` and ``backend`` the last bits only.

    Args:
        device: ``cpu``, ``cuda``, or one of several such as ``cuda:1``.
        threads: of the processor; left out: one for each core that the process may use.
        precision: ``fp32``, or ``bf16``, which has 8 bits of mantissa and keeps parameters in float32: faster on
            processors with bf16 matrix units (Intel's AMX, GPUs), slower on others.
        backend: ``loop`` or ``vmap``; ``auto`` chooses by the model, and of a network of your own also by a trial on
            two examples. config.toml has the choice.
    """

    device: Device = "cpu"
    threads: Threads | None = None
    precision: Precision = "fp32"
    backend: Literal["auto", "loop", "vmap"] = "auto"

    def decided(self, simulation: Simulation, *, tried: bool = True) -> "EngineSettings":
        """These settings with the backend that trains a simulation, with what its algorithm adds.

        Args:
            simulation: its algorithm may wrap others with a local training of their own.
            tried: whether a network is tried on two examples, unless their features are not computed yet; False: its
                layers alone decide.

        Raises:
            InputError: the backend cannot train the simulation.
        """
        setup, federation = simulation.setup, simulation.federation
        of_algorithms = (getattr(base, "local", None) for base in with_bases(simulation.algorithm))
        trainings = [setup.first_local(), *(local for local in of_algorithms if isinstance(local, LocalSGD))]
        if self.backend != "auto":
            for local in trainings:
                check_backend(self.backend, setup.model, local)
            return self
        # "loop" where one of them needs it.
        backend = min(resolve_backend(setup.model, local) for local in trainings)
        if backend == "vmap" and tried and not isinstance(simulation.features, Features):
            examples = first_examples(federation)
            backend = resolve_backend(setup.model, trainings[0], examples, federation.classes)
        return replace(self, backend=backend)

    def engine(self, model: Model) -> Engine:
        """The engine that trains ``model``.

        Raises:
            InputError: a device that is not there, or a backend that cannot train the network.
        """
        return Engine(
            model,
            device=self.device,
            threads=self.threads,
            precision=self.precision,
            backend=None if self.backend == "auto" else self.backend,
        )
