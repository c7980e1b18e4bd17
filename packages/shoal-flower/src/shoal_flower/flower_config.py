"""The keys in Flower's configurations: ``--node-config`` of a client, and ``--run-config`` of the server.

A key has "-" where the field in `NodeSettings` or `RunSettings` has "_".
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from shoal.core.errors import InputError, require, suggest
from shoal.core.settings import Count, FieldError, Fraction, Positive, settings
from shoal.engine.engine import Threads
from shoal_flower.messages import Limits

CLIENT_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
"""The form of a client's name, which also names the client's folder."""

_Settings = TypeVar("_Settings")


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("a path")
    return Path(value).expanduser()


def _toml_file(value: object) -> Path:
    """Return the file ``value`` at the server; a relative path starts at the SuperLink's folder."""
    if isinstance(value, str | Path) and str(value) and (path := _path(value).absolute()).is_file():
        return path
    raise ValueError("a TOML file at the server")


_OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: None if value in ("", None) else _path(value))]
_NonNegative = Annotated[float, Field(ge=0, strict=True)]
_Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda text: text.replace(",", " ").split() if isinstance(text, str) else text)
]


@settings
class NodeSettings:
    """The configuration of a node: its client, and the client's data and preferences.

    The server learns only the client's name, its partition and ``leave``.

    Args:
        partition_id: the number of the client's partition of a named data set, for trials, or None if the client has
            its own data.
        num_partitions: the number of partitions, which Flower's simulation sends; not used.
        client: the client's name; the default is ``partition-N``.
        data_path: the folder or table of the client's own data.
        data_dir: the folder that is searched first for a named data set, or None for the usual folders.
        alpha: the weight of the loss in the client's choice of a model, 1 - ``beta``.
        beta: the weight of the risk in the client's choice of a model. None uses 1 - ``alpha``, or the run's weight.
        threshold: the client's limit on exposure. None uses the run's limit.
        policy: the TOML file of the node's policy (`shoal_flower.client.policy.Policy`). None uses the default policy.
        epsilon_budget: the largest epsilon of the client's ledger; a budget needs ``noise`` to be "secret".
        state_dir: the folder of the client's privacy ledger and personal model, or None for a folder beside Flower's
            files.
        risk: the source of the risk estimates in the client's choice of a model, "server" or "client".
        noise: the source of the random numbers that protect the client. "secret" draws from the machine's randomness
            for each answer. "seed" uses the run's seed, for trials only, because the server knows the seed and could
            subtract the noise.
        threads: the number of processor threads.
        secure_aggregation: "required" limits the node to secure sums; "allowed" follows the run. ``peer_keys`` imply
            "required".
        node_key: the file of the node's private key for signatures in secure sums, such as the SuperNode's key. None
            makes a new key in ``state_dir``.
        peer_keys: a file of the public keys of all clients, with one name and key per line. Clients without a listed
            key cannot take part in secure sums. None trusts the first key of each name, and refuses a different key
            later.
        min_clients: the smallest number of clients in a cluster whose secure sum the node helps to reveal.
        leave: whether the client leaves for good; the node then closes its ledger and refuses all questions.
        allow_code: the ``module:Name`` of user code that a run's configuration may name, separated by commas. The
            modules must be installed on the node.
    """

    partition_id: Count | None = None
    num_partitions: Count | None = None
    client: str = ""
    data_path: _OptionalPath = None
    data_dir: _OptionalPath = None
    alpha: Fraction | None = None
    beta: Fraction | None = None
    threshold: Annotated[float, Field(ge=0.5, le=1, strict=True)] | None = None
    policy: _OptionalPath = None
    epsilon_budget: _NonNegative = math.inf
    state_dir: _OptionalPath = None
    risk: Literal["server", "client"] = "server"
    noise: Literal["secret", "seed"] = "secret"
    threads: Threads = 1
    secure_aggregation: Literal["allowed", "required"] = "allowed"
    node_key: _OptionalPath = None
    peer_keys: _OptionalPath = None
    min_clients: Positive = 2
    leave: Annotated[bool, Field(strict=True)] = False
    allow_code: str = ""

    def __post_init__(self) -> None:
        one = (self.data_path is None) != (self.partition_id is None)
        require(one, "the node needs exactly one of 'data-path' and 'partition-id'")
        require(bool(self.name), "'client' is missing; name the client that has 'data-path'")
        plain = re.fullmatch(CLIENT_NAME, self.name) is not None
        require(plain, f"'client' may have only letters, digits, '-', '_' and '.' (got {self.name!r})")
        secret = self.noise == "secret" or self.epsilon_budget == math.inf
        require(secret, "'noise' must be 'secret' with 'epsilon-budget' (got 'seed')")
        alpha, beta = self.alpha, self.beta
        complementary = alpha is None or beta is None or abs(alpha + beta - 1) < 1e-9
        require(complementary, f"'alpha' and 'beta' must sum to 1 (got {alpha} and {beta})")

    @staticmethod
    def read(config: Mapping[str, object]) -> "NodeSettings":
        """Read the settings in a node's configuration.

        Raises:
            InputError: a key is unknown, a value is not allowed, or both data and a partition are missing.
        """
        keys = [field.name.replace("_", "-") for field in fields(NodeSettings)]
        for key in config:
            require(key in keys, f"--node-config: unknown key '{key}'; {suggest(key, keys)}")
        return _read(NodeSettings, config, "--node-config")

    @property
    def answers_sums_alone(self) -> bool:
        """Whether the node answers only secure sums."""
        return self.secure_aggregation == "required" or self.peer_keys is not None

    @property
    def name(self) -> str:
        """The client's name, or "" for a client with its own data and no name."""
        return self.client or ("" if self.partition_id is None else f"partition-{self.partition_id}")

    @property
    def folder(self) -> Path:
        """The folder of the client's state."""
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
        return self.state_dir or home / "shoal" / self.name

    @property
    def risk_weight(self) -> float | None:
        """The weight of the risk, which is ``beta`` or 1 - ``alpha``."""
        return self.beta if self.beta is not None or self.alpha is None else 1 - self.alpha


