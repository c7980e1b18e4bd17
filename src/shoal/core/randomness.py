"""Named random streams, whose numbers depend only on the seed and the stream's name.

Adding a metric, changing the number of threads or resuming a run changes no other random number.
"""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import integer

_GLOBAL_GENERATOR = threading.Lock()

_FIRST_STATE = torch.Generator().manual_seed(0).get_state().numpy()
"""The initial state of PyTorch's Mersenne Twister: a head (seed, counters), words and a tail."""

_HEAD, _WORDS = 24, 624
"""The numbers of bytes in the head, and of words; each 32-bit word takes 64 bits."""


@dataclass(frozen=True)
class Stream:
    """A random stream, named by a path below one seed.

    ``stream(*path)`` returns the stream at ``path`` below ``stream``. Repeated calls of a method return equal results.

    Example:
        >>> import torch
        >>> from shoal import Stream
        >>> root = Stream(0)
        >>> batches = root("round", 3, "client", 17, "batches")
        >>> batches == root("round", 3)("client", 17)("batches")
        True
        >>> torch.equal(torch.rand(2, generator=batches.generator()), torch.rand(2, generator=batches.generator()))
        True
    """

    seed: int
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        if type(self.seed) is not int:
            # NumPy's 3 would name another stream than Python's.
            object.__setattr__(self, "seed", integer("seed", self.seed, "such as 0"))

    def __call__(self, *path: str | int) -> "Stream":
        """Return the stream at ``path`` below this stream."""
        return Stream(self.seed, self.path + tuple(part if isinstance(part, str) else int(part) for part in path))

    def key(self) -> int:
        """Return the stream's 63-bit seed, a BLAKE2b hash of the seed and the path."""
        return int.from_bytes(self._digest(8), "little") >> 1

    def generator(self) -> torch.Generator:
        """Return a new PyTorch CPU generator at the start of this stream.

        A 128-bit Philox key sets the generator's state, because `torch.Generator.manual_seed` keeps only 32 bits of a
        seed.
        """
        generator = torch.Generator()
        generator.set_state(self._state())
        return generator

    def _state(self) -> Tensor:
        """The state of a PyTorch CPU generator that is about to compute its first numbers."""
        state = _FIRST_STATE.copy()
        words = np.random.Philox(key=int.from_bytes(self._digest(16), "little")).random_raw(_WORDS // 2)
        state[_HEAD : _HEAD + 8 * _WORDS].view(np.uint64)[:] = words.view(np.uint32)
        return torch.from_numpy(state)

    def _digest(self, size: int) -> bytes:
        return hashlib.blake2b(repr((self.seed, *self.path)).encode(), digest_size=size).digest()

    def numpy(self) -> np.random.Generator:
        """Return a new NumPy generator at the start of this stream."""
        return np.random.default_rng(self.key())

    def seeds(self, ids: Tensor) -> Tensor:
        """Return one seed per owner, (n,) int64, at least 0, which depends only on the stream and the owner's id."""
        bits = _mix(ids.numpy().astype(np.uint64) ^ np.uint64(self.key())) >> np.uint64(1)
        return torch.from_numpy(bits.view(np.int64))

    def permutations(self, ids: Tensor, sizes: Tensor, count: int) -> Tensor:
        """Return ``count`` random permutations for each of n owners.

        The permutations of owner i depend only on this stream, ``ids[i]`` and ``sizes[i]``.

        Args:
            sizes: the number of examples per owner, (n,) int64.
            count: the number of permutations per owner, one per epoch.

        Returns:
            The permutations, (n, count, max size) int64; ``[i, e, :sizes[i]]`` permutes ``range(sizes[i])``, and the
            remaining entries are padding.
        """
        width = int(sizes.max()) if len(sizes) else 0
        owner = _mix(ids.numpy().astype(np.uint64) ^ np.uint64(self.key()))
        epoch = _mix(owner[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
        column = np.arange(width, dtype=np.uint64)
        bits = _mix(epoch[:, :, None] + _GOLDEN * (column + np.uint64(1)))
        # The column in the low bits breaks ties the same way everywhere; padding sorts behind every example.
        bits = (bits & ~np.uint64(0xFFFFF)) >> np.uint64(1)
        padding = column[None, :] >= sizes.numpy().astype(np.uint64)[:, None]
        bits = np.where(padding[:, None, :], np.uint64(1) << np.uint64(63), bits) | column
        return torch.from_numpy(np.argsort(bits, axis=-1, kind="stable"))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a hash of 64 bits to 64 bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@contextlib.contextmanager
def seed_libraries(stream: Stream) -> Iterator[None]:
    """Seed PyTorch's global generator inside this context, for code that accepts no generator, such as `torch.nn`."""
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed GPUs.
        torch.default_generator.set_state(stream._state())
        yield
