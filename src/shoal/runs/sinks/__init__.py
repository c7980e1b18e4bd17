"""Experiment trackers: what a run logs to TensorBoard, MLflow or Weights & Biases."""

from collections.abc import Iterable

from shoal.core.errors import nearest, require
from shoal.runs.sinks.mlflow import MLflow as MLflow
from shoal.runs.sinks.sink import Sink, require_package
from shoal.runs.sinks.tensorboard import TensorBoard as TensorBoard
from shoal.runs.sinks.wandb import WandB as WandB

_NAMES = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def named_sinks(names: Iterable[str]) -> list[Sink]:
    """The trackers of ``--log``, in the run's directory; `InputError` for an unknown or uninstalled one."""
    for name in names:
        require(name in _NAMES, f"'--log' must name a tracker; got '{name}'; {nearest(name, _NAMES)}")
    sinks = [_NAMES[name]() for name in dict.fromkeys(names)]
    for sink in sinks:
        require_package(sink)
    return sinks
