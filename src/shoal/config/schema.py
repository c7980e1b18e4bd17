"""The schema of a run's configuration, built from the settings classes of its parts."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field

from shoal.audit import RedTeam
from shoal.config.defense_sections import CoordinatorSection, DefensesSection
from shoal.config.kinds import KINDS, RoundAttackSection, create_from_table, name_of, own_source, require_data
from shoal.config.named_keys import require_own_keys, set_keys
from shoal.config.settings_tables import names_of, table_of
from shoal.config.toml_files import key_parts, parse, parse_change, read_toml
from shoal.core.entry_points import installed_names
from shoal.core.errors import locate_errors, quote, require, suggest
from shoal.core.settings import Count, Flag, Fraction, Inline, Positive, PositiveFloat, Range, settings
from shoal.data import ClientSplit, Columns, Group, MislabelledCanaries, Partition, PictureFormat
from shoal.data.preferences import View
from shoal.data.presence import Event
from shoal.data.sources.catalog import SOURCES
from shoal.data.sources.named_tables import NAMED_TABLES
from shoal.data.swap_pairs import Duplicates
from shoal.engine import Algorithm, Forgetting, LocalSGD
from shoal.models import Network
from shoal.simulation.distillation import Distillation
from shoal.simulation.play import EngineSettings
from shoal.simulation.simulation import DEFAULT_FORGETTING

LOG = logging.getLogger("shoal")

SIMULATION = "simulation"
"""The table about parts without a name, in the config.toml of a run from Python."""


_KINDS = (Partition, ClientSplit, PictureFormat, Columns)
_OF_CLIENTS = {
    "folder": (ClientSplit, PictureFormat),
    **dict.fromkeys(("table", *NAMED_TABLES), (ClientSplit, Columns)),
}
"""The additional settings of sources that state each example's client."""


