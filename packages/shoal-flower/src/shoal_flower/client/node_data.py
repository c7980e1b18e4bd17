"""The federation of one client that a node trains: its own examples, or a partition of a named set."""

import hashlib
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse, load_file
from torch import Tensor

from shoal.config.build import build, fit_features, load_source, reading_of
from shoal.config.kinds import own_code
from shoal.config.schema import Config, parse_config
from shoal.config.toml_files import parse_toml
from shoal.core.atomic_files import PRIVATE, private_folder, write_bytes
from shoal.core.errors import InputError, quote, require
from shoal.core.randomness import Stream
from shoal.data import (
    ClientDataset,
    Columns,
    Federation,
    Preferences,
    Shards,
    Standardizer,
    draw_preferences,
    federation_of_clients,
)
from shoal.data.shards import gather
from shoal.defenses import TrainingSetup
from shoal.models import FeatureMap, Shape, VectorShape
from shoal.models.model import hash_of
from shoal.simulation.checks import checked_setup
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import FROZEN, NO_FEATURES, NO_FROZEN, NotAllowedError

LOG = logging.getLogger("shoal")


@dataclass(frozen=True, eq=False)
class AskedRun:
    """A run as a node knows it before it opens its own data.

    ``classes`` and ``scale`` are the server's, ``mapped`` is what inputs go through before the network, and
    ``federation`` that of a partition of a named set.
    """

    node: NodeSettings
    classes: tuple[str, ...]
    scale: Standardizer | None
    config: Config
    setup: TrainingSetup
    preferences: Preferences
    mapped: Callable[[Tensor], Tensor] | None = None
    federation: Federation | None = None


@dataclass(frozen=True, eq=False)
class Client:
    """A client as its node knows it: the decided configuration, a federation of this client alone, and its training.

    ``copies`` is how often its data have their most frequent record; None: it is counted as they are trained on.
    """

    config: Config
    federation: Federation
    setup: TrainingSetup
    copies: int | None


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
        f"the server's configuration names Python code of its own, {quote(code)}; a node runs what its own "
        "'allow-code' names, and nothing else",
    )
    return parse_config(table, "the server's configuration")


@lru_cache(maxsize=4)
def asked_run(
    text: str,
    settings: NodeSettings,
    classes: tuple[str, ...],
    scale: Standardizer | None = None,
    features: str = "",
    frozen: str | None = None,
) -> AskedRun:
    """The run that ``text`` configures, without a look at data of the node's own; kept for the next round.

    Args:
        text: the configuration, as TOML.
        settings: of the node.
        classes: the server's, by number.
        scale: of the columns of the server's table; None: its data are no table.
        features: the hash of the map of inputs, which the node keeps; "": there is none.
        frozen: the hash of the models' frozen tensors, which the node has built or keeps; None: it is not compared.

    Raises:
        InputError: a run that the node cannot take part in.
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
    own = settings.data_path is not None
    run = (_own if own else _partition)(config, settings, classes, scale)
    threshold, beta = run.preferences.threshold, run.preferences.beta
    preferences = Preferences(
        threshold if settings.threshold is None else torch.full_like(threshold, settings.threshold),
        beta if settings.risk_weight is None else torch.full_like(beta, settings.risk_weight),
    )
    model = run.setup.model
    if frozen not in (None, model.frozen_hash):
        model = model.with_frozen(kept_frozen(settings.folder, frozen))
    return replace(run, setup=replace(run.setup, model=model), preferences=preferences, mapped=mapped)


@lru_cache(maxsize=4)
def open_client(run: AskedRun, *, columns: Columns | None = None, own_classes: tuple[str, ...] | None = None) -> Client:
    """The client of a node in a run, with its data; kept for the next round.

    With ``columns``, by the node's policy, its table is read as these say, and then seen as the server asks. So a fault
    of the data is the same whatever the server asks, and what it asks cannot fail. ``own_classes`` are by its policy
    all that its data may have.

    Raises:
        InputError: data that are missing, or that cannot be used.
    """
    scale = run.scale
    if run.federation is not None:
        federation, copies = run.federation, None
    else:
        data = _own_data(run, columns, own_classes)
        copies = None if columns is None and own_classes is None else _copies(data, run.node.data_path)
        if scale is not None and columns is not None:
            data = _seen_as(data, scale)
        federation = _federation(run, data)
    federation = replace(federation, preferences=run.preferences)
    if run.mapped is not None:
        # The client's own examples alone; the server has others.
        own = {name: getattr(federation, name) for name in ("clients", "holdout")}
        federation = replace(
            federation, **{name: replace(part, x=run.mapped(part.x), mapped=False) for name, part in own.items()}
        )
    return Client(run.config, federation, run.setup, copies)


def _partition(
    config: Config, settings: NodeSettings, classes: tuple[str, ...], scale: Standardizer | None
) -> AskedRun:
    """The run of the client that the simulation of ``config`` has at the partition's place."""
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
    asked = (settings, classes, scale, decided, simulation.setup, federation.preferences)
    return AskedRun(*asked, federation=federation)


