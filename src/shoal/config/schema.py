"""The schema of a run's configuration: the tables of its TOML file, made of the declarations of what they describe."""

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
from shoal.config.named_keys import drop_foreign_keys, names_first, require_own_keys
from shoal.config.settings_tables import names_of, table_of
from shoal.config.toml_files import change, key_parts, parse, read_toml
from shoal.core.entry_points import installed_names
from shoal.core.errors import quote, require, suggest
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
"""The table of the config.toml of a run from Python about its parts, some of them without a name in a file."""


_KINDS = (Partition, ClientSplit, PictureFormat, Columns)
_OF_CLIENTS = {
    "folder": (ClientSplit, PictureFormat),
    **dict.fromkeys(("table", *NAMED_TABLES), (ClientSplit, Columns)),
}
"""The sources whose clients have their examples already, and the keys that each has beside `DataSection`'s own."""


def _kinds_of(source: str) -> tuple[type, ...]:
    """The settings of a source; a user's own may return a set, a table or a federation."""
    return (Partition, ClientSplit, Columns) if own_source(source) else _OF_CLIENTS.get(source, (Partition,))


@settings
class DataSection:
    """The examples, and how they are partitioned.

    Most sources are one set, partitioned across clients: ``clients``, ``examples_per_client`` and ``test_examples``
    are required. The clients of ``folder``, ``table`` and the named tables have their examples already: of these keys
    none is allowed, and ``test_fraction``, ``holdout_fraction`` and ``shadow_fraction`` say what is held out. ``size``
    and ``channels`` are of ``folder``; ``client``, ``label`` (both required), ``group`` and ``inputs`` of ``table``
    (named tables have defaults); see [own data](own-data.md).

    Args:
        source: of images: ``digits``, ``mnist``, ``fashion-mnist``, ``emnist-byclass``, ``cifar10``, ``lfw`` or ``idx``
            (any folder in MNIST's format, given by ``path``); of texts: ``yelp``; of clients with their own: ``folder``
            (pictures) or ``table`` (CSV or Parquet); named tables: ``hsb82``, ``azprocedure``, ``aids2``, ``chem97``,
            ``star`` (``pip install 'shoal[tables]'``); or a function of yours, ``module:Name``, that returns a data set
            or a pair of inputs and labels to be partitioned, a table with the keys of ``table``, or a federation.
            ``shoal data`` lists which of them are on this machine.
        partition: how many examples go where; None where clients have their own.
        path: folder or archive of the source; by default it is looked for in ``--data-dir``, ``SHOAL_DATA``, the user's
            cache and Debian's folder. ``folder`` and ``table`` require it. A relative path starts from the folder of
            the configuration file; given by ``--set``, from the working directory.
        task: ``MAIN/PROPERTY``, the label to learn and the property to infer, or ``MAIN``; see [tasks](#tasks). By
            default the labels, except that ``lfw`` needs one. Of tables: ``classification``, the default, or
            ``regression``, whose label is a number.
        groups: the groups of clients, ``[data.groups.NAME]`` each, whose shares sum to 1; by default one, ``all``, a
            name that stands for everybody in audits, so none of several groups with clients may have it. A
            group of share 0 has test examples only, as non-members of another kind (see ``mia_against_*`` below). Of
            ``folder`` and ``table`` they are those of the files, and left out here.
        split: what is held out of the examples that clients have already; None where they are partitioned.
        pictures: what every picture of ``folder`` becomes.
        columns: which columns of a ``table`` are what.
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
        """The table of a file, with the columns of a named table where it says no others."""
        source = table.get("source")
        named = NAMED_TABLES.get(source) if isinstance(source, str) else None
        return table if named is None else named.complete(table)

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` where the table of a file has keys of another source, or lacks the first of its own."""
        source = table.get("source")
        if not isinstance(source, str):
            return
        names = [*SOURCES, *installed_names("shoal.sources", SOURCES)]
        require(source in names or ":" in source, f"unknown data source '{source}'; {suggest(source, names)}")
        kinds = _kinds_of(source)
        allowed = {name for cls in kinds for name in names_of(cls)}
        for name in (name for cls in _KINDS for name in names_of(cls)):
            hint = suggest(name, allowed)
            known = name in allowed or name not in table
            require(known, f"the key 'data.{name}' is of other sources than '{source}'; {hint}")
        for cls in set(kinds) & {Partition, Columns} if not own_source(source) else ():
            first = names_of(cls)[0]
            require(bool(set(names_of(cls)) & set(table)), f"the key 'data.{first}' is missing")

    @property
    def groups_with_clients(self) -> list[str]:
        """The names of the groups that have clients."""
        return [name for name, group in self.groups.items() if group.share > 0]