@settings
class RunSettings:
    """The configuration of a run, ``[tool.flwr.app.config]`` in deploy/app/pyproject.toml.

    Args:
        config: the run's TOML file, as for `shoal run`.
        out: the run's directory at the server; an existing run resumes.
        data_dir: the folder that is searched first for data.
        ledgers: the file of the last charge in each client's ledger, to be shared by all runs of the same clients. None
            means ``ledgers.json`` beside ``out``.
        min_nodes: the number of clients that a round needs to begin.
        round_timeout: the longest wait for replies in a round, in seconds.
        wait_timeout: the longest wait for enough clients, in seconds.
        max_examples: the largest number of examples per client.
        max_update_norm: the largest L2 norm of an update; 0 uses the default of `Limits`.
        max_norm_ratio: the largest norm of an update as a multiple of the round's median norm; 0 for no limit.
        names: the rule that assigns a client's name to a node. "keys" reserves a name for the key of the first node
            with the name. "nodes", for trials without keys, gives the name to another node after the first node missed
            a deadline.
        max_members: the largest number of clients; later clients are rejected.
        leave: the names of clients that leave for good before the next round, separated by commas.
        quorum: the fraction of a round's clients whose updates suffice to end the round.
    """

    config: Annotated[Path, BeforeValidator(_toml_file)]
    out: Annotated[Path, BeforeValidator(lambda value: _path(value).absolute())] = Path("runs/flower")
    data_dir: _OptionalPath = None
    ledgers: _OptionalPath = None
    min_nodes: Positive = 2
    round_timeout: _NonNegative = 600.0
    wait_timeout: _NonNegative = 600.0
    max_examples: Positive = 10_000_000
    max_update_norm: _NonNegative = 0.0
    max_norm_ratio: _NonNegative = 10.0
    names: Literal["keys", "nodes"] = "keys"
    max_members: Positive = 10_000
    leave: _Names = ()
    quorum: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0

    @staticmethod
    def read(config: Mapping[str, object]) -> "RunSettings":
        """Read the settings in a run configuration, ignoring the app's other keys.

        Raises:
            InputError: a value is not allowed, or a file is missing.
        """
        return _read(RunSettings, {"config": "", **config}, "run config")

    @property
    def stamps(self) -> Path:
        """The file of the last charges, ``ledgers`` or by default ``ledgers.json``."""
        return self.ledgers or self.out.parent / "ledgers.json"

    @property
    def limits(self) -> Limits:
        """The limits on clients' replies."""
        return Limits(self.max_examples, self.max_update_norm or None, self.max_norm_ratio or math.inf)


def _read(kind: type[_Settings], config: Mapping[str, object], where: str) -> _Settings:
    """Return the settings of this ``kind``; an `InputError` begins with ``where``."""
    keys = {name: name.replace("_", "-") for name in kind.__dataclass_fields__}  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return kind(**{name: config[key] for name, key in keys.items() if key in config})
    except FieldError as error:
        raise InputError(f"{where}: {FieldError(error.errors, keys)}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