def _copied(shards: Shards) -> Shards:
    """``shards`` of one client without the other clients' examples, which the simulation's tensors have."""
    return Shards.from_contiguous(gather(shards.x, shards.indices), shards.y[shards.indices], shards.sizes)


def _own(config: Config, settings: NodeSettings, classes: tuple[str, ...], scale: Standardizer | None) -> AskedRun:
    """The run of a client with a folder or table, of the shape that the server says."""
    section, columns, pictures = config.data, config.data.columns, config.data.pictures
    require(
        reading_of(section) is not None and section.split is not None,
        f"'data-path' needs 'data.source' to be 'folder' or 'table'; the run's is '{section.source}'",
    )
    network = config.model.sized(config.model.classes or len(classes))
    assert network.classes is not None
    require(
        network.classes >= len(set(classes)) == len(classes),
        f"the server's network has {network.classes} classes for {quote(classes)}; each needs one",
    )
    if columns is not None:
        _require_usable(scale, columns)
        assert scale is not None
        inputs: tuple[int, ...] = (scale.width,)
        shape = VectorShape(scale.width, network.classes)
    else:
        size, channels = (None, None) if pictures is None else (pictures.size, pictures.channels)
        require(
            size is not None and channels is not None and scale is None,
            "the server must say 'data.size' and 'data.channels' of pictures, and no scale of columns",
        )
        assert size is not None and channels is not None  # noqa: PT018
        inputs = (channels, *size)
        shape = Shape(channels, size[0], size[1], network.classes)
    if network.features is not None:
        shape = VectorShape(network.features.width(inputs), network.classes)
    model = fit_features(network, shape)
    # As the server did, which a client need not trust with what it states to itself as its epsilon.
    kind = "features" if network.features is not None else "images" if columns is None else "rows"
    algorithm, section, coordinator = config.algorithm.value, config.coordinator, None
    if section is not None:
        algorithm, coordinator = section.with_server_knobs(algorithm), section.coordinator()
    setup = TrainingSetup(model, config.local, kind=kind)
    setup = checked_setup(setup, config.defenses.all(), algorithm, coordinator, config.red_team.every)
    stream = Stream(config.seed, ("client", settings.name))
    preferences = draw_preferences(1, config.privacy.thresholds, config.privacy.beta, stream)
    return AskedRun(settings, classes, scale, replace(config, model=network), setup, preferences)


def _require_usable(scale: Standardizer | None, columns: Columns) -> None:
    """Raise `InputError` unless the server's ``scale`` is of these ``columns`` and can transform any row."""
    require(
        scale is not None and columns.inputs in (None, scale.inputs),
        "the server's scale of columns is not that of the inputs in its configuration",
    )
    assert scale is not None
    count, words = len(scale.inputs), scale.words or ((),) * len(scale.inputs)
    fill = scale.fill or (0.0,) * count
    require(
        count == len(scale.mean) == len(scale.std) == len(words) == len(fill)
        and all(map(math.isfinite, (*scale.mean, *fill)))
        and all(std > 0 for std in scale.std)
        and all(not column or 0 <= place < len(column) for column, place in zip(words, fill, strict=True)),
        "the server's scale needs a finite mean, a deviation above 0 and a usable 'fill' of each column",
    )


def _own_data(run: AskedRun, columns: Columns | None, own_classes: Sequence[str] | None) -> ClientDataset:
    """The data of the node, which are of one client and have no other classes."""
    section = run.config.data
    reading = reading_of(section) if columns is None else replace(columns, one_hot=True, impute="median")
    data = load_source(section.source, str(run.node.data_path), reading=reading)
    assert isinstance(data, ClientDataset)
    require(
        len(data.client_names) == 1,
        f"{data.name} has the clients {quote(data.client_names)}; a node's data are of one client",
    )
    unknown = quote(sorted({*data.class_names} - {*(run.classes if own_classes is None else own_classes)}))
    whose = "the server's data have not" if own_classes is None else "the policy's 'classes' do not name"
    require(not unknown, f"{data.name} has the classes {unknown}, which {whose}")
    return data


def _copies(data: ClientDataset, path: Path | None) -> int:
    """How often the whole ``data`` have their most frequent record: a row as the policy names it, or a picture's file.

    It is the same whatever the server asks, which reads off the budget's refusal how much one record was charged.
    """
    if isinstance(data.examples, pd.DataFrame):
        # Also what is held out; 0.0 and -0.0 are one number.
        return int(data.examples.groupby([*data.examples, data.labels.numpy()], dropna=False).size().max())
    assert path is not None
    folder = path if path.is_dir() else path.parent
    files = [hashlib.sha256((folder / data.origin(i)).read_bytes()).digest() for i in range(len(data.labels))]
    return max(Counter(zip(files, data.labels.tolist(), strict=True)).values())


