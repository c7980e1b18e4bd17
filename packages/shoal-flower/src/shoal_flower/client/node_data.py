"""The federation of one client that a node trains: the node's own examples, or a partition of a named data set."""

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
    """A run before the node has read its own data.

    Args:
        scale: the standardization of columns in the server's table, or ``None`` without tables.
        mapped: the feature map before the network, or ``None`` without a feature map.
        federation: the federation of the client's partition of a named data set, or ``None`` if the node has its own
            data.
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
    """A client in its node's view: the configuration, a federation of this client alone, and its training.

    Args:
        copies: the number of copies of the client's most frequent record. ``None`` counts the copies in the training
            examples.
    """

    config: Config
    federation: Federation
    setup: TrainingSetup
    copies: int | None


def run_config(text: str, allow_code: str = "") -> Config:
    """Read the configuration that a server sent as TOML.

    Raises:
        InputError: the text is not a configuration, or names Python code that the node does not allow.
    """
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise InputError(f"the server's configuration is not TOML: {error}") from error
    allowed = {name.strip() for name in allow_code.split(",")}
    code = sorted(own_code(table) - allowed)
    require(
        not code,
        f"the server's configuration names Python code that the node's 'allow-code' lacks (got {quote(code)})",
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
    """Return the run that ``text`` configures, without the node's own data, cached for the next round.

    Args:
        frozen: the hash of the models' frozen tensors. ``None`` skips the comparison.

    Raises:
        InputError: the run's settings do not fit the node's settings.
        NotAllowedError: the node lacks the feature map or the frozen tensors.
    """
    config = run_config(text, settings.allow_code)
    require(
        bool(features) == (config.model.features is not None),
        "the run has [model.features], but the server's offer has no feature map"
        if config.model.features
        else "the server's offer has a feature map, but the run has no [model.features]",
    )
    mapped = load_features(settings.folder, features).transform if features else None
    own = settings.data_path is not None
    run = (_own if own else _partition)(config, settings, classes, scale)
    threshold, beta = run.preferences.threshold, run.preferences.beta
    preferences = Preferences(
        threshold if settings.threshold is None else torch.full_like(threshold, settings.threshold),
        beta if settings.risk_weight is None else torch.full_like(beta, settings.risk_weight),
    )
    model = run.setup.model
    if frozen not in (None, model.frozen_hash):
        model = model.with_frozen(load_frozen(settings.folder, frozen))
    return replace(run, setup=replace(run.setup, model=model), preferences=preferences, mapped=mapped)


@lru_cache(maxsize=4)
def open_client(run: AskedRun, *, columns: Columns | None = None, own_classes: tuple[str, ...] | None = None) -> Client:
    """Return a node's client with its data, cached for the next round.

    Args:
        columns: the columns in the node's policy. The node reads all columns in the policy and selects the run's
            columns later, so a faulty table fails in the same way for every run.

    Raises:
        InputError: the data are missing or unusable.
    """
    scale = run.scale
    if run.federation is not None:
        federation, copies = run.federation, None
    else:
        data = _own_data(run, columns, own_classes)
        copies = None if columns is None and own_classes is None else _copies(data, run.node.data_path)
        if scale is not None and columns is not None:
            data = _with_columns_of(data, scale)
        federation = _federation(run, data)
    federation = replace(federation, preferences=run.preferences)
    if run.mapped is not None:
        # Only the client's own examples; the server has the others.
        own = {name: getattr(federation, name) for name in ("clients", "holdout")}
        federation = replace(
            federation, **{name: replace(part, x=run.mapped(part.x), memory_mapped=False) for name, part in own.items()}
        )
    return Client(run.config, federation, run.setup, copies)


def _partition(
    config: Config, settings: NodeSettings, classes: tuple[str, ...], scale: Standardizer | None
) -> AskedRun:
    require(
        config.data.partition is not None,
        f"'partition-id' needs a data set with partitions (got '{config.data.source}'); use 'data-path'",
    )
    decided, simulation = build(config, settings.data_dir)
    clients, partition = len(simulation.federation), settings.partition_id
    assert partition is not None
    require(
        partition < clients, f"--node-config: 'partition-id' must be below 'data.clients' = {clients} (got {partition})"
    )
    federation = simulation.federation.take(torch.tensor([partition]))
    federation = replace(federation, clients=_own_shards(federation.clients), holdout=_own_shards(federation.holdout))
    asked = (settings, classes, scale, decided, simulation.setup, federation.preferences)
    return AskedRun(*asked, federation=federation)


def _own_shards(shards: Shards) -> Shards:
    """Return the ``shards`` of one client, without other clients' examples in the same tensors."""
    return Shards.from_contiguous(gather(shards.x, shards.indices), shards.y[shards.indices], shards.sizes)


