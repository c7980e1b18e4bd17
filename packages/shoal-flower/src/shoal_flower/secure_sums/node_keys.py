"""Long-term keys of nodes, by which they sign, and the keys of the other nodes that a node knows."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require

_PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_ALGORITHM = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class NodeKey:
    """A node's private key; ``public`` is the line of it that others may have, without a comment."""

    private: _PrivateKey

    @staticmethod
    def load(path: Path) -> "NodeKey":
        """The key in OpenSSH's form in a file, as Flower's SuperNodes have it (ECDSA, or Ed25519).

        Raises:
            InputError: the file is missing or holds no such key.
        """
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError(f"{path}: is no private key of OpenSSH without a password: {error}") from error
        require(isinstance(key, _PrivateKey), f"{path}: must be a key of ECDSA or Ed25519")
        assert isinstance(key, _PrivateKey)
        return NodeKey(key)

    @staticmethod
    def load_or_make(path: Path) -> "NodeKey":
        """The key in ``path``, made there where is none, for its owner alone to read."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            form = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            text = ed25519.Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, *form)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
        return NodeKey.load(path)

    @property
    def public(self) -> str:
        """The public key, as a line of OpenSSH."""
        form = serialization.PublicFormat.OpenSSH
        return self.private.public_key().public_bytes(serialization.Encoding.OpenSSH, form).decode()

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``."""
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            return self.private.sign(message, _ALGORITHM)
        return self.private.sign(message)


def is_signed(public: str, signature: bytes, message: bytes) -> bool:
    """Whether ``signature`` is of ``message`` by the owner of the ``public`` key."""
    try:
        key = serialization.load_ssh_public_key(public.encode())
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, _ALGORITHM)
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            return False
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


@dataclass(frozen=True)
class KnownKeys:
    """The public keys of other nodes, by their client's name.

    Args:
        keys: by name.
        path: of the file; one client a line, its name, then its key as OpenSSH writes it.
        fixed: whether the file is the whole list; otherwise a name that is new is added with its first key.
    """

    keys: Mapping[str, str]
    path: Path
    fixed: bool

    @staticmethod
    def load(path: Path, *, fixed: bool) -> "KnownKeys":
        """The keys in a file; none where there is no file that is not ``fixed``.

        Raises:
            InputError: it cannot be read, a line is no name and key, or a name or a key is there twice.
        """
        if not fixed and not path.exists():
            return KnownKeys({}, path, fixed)
        try:
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as a list of keys: {error}") from error
        keys = dict[str, str]()
        for number, words in enumerate(lines, start=1):
            if not words or words[0].startswith("#"):
                continue
            require(len(words) >= 3, f"{path}, line {number}: must be a client's name and its public key")
            name, key = words[0], " ".join(words[1:3])
            require(
                name not in keys and key not in keys.values(), f"{path}, line {number}: '{name}' or its key is twice"
            )
            keys[name] = key
        return KnownKeys(keys, path, fixed)

    def fault(self, presented: Iterable[tuple[str, str]]) -> str:
        """Why these clients, names and keys, are not those that are known; "" where they are, or are new."""
        names, keys = set[str](), set[str]()
        for name, key in presented:
            if name in names or key in keys:
                return f"the client '{name}' or its key is there twice"
            names.add(name)
            keys.add(key)
            known = self.keys.get(name)
            if known is None and self.fixed:
                return f"the client '{name}' is not in {self.path}"
            if known is None and key in self.keys.values():
                return f"the client '{name}' has the key of another"
            if known not in (None, key):
                return f"the client '{name}' has another key than in {self.path}"
        return ""

    def pin(self, presented: Mapping[str, str]) -> None:
        """Add the clients, name and key, that are new to the file, unless it is the whole list."""
        if not self.fixed and not presented.keys() <= self.keys.keys():
            lines = [f"{name} {key}" for name, key in ({**presented, **self.keys}).items()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, "\n".join(sorted(lines)) + "\n")