def _seen_as(data: ClientDataset, scale: Standardizer) -> ClientDataset:
    """The columns of ``data`` that ``scale`` has, in its order, such that it transforms each row by itself.

    An empty cell that it does not fill has the mean of numbers, and no word. So has each cell of a column that holds
    numbers where the scale has words, or the other way round.
    """
    assert isinstance(data.examples, pd.DataFrame)
    rows = data.examples[[*scale.inputs]].copy()
    for name, mean, words in zip(scale.inputs, scale.mean, scale.words or ((),) * len(scale.inputs), strict=True):
        kind = np.dtype(object if words else np.float64)
        if pd.api.types.is_numeric_dtype(rows[name]) == bool(words):
            LOG.warning("%s: the column '%s' does not hold what it holds at the server; it is empty", data.name, name)
            rows[name] = pd.Series(np.nan, rows.index, kind)
        if not scale.fill:
            rows[name] = rows[name].fillna("" if words else mean)
    return replace(data, examples=rows)


def _federation(run: AskedRun, data: ClientDataset) -> Federation:
    """The federation of the one client that has these ``data``, whose classes are numbered as the server's."""
    section = run.config.data
    assert section.split is not None
    number = torch.tensor([run.classes.index(label) for label in data.class_names])
    # What is held out for a test or as a shadow set would be lost to the client: the server has these.
    least = 1 / max(2, len(data.labels))
    split = replace(section.split, shadow_fraction=0.0, test_fraction=min(section.split.test_fraction, least))
    # A split may hold out all examples of a class, which the seed of a server would tell how rare it is.
    unlabelled = replace(data, labels=torch.zeros_like(data.labels), class_names=data.class_names[:1])
    indices = split.draw(unlabelled, Stream(run.config.seed, ("data",)))
    numbered = replace(data, labels=number[data.labels], class_names=run.classes)
    # Numbers that overflow by the server's scale are its own affair; a warning may be an error.
    with np.errstate(all="ignore"):
        return federation_of_clients(numbered, indices, run.preferences, run.scale)


_KINDS = {"features": "a map of features", "frozen": "frozen tensors"}
"""What the folders of a client hold."""


def keep_features(folder: Path, digest: str, content: bytes) -> str:
    """Keep a map, or frozen tensors, that the server sent in a client's ``folder``; returns the hash.

    Raises:
        InputError: it is not what the hash says, or no map; nothing is written then.
    """
    kind, stated = ("frozen" if digest.startswith(FROZEN) else "features"), digest.removeprefix(FROZEN)
    path = _path(folder, kind, stated)
    try:
        found = hash_of(parse(content)) if kind == "frozen" else hashlib.sha256(content).hexdigest()
    except SafetensorError as error:
        raise InputError(f"the server sent {_KINDS[kind]} that cannot be read: {error}") from error
    require(found == stated, f"the server sent {_KINDS[kind]} whose hash is {found}, and not {stated} as it says")
    private_folder(folder)
    write_bytes(private_folder(path.parent) / path.name, content, mode=PRIVATE)
    if kind == "features":
        try:
            _read(path)
        except InputError:
            path.unlink()
            raise
    return digest


def kept_features(folder: Path, digest: str) -> FeatureMap:
    """The map of this hash, as the client keeps it.

    Raises:
        NotAllowedError: it does not have it whole; the server then sends it again.
    """
    path = _path(folder, "features", digest)
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise NotAllowedError(f"{path}: the map of features of this run is not there, or damaged", NO_FEATURES)
    return _read(path)


def kept_frozen(folder: Path, digest: str) -> dict[str, Tensor]:
    """The frozen tensors of this hash, as the client keeps them.

    Raises:
        NotAllowedError: it does not have them whole; the server then sends them.
    """
    path = _path(folder, "frozen", digest)
    tensors: dict[str, Tensor] = {}
    with suppress(OSError, SafetensorError):
        tensors = load_file(path)
    if hash_of(tensors) != digest:
        raise NotAllowedError(f"{path}: the frozen tensors of the server's models are not there, or damaged", NO_FROZEN)
    return tensors


def _read(path: Path) -> FeatureMap:
    found = FeatureMap.load(path)
    if found is None:
        raise InputError(f"{path}: has a module whose code no file has")
    return found


def _path(folder: Path, kind: str, digest: str) -> Path:
    fits = re.fullmatch("[0-9a-f]{64}", digest) is not None
    require(fits, f"{digest!r:.80} is no hash of {_KINDS[kind]}")
    return folder / kind / f"{digest}.safetensors"
