"""Keys between two clients, masks, and sealed letters: X25519, HKDF-SHA256, ChaCha20, ChaCha20-Poly1305.

A mask is the key stream of ChaCha20 under a key of 256 bits that is used for nothing else. Flower's own masks are of a
Mersenne twister that is seeded with 32 bits (`flwr.common.secure_aggregation.secaggplus_utils.pseudo_rand_gen`), which
a few known numbers and two to the 32 trials give away; `packages/shoal-flower/tests/secure_sums` does so.
"""

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray


def public_of(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_usable(public: bytes) -> bool:
    """Whether ``public`` is an X25519 key with which `shared_key` works: no point of small order."""
    try:
        X25519PrivateKey.from_private_bytes(bytes(31) + b"\1").exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def shared_key(private: bytes, public: bytes, *labels: bytes) -> bytes:
    """The key of 32 bytes that two clients share for what ``labels`` name.

    Raises:
        ValueError: ``public`` is a point of small order, which any other key would share a known secret with.
    """
    agreed = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derived(agreed, *labels)


def derived(secret: bytes, *labels: bytes) -> bytes:
    """A key of 32 bytes from ``secret``, for what ``labels`` name."""
    info = b"".join(len(label).to_bytes(8, "little") + label for label in (b"shoal secure sum", *labels))
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def mask_of(key: bytes, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """Uniform integers of ``dtype``, the same for the same key; a key is of one mask."""
    zeros = bytes(int(np.prod(shape)) * dtype.itemsize)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros)
    return np.frombuffer(stream, dtype).reshape(shape)


_ONCE = bytes(12)
"""The nonce of every letter, since each has a key of its own."""


def sealed(key: bytes, letter: bytes) -> bytes:
    """The ``letter`` encrypted and authenticated by a key that seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_ONCE, letter, None)


def opened(key: bytes, letter: bytes) -> bytes:
    """A letter as it was before `sealed`.

    Raises:
        ValueError: it was sealed by another key, or changed.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, letter, None)
    except InvalidTag:
        raise ValueError("a letter that does not open") from None
