"""Worker threads, settings of the memory allocator, and the clock of a round's parts.

Threads share data and models without copies, and PyTorch releases Python's global lock while it computes.
"""

import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class WorkerPool:
    """A pool of threads that returns results in the order of the tasks.

    While a pool exists, PyTorch's kernels use one thread and cuDNN is deterministic.

    Args:
        threads: the number of threads, at least 1.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        keep_freed_memory()
        # Every backward pass reads this global number of kernel threads. It must stay 1 while the workers live, or
        # each worker would compute on all cores.
        self._kernel_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Convolutions on recent GPUs would otherwise round float32 to 10 bits of mantissa.
        self._cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
        self._pool = ThreadPoolExecutor(threads, "shoal", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        """End the threads, drop waiting tasks and restore PyTorch's settings."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self._kernel_threads)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = self._cudnn

    def in_order(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
        """Yield ``work(item)`` for every item, in the items' order, with few finished results in memory."""
        if len(items) == 1 or self._threads == 1:
            # Waking another thread can cost as much as a small task, and two threads keep more freed memory.
            yield from map(work, items)
            return
        pending: deque[Future[_Result]] = deque()
        try:
            for item in items:
                pending.append(self._pool.submit(work, item))
                if len(pending) > 2 * self._threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in the process, which avoids page faults in every training step.

    By default, glibc returns every large freed tensor to the kernel and requests it again one step later. These
    requests cost up to 40 % of a training step of the MNIST network. The function does nothing without glibc.
    """
    _allocate(_M_MMAP_THRESHOLD, 1 << 30)
    _allocate(_M_TRIM_THRESHOLD, 1 << 30)
    _allocate(_M_TOP_PAD, 1 << 26)


@contextmanager
def returned_memory() -> Iterator[None]:
    """Return freed blocks of at least 1 MiB to the kernel at once, inside this context.

    The context avoids fragmented memory in code that allocates many blocks and keeps few, such as a server that reads
    replies.
    """
    _allocate(_M_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        keep_freed_memory()


def _allocate(setting: int, size: int) -> None:
    """Set one parameter of glibc's allocator; do nothing without glibc."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(setting, size)


TRAIN = ("local_training", "defenses", "aggregation")
"""The parts of the time "train". Clipping, noise and augmentation in local steps count as local training."""


class RoundClock:
    """A clock for the disjoint parts of a round.

    Thread time inside `side_by_side` is scaled to wall time, so the parts add up to the round's wall time.

    Example:
        >>> from shoal.engine.worker_pool import RoundClock
        >>> clock = RoundClock()
        >>> with clock.part("choose"):
        ...     pass
        ...
        >>> sorted(clock.seconds()), clock.seconds()["red_team"]
        (['aggregation', 'choose', 'defenses', 'local_training', 'red_team', 'train'], 0.0)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._spent: dict[str, float] = dict.fromkeys(("choose", *TRAIN, "red_team"), 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time that this thread spends in the context to the part ``name``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            with self._lock:
                self._spent[name] += spent

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Divide the context's wall time among the parts in proportion to the threads' time per part."""
        before, began = dict(self._spent), time.perf_counter()
        yield
        wall = time.perf_counter() - began
        inside = {name: self._spent[name] - before[name] for name in TRAIN}
        busy = sum(inside.values())
        shares = {name: spent / busy for name, spent in inside.items()} if busy else {"local_training": 1.0}
        self._spent = before | {name: before[name] + share * wall for name, share in shares.items()}

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part, and of "train", the sum of the parts in `TRAIN`."""
        return self._spent | {"train": sum(self._spent[name] for name in TRAIN)}
