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
"""The table in the config.toml of a run from Python, about parts that have no name in a file."""


_KINDS = (Partition, ClientSplit, PictureFormat, Columns)
_OF_CLIENTS = {
    "folder": (ClientSplit, PictureFormat),
    **dict.fromkeys(("table", *NAMED_TABLES), (ClientSplit, Columns)),
}
"""The sources with examples by client, and their settings beside `DataSection`'s own."""


@settings
class DataSection:
    """The examples, and how they are partitioned.

    Most sources are one set, partitioned across clients: ``clients``, ``examples_per_client`` and ``test_examples``
    are required. The files of ``folder``, ``table`` and the named tables state each example's client, so these three
    keys are not allowed; ``test_fraction``, ``holdout_fraction`` and ``shadow_fraction`` set the held-out parts.
    ``size`` and ``channels`` belong to ``folder``; ``client``, ``label`` (both required), ``group`` and ``inputs`` to
    ``table`` (named tables have defaults); see [own data](own-data.md).

    Args:
        source: images: ``digits``, ``mnist``, ``fashion-mnist``, ``emnist-byclass``, ``cifar10``, ``lfw`` or ``idx``
            (any folder in MNIST's format, given by ``path``); texts: ``yelp``; examples by client: ``folder``
            (pictures) or ``table`` (CSV or Parquet); named tables: ``hsb82``, ``azprocedure``, ``aids2``, ``chem97``,
            ``star`` (``pip install 'shoal[tables]'``); or your function ``module:Name`` that returns a data set or a
            pair of inputs and labels to partition, a table with the keys of ``table``, or a federation. ``shoal data``
            lists those on this machine.
        partition: numbers of examples by purpose; None where files state each example's client.
        path: folder or archive of the source; by default Shoal looks in ``--data-dir``, ``SHOAL_DATA``, the user's
            cache and Debian's folder. ``folder`` and ``table`` require it. A relative path starts from the folder of
            the configuration file; given by ``--set``, from the working directory.
        task: ``MAIN/PROPERTY``, the label to learn and the property to infer, or ``MAIN``; see [tasks](#tasks). By
            default the source's labels; ``lfw`` requires a task. For tables: ``classification``, the default, or
            ``regression``, with a number as label.
        groups: the groups of clients, one table ``[data.groups.NAME]`` each; shares sum to 1. By default one group,
            ``all``; with several, that name is reserved for all clients together. A group of share 0 has test examples
            only, as non-members of a different kind (see ``mia_against_*`` below). The files of ``folder`` and
            ``table`` define the groups, so leave ``groups`` out with them.
        split: held-out parts of each client's examples; None for a partitioned set.
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
        """Add the columns of a named table to the table of a file."""
        source = table.get("source")
        named = NAMED_TABLES.get(source) if isinstance(source, str) else None
        return table if named is None else named.complete(table)

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` if the table of a file has keys of a different source, or lacks the first of its own."""
        source = table.get("source")
        if not isinstance(source, str):
            return
        names = [*SOURCES, *installed_names("shoal.sources", SOURCES)]
        require(source in names or ":" in source, f"unknown data source '{source}'; {suggest(source, names)}")
        # A user's own source may return a set, a table or a federation.
        kinds = (Partition, ClientSplit, Columns) if own_source(source) else _OF_CLIENTS.get(source, (Partition,))
        allowed = {name for cls in kinds for name in names_of(cls)}
        for name in (name for cls in _KINDS for name in names_of(cls)):
            hint = suggest(name, allowed)
            known = name in allowed or name not in table
            require(known, f"the key 'data.{name}' is not allowed with the source '{source}'; {hint}")
        for cls in set(kinds) & {Partition, Columns} if not own_source(source) else ():
            first = names_of(cls)[0]
            require(bool(set(names_of(cls)) & set(table)), f"the key 'data.{first}' is missing")

    @property
    def groups_with_clients(self) -> list[str]:
        """The names of the groups that have clients."""
        return [name for name, group in self.groups.items() if group.share > 0]


