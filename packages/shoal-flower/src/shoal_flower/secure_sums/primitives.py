"""Keys, masks and secret shares: the nodes' long-term signature keys, and the keys of two clients for one sum.

Masks and letters use X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305. A mask is a ChaCha20 key stream under its own
key of 256 bits. Flower's masks come from a Mersenne twister with a seed of 32 bits
(`flwr.common.secure_aggregation.secaggplus_utils.pseudo_rand_gen`). A few known numbers and 2^32 trials reveal this
seed, as `packages/shoal-flower/tests/secure_sums` shows.

Secret shares are Shamir's (CACM 22(11), 1979): any t of n shares reveal a secret, and t - 1 shares reveal nothing.
Shares are integers modulo the prime 2^255 - 19, like X25519 private keys and seeds.
"""

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require

_PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_ALGORITHM = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class NodeKey:
    """A node's private key."""

    private: _PrivateKey

    @staticmethod
    def load(path: Path) -> "NodeKey":
        """Load the key in a file in OpenSSH's format (ECDSA or Ed25519), such as a SuperNode's key.

        Raises:
            InputError: the file is missing or has no such key.
        """
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError(f"{path}: is not an OpenSSH private key without a password: {error}") from error
        require(isinstance(key, _PrivateKey), f"{path}: must be an ECDSA or Ed25519 key")
        assert isinstance(key, _PrivateKey)
        return NodeKey(key)

    @staticmethod
    def load_or_make(path: Path) -> "NodeKey":
        """Load the key in ``path``, or make a new key that only its owner can read."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            form = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            text = ed25519.Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, *form)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
        return NodeKey.load(path)

    @property
    def public(self) -> str:
        """The public key as a line in OpenSSH's format, without a comment."""
        form = serialization.PublicFormat.OpenSSH
        return self.private.public_key().public_bytes(serialization.Encoding.OpenSSH, form).decode()

    def sign(self, message: bytes) -> bytes:
        """Sign ``message``."""
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            return self.private.sign(message, _ALGORITHM)
        return self.private.sign(message)


def is_signed(public: str, signature: bytes, message: bytes) -> bool:
    """Return whether the owner of the ``public`` key signed ``message`` with ``signature``."""
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
    """The public keys of other nodes, by client name.

    Args:
        path: the file, with one name and one key in OpenSSH's format per line.
        fixed: whether names that are missing in the file are refused. If false, a new name is added with its first key.
    """

    keys: Mapping[str, str]
    path: Path
    fixed: bool

    @staticmethod
    def load(path: Path, *, fixed: bool) -> "KnownKeys":
        """Read the keys in a file. A missing file has no keys, unless ``fixed`` requires a file.

        Raises:
            InputError: the file cannot be read, a line is not a name and a key, or a name or key is repeated.
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
            require(len(words) >= 3, f"{path}, line {number}: must have a client's name and its public key")
            name, key = words[0], " ".join(words[1:3])
            require(
                name not in keys and key not in keys.values(), f"{path}, line {number}: '{name}' or its key is repeated"
            )
            keys[name] = key
        return KnownKeys(keys, path, fixed)

    def fault(self, presented: Iterable[tuple[str, str]]) -> str:
        """Describe a contradiction between the ``presented`` and the known keys; "" if there is none."""
        names, keys = set[str](), set[str]()
        for name, key in presented:
            if name in names or key in keys:
                return f"the client '{name}' or its key is repeated"
            names.add(name)
            keys.add(key)
            known = self.keys.get(name)
            if known is None and self.fixed:
                return f"the client '{name}' is not in {self.path}"
            if known is None and key in self.keys.values():
                return f"the client '{name}' has another client's key"
            if known not in (None, key):
                return f"the client '{name}' has another key than in {self.path}"
        return ""

    def pin(self, presented: Mapping[str, str]) -> None:
        """Add new names and keys to the file, unless it is ``fixed``."""
        if not self.fixed and not presented.keys() <= self.keys.keys():
            lines = [f"{name} {key}" for name, key in ({**presented, **self.keys}).items()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, "\n".join(sorted(lines)) + "\n")


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_usable(public: bytes) -> bool:
    """Return whether the X25519 key ``public`` is not a point of small order, as `shared_key` requires."""
    try:
        X25519PrivateKey.from_private_bytes(bytes(31) + b"\1").exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def shared_key(private: bytes, public: bytes, *labels: bytes) -> bytes:
    """Return the key of 32 bytes that two clients share for the purpose ``labels``.

    Raises:
        ValueError: ``public`` is a point of small order, which makes the key predictable.
    """
    agreed = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derive_key(agreed, *labels)


def derive_key(secret: bytes, *labels: bytes) -> bytes:
    """Derive a key of 32 bytes from ``secret`` for the purpose ``labels``."""
    info = b"".join(len(label).to_bytes(8, "little") + label for label in (b"shoal secure sum", *labels))
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def mask_of(key: bytes, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """Return uniform integers of ``dtype``, determined by ``key``. Use a key for only one mask."""
    zeros = bytes(int(np.prod(shape)) * dtype.itemsize)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros)
    return np.frombuffer(stream, dtype).reshape(shape)


_ONCE = bytes(12)
"""The nonce of every letter; each letter has its own key."""


def seal(key: bytes, letter: bytes) -> bytes:
    """Encrypt and authenticate a ``letter``. Use a key for only one letter."""
    return ChaCha20Poly1305(key).encrypt(_ONCE, letter, None)


def unseal(key: bytes, letter: bytes) -> bytes:
    """Decrypt a letter from `seal`, or raise ValueError if the key is wrong or the letter was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, letter, None)
    except InvalidTag:
        raise ValueError("the letter cannot be decrypted") from None


