"""Simulations of configurations: resolved against their data once, then partitioned."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from shoal.algorithms.wrapper import with_bases
from shoal.attacks import LossThreshold
from shoal.audit import RedTeam
from shoal.config.kinds import failure, load_code, own_source
from shoal.config.schema import Config, DataSection
from shoal.config.settings_tables import in_table, table_of
from shoal.core.errors import InputError, quote, require
from shoal.core.randomness import Stream
from shoal.data import (
    ClientDataset,
    ClientSplit,
    Federation,
    Group,
    ImageDataset,
    LabelledDataset,
    Partition,
    PictureFormat,
    SourceData,
    Standardizer,
    TableDataset,
    TextDataset,
    draw_preferences,
    federation_of_clients,
    load_dataset,
    partition_dataset,
)
from shoal.data.names import class_warnings
from shoal.data.partition import PartitionIndices
from shoal.data.user.own_files import Reading, load_client_data, own_data
from shoal.models import Features, Model, Network, Shape, TextShape, VectorShape, squared_error
from shoal.simulation.play import EngineSettings
from shoal.simulation.simulation import DEFAULT_FORGETTING, Simulation


@dataclass(frozen=True, eq=False)
class Resolved:
    """A configuration that fits its data, with everything that was left open decided, and its simulation."""

    config: Config
    data: SourceData
    simulation: Simulation
    indices: PartitionIndices | None
    """The examples of each client, where a property is looked for or clients have theirs already; None: a partition by
    group."""

    @property
    def standardizer(self) -> Standardizer | None:
        """The scales that training examples give columns, where clients have tables; None of other data."""
        if not isinstance(self.data, ClientDataset) or self.indices is None:
            return None
        return self.data.standardizer(self.indices)

    @property
    def warnings(self) -> Iterator[str]:
        """Sentences on clients' own data that a user should know before training."""
        if isinstance(self.data, ClientDataset) and self.indices is not None:
            yield from self.data.warnings
            if self.data.classes is not None:
                parts = (self.data.labels[rows] for rows in (self.indices.clients.indices, self.indices.test))
                yield from class_warnings(self.data.name, self.data.class_names, *parts)
            tested = torch.bincount(self.data.client[self.indices.test], minlength=len(self.data.client_names))
            without = [name for name, count in zip(self.data.client_names, tested.tolist(), strict=True) if not count]
            if without:
                more = f" and {len(without) - 10} more" if len(without) > 10 else ""
                whose = f"{len(without)} client{'s' * (len(without) > 1)} with a single example, which is for training"
                yield (
                    f"{self.data.name}: no test example of {whose}: {quote(without[:10])}{more}; "
                    "'min_examples' = 2 leaves such clients out"
                )

    def description(self) -> Iterator[str]:
        """Lines on what the numbers of results stand for.

        Of a set that is partitioned, they state its size and the examples with the property that its task names.
        """
        if isinstance(self.data, ClientDataset):
            yield from self.data.description()
            return
        if isinstance(self.data, Federation):
            yield str(self.data)
            return
        yield f"{len(self.data.labels):,} {self.data.kind} in {self.data.classes} classes"
        if self.data.has_property is not None:
            count, name = int(self.data.has_property.sum()), (self.config.data.task or "").partition("/")[2]
            share = f"{100 * count / len(self.data.labels):.1f} %"
            yield f"{count:,} of them ({share}) have the property{f' {name!r}' if name else ''}"


def build(config: Config, data_dir: Path | None = None, dataset: SourceData | None = None) -> tuple[Config, Simulation]:
    """The configuration with everything it left open decided, and the simulation that it describes.

    The examples of [data] are loaded, from ``data_dir`` first, unless ``dataset`` has them.

    Raises:
        InputError: data that is missing, damaged or too small, or keys that contradict each other.
    """
    resolved = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    return resolved.config, resolved.simulation


def load_data(section: DataSection, data_dir: Path | None = None) -> SourceData:
    """The examples of [data]; raises as `load_dataset`, `load_folder` and `load_table`."""
    return load_source(section.source, section.path, section.task, data_dir, reading_of(section))


