"""The federation of one client that a node trains: its own examples, or a partition of a named set."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from shoal.config.build import build, load_source
from shoal.config.client_files import draw_split, reading_of
from shoal.config.schema import Config, parse_config
from shoal.core.errors import InputError, quoted, require
from shoal.core.randomness import Stream
from shoal.data import ClientDataset, Federation, Preferences, Standardizer, draw_preferences, federation_of_clients
from shoal.data.memory_format import gather
from shoal.data.shards import Shards
from shoal.defenses import TrainingSetup, defended
from shoal.deployment.client.node_settings import NodeSettings
from shoal.models import Model, Shape, VectorShape
from shoal.simulation.coordination import check_coordinator


@dataclass(frozen=True, eq=False)
class Client:
    """A client as its node knows it.

    Args:
        config: the run's configuration, with everything decided.
        federation: of this client alone.
        setup: the network, local training and all defences.
    """

    config: Config
    federation: Federation
    setup: TrainingSetup


def run_config(text: str) -> Config:
    """The configuration that a server sent.

    Raises:
        InputError: it is none, or it names Python code of its own, which a node runs for nobody.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the server's configuration is not TOML: {error}") from error
    code = sorted({value for value in _names(table) if ":" in value})
    told = f"the server's configuration names Python code of its own, {quoted(code)}"
    require(not code, f"{told}; a node runs none, so what it names must be in the package")
    return parse_config(table, "the server's configuration")


def _names(table: object, key: str = "") -> Iterator[str]:
    """The values of the keys in whose place ``module:Name`` may stand."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from _names(value, name)
    elif isinstance(table, list):
        for value in table:
            yield from _names(value, key)
    elif isinstance(table, str) and key not in ("path", "task", "device"):
        yield table


@lru_cache(maxsize=4)
def open_client(
    text: str, settings: NodeSettings, classes: tuple[str, ...], scale: Standardizer | None = None
) -> Client:
    """The client of a node in the run that ``text`` configures; kept for the next round.

    Args:
        text: a configuration, as TOML.
        settings: of the node.
        classes: names by number, as the server has them; none where the data are a named set.
        scale: by what the columns of the node's table are standardised; None: of pictures and named sets.

    Raises:
        InputError: data that are missing or do not fit the configuration.
    """
    config = run_config(text)
    own_data = settings.data_path is not None
    client = _with_own_data(config, settings, classes, scale) if own_data else _with_partition(config, settings)
    given = client.federation.preferences
    own = Preferences(
        given.threshold if settings.threshold is None else torch.tensor([settings.threshold], dtype=torch.float64),
        given.beta if settings.beta is None else torch.tensor([settings.beta], dtype=torch.float64),
    )
    return replace(client, federation=replace(client.federation, preferences=own))


def _with_partition(config: Config, settings: NodeSettings) -> Client:
    """The client that the simulation of ``config`` has at the partition's place."""
    require(
        config.data.partition is not None,
        f"'partition-id' needs a set that is dealt out, and '{config.data.source}' has clients; give 'data-path'",
    )
    decided, simulation = build(config, settings.data_dir)
    clients, partition = len(simulation.federation), settings.partition
    assert partition is not None
    require(
        partition < clients, f"--node-config: 'partition-id' must be below 'data.clients' = {clients}; got {partition}"
    )
    whole = simulation.federation.take(torch.tensor([partition]))
    return Client(decided, _alone(whole), simulation.setup)


def _alone(federation: Federation) -> Federation:
    """``federation`` of one client without the other clients' examples, which the simulation's tensors have."""

    def own(shards: Shards) -> Shards:
        indices = shards.indices
        return Shards.from_contiguous(gather(shards.x, indices), shards.y[indices], shards.sizes)

    return replace(federation, clients=own(federation.clients), holdout=own(federation.holdout))


def _with_own_data(
    config: Config, settings: NodeSettings, classes: tuple[str, ...], scale: Standardizer | None
) -> Client:
    """The client whose examples are in a folder or table of the node."""
    section, reading = config.data, reading_of(config.data)
    require(
        reading is not None and section.split is not None,
        f"'data-path' needs 'data.source' to be 'folder' or 'table'; the run's is '{section.source}'",
    )
    assert section.split is not None
    data = load_source(section.source, str(settings.data_path), reading=reading)
    assert isinstance(data, ClientDataset)
    require(
        len(data.client_names) == 1,
        f"{data.name} has the clients {quoted(data.client_names)}; a node's data are of one client",
    )
    unknown = sorted(set(data.class_names) - set(classes))
    require(not unknown, f"{data.name} has the classes {quoted(unknown)}, which the server's data have not")
    number = torch.tensor([classes.index(name) for name in data.class_names])
    # What is held out for a test or as a shadow set would be lost to the client: the server has these.
    least = 1 / max(2, len(data.labels))
    split = replace(section.split, shadow_fraction=0.0, test_fraction=min(section.split.test_fraction, least))
    own = replace(config, data=replace(section, path=str(settings.data_path), split=split))
    numbered = replace(data, labels=number[data.labels], class_names=classes)
    preferences = draw_preferences(
        1, config.privacy.thresholds, config.privacy.beta, Stream(config.seed, ("client", settings.client))
    )
    federation = federation_of_clients(numbered, draw_split(own, data), preferences, scale)
    network = config.model.sized(config.model.classes or len(classes))
    assert network.classes is not None
    if data.inputs:
        shape = VectorShape(federation.clients.x.shape[1], network.classes)
    else:
        _, channels, height, width = data.x.shape
        shape = Shape(channels, height, width, network.classes)
    model: Model = network.model(shape)
    setup = defended(TrainingSetup(model, config.local, kind=data.kind), config.defenses.all())
    # As the server did, which a client need not trust with what it states to itself as its epsilon.
    config.algorithm.value.check(setup.first_local(), config.red_team.every)
    if config.coordinator is not None:
        check_coordinator(config.coordinator.coordinator(), setup, config.algorithm.value, config.red_team.every)
    return Client(replace(config, model=network), federation, setup)
