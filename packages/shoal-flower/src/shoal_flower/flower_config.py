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
"""The form of a client's name, which its folder has too."""

_Settings = TypeVar("_Settings")


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("a path")
    return Path(value).expanduser()


def _toml_file(value: object) -> Path:
    """The file ``value`` at the server, from where its SuperLink was started."""
    if isinstance(value, str | Path) and str(value) and (path := _path(value).absolute()).is_file():
        return path
    raise ValueError("a TOML file at the server")


_OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: None if value in ("", None) else _path(value))]
_NonNegative = Annotated[float, Field(ge=0, strict=True)]


@settings
class NodeSettings:
    """The configuration of a node: whose data it has, where they are, and what their client tolerates.

    Only the client's name and its partition are sent.

    Args:
        partition_id: the client's partition of a named set, for trials; None: the client has data of its own.
        num_partitions: given by Flower's own simulation; not used.
        client: the client's name; "": ``partition-N``.
        data_path: the client's own folder or table.
        data_dir: where to look for a named set first; None: the usual places.
        alpha: weight of the loss in the client's choice, 1 - ``beta``.
        beta: weight of the risk in the client's choice; None, as ``alpha``: that of the run's configuration.
        threshold: tolerated accuracy of membership inference; None: that of the run's configuration.
        policy: the TOML file of what the server may ask, `shoal_flower.client.policy.Policy`; None: its defaults.
        epsilon_budget: the client refuses what would take its ledger above this; ``noise`` must be secret.
        state_dir: the client's own folder, of its privacy ledger and its personal model; None: beside Flower's files.
        risk: whose estimates of risk the client chooses by: the server's, or its own.
        noise: the source of random numbers that protect the client: "secret", the machine's own, drawn anew for each
            answer; or "seed", the run's seed, which the server knows and could subtract them by: for trials alone.
        threads: of the processor.
        secure_aggregation: "required": the node answers secure sums alone, and no question for its single update or
            histograms; "allowed": as the run says. With ``peer_keys`` it is required.
        node_key: file of the private key by which the node signs in secure sums, as the one of its SuperNode; None: one
            of its own, made in its state folder.
        peer_keys: file of the public keys of all clients, a name and a key a line, without which nobody takes part;
            None: the first key of each name is taken, and another one is refused.
        min_clients: the node takes part in secure sums that open clusters of at least so many.
        leave: whether the client leaves for good: its ledger is closed, and every question is refused.
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
        require(secret, "'epsilon-budget' needs 'noise' to be 'secret': noise that the server knows protects nobody")
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
        """The client's name; "" where it has data of its own and no name was given."""
        return self.client or ("" if self.partition_id is None else f"partition-{self.partition_id}")

    @property
    def folder(self) -> Path:
        """The client's own folder."""
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
        return self.state_dir or home / "shoal" / self.name

    @property
    def risk_weight(self) -> float | None:
        """``beta``, or what ``alpha`` leaves for it."""
        return self.beta if self.beta is not None or self.alpha is None else 1 - self.alpha


@settings
class RunSettings:
    """The configuration of a run, ``[tool.flwr.app.config]`` of deploy/app/pyproject.toml.

    Args:
        config: of the run, a TOML file as `shoal run` takes.
        out: the run's directory at the server; a run in an existing one resumes after its last round.
        data_dir: where the server looks for data first.
        ledgers: the file of the last charge of each client's ledger that the server has seen, which all runs of the
            same clients should share; None: ``ledgers.json`` beside ``out``.
        min_nodes: clients without which no round begins.
        round_timeout: seconds that a round waits for replies.
        wait_timeout: seconds that the server waits for enough clients before it gives up.
        max_examples: the largest number of examples that is believed of a client.
        max_update_norm: the largest L2 norm of an update; 0: as `Limits` says.
        max_norm_ratio: the largest multiple of the median norm of a round's updates; 0: any.
        names: what a client's name belongs to: the key of the first node that came with it, for ever; or "nodes", where
            nodes have no keys of their own, for trials: another node takes it once the first has missed a deadline.
        max_members: clients that a run knows; further ones are turned away.
        leave: names of clients that leave for good before the next round, separated by commas.
        quorum: share of a round's clients after whose updates it waits for no more.
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
    leave: str = ""
    quorum: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0

    @staticmethod
    def read(config: Mapping[str, object]) -> "RunSettings":
        """The settings in a run configuration, whose other keys are of the app.

        Raises:
            InputError: a value that is not allowed, or no such file.
        """
        return _read(RunSettings, {"config": "", **config}, "run config")

    @property
    def stamps(self) -> Path:
        """``ledgers``, or the file that it is by default."""
        return self.ledgers or self.out.parent / "ledgers.json"

    @property
    def leavers(self) -> list[str]:
        """The names in ``leave``."""
        return [name for part in self.leave.split(",") if (name := part.strip())]

    @property
    def limits(self) -> Limits:
        """The limits of what is merged."""
        return Limits(self.max_examples, self.max_update_norm or None, self.max_norm_ratio or math.inf)


def _read(kind: type[_Settings], config: Mapping[str, object], where: str) -> _Settings:
    """The settings of this ``kind`` in a configuration; ``where`` begins each sentence of an `InputError`."""
    keys = {name: name.replace("_", "-") for name in kind.__dataclass_fields__}  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return kind(**{name: config[key] for name, key in keys.items() if key in config})
    except FieldError as error:
        raise InputError(f"{where}: {FieldError(error.errors, keys)}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