def load_source(
    source: str,
    path: str | None = None,
    task: str | None = None,
    data_dir: Path | None = None,
    reading: Reading | None = None,
) -> SourceData:
    """The examples of a shipped source, or of a user's own by ``module:Name``; see `load_data`.

    ``reading`` says how files are read of which each client has its own, and is None for other sources.
    """
    where = None if path is None else Path(path).expanduser()
    with in_table("data"):
        code = own_source(source)
        if code is None and reading is not None:
            return load_client_data(source, where, task, reading)
        if code is None:
            return load_dataset(source, data_dir=data_dir, path=where, task=task)
        function = load_code(code, "source")
        try:
            value = function(where, task)
        except InputError:
            raise
        except Exception as error:
            called = "it is called with a path and a task, each perhaps None"
            raise InputError(f"'source' = '{source}' failed with {failure(error)}; {called}") from error
        return own_data(source, value, reading)


def _check_clusters(config: Config, clients: int) -> None:
    """Raise `InputError` where there are more clusters than clients."""
    numbers = [table_of(base).get("clusters", 1) for base in with_bases(config.algorithm.value)]
    clusters = max((number for number in numbers if number != "auto"), default=1)
    require(
        clusters <= clients, f"'algorithm.clusters' must be at most {clients}, the number of clients; got {clusters}"
    )


def resolve(config: Config, data: SourceData, *, draft: bool = False) -> Resolved:
    """Check a configuration against its data, decide what it leaves open, and make its simulation.

    Args:
        config: what to run.
        data: its examples.
        draft: whether images are not shifted, which takes most of the time: for a run that is checked now and starts
            later.

    Raises:
        InputError: too few examples, or keys that contradict each other.
    """
    _require_partition(config.data, data)
    if isinstance(data, ClientDataset):
        data = data.with_at_least((config.data.split or ClientSplit()).min_examples)
    classes = _outputs(config, data)
    if data.classes is None and config.red_team.attack == RedTeam().attack:
        # The default attack reads posteriors, and a regression has none.
        config = replace(config, red_team=replace(config.red_team, attack=LossThreshold()))
    network, stream, section = config.model.sized(classes), Stream(config.seed, ("data",)), config.property_attack
    indices = None
    if isinstance(data, ClientDataset):
        with in_table("data"):
            indices = (config.data.split or ClientSplit()).draw(data, stream)
    elif isinstance(data, LabelledDataset):
        # Before anything is allocated by the number of clients, which may be any.
        _check_partition(config, data)
    features = _features(network)
    with in_table("model"):
        scale = data.standardizer(indices) if isinstance(data, ClientDataset) and indices is not None else None
        model = _model(network, data, features, scale)
    privacy, count = config.privacy, _clients(config, data)
    _check_clusters(config, count)
    with in_table("privacy"):
        drawn = stream("preferences")
        preferences = draw_preferences(count, privacy.thresholds, privacy.beta, drawn, privacy.view)
    malicious_clients, canaries = None, None
    if isinstance(data, Federation):
        federation = replace(data, preferences=preferences)
    elif isinstance(data, ClientDataset):
        assert indices is not None
        federation = federation_of_clients(data, indices, preferences)
    elif section is None:
        groups = [*config.data.groups.values()]
        if draft:
            groups = [replace(group, rotation=None, brightness=None, shift_per="image") for group in groups]
        federation = partition_dataset(data, _partition(config), groups, preferences, stream)
    else:
        with in_table("property_attack"):
            section.check(config)
            indices = section.draw(config, data, stream)
            federation = section.federation(config, data, indices, preferences, stream)
            malicious_clients = section.malicious_clients(model, federation)
    if config.canaries is not None and config.canaries.per_client > 0:
        with in_table("canaries"):
            federation, canaries = config.canaries.insert(federation, stream("canaries"))
    algorithm, coordinator = config.algorithm.value, None
    if config.coordinator is not None:
        algorithm, coordinator = config.coordinator.with_server_knobs(algorithm), config.coordinator.coordinator()
    simulation = Simulation(
        federation=federation,
        model=model,
        features=features,
        release=config.release,
        algorithm=algorithm,
        local=config.local,
        rounds=config.algorithm.rounds,
        defenses=config.defenses.all(),
        coordinator=coordinator,
        seed=config.seed,
        participation=config.algorithm.participation,
        red_team=config.red_team,
        evaluate_every=config.evaluation.every,
        member_rounds=config.evaluation.member_rounds,
        baselines=config.evaluation.baselines,
        min_clients=config.evaluation.min_clients,
        round_attack=None if section is None else section.attack,
        malicious_clients=malicious_clients,
        record_updates=0 if config.record is None else config.record.updates,
        reference_federations=config.evaluation.reference_federations,
        duplicates=config.evaluation.duplicates,
        view=config.evaluation.view,
        attacks=config.evaluation.own_attacks(),
        metrics=config.evaluation.own_metrics(),
        canaries=canaries,
        events=config.events or (),
        forgetting=DEFAULT_FORGETTING if config.forgetting is None else config.forgetting.value,
    )
    with in_table("engine"):
        # Shipped networks need no trial.
        engine = config.engine.decided(simulation, tried=":" in network.name)
    return Resolved(_decided(config, data, network, engine), data, simulation, indices)