@settings
class DataSection:
    """The data source and the division of its examples among clients.

    For most sources, Shoal draws each client's examples as set by ``clients``, ``examples_per_client`` and
    ``test_examples``. The sources ``folder`` and ``table`` and the named tables already assign each example to a
    client. For these sources, ``test_fraction``, ``holdout_fraction`` and ``shadow_fraction`` set the held-out
    fractions. The keys ``size`` and ``channels`` apply only to the source ``folder``. The keys ``client``, ``label``,
    ``group`` and ``inputs`` describe the columns of ``table``, which requires ``client`` and ``label``. Named tables
    have defaults for all four keys. See [own data](own-data.md).

    Args:
        source: the name of the data source. Images: ``digits``, ``mnist``, ``fashion-mnist``, ``emnist-byclass``,
            ``cifar10``, ``lfw`` or ``idx`` (a folder in MNIST's format, given by ``path``). Texts: ``yelp``. Your own
            files with the client of each example: ``folder`` (pictures) or ``table`` (CSV or Parquet). Named tables,
            which require ``pip install 'shoal[tables]'``: ``hsb82``, ``azprocedure``, ``aids2``, ``chem97`` or
            ``star``. Your own function: ``module:Name``, which returns a data set, a pair of inputs and labels, a table
            or a federation. ``shoal data`` lists the sources on this machine.
        partition: the number of examples for each purpose; None if files state each example's client.
        path: the source's file, folder or archive, required by ``folder`` and ``table``. By default, Shoal searches the
            folders ``--data-dir`` and ``SHOAL_DATA``, the user's cache and Debian's folder of data sets. A relative
            path in a configuration file starts from the file's folder; a relative path in ``--set`` starts from the
            working directory.
        task: the label to learn, ``MAIN``, or this label and a property to infer, ``MAIN/PROPERTY``; see
            [tasks](#tasks). The default is the source's own label; ``lfw`` has no default. Tables have the tasks
            ``classification`` (the default) and ``regression``, which predicts a number.
        groups: the groups of clients. Each group is a table ``[data.groups.NAME]``, and the shares of all groups sum to
            1. The default is one group, ``all``. A federation with several groups cannot have a group named ``all``. A
            group with share 0 has only test examples, for the metrics ``mia_against_*``. The sources ``folder`` and
            ``table`` define groups in their files and do not allow this key.
        split: the held-out fractions of each client's examples, or None for a partitioned data set.
        pictures: the format of the pictures of ``folder``.
        columns: the roles of the columns of a ``table``.
    """

    source: str
    partition: Annotated[Partition | None, Inline()] = None
    path: str | None = None
    task: str | None = None
    groups: Annotated[dict[str, Group], Field(min_length=1)] = field(default_factory=lambda: {"all": Group("all", 1.0)})
    split: Annotated[ClientSplit | None, Inline()] = None
    pictures: Annotated[PictureFormat | None, Inline()] = None
    columns: Annotated[Columns | None, Inline()] = None

    @staticmethod
    def complete_keys(table: dict[str, Any]) -> dict[str, Any]:
        """Add a named table's default columns to [data]."""
        source = table.get("source")
        named = NAMED_TABLES.get(source) if isinstance(source, str) else None
        return table if named is None else named.complete(table)

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` if ``table`` has a key of a different source, or lacks a required key."""
        source = table.get("source")
        if not isinstance(source, str):
            return
        names = [*SOURCES, *installed_names("shoal.sources", SOURCES)]
        require(
            source in names or ":" in source, f"'data.source' is unknown (got '{source}'); {suggest(source, names)}"
        )
        # A user's own source may return a set, a table or a federation.
        kinds = (Partition, ClientSplit, Columns) if own_source(source) else _OF_CLIENTS.get(source, (Partition,))
        allowed = {name for cls in kinds for name in names_of(cls)}
        for name in (name for cls in _KINDS for name in names_of(cls)):
            hint = suggest(name, allowed)
            known = name in allowed or name not in table
            require(known, f"'data.{name}' is not allowed with the source '{source}'; {hint}")
        for cls in set(kinds) & {Partition, Columns} if not own_source(source) else ():
            first = names_of(cls)[0]
            require(
                bool(set(names_of(cls)) & set(table)),
                f"'data.{first}' is missing; the source '{source}' requires this key",
            )

    @property
    def groups_with_clients(self) -> list[str]:
        """The names of the groups that have clients."""
        return [name for name, group in self.groups.items() if group.share > 0]


@settings
class AlgorithmSection:
    """The federated algorithm and its number of rounds.

    A key of a different algorithm is an error. If ``--set`` or a sweep changes ``name``, Shoal ignores keys in the file
    that the new algorithm does not have. Keys set by ``--set`` or the sweep must belong to the new algorithm.

    Args:
        value: the algorithm.
        rounds: the number of rounds.
        participation: the fraction of clients that train in each round. Above 0, at least one client trains; with 0,
            the models stay unchanged.
    """

    value: Annotated[Algorithm, Inline("name")]
    rounds: Positive
    participation: Fraction = 1.0

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` if ``table`` has a key of a different algorithm."""
        require_own_keys(table)

    @property
    def name(self) -> str:
        """The algorithm's name in a file."""
        return name_of(type(self.value))


@settings
class PrivacySection:
    """The membership-inference accuracy that clients accept.

    Args:
        thresholds: the range [low, high] of the clients' limits on membership-inference accuracy; each client's limit
            is drawn uniformly. Two equal numbers give every client the same limit. The column `threshold_drawn` of
            `clients.csv` states whether the limits were drawn.
        view: the attacker for the limits: ``outsider``, ``client`` or ``server``, or a list with one of these names per
            client. The default is `evaluation.view`. The columns ``violated`` and ``exceeded`` of `clients.csv` refer
            to each client's own attacker.
        beta: the weight of risk when clients choose a model by risk and loss, as in ``ifca-mir``: one number, or a list
            with one number per client. ``threshold`` sets the weight to ``(high - limit) / (high - low)``. The weight
            of the loss is 1 - beta.
    """

    thresholds: Range = (0.5, 0.8)
    beta: Fraction | Literal["threshold"] | tuple[Fraction, ...] = "threshold"
    view: View | tuple[View, ...] | None = None


