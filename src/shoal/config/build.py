"""Construction of simulations from configurations and their data."""

from collections.abc import Iterator, Mapping
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
from shoal.config.settings_tables import table_of
from shoal.core.errors import InputError, locate_errors, quote, require
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
from shoal.simulation.simulation import DEFAULT_FORGETTING, Simulation


@dataclass(frozen=True, eq=False)
class Resolved:
    """A configuration checked against its data, and the simulation built from both."""

    config: Config
    data: SourceData
    simulation: Simulation
    indices: PartitionIndices | None
    """The indices of each client's examples, for clients' own files and property attacks; None for other data."""

    @property
    def standardizer(self) -> Standardizer | None:
        """The scales of a table's columns, fitted to the training examples, or None for data without columns."""
        if not isinstance(self.data, ClientDataset) or self.indices is None:
            return None
        return self.data.standardizer(self.indices)

    @property
    def warnings(self) -> Iterator[str]:
        """Warnings about clients' own data."""
        if isinstance(self.data, ClientDataset) and self.indices is not None:
            yield from self.data.warnings
            if self.data.classes is not None:
                parts = (self.data.labels[rows] for rows in (self.indices.clients.indices, self.indices.test))
                yield from class_warnings(self.data.name, self.data.class_names, *parts)
            tested = torch.bincount(self.data.client[self.indices.test], minlength=len(self.data.client_names))
            without = [name for name, count in zip(self.data.client_names, tested.tolist(), strict=True) if not count]
            if without:
                more = f" and {len(without) - 10} more" if len(without) > 10 else ""
                single = "client has only one example" if len(without) == 1 else "clients have only one example each"
                yield (
                    f"{self.data.name}: {len(without)} {single}, so none for testing: {quote(without[:10])}{more}; "
                    "set 'min_examples' = 2 to exclude such clients"
                )

    def description(self) -> Iterator[str]:
        """Describe the data for run.log, such as the number of examples."""
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
    """Complete a configuration and build its simulation.

    Args:
        data_dir: the folder to search first for data.
        dataset: the examples of [data]; by default Shoal loads them.

    Raises:
        InputError: data are missing, damaged or too few, or keys contradict each other.
    """
    resolved = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    return resolved.config, resolved.simulation


def load_data(section: DataSection, data_dir: Path | None = None) -> SourceData:
    """Load the examples of [data].

    Raises:
        InputError: the examples cannot be loaded.
    """
    return load_source(section.source, section.path, section.task, data_dir, reading_of(section))


def load_source(
    source: str,
    path: str | None = None,
    task: str | None = None,
    data_dir: Path | None = None,
    reading: Reading | None = None,
) -> SourceData:
    """Load the examples of a source.

    Args:
        source: the name of the source, or a user's function ``module:Name``.
        path: the folder or archive of the source.
        task: the label to learn and the property to infer, ``MAIN/PROPERTY``.
        data_dir: the folder to search first for data.
        reading: the format of files that state each example's client, or None for a data set without clients.
    """
    where = None if path is None else Path(path).expanduser()
    with locate_errors("[data]"):
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
            arguments = "Shoal passes a path and a task, which can be None"
            raise InputError(f"'source' = '{source}' failed with {failure(error)}; {arguments}") from error
        return own_data(source, value, reading)


