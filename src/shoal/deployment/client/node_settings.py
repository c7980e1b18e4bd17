"""What a node says of its client: whose data, where they are, what the client tolerates. None of it is sent."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.core.errors import InputError, nearest, require
from shoal.engine.engine import MAX_THREADS

CLIENT_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
"""What a client may be called; folders have this name too."""

_KEYS = (
    "partition-id", "num-partitions", "client", "data-path", "data-dir", "alpha", "beta", "threshold",
    "epsilon-budget", "state-dir", "risk", "noise", "threads",
)  # fmt: skip


@dataclass(frozen=True)
class NodeSettings:
    """The keys of ``--node-config`` that Shoal reads, checked.

    Args:
        partition: of a named set that is dealt out, for trials; None: the client has data of its own.
        client: the client's name; None: ``partition-N``.
        data_path: the client's own folder or table.
        data_dir: where to look for a named set first; None: the usual places.
        beta: weight of risk in its choice; None: as the run's configuration says.
        threshold: membership-inference accuracy that it tolerates; None: as the run's configuration says.
        epsilon_budget: the client refuses a round after which it would have spent more.
        state_dir: its own folder, where its privacy ledger and its personal model are.
        risk: whose estimates it chooses by: the server's, or its own.
        noise: where random numbers that protect the client come from: "secret", this machine's own, anew for each
            answer; or "seed", the run's seed, which the server knows and could take them off by: for trials alone.
        threads: of the processor.
    """

    partition: int | None
    client: str
    data_path: Path | None
    data_dir: Path | None
    beta: float | None
    threshold: float | None
    epsilon_budget: float
    state_dir: Path
    risk: Literal["server", "client"]
    noise: Literal["secret", "seed"]
    threads: int

    @staticmethod
    def read(given: Mapping[str, Any]) -> "NodeSettings":
        """The settings in a node's configuration.

        Raises:
            InputError: a key that is unknown or has a value that is not allowed, or neither data nor a partition.
        """
        for key in given:
            require(key in _KEYS, f"--node-config: unknown key '{key}'; {nearest(key, _KEYS)}")
        partition = given.get("partition-id")
        path = given.get("data-path")
        if path is None:
            fits = type(partition) is int and partition >= 0
            require(fits, f"--node-config: give 'data-path', or 'partition-id' of at least 0; got {partition!r}")
        name = str(given.get("client", "" if partition is None else f"partition-{partition}"))
        require(bool(name), "--node-config: a client with data of its own needs a name; give 'client'")
        plain = re.fullmatch(CLIENT_NAME, name) is not None
        require(plain, f"--node-config: 'client' must be of letters, digits, '-', '_' and '.'; got {name!r}")
        risk = given.get("risk", "server")
        require(risk in ("server", "client"), f"--node-config: 'risk' must be 'server' or 'client'; got {risk!r}")
        noise = given.get("noise", "secret")
        require(noise in ("secret", "seed"), f"--node-config: 'noise' must be 'secret' or 'seed'; got {noise!r}")
        threads = given.get("threads", 1)
        fits = type(threads) is int and 1 <= threads <= MAX_THREADS
        require(fits, f"--node-config: 'threads' must be in [1, {MAX_THREADS}]; got {threads!r}")
        state, budget = given.get("state-dir"), _number(given, "epsilon-budget", 0.0, math.inf)
        return NodeSettings(
            partition=None if path is not None else partition,
            client=name,
            data_path=None if path is None else Path(str(path)).expanduser(),
            data_dir=None if given.get("data-dir") is None else Path(str(given["data-dir"])).expanduser(),
            beta=_beta(given),
            threshold=_number(given, "threshold", 0.5, 1.0),
            epsilon_budget=math.inf if budget is None else budget,
            state_dir=_home() / name if state is None else Path(str(state)).expanduser(),
            risk="client" if risk == "client" else "server",
            noise="seed" if noise == "seed" else "secret",
            threads=threads,
        )


def _home() -> Path:
    """Where clients without a ``state-dir`` keep their state: beside Flower's own."""
    return Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser() / "shoal"


def _beta(given: Mapping[str, Any]) -> float | None:
    alpha, beta = _number(given, "alpha", 0.0, 1.0), _number(given, "beta", 0.0, 1.0)
    if alpha is None:
        return beta
    beta = 1 - alpha if beta is None else beta
    require(
        abs(alpha + beta - 1) < 1e-9, f"--node-config: 'alpha' and 'beta' must sum to 1; got {alpha:g} and {beta:g}"
    )
    return beta


def _number(given: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"--node-config: '{key}' must be a number in [{low:g}, {high:g}]; got {value!r}")
    return float(value)