@settings
class AlgorithmSection:
    """The federated algorithm and its number of rounds. A key of a different algorithm is an error.

    When ``--set`` or a sweep changes the ``name``, keys of the file that the new algorithm lacks are dropped; keys set
    by ``--set`` or the sweep must belong to it.

    Args:
        value: the algorithm; each has its own keys.
        rounds: number of rounds.
        participation: fraction of the clients in a round, at least one client; 0: no client, and rounds change nothing.
    """

    value: Annotated[Algorithm, Inline("name")]
    rounds: Positive
    participation: Fraction = 1.0

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` where the table has a key of a different algorithm."""
        require_own_keys(table)

    @property
    def name(self) -> str:
        """The algorithm's name in a file."""
        return name_of(type(self.value))


@settings
class PrivacySection:
    """The exposure that clients tolerate.

    Args:
        thresholds: range [low, high] of the clients' limits on membership-inference accuracy, drawn uniformly; two
            equal numbers set every client's limit. `threshold_drawn` in `clients.csv` tells drawn limits from set ones.
        view: the attacker of the limits, ``outsider``, ``client`` or ``server``: one name, or a list with one per
            client; by default `evaluation.view`. ``violated`` and ``exceeded`` in `clients.csv` follow each client's
            own.
        beta: weight of risk in clients' choices, as in ``ifca-mir``: a number, a list with one per client, or
            ``threshold``, which is ``(high - t_i) / (high - low)``; alpha = 1 - beta weighs the loss.
    """

    thresholds: Range = (0.5, 0.8)
    beta: Fraction | Literal["threshold"] | tuple[Fraction, ...] = "threshold"
    view: View | tuple[View, ...] | None = None


@settings
class EvaluationSection:
    """Evaluation while training.

    Args:
        every: rounds between evaluations on the test set.
        member_rounds: a client's examples count as members of a model if the client trained it at most this many rounds
            before the model's last training.
        baselines: whether a run with clusters also trains one model for all, local training and one model per group,
            for the same number of rounds, to tell whether clustering pays. In sweeps the default is false.
        min_clients: a warning names each cluster with fewer clients after the last round; these clients are the most
            exposed. `cluster-size-floor` is the algorithm that merges such clusters.
        reference_federations: number of reference federations after the last round, each about as expensive as the
            rounds. The strongest attack that they allow (see [audits](audit.md#in-the-run-itself)), chosen without the
            members, then decides ``mia``, ``violations`` and ``exceeded``. 0: none.
        view: the attacker of ``exposure``, ``mia``, ``violations`` and ``exceeded``. An ``outsider`` has the final
            models; a ``client`` also the initial model and every round's models of all clusters; the ``server`` also
            each client's updates. The attacks of ``client`` and ``server`` repeat rounds after the last one, with or
            without reference federations.
        duplicates: "leave-out" excludes from these attacks and from audits every record with a copy (same inputs and
            label) at a different client or in the test, hold-out or shadow set.
        attacks: your own attacks for audits, each ``module:Name`` of a class without required arguments; see
            [adding](adding.md).
        metrics: your own metrics, named in the same way, for `summary.json` and the page.
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
        every: rounds between checkpoints.
    """

    every: Positive = 1


@settings
class RecordSection:
    """Recording of rounds, for attacks of an honest-but-curious server (see [traces](trace.md)); training is
    bit-identical without it.

    Args:
        updates: rounds from one recorded round to the next; 1: every round, 0: none. Each client's update is written as
            the server received it, after the client's defences and before the server's own, into ``updates/`` of the
            run directory.
        max_megabytes: limit on the size of the updates, 4 bytes per parameter, client and recorded round; a larger run
            is refused. The models before each recorded round are not counted.
    """

    updates: Count = 0
    max_megabytes: Positive = 1000


@settings
class ForgettingSection:
    """The forgetting of clients that leave (`[[events]]`).

    No method changes what was fitted before the first round with the rows of a client that leaves, such as the scales
    of a table's columns or features.

    Args:
        value: the method; each has its own keys.
    """

    value: Annotated[Forgetting, Inline("method")] = DEFAULT_FORGETTING

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` where the table has a key of a different method."""
        require_own_keys(table, "forgetting", "method", KINDS[Forgetting], DEFAULT_FORGETTING)


@settings
class SecureAggregationSection:
    """Secure aggregation on several machines: the server learns the sum of the updates in each cluster, but neither a
    client's update nor its choice; see [secure aggregation](secure-aggregation.md). A simulation adds plain numbers, so
    its figures for the server's view apply to a server without secure sums.

    Args:
        min_clients: a cluster with fewer clients in a round keeps its model, and its sum stays secret.
        max_update_norm: L2 norm to which each client clips its update, in units of parameters; also the range of the
            integers in the sum.
        max_examples: largest number of examples that a client reports; larger numbers are cut to it.
        threshold: the server learns a sum only with answers from more than this fraction of the round's clients; the
            others may drop out. With 2 / 3, a server that colludes with a third of the clients cannot learn any
            client's update.
    """

    min_clients: Annotated[int, Field(ge=2, strict=True)] = 3
    max_update_norm: PositiveFloat = 10.0
    max_examples: Positive = 10_000
    threshold: Annotated[float, Field(ge=0.5, lt=1, strict=True)] = 2 / 3


@settings
class Config:
    """A run's configuration.

    The other fields are the tables of a file: `data`, `model`, `algorithm`, `local`, `red_team`, `privacy`,
    `property_attack`, `defenses`, `engine`, `evaluation`, `checkpoint`, `record`, `release`, `coordinator`, `canaries`,
    `secure_aggregation`, `forgetting`.

    Args:
        seed: the seed of all random draws.
        events: clients that leave for good or join later, one table ``[[events]]`` each; None: all clients stay.

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
        """Return the table of the configuration, without keys that have no value."""
        return table_of(self)

    def toml(self) -> str:
        """Return `table` as TOML."""
        return tomli_w.dumps(self.table())


