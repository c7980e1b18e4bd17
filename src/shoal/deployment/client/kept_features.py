"""The map of inputs to features that the server sent, on a client's own disk: sent once, and known by its hash."""

import hashlib
import re
from pathlib import Path

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import InputError, require
from shoal.deployment.messages import NO_FEATURES, NotAllowedError
from shoal.models import FeatureMap


def keep_features(folder: Path, digest: str, content: bytes) -> str:
    """Keep a map that the server sent in a client's ``folder``; returns its hash.

    Raises:
        InputError: it is not what the hash says, or no map; nothing is written then.
    """
    found = hashlib.sha256(content).hexdigest()
    require(found == digest, f"the server's map of features has the hash {found}, and not {digest} as it says")
    path = _path(folder, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    try:
        _read(path)
    except InputError:
        path.unlink()
        raise
    return found


def kept_features(folder: Path, digest: str) -> FeatureMap:
    """The map of this hash, as the client keeps it.

    Raises:
        NotAllowedError: it does not have it whole; the server then sends it again.
    """
    path = _path(folder, digest)
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise NotAllowedError(f"{path}: the map of features of this run is not there, or damaged", NO_FEATURES)
    return _read(path)


def _read(path: Path) -> FeatureMap:
    found = FeatureMap.load(path)
    if found is None:
        raise InputError(f"{path}: has a module whose code no file has")
    return found


def _path(folder: Path, digest: str) -> Path:
    require(re.fullmatch("[0-9a-f]{64}", digest) is not None, f"{digest!r:.80} is no hash of a map of features")
    return folder / "features" / f"{digest}.safetensors"
