"""What the server sent once, on a client's own disk and known by its hash: the map of features, or frozen tensors."""

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as parse, load_file
from torch import Tensor

from shoal.core.atomic_files import PRIVATE, private_folder, write_bytes
from shoal.core.errors import InputError, require
from shoal.models import FeatureMap
from shoal.models.model import hash_of
from shoal_flower.messages import FROZEN, NO_FEATURES, NO_FROZEN, NotAllowedError

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
