"""What the run configuration of Flower says: the file that configures the run, and the server's limits."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError, require
from shoal.deployment.messages import Limits


@dataclass(frozen=True)
class RunSettings:
    """The keys of ``[tool.flwr.app.config]``, checked.

    Args:
        config: of the run, a TOML file as `shoal run` takes.
        out: the run's directory at the server. One that exists is gone on with, from its last round.
        data_dir: where the server looks for data first.
        min_nodes: clients that must be there before the first round, and in each round.
        round_timeout: seconds that a round waits for replies.
        wait_timeout: seconds that the server waits for enough clients before it gives up.
        limits: of what is merged.
    """

    config: Path
    out: Path
    data_dir: Path | None
    min_nodes: int
    round_timeout: float
    wait_timeout: float
    limits: Limits

    @staticmethod
    def read(given: Mapping[str, Any]) -> "RunSettings":
        """The settings in a run configuration.

        Raises:
            InputError: a value that is not allowed, or no such file.
        """
        norm = _number(given, "max-update-norm", 0.0)
        return RunSettings(
            config=_found(str(given.get("config", ""))),
            out=Path(str(given.get("out", "runs/flower"))).expanduser().absolute(),
            data_dir=Path(str(given["data-dir"])).expanduser() if given.get("data-dir") else None,
            min_nodes=_whole(given, "min-nodes", 2),
            round_timeout=_number(given, "round-timeout", 600.0),
            wait_timeout=_number(given, "wait-timeout", 600.0),
            limits=Limits(_whole(given, "max-examples", 10_000_000), math.inf if norm == 0 else norm),
        )


def _found(name: str) -> Path:
    """The file called ``name``, as the server finds it: from where it was started, or in the app that was sent."""
    require(bool(name), "run config: 'config' must name a TOML file of the project")
    path = Path(name).expanduser()
    places = [path] if path.is_absolute() else [Path.cwd() / path, *(Path(each) / path for each in sys.path)]
    for each in places:
        if each.is_file():
            return each
    raise InputError(f"run config: 'config' names the file '{name}', which is neither at the server nor in the app")


def _whole(given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if type(value) is not int or value < 1:
        raise InputError(f"run config: '{key}' must be an integer of at least 1; got {value!r}")
    return value


def _number(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError(f"run config: '{key}' must be a number of at least 0; got {value!r}")
    return float(value)
