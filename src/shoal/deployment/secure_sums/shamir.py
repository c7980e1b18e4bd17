"""Shamir's secret sharing: any t of n shares give a secret, and t - 1 say nothing.

Source: Shamir, CACM 22(11), 1979. Over the integers modulo the prime 2^255 - 19, of which an X25519 private key and a
seed are one.
"""

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**255 - 19
BYTES = 32
"""Length of a secret and of a share."""


def draw_secret() -> bytes:
    """A secret that can be shared, uniform, from the machine's randomness."""
    return secrets.randbelow(PRIME).to_bytes(BYTES, "little")


def shares_of(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """A share of ``secret`` for each of the holders 1, 2, ..., of which ``threshold`` give it back.

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
    """The secret, from at least ``threshold`` shares by their holders' numbers; the first ones are taken."""
    chosen = dict(sorted(shares.items())[:threshold])
    weights = weights_of(list(chosen))
    total = sum(
        weight * int.from_bytes(share, "little") for weight, share in zip(weights, chosen.values(), strict=True)
    )
    return (total % PRIME).to_bytes(BYTES, "little")


def weights_of(holders: Sequence[int]) -> list[int]:
    """Lagrange's weights at 0 of the shares of these holders."""
    weights = []
    for x in holders:
        above, below = 1, 1
        for other in holders:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
