"""Shamir's secret sharing: any t of n shares give a secret, and t - 1 say nothing.

Source: Shamir, CACM 22(11), 1979. Over the integers modulo the prime 2^255 - 19, of which an X25519 private key and a
seed are one.
"""

import secrets
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations, islice

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
    return _value_at(0, dict(sorted(shares.items())[:threshold]))


def subsets(shares: Mapping[int, bytes], threshold: int, most: int) -> Iterator[dict[int, bytes]]:
    """At most ``most`` subsets of ``threshold`` shares; the first ones leave out as few holders as possible."""
    holders = sorted(shares)
    spare = len(holders) - threshold
    left_out = (set(out) for size in range(spare + 1) for out in combinations(holders, size))
    for out in islice(left_out, most):
        yield {x: shares[x] for x in [x for x in holders if x not in out][:threshold]}


def wrong_shares(right: Mapping[int, bytes], shares: Mapping[int, bytes]) -> list[int]:
    """The holders whose ``shares`` are not those of the secret that the threshold's ``right`` ones give."""
    return [x for x, share in shares.items() if x not in right and _value_at(x, right) != share]


def _value_at(x: int, shares: Mapping[int, bytes]) -> bytes:
    """The value at ``x`` of the polynomial through all ``shares``."""
    values = (int.from_bytes(share, "little") for share in shares.values())
    total = sum(weight * value for weight, value in zip(_weights(x, tuple(shares)), values, strict=True))
    return (total % PRIME).to_bytes(BYTES, "little")


@lru_cache(maxsize=4)
def _weights(x: int, holders: tuple[int, ...]) -> list[int]:
    """Lagrange's weights at ``x`` of the shares of these holders."""
    weights = []
    for holder in holders:
        above, below = 1, 1
        for other in holders:
            if other != holder:
                above, below = above * (other - x) % PRIME, below * (other - holder) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
