"""Threads that compute side by side, PyTorch's global settings while they live, and the time that they take.

Threads, not processes: PyTorch releases Python's lock while it computes, so threads share data and models for nothing.
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
    """Threads that hand out results in an order that does not depend on who finished first.

    Args:
        threads: the number of threads, at least 1.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        keep_freed_memory()
        # PyTorch sets a thread's number of kernel threads anew from this global in every backward pass, so it must
        # stay 1 while the workers live, or each of them would compute on all cores.
        self._kernel_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Convolutions on recent GPUs would otherwise round float32 to 10 bits of mantissa.
        self._cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
        self._pool = ThreadPoolExecutor(threads, "shoal", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        """End the threads and give PyTorch its settings back; work not yet begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self._kernel_threads)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = self._cudnn

    def in_order(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
        """``work`` on every item; results in the items' order, few of them waiting at a time."""
        if len(items) == 1 or self._threads == 1:
            # To wake another thread for small work can take as long, and two threads keep freed memory each.
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
    """Keep freed memory in the process, so that the next training step need not fetch it page by page.

    By default glibc gives every large tensor back to the kernel when it is freed, and asks for it again a step later:
    measured, 200 to 2,000 page faults a step of the MNIST network, up to 40 % of its time. The process holds on to the
    most that it ever used, which it would need again in the next step anyway. Elsewhere than on glibc, nothing is done.
    """
    _allocate(_M_MMAP_THRESHOLD, 1 << 30)
    _allocate(_M_TRIM_THRESHOLD, 1 << 30)
    _allocate(_M_TOP_PAD, 1 << 26)


@contextmanager
def returned_memory() -> Iterator[None]:
    """Give freed blocks of a mebibyte or more back at once, in a block of code that makes many and keeps few.

    A server reads the clients' replies one at a time. If it kept freed blocks, small blocks in use would lie between
    them. The memory of 500 replies of 20 MB then grew to 5 GB, where 1 GB is enough.
    """
    _allocate(_M_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        keep_freed_memory()


def _allocate(setting: int, size: int) -> None:
    """Set one of glibc's settings of its allocator; elsewhere nothing is done."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(setting, size)


TRAIN = ("local_training", "defenses", "aggregation")
"""The parts of "train": clients that train; filters of updates and the release; the server's sums and what it does with
them. Clipping, noise and augmentation inside a step are local training."""


class RoundClock:
    """Measures parts of a round, none inside another; it changes no result.

    What threads spend inside `side_by_side` is scaled to its wall time, so parts always add up to the time on a watch.

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
        """Count what this thread spends in a block as the part ``name``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            with self._lock:
                self._spent[name] += spent

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """A block in which threads train: its wall time is divided as the time of all threads in it is."""
        before, began = dict(self._spent), time.perf_counter()
        yield
        wall = time.perf_counter() - began
        inside = {name: self._spent[name] - before[name] for name in TRAIN}
        busy = sum(inside.values())
        shares = {name: spent / busy for name, spent in inside.items()} if busy else {"local_training": 1.0}
        self._spent = before | {name: before[name] + share * wall for name, share in shares.items()}

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part, and of "train", which is the sum of `TRAIN`."""
        return self._spent | {"train": sum(self._spent[name] for name in TRAIN)}