def _own(config: Config, settings: NodeSettings, classes: tuple[str, ...], scale: Standardizer | None) -> AskedRun:
    """Return the run of a client with a folder or table, in the shape of the server's data."""
    section, columns, pictures = config.data, config.data.columns, config.data.pictures
    require(
        reading_of(section) is not None and section.split is not None,
        f"'data-path' needs a run with 'data.source' of 'folder' or 'table' (got '{section.source}')",
    )
    network = config.model.sized(config.model.classes or len(classes))
    assert network.classes is not None
    require(
        network.classes >= len(set(classes)) == len(classes),
        f"the server must name at most {network.classes} different classes (got {quote(classes)})",
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
            "the run's pictures need 'data.size' and 'data.channels', and no standardization of columns",
        )
        assert size is not None and channels is not None  # noqa: PT018
        inputs = (channels, *size)
        shape = Shape(channels, size[0], size[1], network.classes)
    if network.features is not None:
        shape = VectorShape(network.features.width(inputs), network.classes)
    model = fit_features(network, shape)
    # Repeat the server's check, because the client's epsilon must not depend on an honest server.
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
    """Raise `InputError` unless the server's ``scale`` fits ``columns`` and can transform any row."""
    require(
        scale is not None and columns.inputs in (None, scale.inputs),
        "the server's standardization of columns must have the inputs of its configuration",
    )
    assert scale is not None
    count, words = len(scale.inputs), scale.words or ((),) * len(scale.inputs)
    fill = scale.fill or (0.0,) * count
    require(
        count == len(scale.mean) == len(scale.std) == len(words) == len(fill)
        and all(map(math.isfinite, (*scale.mean, *fill)))
        and all(std > 0 for std in scale.std)
        and all(not column or 0 <= place < len(column) for column, place in zip(words, fill, strict=True)),
        "the server's standardization needs a finite mean, a standard deviation above 0 and a valid 'fill' per column",
    )


def _own_data(run: AskedRun, columns: Columns | None, own_classes: Sequence[str] | None) -> ClientDataset:
    section = run.config.data
    reading = reading_of(section) if columns is None else replace(columns, one_hot=True, impute="median")
    data = load_source(section.source, str(run.node.data_path), reading=reading)
    assert isinstance(data, ClientDataset)
    require(
        len(data.client_names) == 1,
        f"{data.name} must have one client (got {quote(data.client_names)})",
    )
    unknown = quote(sorted({*data.class_names} - {*(run.classes if own_classes is None else own_classes)}))
    whose = "the server's data" if own_classes is None else "the policy's 'classes'"
    require(not unknown, f"{data.name} has the classes {unknown}, which are missing in {whose}")
    return data


def _copies(data: ClientDataset, path: Path | None) -> int:
    """Return the count of the most frequent record: a row of the policy's columns, or a picture's file.

    The count must not depend on the server's questions, because a refusal over the budget reveals a record's charge.
    """
    if isinstance(data.examples, pd.DataFrame):
        # Held-out rows count too, and 0.0 equals -0.0.
        return int(data.examples.groupby([*data.examples, data.labels.numpy()], dropna=False).size().max())
    assert path is not None
    folder = path if path.is_dir() else path.parent
    files = [hashlib.sha256((folder / data.origin(i)).read_bytes()).digest() for i in range(len(data.labels))]
    return max(Counter(zip(files, data.labels.tolist(), strict=True)).values())