@settings
class EvaluationSection:
    """Evaluation during and after training.

    Args:
        every: the number of rounds between evaluations on the test set.
        member_rounds: the membership period before a model's last training, in rounds. Examples of clients that trained
            the model in this period count as members.
        baselines: whether to train three baselines for the same number of rounds: one model for all clients, one model
            per client, and one model per group. Runs without clusters train no baselines. In sweeps, the default is
            false.
        min_clients: the number of clients below which a cluster causes a warning; clients in small clusters are the
            most exposed. The algorithm `cluster-size-floor` moves random clients into small clusters.
        reference_federations: the number of [reference federations](audit.md#in-the-run-itself) trained after the last
            round; each costs about as much as the run's rounds. With reference federations, ``mia``, ``violations`` and
            ``exceeded`` use the strongest attack, chosen without knowledge of the members.
        view: the attacker for the figures ``exposure``, ``mia``, ``violations`` and ``exceeded``. An ``outsider`` has
            the final models. A ``client`` also has the initial model and every round's models of all clusters. The
            ``server`` also has each client's updates. To attack as ``client`` or ``server``, Shoal repeats training
            rounds after the last round.
        duplicates: the treatment of records with a copy (equal inputs and label) at another client or in the test,
            hold-out or shadow set. "keep" includes these records in audits and in the attacks for ``view``; "leave-out"
            excludes them.
        attacks: your own attacks for audits, each as the ``module:Name`` of a class without required arguments; see
            [adding](adding.md).
        metrics: your own metrics for `summary.json` and the run's page, each as the ``module:Name`` of a class without
            required arguments.
    """

    every: Positive = 1
    member_rounds: Positive = 5
    baselines: Flag = True
    min_clients: Positive = 3
    reference_federations: Count = 0
    view: View = "outsider"
    duplicates: Duplicates = "keep"
    attacks: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None

    def own_attacks(self) -> tuple[Any, ...]:
        """Create the values of ``attacks``."""
        return tuple(create_from_table(name, "evaluation.attacks") for name in self.attacks or ())

    def own_metrics(self) -> tuple[Any, ...]:
        """Create the values of ``metrics``."""
        return tuple(create_from_table(name, "evaluation.metrics") for name in self.metrics or ())


@settings
class CheckpointSection:
    """Checkpoints, for resuming an interrupted run.

    Args:
        every: the number of rounds between checkpoints.
    """

    every: Positive = 1


@settings
class RecordSection:
    """The recording of rounds for attacks by an honest-but-curious server; see [traces](trace.md).

    Recording does not change the trained models.

    Args:
        updates: the number of rounds from one recorded round to the next; 1 records every round, and 0 records none.
            Each client's update is written to ``updates/`` in the run directory, after the client's defences and before
            the server's defences.
        max_megabytes: the limit on the size of all recorded updates, in megabytes; Shoal refuses a larger run. An
            update has 4 bytes per parameter. The limit excludes the recorded models.
    """

    updates: Count = 0
    max_megabytes: Positive = 1000


