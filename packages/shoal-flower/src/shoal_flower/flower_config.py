"""The keys of Flower's configurations that Shoal reads: ``--node-config`` of a client, ``--run-config`` of the server.

A key has "-" where the field of the settings has "_".
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
"""The form of a client's name, also the name of its folder."""

_Settings = TypeVar("_Settings")


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("a path")
    return Path(value).expanduser()


def _toml_file(value: object) -> Path:
    """The file ``value`` at the server; a relative path starts at the SuperLink's folder."""
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
    """The configuration of a node: its client, the client's data and preferences.

    The server learns the client's name, its partition and ``leave`` only.

    Args:
        partition_id: the client's partition of a named set, for trials; None: the client has its own data.
        num_partitions: a number that Flower's own simulation sends; not used.
        client: the client's name; "": ``partition-N``.
        data_path: the client's own folder or table.
        data_dir: the first place to look for a named set; None: the usual places.
        alpha: weight of the loss in the client's choice, 1 - ``beta``.
        beta: weight of the risk in the client's choice; without it and ``alpha``, the run's.
        threshold: the client's limit of exposure; None: the run's.
        policy: a TOML file of questions that the server may ask (`shoal_flower.client.policy.Policy`); None: defaults.
        epsilon_budget: largest epsilon of the client's ledger; ``noise`` must be secret.
        state_dir: the client's own folder, with its privacy ledger and its personal model; None: beside Flower's files.
        risk: the source of the risk estimates in the client's choice, the server or the client itself.
        noise: the source of random numbers that protect the client: "secret", the machine's own, drawn anew for each
            answer; or "seed", the run's seed, for trials only, since the server knows it and could subtract the noise.
        threads: number of processor threads.
        secure_aggregation: "required": the node answers secure sums only; "allowed": as the run says. ``peer_keys``
            imply "required".
        node_key: the file of a private key that signs in secure sums, such as the SuperNode's; None: a new key in
            ``state_dir``.
        peer_keys: a file of the public keys of all clients, a name and a key per line; no other client may take part.
            None: the first key of each name is trusted, and a different one is refused.
        min_clients: smallest number of clients in a cluster whose secure sum may be opened.
        leave: whether the client leaves for good: its ledger closes, and it refuses every question.
        allow_code: ``module:Name`` of the user's own algorithms, networks and so on that a run's configuration may
            name, separated by commas; the node must have their modules installed. Any other code is refused.
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
        require(one, "give either 'data-path' or 'partition-id'")
        require(bool(self.name), "a client with data of its own needs a name; give 'client'")
        plain = re.fullmatch(CLIENT_NAME, self.name) is not None
        require(plain, f"'client' must be of letters, digits, '-', '_' and '.'; got {self.name!r}")
        secret = self.noise == "secret" or self.epsilon_budget == math.inf
        require(secret, "'noise' must be 'secret' with 'epsilon-budget', since the server knows the run's seed")
        alpha, beta = self.alpha, self.beta
        complementary = alpha is None or beta is None or abs(alpha + beta - 1) < 1e-9
        require(complementary, f"'alpha' and 'beta' must sum to 1; got {alpha} and {beta}")

    @staticmethod
    def read(config: Mapping[str, object]) -> "NodeSettings":
        """The settings in a node's configuration.

        Raises:
            InputError: an unknown key, a value that is not allowed, or neither data nor a partition.
        """
        keys = [field.name.replace("_", "-") for field in fields(NodeSettings)]
        for key in config:
            require(key in keys, f"--node-config: unknown key '{key}'; {suggest(key, keys)}")
        return _read(NodeSettings, config, "--node-config")

    @property
    def answers_sums_alone(self) -> bool:
        """Whether single updates and histograms are refused."""
        return self.secure_aggregation == "required" or self.peer_keys is not None

    @property
    def name(self) -> str:
        """The client's name; "": it has its own data and no name."""
        return self.client or ("" if self.partition_id is None else f"partition-{self.partition_id}")

    @property
    def folder(self) -> Path:
        """The client's own folder."""
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
        return self.state_dir or home / "shoal" / self.name

    @property
    def risk_weight(self) -> float | None:
        """``beta``, or 1 - ``alpha``."""
        return self.beta if self.beta is not None or self.alpha is None else 1 - self.alpha


@settings
class RunSettings:
    """The configuration of a run, ``[tool.flwr.app.config]`` of deploy/app/pyproject.toml.

    Args:
        config: the run's TOML file, as for `shoal run`.
        out: the run's directory at the server; an existing run resumes.
        data_dir: the first place to look for data.
        ledgers: a file of the last charge of each client's ledger, which all runs of the same clients should share;
            None: ``ledgers.json`` beside ``out``.
        min_nodes: clients needed before a round begins.
        round_timeout: seconds that a round waits for replies.
        wait_timeout: seconds that the server waits for enough clients.
        max_examples: largest number of examples of a client.
        max_update_norm: largest L2 norm of an update; 0: as `Limits` says.
        max_norm_ratio: largest multiple of the median norm of a round's updates; 0: any.
        names: the owner of a client's name: "keys", the key of the first node with it, for ever; "nodes", for trials
            without keys: another node may take it once the first has missed a deadline.
        max_members: largest number of clients; further ones are turned away.
        leave: names of clients that leave for good before the next round, separated by commas.
        quorum: share of a round's clients whose updates end the round.
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
        """The settings in a run configuration; other keys belong to the app.

        Raises:
            InputError: a value that is not allowed, or a missing file.
        """
        return _read(RunSettings, {"config": "", **config}, "run config")

    @property
    def stamps(self) -> Path:
        """``ledgers``, or its default."""
        return self.ledgers or self.out.parent / "ledgers.json"

    @property
    def limits(self) -> Limits:
        """The limits of clients' replies."""
        return Limits(self.max_examples, self.max_update_norm or None, self.max_norm_ratio or math.inf)


def _read(kind: type[_Settings], config: Mapping[str, object], where: str) -> _Settings:
    """The settings of this ``kind``; ``where`` begins each sentence of an `InputError`."""
    keys = {name: name.replace("_", "-") for name in kind.__dataclass_fields__}  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return kind(**{name: config[key] for name, key in keys.items() if key in config})
    except FieldError as error:
        raise InputError(f"{where}: {FieldError(error.errors, keys)}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