def _with_columns_of(data: ClientDataset, scale: Standardizer) -> ClientDataset:
    """Return ``data`` with the columns of ``scale``, such that ``scale`` can transform each row.

    An empty cell without a fill value gets the column's mean, or no word. If only one side has numbers in a column, all
    cells of the column count as empty.
    """
    assert isinstance(data.examples, pd.DataFrame)
    rows = data.examples[[*scale.inputs]].copy()
    for name, mean, words in zip(scale.inputs, scale.mean, scale.words or ((),) * len(scale.inputs), strict=True):
        kind = np.dtype(object if words else np.float64)
        if pd.api.types.is_numeric_dtype(rows[name]) == bool(words):
            LOG.warning("%s: the column '%s' has another type at the server and counts as empty", data.name, name)
            rows[name] = pd.Series(np.nan, rows.index, kind)
        if not scale.fill:
            rows[name] = rows[name].fillna("" if words else mean)
    return replace(data, examples=rows)


def _federation(run: AskedRun, data: ClientDataset) -> Federation:
    """Return the federation of a client with these ``data`` and the server's numbers of classes."""
    section = run.config.data
    assert section.split is not None
    number = torch.tensor([run.classes.index(label) for label in data.class_names])
    # The server has the test and shadow set, so the client holds out none.
    least = 1 / max(2, len(data.labels))
    split = replace(section.split, shadow_fraction=0.0, test_fraction=min(section.split.test_fraction, least))
    # A split by labels with the server's seed would reveal how rare a class is.
    unlabelled = replace(data, labels=torch.zeros_like(data.labels), class_names=data.class_names[:1])
    indices = split.draw(unlabelled, Stream(run.config.seed, ("data",)))
    numbered = replace(data, labels=number[data.labels], class_names=run.classes)
    # The server's scale may overflow; a warning could become an error that depends on the data.
    with np.errstate(all="ignore"):
        return federation_of_clients(numbered, indices, run.preferences, run.scale)


_KINDS = {"features": "a feature map", "frozen": "frozen tensors"}
"""The content of a client's folders."""


def keep_features(folder: Path, digest: str, content: bytes) -> str:
    """Store the server's feature map or frozen tensors in a client's ``folder``, and return the hash.

    Raises:
        InputError: the content has another hash or is not a feature map; no file is written.
    """
    kind, stated = ("frozen" if digest.startswith(FROZEN) else "features"), digest.removeprefix(FROZEN)
    path = _path(folder, kind, stated)
    try:
        found = hash_of(parse(content)) if kind == "frozen" else hashlib.sha256(content).hexdigest()
    except SafetensorError as error:
        raise InputError(f"the server's file of {_KINDS[kind]} cannot be read: {error}") from error
    require(found == stated, f"the server's file of {_KINDS[kind]} must have the hash {stated} (got {found})")
    private_folder(folder)
    write_bytes(private_folder(path.parent) / path.name, content, mode=PRIVATE)
    if kind == "features":
        try:
            _read(path)
        except InputError:
            path.unlink()
            raise
    return digest


def load_features(folder: Path, digest: str) -> FeatureMap:
    """Load the client's feature map with this hash.

    Raises:
        NotAllowedError: the map is missing or damaged; the server sends the map again.
    """
    path = _path(folder, "features", digest)
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise NotAllowedError(f"{path}: the run's feature map is missing or damaged", NO_FEATURES)
    return _read(path)


def load_frozen(folder: Path, digest: str) -> dict[str, Tensor]:
    """Load the client's frozen tensors with this hash.

    Raises:
        NotAllowedError: the tensors are missing or damaged; the server sends the tensors again.
    """
    path = _path(folder, "frozen", digest)
    tensors: dict[str, Tensor] = {}
    with suppress(OSError, SafetensorError):
        tensors = load_file(path)
    if hash_of(tensors) != digest:
        raise NotAllowedError(f"{path}: the frozen tensors of the server's models are missing or damaged", NO_FROZEN)
    return tensors


def _read(path: Path) -> FeatureMap:
    found = FeatureMap.load(path)
    if found is None:
        raise InputError(f"{path}: must be a feature map without a user's module")
    return found


def _path(folder: Path, kind: str, digest: str) -> Path:
    fits = re.fullmatch("[0-9a-f]{64}", digest) is not None
    require(fits, f"{digest!r:.80} is not a hash of {_KINDS[kind]}")
    return folder / kind / f"{digest}.safetensors"
