"""Masks, shares and fixed point: laws, and the attack that breaks the masks of Flower and not these."""

import hashlib
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from shoal.core.errors import InputError
from shoal_flower.secure_sums.contributions import FixedPoint
from shoal_flower.secure_sums.primitives import (
    PRIME,
    KnownKeys,
    NodeKey,
    derive_key,
    draw_secret,
    is_signed,
    mask_of,
    public_of,
    secret_of,
    shared_key,
    shares_of,
)

KNOWN, LENGTH = 4, 12
"""Numbers of a masked vector that an attacker knows, such as those of blocks that are 0, and its length."""


def _seed_of_twister(stream: np.ndarray, candidates: range, high: int) -> int | None:
    """The seed among ``candidates`` whose Mersenne twister begins like ``stream``."""
    for seed in candidates:
        if np.array_equal(np.random.RandomState(seed).randint(0, high, len(stream), dtype=np.int64), stream):
            return seed
    return None


def test_a_few_known_numbers_give_flowers_mask_away_and_not_ours():
    """The attacker knows the first numbers of a vector, and so the first of its mask; it wants the rest.

    Flower folds its secret into 32 bits. Bits that the test gives away leave 2^12 seeds to be tried in a second; all of
    them, 2^32, are some days of one core, whatever the secret's length. Our mask is a key stream of 256 bits: no seed
    of 32 bits gives it, neither the twister's nor a key that is folded in the same way.
    """
    secret, high, given_away = hashlib.sha256(b"a secret").digest(), 2**32, 20
    vector = np.arange(LENGTH, dtype=np.int64)
    (mask,) = pseudo_rand_gen(secret, high, [(LENGTH,)])
    masked = (vector + mask) % high
    folded = 0
    for word in np.frombuffer(secret, "<u4").tolist():
        folded ^= word
    tried = range(
        folded >> (32 - given_away) << (32 - given_away), ((folded >> (32 - given_away)) + 1) << (32 - given_away)
    )
    seed = _seed_of_twister((masked - vector)[:KNOWN] % high, tried, high - 1)
    assert seed is not None, "the mask is of 32 bits"
    guessed = np.random.RandomState(seed).randint(0, high - 1, LENGTH, dtype=np.int64)
    assert ((masked - guessed) % high).tolist() == vector.tolist()

    ours = mask_of(secret, (LENGTH,), np.dtype("<u4")).astype(np.int64)
    masked = (vector + ours) % high
    assert _seed_of_twister((masked - vector)[:KNOWN] % high, tried, high - 1) is None
    # Two secrets that fold to the same 32 bits have one mask there and two here.
    other = np.frombuffer(secret, "<u4")[::-1].tobytes()
    assert np.array_equal(pseudo_rand_gen(other, high, [(LENGTH,)])[0], mask)
    assert not (mask_of(other, (LENGTH,), np.dtype("<u4")) == ours).any()


def test_a_mask_is_the_key_stream_of_chacha20():
    """RFC 8439, A.1, test vector 1: the key stream of key 0, nonce 0, block 0."""
    begins = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert mask_of(bytes(32), (8,), np.dtype("<u4")).tobytes() == begins


def test_two_clients_share_one_key_for_one_purpose():
    one, other = draw_secret(), draw_secret()
    keys = {
        shared_key(private, public, label)
        for private, public in ((one, public_of(other)), (other, public_of(one)))
        for label in (b"a", b"b")
    }
    assert len(keys) == 2
    assert derive_key(one, b"a", b"bc") != derive_key(one, b"ab", b"c")
    with pytest.raises(ValueError, match="shared key"):
        shared_key(one, bytes(32), b"a")


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (2, 3), (3, 3), (4, 6)])
def test_any_t_shares_give_the_secret_and_fewer_fit_any_secret(threshold, holders):
    secret = draw_secret()
    shares = dict(enumerate(shares_of(secret, threshold, holders), start=1))
    for some in itertools.combinations(shares, threshold):
        assert secret_of({x: shares[x] for x in some}, threshold) == secret
    if threshold == 1:
        return
    # A further share makes of t - 1 shares any secret that one wants: they exclude none.
    few = dict(list(shares.items())[: threshold - 1])
    holder = holders + 1
    # The secret is linear in it, so two trials say which.
    zero, one = (
        int.from_bytes(secret_of({**few, holder: bytes([x, *bytes(31)])}, threshold), "little") for x in (0, 1)
    )
    wanted = 12345
    missing = (wanted - zero) * pow(one - zero, -1, PRIME) % PRIME
    assert int.from_bytes(secret_of({**few, holder: missing.to_bytes(32, "little")}, threshold), "little") == wanted


@pytest.mark.parametrize(
    ("clients", "bound", "integers", "bits"),
    [(20, 10.0, 100, 32), (20, 1e4, 0, 64), (3, 1.0, 2**30, 64), (500, 10.0, 0, 32)],
)
def test_sums_do_not_wrap_and_the_mean_is_off_by_half_a_step_at_most(clients, bound, integers, bits):
    numbers = FixedPoint.of_sums(clients, bound, integers)
    assert numbers.bits == bits
    values = np.random.default_rng(0).uniform(-bound, bound, (clients, 100))
    values[:, 0], values[:, 1], values[:, 2] = bound, -bound, 2 * bound
    total = sum(numbers.encode(row) for row in values)
    plain = values.clip(-bound, bound).sum(axis=0)
    off = np.abs(numbers.decode(total) - plain).max() / clients
    assert off <= numbers.step / 2 + 1e-12 * bound
    assert off < 1e-5


def test_keys_sign_by_ecdsa_and_ed25519_and_nothing_else_passes(tmp_path):
    own = NodeKey.load_or_make(tmp_path / "own" / "node.key")
    assert (tmp_path / "own" / "node.key").stat().st_mode & 0o777 == 0o600
    assert NodeKey.load_or_make(tmp_path / "own" / "node.key").public == own.public
    flowers = tmp_path / "flower"
    form = s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()
    flowers.write_bytes(ec.generate_private_key(ec.SECP384R1()).private_bytes(*form))
    for key in (own, NodeKey.load(flowers)):
        signature = key.sign(b"message")
        assert is_signed(key.public, signature, b"message")
        assert not is_signed(key.public, signature, b"massage")
        assert not is_signed(key.public, bytes([signature[0] ^ 1]) + signature[1:], b"message")
    assert not is_signed(own.public, NodeKey.load(flowers).sign(b"message"), b"message")
    assert not is_signed("no key", b"", b"message")
    (tmp_path / "rsa").write_bytes(rsa.generate_private_key(65537, 2048).private_bytes(*form))
    with pytest.raises(InputError, match="must be an ECDSA or Ed25519 key"):
        NodeKey.load(tmp_path / "rsa")
    with pytest.raises(InputError, match="is not an OpenSSH private key"):
        NodeKey.load(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("north", "line 1: must have a client's name"),
        ("a x y\na x z", "line 2: 'a'"),
        ("a x y\nb x y", "line 2: 'b' or its key"),
    ],
)
def test_a_list_of_keys_that_is_none_is_refused(tmp_path, text, fault):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(InputError, match=fault):
        KnownKeys.load(path, fixed=True)
    with pytest.raises(InputError, match="cannot be read"):
        KnownKeys.load(tmp_path / "missing", fixed=True)
