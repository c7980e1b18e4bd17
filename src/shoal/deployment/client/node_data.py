"""The federation of one client that a node trains: its own examples, or a partition of a named set."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from shoal.config.build import build, load_source
from shoal.config.client_files import draw_split, reading_of
from shoal.config.kinds import own_code
from shoal.config.schema import Config, parse_config
from shoal.config.toml_files import parse_toml
from shoal.core.errors import InputError, quoted, require
from shoal.core.randomness import Stream
from shoal.data import (
    ClientDataset,
    Federation,
    Preferences,
    Shards,
    Standardizer,
    draw_preferences,
    federation_of_clients,
)
from shoal.data.memory_format import gather
from shoal.defenses import TrainingSetup, defended
from shoal.deployment.client.kept_features import kept_features, kept_frozen
from shoal.deployment.flower_config import NodeSettings
from shoal.models import Shape, VectorShape
from shoal.models.cached_features import frozen_prefix
from shoal.simulation.checks import check_coordinator
from shoal.simulation.simulation import examples_kind


@dataclass(frozen=True, eq=False)
class Client:
    """A client as its node knows it: the decided configuration, a federation of this client alone, and its training."""

    config: Config
    federation: Federation
    setup: TrainingSetup


def run_config(text: str, allow_code: str = "") -> Config:
    """The configuration that a server sent as TOML; ``allow_code`` as in `NodeSettings`.

    Raises:
        InputError: it is none, or it names Python code that the node does not allow.
    """
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise InputError(f"the server's configuration is not TOML: {error}") from error
    allowed = {name.strip() for name in allow_code.split(",")}
    code = sorted(own_code(table) - allowed)
    require(
        not code,
        f"the server's configuration names Python code of its own, {quoted(code)}; a node runs what its own "
        "'allow-code' names, and nothing else",
    )
    return parse_config(table, "the server's configuration")


@lru_cache(maxsize=4)
def open_client(
    text: str,
    settings: NodeSettings,
    classes: tuple[str, ...],
    scale: Standardizer | None = None,
    features: str = "",
    frozen: str | None = None,
) -> Client:
    """The client of a node in the run that ``text`` configures; kept for the next round.

    Args:
        text: a configuration, as TOML.
        settings: of the node.
        classes: names by number, as the server has them; none where the data are a named set.
        scale: the standardization of the columns of the node's table; None: the data are no table.
        features: the hash of the map of the examples, which the node keeps; "": there is none.
        frozen: the hash of the models' frozen tensors, which the node has built or keeps; None: it is not compared.

    Raises:
        InputError: data that are missing or do not fit the configuration.
        NotAllowedError: the node does not have the map or the frozen tensors.
    """
    config = run_config(text, settings.allow_code)
    require(
        bool(features) == (config.model.features is not None),
        "the run has [model.features], but the server names no map of them"
        if config.model.features
        else "the server names a map of features, but the run has none",
    )
    mapped = kept_features(settings.folder, features).mapped if features else None
    if settings.data_path is None:
        client = _simulated_client(config, settings)
    else:
        client = _client_with_data(config, settings.name, settings.data_path, classes, scale)
    threshold, beta = client.federation.preferences.threshold, client.federation.preferences.beta
    preferences = Preferences(
        threshold if settings.threshold is None else torch.full_like(threshold, settings.threshold),
        beta if settings.risk_weight is None else torch.full_like(beta, settings.risk_weight),
    )
    federation, setup = replace(client.federation, preferences=preferences), client.setup
    model = setup.model.whole or setup.model
    if frozen not in (None, model.frozen_hash):
        model = model.with_frozen(kept_frozen(settings.folder, frozen))
    if model.cache_features:
        prefix = frozen_prefix(model, federation.clients.x)
        model, mapped = prefix.rest(model), prefix.mapped
    setup = replace(setup, model=model)
    if mapped is not None:
        # The client's own examples alone; the server has others.
        own = {name: getattr(federation, name) for name in ("clients", "holdout")}
        federation = replace(
            federation, **{name: replace(part, x=mapped(part.x), mapped=False) for name, part in own.items()}
        )
    return replace(client, federation=federation, setup=setup)


def _simulated_client(config: Config, settings: NodeSettings) -> Client:
    """The client that the simulation of ``config`` has at the partition's place."""
    require(
        config.data.partition is not None,
        f"'partition-id' is of a set that is partitioned, and '{config.data.source}' has clients; give 'data-path'",
    )
    decided, simulation = build(config, settings.data_dir)
    clients, partition = len(simulation.federation), settings.partition_id
    assert partition is not None
    require(
        partition < clients, f"--node-config: 'partition-id' must be below 'data.clients' = {clients}; got {partition}"
    )
    federation = simulation.federation.take(torch.tensor([partition]))
    federation = replace(federation, clients=_copied(federation.clients), holdout=_copied(federation.holdout))
    return Client(decided, federation, simulation.setup)


def _copied(shards: Shards) -> Shards:
    """``shards`` of one client without the other clients' examples, which the simulation's tensors have."""
    return Shards.from_contiguous(gather(shards.x, shards.indices), shards.y[shards.indices], shards.sizes)


def _client_with_data(
    config: Config, name: str, path: Path, classes: tuple[str, ...], scale: Standardizer | None
) -> Client:
    """The client of this ``name`` whose examples are in a folder or table of the node."""
    section, reading = config.data, reading_of(config.data)
    require(
        reading is not None and section.split is not None,
        f"'data-path' needs 'data.source' to be 'folder' or 'table'; the run's is '{section.source}'",
    )
    assert section.split is not None
    data = load_source(section.source, str(path), reading=reading)
    assert isinstance(data, ClientDataset)
    require(
        len(data.client_names) == 1,
        f"{data.name} has the clients {quoted(data.client_names)}; a node's data are of one client",
    )
    unknown = sorted(set(data.class_names) - set(classes))
    require(not unknown, f"{data.name} has the classes {quoted(unknown)}, which the server's data have not")
    number = torch.tensor([classes.index(label) for label in data.class_names])
    # What is held out for a test or as a shadow set would be lost to the client: the server has these.
    least = 1 / max(2, len(data.labels))
    split = replace(section.split, shadow_fraction=0.0, test_fraction=min(section.split.test_fraction, least))
    indices = draw_split(replace(config, data=replace(section, path=str(path), split=split)), data)
    preferences = draw_preferences(
        1, config.privacy.thresholds, config.privacy.beta, Stream(config.seed, ("client", name))
    )
    numbered = replace(data, labels=number[data.labels], class_names=classes)
    federation = federation_of_clients(numbered, indices, preferences, scale)
    network = config.model.sized(config.model.classes or len(classes))
    assert network.classes is not None
    if data.inputs:
        shape = VectorShape(federation.clients.x.shape[1], network.classes)
    else:
        _, channels, height, width = data.x.shape
        shape = Shape(channels, height, width, network.classes)
    if network.features is not None:
        inputs = (shape.inputs,) if isinstance(shape, VectorShape) else data.x.shape[1:]
        shape = VectorShape(network.features.width(inputs), network.classes)
    model = network.model(shape)
    kind = examples_kind(data.kind, model, fixed=network.features is not None)
    setup = defended(TrainingSetup(model, config.local, kind=kind), config.defenses.all())
    # As the server did, which a client need not trust with what it states to itself as its epsilon.
    algorithm, every = config.algorithm.value, config.red_team.every
    algorithm.check(setup.first_local(), every)
    if config.coordinator is not None:
        check_coordinator(config.coordinator.coordinator(), setup, algorithm, every)
    return Client(replace(config, model=network), federation, setup)