def reading_of(section: DataSection) -> Reading | None:
    """The format of the files or the table of [data]; None: its examples are partitioned across clients."""
    if section.partition is not None or own_source(section.source):
        return section.columns
    return section.columns or section.pictures or PictureFormat()


def _require_partition(section: DataSection, data: SourceData) -> None:
    """Raise `InputError` unless [data] says how many examples go where just if ``data`` is one set."""
    have = f"the clients of '{section.source}' have their examples already"
    if isinstance(data, LabelledDataset):
        require(
            section.partition is not None,
            f"'{section.source}' is one set, which is partitioned across clients; set 'data.clients', "
            "'data.examples_per_client' and 'data.test_examples'",
        )
        return
    require(section.partition is None, f"{have}; leave 'data.clients' and the other numbers of examples out")
    require(
        section.split is None or isinstance(data, ClientDataset),
        f"{have}, and it says what is held out; leave 'data.test_fraction' and the other fractions out",
    )


def _check_partition(config: Config, data: LabelledDataset) -> None:
    """Raise `InputError` where a set has too few examples for its partition."""
    partition, groups = _partition(config), [*config.data.groups.values()]
    require(
        partition.test_examples >= len(groups),
        f"'data.test_examples' must be at least one for each of {len(groups)} groups; got {partition.test_examples}",
    )
    if config.property_attack is None:
        with in_table("data"):
            partition.check(data, groups)


def _decided(config: Config, data: SourceData, network: Network, engine: EngineSettings) -> Config:
    """The configuration with everything decided that it left open."""
    described = config.data if isinstance(data, LabelledDataset) else _decided_data(config.data, data)
    path = described.path
    return replace(
        config,
        # So that a written configuration runs from anywhere.
        data=replace(described, path=None if path is None else str(Path(path).expanduser().resolve())),
        model=network,
        # A run that records nothing is the run of a file that does not speak of it.
        record=config.record if config.record is not None and config.record.updates else None,
        engine=engine,
        events=config.events or None,
    )


def _decided_data(section: DataSection, data: ClientDataset | Federation) -> DataSection:
    """[data] with what the data decide: groups and their shares, the form of pictures, the columns that are inputs.

    Raises:
        InputError: groups that are not those of the files.
    """
    shares, name = data.shares, getattr(data, "name", f"'{section.source}'")
    groups = {name: Group(name, share) for name, share in shares.items()}
    listed = ", ".join(f"'{name}' ({share:g} of the clients)" for name, share in shares.items())
    default = {"all": Group("all", 1.0)}
    stated = ", ".join(f"'{group.name}' ({group.share:g} of the clients)" for group in section.groups.values())
    require(
        section.groups in (default, groups),  # the default, or as a written configuration has them
        f"[data]: the groups of {name} are {listed}, and 'groups' says {stated}; they are those of the data: leave "
        "'groups' out, or give the data as they were when the configuration was written",
    )
    if isinstance(data, Federation):
        return replace(section, groups=groups)
    split = section.split or ClientSplit()
    if section.columns is None and own_source(section.source):
        return replace(section, groups=groups, split=split)
    if section.columns is not None:
        return replace(section, groups=groups, split=split, columns=replace(section.columns, inputs=data.inputs))
    assert isinstance(data.x, Tensor)
    _, channels, height, width = data.x.shape
    form = PictureFormat((height, width), 1 if channels == 1 else 3)
    return replace(section, groups=groups, split=split, pictures=form)