@settings
class AlgorithmSection:
    """The federated algorithm, and how long it runs. A key of another algorithm than the named one is an error.

    Where ``--set`` or a value of a sweep changes the ``name``, the file's own keys that the new algorithm lacks are
    left out; keys that ``--set`` or the sweep sets must be its own.

    Args:
        value: which algorithm; each has keys of its own.
        rounds: number of rounds.
        participation: fraction of the clients in a round, at least one client; 0: none, and rounds change nothing.
    """

    value: Annotated[Algorithm, Inline("name")]
    rounds: Positive
    participation: Fraction = 1.0

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` where the table has a key of another algorithm than the one that it names."""
        require_own_keys(table)

    @property
    def name(self) -> str:
        """The algorithm's name in a file."""
        return name_of(type(self.value))


@settings
class PrivacySection:
    """The exposure that clients tolerate.

    Args:
        thresholds: the membership-inference accuracy that a client tolerates is drawn uniformly between the two; where
            they are equal, it is every client's own. `threshold_drawn` in `clients.csv` says whether it was drawn.
        view: the attacker that limits are about, ``outsider``, ``client`` or ``server``: one name, or a list with one
            for each client; by default that of the run's figures (`evaluation.view`). ``violated`` and ``exceeded``
            of a client in `clients.csv` are by its own.
        beta: weight of risk where clients choose by it, as in ``ifca-mir``: a number, a list with one for each client,
            or ``threshold``, which is ``(high - t_i) / (high - low)``; alpha = 1 - beta weighs the loss.
    """

    thresholds: Range = (0.5, 0.8)
    beta: Fraction | Literal["threshold"] | tuple[Fraction, ...] = "threshold"
    view: View | tuple[View, ...] | None = None


@settings
class EvaluationSection:
    """Evaluation while training.

    Args:
        every: rounds between evaluations on the test set.
        member_rounds: a client's examples count as members of each model that it trained, up to so many rounds before
            that model's last training.
        baselines: whether a run with clusters also trains one model for all, local training and one model per group of
            the data, for as many rounds, so that it can say whether clusters pay. Sweeps do so only where it is set.
        min_clients: a cluster of fewer clients after the last round is named in a warning with its clients, who are the
            most exposed. It merges nothing: `cluster-size-floor` does.
        reference_federations: how many are trained after the last round, each for about as long as the rounds. One of
            the attacks that they make possible (see [audits](audit.md#in-the-run-itself)), chosen without the members,
            then decides ``mia``, ``violations`` and ``exceeded``. 0: none.
        view: whose exposure ``exposure``, ``mia``, ``violations`` and ``exceeded`` are. An ``outsider`` has the final
            models; a ``client`` also the initial model and every round's models of all clusters; the ``server`` also
            each client's updates. The attacks of ``client`` and ``server`` repeat rounds after the last one, with or
            without reference federations.
        duplicates: "leave-out": these attacks, and audits, leave out every record of which a client, or the test,
            hold-out or shadow set, has a copy with the same inputs and label.
        attacks: your own attacks of audits, each ``module:Name``, a class that is made without arguments; see
            [adding](adding.md).
        metrics: your own metrics, in the same way; `summary.json` and the page have them.
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
        """The values of ``attacks``."""
        return tuple(create_from_table(name, "evaluation.attacks") for name in self.attacks or ())

    def own_metrics(self) -> tuple[Any, ...]:
        """The values of ``metrics``."""
        return tuple(create_from_table(name, "evaluation.metrics") for name in self.metrics or ())


@settings
class CheckpointSection:
    """Checkpoints, from which an interrupted run is resumed.

    Args:
        every: rounds between checkpoints.
    """

    every: Positive = 1


@settings
class RecordSection:
    """A record of the rounds, for attacks of an honest-but-curious server (see [traces](trace.md)); it changes no
    bit of training.

    Args:
        updates: rounds from one recorded round to the next; 1: every round, 0: none. Each client's update is written as
            the server received it, after the client's defences and before the server's own, into ``updates/`` of the
            run directory.
        max_megabytes: what the updates may take, at 4 bytes a parameter, client and recorded round; a run that would
            take more is refused. The models before each recorded round come on top.
    """

    updates: Count = 0
    max_megabytes: Positive = 1000


@settings
class ForgettingSection:
    """What is done with the models when clients leave (`[[events]]`).

    No method fits anew what was fitted with the leavers' rows before the first round, such as the scales of a table's
    columns or features.

    Args:
        value: which method; each has keys of its own.
    """

    value: Annotated[Forgetting, Inline("method")] = DEFAULT_FORGETTING

    @staticmethod
    def check_keys(table: Mapping[str, Any]) -> None:
        """Raise `InputError` where the table has a key of another method than the one that it names."""
        require_own_keys(table, "forgetting", "method", KINDS[Forgetting], DEFAULT_FORGETTING)


@settings
class SecureAggregationSection:
    """Secure aggregation on several machines: the server learns the sum of the updates of each cluster's clients, and
    neither a client's update nor its choice; see [secure aggregation](secure-aggregation.md). A simulation adds
    plain numbers; what it says of the server's view is then of a server without secure sums.

    Args:
        min_clients: a cluster that fewer clients chose in a round is not opened to anybody, and stays as it is.
        max_update_norm: L2 norm to which each client clips its update, in units of parameters; also the range of the
            integers that are added.
        max_examples: largest number of examples that a client says it has; more count as so many.
        threshold: share of a round's clients of whom more must answer to the end, so that a sum can be opened; the
            others may fall silent. At 2 / 3, a server that a third of the clients help cannot open single ones.
    """

    min_clients: Annotated[int, Field(ge=2, strict=True)] = 3
    max_update_norm: PositiveFloat = 10.0
    max_examples: Positive = 10_000
    threshold: Annotated[float, Field(ge=0.5, lt=1, strict=True)] = 2 / 3


@settings
class Config:
    """A run's configuration.

    Its other fields are the tables of a file: `data`, `model`, `algorithm`, `local`, `red_team`, `privacy`,
    `property_attack`, `defenses`, `engine`, `evaluation`, `checkpoint`, `record`, `release`, `coordinator`, `canaries`,
    `secure_aggregation`, `forgetting`.

    Args:
        seed: of everything random.
        events: clients that leave for good or join later, ``[[events]]`` each; left out: all are there always.

    Example:
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> algorithm = {"name": "ifca", "clusters": 3, "rounds": 2}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": algorithm}
        >>> config = parse_config(table, "the example")
        >>> isinstance(config, shoal.Config), config.algorithm.value.clusters, config.local.batch_size
        (True, 3, 32)
        >>> parse_config(config.table(), "the same again") == config
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
        """The table that gives the configuration back; keys without a value are left out."""
        return table_of(self)

    def toml(self) -> str:
        """`table` as a file."""
        return tomli_w.dumps(self.table())


def read_config(path: str | Path, changes: Iterable[str] = (), *, allow_code: bool | None = None) -> Config:
    """The configuration in a TOML file, with ``changes`` such as "algorithm.rounds=10" made to it.

    Args:
        path: of the file.
        changes: made to it.
        allow_code: whether the file may name code (``module:Name``), which is then imported; None: unless it lies in a
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
    table, path, changes = read_toml(path), Path(path), list(changes)
    require_named_parts(table, path, [wish.partition("=")[0].strip() for wish in changes if isinstance(wish, str)])
    of_run = path.name == "config.toml" and any((path.parent / name).exists() for name in ("run.log", "checkpoint"))
    if allow_code is False or (allow_code is None and of_run):
        require_data(table, path)
    base = table.get("base")
    require(base is None, f"{path}: is a sweep of many runs; give its 'base', '{base}', or run it with 'shoal sweep'")
    table = with_data_path(table, path.parent)
    keys = [tuple(key_parts(wish.partition("=")[0])) for wish in changes if isinstance(wish, str)]
    twice = [".".join(key) for key in keys if keys.count(key) > 1]
    for key in dict.fromkeys(twice):
        LOG.warning("--set changes '%s' more than once; the last value counts", key)
    for wish in names_first(changes):
        change(table, wish)
        drop_foreign_keys(table, wish)
    return parse_config(table, str(path))


def with_data_path(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The table of a file in ``folder``, from which a relative `data.path` starts."""
    data = table.get("data")
    given = data.get("path") if isinstance(data, dict) else None
    if not isinstance(given, str) or not given.isprintable() or Path(given).expanduser().is_absolute():
        return table
    return table | {"data": {**table["data"], "path": str(folder / Path(given))}}


def require_named_parts(table: dict[str, Any], path: Path, keys: Iterable[str]) -> None:
    """Remove [simulation] from the table of a run from Python.

    Raises:
        InputError: parts of the run have no name in the file, and ``keys``, which are changed, name none for them.
    """
    about, given = table.pop(SIMULATION, None), list(keys)
    unnamed = about.get("unnamed", ()) if isinstance(about, dict) else ()
    lacking = [part for part in unnamed if not any(f"{key}.".startswith(f"{part}.") for key in given)]
    require(
        not lacking,
        f"{path}: was run from Python, with parts that have no name in a file: {quote(lacking)}; name each, such as "
        "--set data.source=module:Name, or run and audit it in Python (shoal.simulate, Result.audit)",
    )


def parse_config(table: Mapping[str, Any], where: str) -> Config:
    """The configuration that a table describes; ``where`` names it in error sentences."""
    return parse(Config, table, where)