def resolve(config: Config, data: SourceData, *, draft: bool = False) -> Resolved:
    """Check a configuration against its data, complete the configuration, and build its simulation.

    Args:
        data: the configuration's examples.
        draft: whether to skip the slow image shifts, for a simulation that will not be run.

    Raises:
        InputError: there are too few examples, or keys contradict each other.
    """
    _require_partition(config.data, data)
    if isinstance(data, ClientDataset):
        data = data.with_at_least((config.data.split or ClientSplit()).min_examples)
    classes = _outputs(config, data)
    if data.classes is None and config.red_team.attack == RedTeam().attack:
        # The default attack reads posteriors; a regression has none.
        config = replace(config, red_team=replace(config.red_team, attack=LossThreshold()))
    network, stream, section = config.model.sized(classes), Stream(config.seed, ("data",)), config.property_attack
    indices = None
    if isinstance(data, ClientDataset):
        with locate_errors("[data]"):
            indices = (config.data.split or ClientSplit()).draw(data, stream)
    elif isinstance(data, LabelledDataset):
        # Before an unchecked number of clients allocates memory.
        _check_partition(config, data)
    features = _features(network)
    with locate_errors("[model]"):
        scale = data.standardizer(indices) if isinstance(data, ClientDataset) and indices is not None else None
        model = _model(network, data, features, scale)
    count = _count_clients(config, data)
    with locate_errors("[privacy]"):
        privacy = config.privacy
        preferences = draw_preferences(count, privacy.thresholds, privacy.beta, stream("preferences"), privacy.view)
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
        with locate_errors("[property_attack]"):
            section.check(config)
            indices = section.draw(config, data, stream)
            federation = section.federation(config, data, indices, preferences, stream)
            malicious_clients = section.malicious_clients(model, federation)
    if config.canaries is not None and config.canaries.per_client > 0:
        with locate_errors("[canaries]"):
            federation, canaries = config.canaries.insert(federation, stream("canaries"))
    algorithm, coordinator = config.algorithm.value, None
    if config.coordinator is not None:
        algorithm, coordinator = config.coordinator.with_server_knobs(algorithm), config.coordinator.coordinator()
    evaluation = config.evaluation
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
        evaluate_every=evaluation.every,
        member_rounds=evaluation.member_rounds,
        baselines=evaluation.baselines,
        min_clients=evaluation.min_clients,
        round_attack=None if section is None else section.attack,
        malicious_clients=malicious_clients,
        record_updates=0 if config.record is None else config.record.updates,
        reference_federations=evaluation.reference_federations,
        duplicates=evaluation.duplicates,
        view=evaluation.view,
        attacks=evaluation.own_attacks(),
        metrics=evaluation.own_metrics(),
        canaries=canaries,
        events=config.events or (),
        forgetting=DEFAULT_FORGETTING if config.forgetting is None else config.forgetting.value,
    )
    with locate_errors("[engine]"):
        # Shipped networks need no trial.
        engine = config.engine.resolve(simulation, trial=":" in network.name)
    config = replace(config, model=network, engine=engine, events=config.events or None)
    return Resolved(_complete(config, data), data, simulation, indices)


def _features(network: Network) -> Features | None:
    """The features of [model.features], with a user's own modules."""
    features = network.features
    if features is None:
        return None
    return replace(features, modules={name: load_code(name, "features.maps") for name in features.maps if ":" in name})


def _count_clients(config: Config, data: SourceData) -> int:
    """Count the clients; raise `InputError` if the algorithm has more clusters."""
    if isinstance(data, LabelledDataset):
        count = _partition(config).clients
    else:
        count = len(data) if isinstance(data, Federation) else len(data.client_names)
    numbers = [table_of(base).get("clusters", 1) for base in with_bases(config.algorithm.value)]
    clusters = max((number for number in numbers if number != "auto"), default=1)
    require(clusters <= count, f"'algorithm.clusters' must be at most the number of clients, {count} (got {clusters})")
    return count


def reading_of(section: DataSection) -> Reading | None:
    """Return the format of the files or table of [data], or None for a data set that Shoal partitions itself."""
    if section.partition is not None or own_source(section.source):
        return section.columns
    return section.columns or section.pictures or PictureFormat()


def _require_partition(section: DataSection, data: SourceData) -> None:
    """Raise `InputError` if [data] has keys for a different kind of data."""
    if isinstance(data, LabelledDataset):
        require(
            section.partition is not None,
            f"'{section.source}' has no clients; set 'data.clients', 'data.examples_per_client' and "
            "'data.test_examples'",
        )
        return
    require(
        section.partition is None,
        f"'{section.source}' states each client's examples; remove 'data.clients' and other numbers of examples",
    )
    require(
        section.split is None or isinstance(data, ClientDataset),
        f"'{section.source}' states the held-out examples; remove 'data.test_fraction' and other fractions",
    )


def _check_partition(config: Config, data: LabelledDataset) -> None:
    """Raise `InputError` if the data have too few examples for the partition."""
    partition, groups = _partition(config), [*config.data.groups.values()]
    require(
        partition.test_examples >= len(groups),
        f"'data.test_examples' must be at least {len(groups)}, the number of groups (got {partition.test_examples})",
    )
    if config.property_attack is None:
        with locate_errors("[data]"):
            partition.check(data, groups)


