"""Simulations of configurations: resolved against their data once, then partitioned."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from shoal.config.client_files import check_sizes, decided_data, draw_split, reading_of, require_partition
from shoal.config.kinds import failure, load_code, own_source
from shoal.config.schema import Config, DataSection
from shoal.config.settings_tables import in_table
from shoal.core.errors import InputError, quote, require
from shoal.core.randomness import Stream
from shoal.data import (
    ClientDataset,
    ClientSplit,
    Federation,
    ImageDataset,
    LabelledDataset,
    Partition,
    Preferences,
    SourceData,
    Standardizer,
    TableDataset,
    TextDataset,
    draw_preferences,
    federation_of_clients,
    load_dataset,
    partition_dataset,
)
from shoal.data.partition import PartitionIndices
from shoal.data.user.own_files import Reading, load_client_data, own_data
from shoal.defenses import TrainingSetup, apply_defenses
from shoal.engine import MaliciousClients
from shoal.models import Features, Model, Network, Shape, TextShape, VectorShape
from shoal.simulation.checks import check_algorithm_fits, check_coordinator
from shoal.simulation.simulation import Simulation


@dataclass(frozen=True, eq=False)
class Resolved:
    """A configuration that fits its data, with everything that was left open decided."""

    config: Config
    data: SourceData
    model: Model
    preferences: Preferences
    indices: PartitionIndices | None
    """The examples of each client, where a property is looked for or clients have theirs already; None: a partition by
    group, not yet drawn."""

    def simulation(self) -> Simulation:
        """The simulation, with the federation's tensors.

        Raises:
            InputError: a property attacker without examples to simulate on, or with a network that it cannot extend; or
                clients with too few examples for canaries.
        """
        config, section = self.config, self.config.property_attack
        federation, canaries = self._federation(), None
        if config.canaries is not None and config.canaries.per_client > 0:
            with in_table("canaries"):
                federation, canaries = config.canaries.insert(federation, Stream(config.seed, ("data", "canaries")))
        if section is not None:
            with in_table("property_attack"):
                section.attack.check(federation, config.algorithm.value)
        algorithm, coordinator = config.algorithm.value, None
        if config.coordinator is not None:
            algorithm, coordinator = config.coordinator.with_server_knobs(algorithm), config.coordinator.coordinator()
        return Simulation(
            federation=federation,
            model=self.model,
            features=_features(config.model),
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
            round_attack=None if section is None else section.attack,
            malicious_clients=self._malicious_clients(federation),
            record_updates=0 if config.record is None else config.record.updates,
            reference_federations=config.evaluation.reference_federations,
            duplicates=config.evaluation.duplicates,
            view=config.evaluation.view,
            attacks=config.evaluation.own_attacks(),
            metrics=config.evaluation.own_metrics(),
            canaries=canaries,
        )

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
            tested = torch.bincount(self.data.client[self.indices.test], minlength=len(self.data.client_names))
            without = [name for name, count in zip(self.data.client_names, tested.tolist(), strict=True) if not count]
            if without:
                more = f" and {len(without) - 10} more" if len(without) > 10 else ""
                whose = f"{len(without)} client{'s' * (len(without) > 1)} with a single example, which is for training"
                yield (
                    f"{self.data.name}: no test example of {whose}: {quote(without[:10])}{more}; "
                    "'min_examples' = 2 leaves such clients out"
                )

    @property
    def training_examples(self) -> int:
        """The number of examples that all clients train on."""
        partition = self.config.data.partition
        if partition is not None:
            return partition.clients * partition.examples_per_client
        if isinstance(self.data, Federation):
            return int(self.data.clients.sizes.sum())
        assert self.indices is not None
        return len(self.indices.clients.indices)

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

    def _federation(self) -> Federation:
        config, stream = self.config, Stream(self.config.seed, ("data",))
        if isinstance(self.data, Federation):
            return replace(self.data, preferences=self.preferences)
        if isinstance(self.data, ClientDataset):
            assert self.indices is not None
            return federation_of_clients(self.data, self.indices, self.preferences)
        if self.indices is None:
            groups = [*config.data.groups.values()]
            return partition_dataset(self.data, _partition(config), groups, self.preferences, stream)
        assert config.property_attack is not None
        return config.property_attack.federation(config, self.data, self.indices, self.preferences, stream)

    def _malicious_clients(self, federation: Federation) -> MaliciousClients | None:
        section = self.config.property_attack
        if section is None:
            return None
        with in_table("property_attack"):
            return section.malicious_clients(self.model, federation)


def build(config: Config, data_dir: Path | None = None, dataset: SourceData | None = None) -> tuple[Config, Simulation]:
    """The configuration with everything it left open decided, and the simulation that it describes.

    The examples of [data] are loaded, from ``data_dir`` first, unless ``dataset`` has them.

    Raises:
        InputError: data that is missing, damaged or too small, or keys that contradict each other.
    """
    resolved = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    return resolved.config, resolved.simulation()


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


def resolve(config: Config, data: SourceData) -> Resolved:
    """Check a configuration against its data, and decide what it leaves open; no example is copied.

    Raises:
        InputError: too few examples, or keys that contradict each other.
    """
    require_partition(config.data, data)
    if isinstance(data, ClientDataset):
        data = data.with_at_least((config.data.split or ClientSplit()).min_examples)
    classes = _classes(config, data)
    network, stream = config.model.sized(classes), Stream(config.seed, ("data",))
    indices = draw_split(config, data) if isinstance(data, ClientDataset) else None
    if isinstance(data, LabelledDataset) and config.property_attack is None:
        # Before anything is allocated by the number of clients, which may be any.
        with in_table("data"):
            _partition(config).check(data, [*config.data.groups.values()])
    with in_table("model"):
        scale = data.standardizer(indices) if isinstance(data, ClientDataset) and indices is not None else None
        model = _model(network, data, scale)
    _check_tables(config, data, indices)
    setup = checked_setup(config, model, data.kind)
    if config.property_attack is not None:
        assert isinstance(data, LabelledDataset)
        with in_table("property_attack"):
            indices = config.property_attack.draw(config, data, stream)
    # Shipped networks need no trial.
    tried = _first_examples(data, scale) if ":" in network.name and network.features is None else None
    with in_table("engine"):
        engine = config.engine.decided(setup, config.algorithm.value, tried, classes)
    with in_table("privacy"):
        privacy, drawn = config.privacy, stream("preferences")
        count = _clients(config, data)
        preferences = draw_preferences(count, privacy.thresholds, privacy.beta, drawn, privacy.view)
    section = config.data if isinstance(data, LabelledDataset) else decided_data(config.data, data)
    path = section.path
    decided = replace(
        config,
        # So that a written configuration runs from anywhere.
        data=replace(section, path=None if path is None else str(Path(path).expanduser().resolve())),
        model=network,
        # A run that records nothing is the run of a file that does not speak of it.
        record=config.record if config.record is not None and config.record.updates else None,
        engine=engine,
    )
    return Resolved(decided, data, model, preferences, indices)


def _classes(config: Config, data: SourceData) -> int:
    """The outputs of the network.

    Raises:
        InputError: a label that none of them is for, a regression, or a property in a federation of a user's own.
    """
    if not isinstance(data, Federation):
        name, labels, count = data.name, data.labels, data.classes
    else:
        name, labels, count = f"'{config.data.source}'", data.clients.y, data.classes
        require(config.property_attack is None, f"'property_attack' needs a source with a 'task'; {name} has none")
    if count is None:
        raise InputError(f"{name} is a regression; a configuration trains classifiers, and `shoal.simulate` both")
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


def _model(network: Network, data: SourceData, scale: Standardizer | None) -> Model:
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
    features = _features(network)
    if features is not None:
        require(data.kind != "texts", "'features' are of numbers, and the data are texts; leave them out")
        with in_table("features"):
            width = features.width((shape.inputs,) if isinstance(shape, VectorShape) else inputs.shape[1:])
        shape = VectorShape(width, network.classes)
    return fit_features(network, shape)


def checked_setup(config: Config, model: Model, kind: str) -> TrainingSetup:
    """How clients with examples of a ``kind`` train, as the algorithm and the coordinator of a configuration allow it.

    Raises:
        InputError: a defence, the algorithm or the coordinator does not go together with the others.
    """
    algorithm, every = config.algorithm.value, config.red_team.every
    kind = kind if config.model.features is None else "features"
    with in_table("defenses"):
        setup = apply_defenses(TrainingSetup(model, config.local, kind=kind), config.defenses.all())
    with in_table("algorithm"):
        check_algorithm_fits(algorithm, setup, every)
    if config.coordinator is not None:
        with in_table("coordinator"):
            steered = config.coordinator.with_server_knobs(algorithm)
            check_coordinator(config.coordinator.coordinator(), setup, steered, every)
    return setup


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


def _first_examples(data: SourceData, scale: Standardizer | None) -> tuple[Tensor, Tensor]:
    """Inputs and labels of at most two examples, on which a network is tried."""
    x, y = _inputs(data, scale)[:2], data.clients.y[:2] if isinstance(data, Federation) else data.labels[:2]
    return x.float() / 255 if x.dtype == torch.uint8 else x if data.kind == "texts" else x.float(), y


def _partition(config: Config) -> Partition:
    """The partition of a set."""
    assert config.data.partition is not None
    return config.data.partition


def _check_tables(config: Config, data: SourceData, indices: PartitionIndices | None) -> None:
    """Raise `InputError` where keys of several tables contradict each other."""
    references = config.evaluation.reference_federations
    require(
        references == 0 or config.property_attack is None,
        f"'evaluation.reference_federations' must be 0 with [property_attack], whose run cannot be replayed; got "
        f"{references}",
    )
    check_sizes(config, data, indices)
    if isinstance(data, LabelledDataset):
        partition, groups = _partition(config), config.data.groups
        require(
            partition.test_examples >= len(groups),
            f"'data.test_examples' must be at least one for each of {len(groups)} groups; got "
            f"{partition.test_examples}",
        )
        if config.property_attack is not None:
            config.property_attack.check(config)
        # Under label skew each client has another number, which is known once they are drawn.
        even = partition.dirichlet_alpha is None and config.property_attack is None
        sizes = torch.full((partition.clients,), partition.examples_per_client) if even else None
    else:
        counts = [] if indices is None else indices.clients.sizes.tolist()
        sizes = data.clients.sizes if isinstance(data, Federation) else torch.tensor(counts)
    if config.canaries is not None and config.canaries.per_client > 0:
        require(config.property_attack is None, "'canaries' do not go together with 'property_attack'")
        with in_table("canaries"):
            config.canaries.check(sizes) if sizes is not None else None