def _outputs(config: Config, data: SourceData) -> int:
    """The outputs of the network: the classes, or the targets of a regression.

    Raises:
        InputError: a label that none of them is for, or a property in a federation of a user's own.
    """
    name, labels = f"'{config.data.source}'", data.clients.y if isinstance(data, Federation) else data.labels
    if not isinstance(data, LabelledDataset):
        require(config.property_attack is None, f"'property_attack' needs a source with a 'task'; {name} has none")
    name, count = getattr(data, "name", name), data.classes
    if count is None:
        targets, given = labels.shape[1], config.model.classes
        require(
            given in (None, targets),
            f"{name} is a regression of {targets} number{'s' * (targets > 1)}, and 'model.classes' is {given}; leave "
            "it out",
        )
        return targets
    largest, classes = int(labels.max()), config.model.classes or count
    require(
        largest < classes,
        f"{name} has the label {largest}, but the model has {classes} classes; set 'model.classes' to {largest + 1} or "
        "more",
    )
    return classes


def _clients(config: Config, data: SourceData) -> int:
    """N."""
    if isinstance(data, LabelledDataset):
        return _partition(config).clients
    return len(data) if isinstance(data, Federation) else len(data.client_names)


def _model(network: Network, data: SourceData, features: Features | None, scale: Standardizer | None) -> Model:
    """The model of [model], fitted to the data."""
    assert network.classes is not None
    inputs = _inputs(data, scale)
    if data.kind == "texts":
        shape = TextShape(data.vocabulary if isinstance(data, TextDataset) else _largest_word(data), network.classes)
    elif data.kind == "rows":
        shape = VectorShape(inputs.shape[1], network.classes)
    else:
        require(inputs.dim() == 4, f"inputs of shape {tuple(inputs.shape[1:])} are no images, rows or texts")
        channels, height, width = inputs.shape[1:]
        shape = Shape(channels, height, width, network.classes)
    if features is not None:
        require(data.kind != "texts", "'features' are of numbers, and the data are texts; leave them out")
        with in_table("features"):
            width = features.width((shape.inputs,) if isinstance(shape, VectorShape) else inputs.shape[1:])
        shape = VectorShape(width, network.classes)
    model = fit_features(network, shape)
    return model if data.classes is not None else replace(model, loss=squared_error)


def fit_features(network: Network, shape: Shape | VectorShape | TextShape) -> Model:
    """The model of a network of Shoal's or of a user's own, fitted to ``shape``."""
    own = ":" in network.name
    return Model(partial(load_code(network.name, "name"), shape)) if own else network.model(shape)


def _features(network: Network) -> Features | None:
    """The features of [model.features], with the modules of a user's own that it names."""
    features = network.features
    if features is None:
        return None
    return replace(features, modules={name: load_code(name, "features.maps") for name in features.maps if ":" in name})


def _inputs(data: SourceData, scale: Standardizer | None) -> Tensor:
    """The inputs of all examples, not yet scaled; of clients' tables the first two rows, by their ``scale``."""
    match data:
        case Federation():
            return data.clients.x
        case ClientDataset():
            if isinstance(data.examples, Tensor):
                return data.examples
            assert scale is not None
            return scale.transform(data.examples.head(2))
        case TextDataset():
            return data.words
        case TableDataset():
            return data.rows
        case ImageDataset():
            return data.pixels


def _largest_word(data: SourceData) -> int:
    assert isinstance(data, Federation)
    parts = (data.clients, data.holdout, data.test, data.shadow)
    return max(int(part.x.max()) for part in parts if part.x.numel())


def _partition(config: Config) -> Partition:
    """The partition of a set."""
    assert config.data.partition is not None
    return config.data.partition