def read_config(path: str | Path, changes: Iterable[str] = (), *, allow_code: bool | None = None) -> Config:
    """Read a configuration from a TOML file.

    Args:
        path: the file.
        changes: changes of keys, such as "algorithm.rounds=10".
        allow_code: whether to import the code that the file names (``module:Name``); None: unless the file is in a
            run's directory, which may be somebody else's.

    Raises:
        InputError: the file is missing or not TOML, a key is unknown or has a value that is not allowed.

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
    require(base is None, f"{path}: is a sweep of many runs; give its 'base', '{base}', or run it with 'shoal sweep'")
    table = with_data_path(table, path.parent)
    keys = [tuple(key_parts(key)) for key, _ in pairs]
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        LOG.warning("--set changes '%s' more than once; the last value counts", ".".join(key))
    with locate_errors("--set"):
        set_keys(table, dict(pairs))
    return parse_config(table, str(path))


def with_data_path(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve a relative `data.path` against ``folder``, that of the file."""
    data = table.get("data")
    given = data.get("path") if isinstance(data, dict) else None
    if not isinstance(given, str) or not given.isprintable() or Path(given).expanduser().is_absolute():
        return table
    return table | {"data": {**table["data"], "path": str(folder / Path(given))}}


def require_named_parts(table: dict[str, Any], path: Path, keys: Iterable[str]) -> None:
    """Remove [simulation] from the table of a run from Python.

    Raises:
        InputError: parts of the run have no name in the file, nor among the changed ``keys``.
    """
    about, given = table.pop(SIMULATION, None), list(keys)
    unnamed = about.get("unnamed", ()) if isinstance(about, dict) else ()
    lacking = [part for part in unnamed if not any(f"{key}.".startswith(f"{part}.") for key in given)]
    require(
        not lacking,
        f"{path}: describes a simulation in Python whose parts {quote(lacking)} have no name in a file; name each, "
        "such as --set data.source=module:Name, or run and audit it in Python (shoal.simulate, Result.audit)",
    )


def parse_config(table: Mapping[str, Any], where: str) -> Config:
    """Parse a configuration; ``where`` names the table in errors."""
    return parse(Config, table, where)