PRIME = 2**255 - 19
BYTES = 32
"""The length of a secret and of a share."""


def draw_secret() -> bytes:
    """Draw a uniform secret from the machine's randomness."""
    return secrets.randbelow(PRIME).to_bytes(BYTES, "little")


def shares_of(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Split ``secret`` into one share per holder 1, 2, ..., such that any ``threshold`` shares reveal the secret.

    >>> shares = shares_of(b"7" + bytes(31), threshold=2, holders=3)
    >>> secret_of({1: shares[0], 3: shares[2]}, threshold=2)[:1]
    b'7'
    """
    coefficients = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(BYTES, "little"))
    return shares


def secret_of(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Compute the secret from the first ``threshold`` of ``shares``, by holder's number."""
    return _value_at(0, dict(sorted(shares.items())[:threshold]))


def subsets(shares: Mapping[int, bytes], threshold: int, most: int) -> Iterator[dict[int, bytes]]:
    """Yield at most ``most`` subsets of ``threshold`` shares."""
    holders = sorted(shares)
    spare = len(holders) - threshold
    left_out = (set(out) for size in range(spare + 1) for out in combinations(holders, size))
    for out in islice(left_out, most):
        yield {x: shares[x] for x in [x for x in holders if x not in out][:threshold]}


def wrong_shares(right: Mapping[int, bytes], shares: Mapping[int, bytes]) -> list[int]:
    """Return the holders whose ``shares`` do not lie on the polynomial through the ``right`` shares."""
    return [x for x, share in shares.items() if x not in right and _value_at(x, right) != share]


def _value_at(x: int, shares: Mapping[int, bytes]) -> bytes:
    """Return the value at ``x`` of the polynomial through all ``shares``."""
    values = (int.from_bytes(share, "little") for share in shares.values())
    total = sum(weight * value for weight, value in zip(_weights(x, tuple(shares)), values, strict=True))
    return (total % PRIME).to_bytes(BYTES, "little")


@lru_cache(maxsize=4)
def _weights(x: int, holders: tuple[int, ...]) -> list[int]:
    weights = []
    for holder in holders:
        above, below = 1, 1
        for other in holders:
            if other != holder:
                above, below = above * (other - x) % PRIME, below * (other - holder) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