@settings
class ForgettingSection:
    """The method that removes the influence of clients that leave (`[[events]]`).

    Values fitted before the first round, such as the scales of a table's columns, are not refitted.

    Args:
        value: the name of the method; each method has its own keys.
    """

    value: Annotated[Forgetting, Inline("method")] = DEFAULT_FORGETTING

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` if ``table`` has a key of a different method."""
        require_own_keys(table, "forgetting", "method", KINDS[Forgetting], DEFAULT_FORGETTING)


@settings
class SecureAggregationSection:
    """Secure aggregation on several machines; see [secure aggregation](secure-aggregation.md).

    The server learns the sum of the updates in each cluster, but no client's update or choice of a cluster. Simulations
    do not use secure aggregation, so their figures for the server's view assume that the server sees each update.

    Args:
        min_clients: the smallest number of clients in a cluster's sum. A cluster with fewer clients in a round keeps
            its model, and the server does not learn the sum.
        max_update_norm: the L2 norm to which each client clips its update. The norm also sets the range of the integers
            in the sum.
        max_examples: the largest number of examples that a client reports; clients with more examples report this
            number.
        threshold: a fraction of a round's clients; the server learns a sum only if more than this fraction answers.
            With 2 / 3, a server that colludes with a third of the clients cannot learn any client's update.
    """

    min_clients: Annotated[int, Field(ge=2, strict=True)] = 3
    max_update_norm: PositiveFloat = 10.0
    max_examples: Positive = 10_000
    threshold: Annotated[float, Field(ge=0.5, lt=1, strict=True)] = 2 / 3


@settings
class Config:
    """A run's configuration.

    The remaining fields are the tables of a configuration file.

    Args:
        seed: the seed of all random draws.
        events: the clients that leave or join during the run, as tables ``[[events]]``.

    Example:
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> algorithm = {"name": "ifca", "clusters": 3, "rounds": 2}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": algorithm}
        >>> config = parse_config(table, "the example")
        >>> isinstance(config, shoal.Config), config.algorithm.value.clusters, config.local.batch_size
        (True, 3, 32)
        >>> parse_config(config.table(), "the same table") == config
        True
    """

    data: DataSection
    model: Network
    algorithm: AlgorithmSection
    local: LocalSGD = LocalSGD()
    red_team: RedTeam = RedTeam()
    privacy: PrivacySection = PrivacySection()
    property_attack: RoundAttackSection | None = None
    defenses: DefensesSection = DefensesSection()
    engine: EngineSettings = EngineSettings()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    record: RecordSection | None = None
    release: Distillation | None = None
    coordinator: CoordinatorSection | None = None
    canaries: MislabelledCanaries | None = None
    secure_aggregation: SecureAggregationSection | None = None
    forgetting: ForgettingSection | None = None
    events: tuple[Event, ...] | None = None
    seed: Count = 0

    def table(self) -> dict[str, Any]:
        """Return the configuration as a table, without keys that have no value."""
        return table_of(self)

    def toml(self) -> str:
        """Return `table` as TOML."""
        return tomli_w.dumps(self.table())


def read_config(path: str | Path, changes: Iterable[str] = (), *, allow_code: bool | None = None) -> Config:
    """Read a configuration from a TOML file.

    Args:
        path: the file.
        changes: changes of keys, such as "algorithm.rounds=10".
        allow_code: whether to import the code that the file names (``module:Name``); the default is false for a file in
            a run directory, which may come from somebody else, and true otherwise.

    Raises:
        InputError: the file is missing or not TOML, a key is unknown, or a value is not allowed.


    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import tomli_w
        >>> import shoal
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 2}}
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "run.toml").write_text(tomli_w.dumps(table))
        ...     config = shoal.read_config(Path(folder, "run.toml"), ["algorithm.rounds=5"])
        ...
        >>> config.algorithm.rounds, config.red_team.every
        (5, 5)
    """
    table, path, pairs = read_toml(path), Path(path), [parse_change(change) for change in changes]
    require_named_parts(table, path, [key for key, _ in pairs])
    of_run = path.name == "config.toml" and any((path.parent / name).exists() for name in ("run.log", "checkpoint"))
    if allow_code is False or (allow_code is None and of_run):
        require_data(table, path)
    base = table.get("base")
    require(
        base is None, f"{path}: is a sweep, not a configuration; give its base '{base}', or run it with 'shoal sweep'"
    )
    table = with_data_path(table, path.parent)
    keys = [tuple(key_parts(key)) for key, _ in pairs]
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        LOG.warning("--set changes '%s' more than once; the last value counts", ".".join(key))
    with locate_errors("--set"):
        set_keys(table, dict(pairs))
    return parse_config(table, str(path))


def with_data_path(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve a relative `data.path` against ``folder``, the folder of the configuration file."""
    data = table.get("data")
    given = data.get("path") if isinstance(data, dict) else None
    if not isinstance(given, str) or not given.isprintable() or Path(given).expanduser().is_absolute():
        return table
    return table | {"data": {**table["data"], "path": str(folder / Path(given))}}


def require_named_parts(table: dict[str, Any], path: Path, keys: Iterable[str]) -> None:
    """Remove the table [simulation], which a run from Python writes, from ``table``.

    Raises:
        InputError: neither the file nor the changed ``keys`` name a part of the run.
    """
    about, given = table.pop(SIMULATION, None), list(keys)
    unnamed = about.get("unnamed", ()) if isinstance(about, dict) else ()
    lacking = [part for part in unnamed if not any(f"{key}.".startswith(f"{part}.") for key in given)]
    require(
        not lacking,
        f"{path}: was written by a run from Python and has no names for {quote(lacking)}; name each part, "
        "such as --set data.source=module:Name, or run and audit in Python (shoal.simulate, Result.audit)",
    )


def parse_config(table: Mapping[str, Any], where: str) -> Config:
    """Parse a configuration; ``where`` names the table in errors."""
    return parse(Config, table, where)
