"""Threads that compute side by side, and PyTorch's global settings while they live."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from shoal.engine.allocator import keep_freed_memory

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class WorkerPool:
    """Threads that hand out results in an order that does not depend on who finished first.

    Args:
        threads: how many, at least 1.
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
        if len(items) == 1:
            # Small work; to wake another thread for it can take as long.
            yield work(items[0])
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