def _complete(config: Config, data: SourceData) -> Config:
    """Set the keys that the data determine."""
    described = config.data if isinstance(data, LabelledDataset) else _describe_data(config.data, data)
    # A run without recorded updates equals one whose file lacks the table.
    record = config.record if config.record is not None and config.record.updates else None
    # An absolute path, so that a written configuration runs from anywhere.
    path = None if described.path is None else str(Path(described.path).expanduser().resolve())
    return replace(config, data=replace(described, path=path), record=record)


def _describe_data(section: DataSection, data: ClientDataset | Federation) -> DataSection:
    """Set the groups, the picture format and the input columns of [data] from the data.

    Raises:
        InputError: [data] has different groups than the files.
    """
    shares, name = data.shares, getattr(data, "name", f"'{section.source}'")
    groups = {name: Group(name, share) for name, share in shares.items()}

    def sentence(groups: Mapping[str, Group]) -> str:
        return ", ".join(f"'{group.name}' ({group.share:g} of the clients)" for group in groups.values())

    require(
        section.groups in ({"all": Group("all", 1.0)}, groups),  # the default, or those of a written configuration
        f"[data]: 'groups' has {sentence(section.groups)}, but {name} has the groups {sentence(groups)}; remove "
        "'groups', or use the data with which the configuration was written",
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
    """Return the number of classes, or of a regression's targets.

    Raises:
        InputError: a label is outside the classes, or the source of a property attack has no properties.
    """
    name, labels = f"'{config.data.source}'", data.clients.y if isinstance(data, Federation) else data.labels
    if not isinstance(data, LabelledDataset):
        require(
            config.property_attack is None,
            f"[property_attack]: {name} has no property to infer; choose a source with a 'task'",
        )
    name, count = getattr(data, "name", name), data.classes
    if count is None:
        targets = labels.shape[1]
        require(
            config.model.classes in (None, targets),
            f"'model.classes' must be {targets}, the number of targets in {name} (got {config.model.classes}); remove "
            "the key to use this number",
        )
        return targets
    largest, classes = int(labels.max()), config.model.classes or count
    require(
        largest < classes,
        f"{name} has the label {largest}, but 'model.classes' is {classes}; set 'model.classes' to {largest + 1} or "
        "more",
    )
    return classes


def _model(network: Network, data: SourceData, features: Features | None, scale: Standardizer | None) -> Model:
    """Create the model for the shape of the data."""
    assert network.classes is not None
    inputs = _inputs(data, scale)
    if data.kind == "texts" and isinstance(data, TextDataset):
        shape = TextShape(data.vocabulary, network.classes)
    elif data.kind == "texts":
        assert isinstance(data, Federation)
        parts = (data.clients, data.holdout, data.test, data.shadow)
        shape = TextShape(max(int(part.x.max()) for part in parts if part.x.numel()), network.classes)
    elif data.kind == "rows":
        shape = VectorShape(inputs.shape[1], network.classes)
    else:
        require(
            inputs.dim() == 4,
            f"inputs must be images (C, H, W), rows (F,) or texts (L,) (got shape {tuple(inputs.shape[1:])})",
        )
        channels, height, width = inputs.shape[1:]
        shape = Shape(channels, height, width, network.classes)
    if features is not None:
        require(data.kind != "texts", "'features' cannot be computed from texts; remove [model.features]")
        with locate_errors("[features]"):
            width = features.width((shape.inputs,) if isinstance(shape, VectorShape) else inputs.shape[1:])
        shape = VectorShape(width, network.classes)
    model = fit_features(network, shape)
    return model if data.classes is not None else replace(model, loss=squared_error)


def fit_features(network: Network, shape: Shape | VectorShape | TextShape) -> Model:
    """Create the model of a network for a shape of inputs."""
    custom = ":" in network.name
    return Model(partial(load_code(network.name, "name"), shape)) if custom else network.model(shape)


def _inputs(data: SourceData, scale: Standardizer | None) -> Tensor:
    """Return all inputs without scaling, or two scaled rows of clients' tables."""
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


def _partition(config: Config) -> Partition:
    """Return the partition, which must be set."""
    assert config.data.partition is not None
    return config.data.partition
