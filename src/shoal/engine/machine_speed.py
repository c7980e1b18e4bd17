"""How fast this machine computes, measured: its matrix products, and bf16 against fp32, which later runs read."""

import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import platformdirs
import torch
from torch.nn import functional

from shoal.core.atomic_files import write_text
from shoal.core.machine import processor_model

_FASTER = 1.1
"""So many times as fast bf16 must be, in both works, to be worth its fewer digits."""

_TURNS, _LIMIT = 9, 0.4
"""Turns of a comparison, and the seconds after which none is begun; processors without bf16 take a second for one."""


def side_by_side(work: Callable[[], object], threads: int, turns: int = 7) -> float:
    """The median seconds of ``work``, done by so many threads at the same time, each with one kernel thread."""
    together, before = Barrier(threads), torch.get_num_threads()

    def one(_: int) -> float:
        torch.set_num_threads(1)
        times = []
        for _ in range(turns + 1):
            together.wait()
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])

    try:
        with ThreadPoolExecutor(threads) as pool:
            return statistics.mean(pool.map(one, range(threads)))
    finally:
        torch.set_num_threads(before)


def product_rate(dtype: torch.dtype, threads: int = 1, size: int = 1024, device: str | torch.device = "cpu") -> float:
    """GFLOP/s of ``size`` x ``size`` matrix products, one on each of so many threads at the same time."""
    a = torch.full((size, size), 0.5, dtype=dtype, device=device)

    def product() -> None:
        torch.mm(a, a)
        if a.is_cuda:
            torch.cuda.synchronize(device)

    return threads * 2 * size**3 / side_by_side(product, threads) / 1e9


@dataclass(frozen=True)
class Bf16Speed:
    """How many times as fast as in fp32 matrix products and convolutions are in bf16."""

    product: float
    convolution: float

    @property
    def faster(self) -> bool:
        """Whether bf16 pays: both are faster by more than a tenth."""
        return min(self.product, self.convolution) >= _FASTER

    @property
    def slower(self) -> bool:
        """Whether bf16 costs time: neither is faster."""
        return max(self.product, self.convolution) < 1


@cache
def bf16_speed(device: str) -> Bf16Speed:
    """The speed of bf16 on ``device``, as it was measured on this processor with this PyTorch for the first time.

    It is kept in the user's cache folder, so that later runs take the same choice. A CUDA device that is not there has
    the speed of fp32: the engine refuses it.
    """
    where = torch.device(device)
    if where.type == "cuda" and not (torch.cuda.is_available() and (where.index or 0) < torch.cuda.device_count()):
        return Bf16Speed(1.0, 1.0)
    hardware = processor_model() if where.type == "cpu" else torch.cuda.get_device_name(where)
    key, file = f"{hardware}, {where.type}, torch {torch.__version__}", _cache_file()
    kept = _kept(file)
    try:
        return Bf16Speed(float(kept[key]["product"]), float(kept[key]["convolution"]))
    except (ValueError, KeyError, TypeError):
        speed = measured_bf16_speed(where)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(kept | {key: asdict(speed)}, indent=2) + "\n")
    except OSError:
        pass  # This process remembers it; the next one measures again.
    return speed


def measured_bf16_speed(device: torch.device) -> Bf16Speed:
    """The speed of bf16 on one core or a GPU, by medians in turn; less than a second where bf16 is not slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Bf16Speed(_ratio(_product, device), _ratio(_convolution, device))
    finally:
        torch.set_num_threads(threads)


def _kept(file: Path) -> dict[str, Any]:
    """What earlier measurements wrote; nothing where there is no such file."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _cache_file() -> Path:
    return platformdirs.user_cache_path("shoal") / "bf16.json"


def _ratio(work: Callable[[torch.dtype, torch.device], Callable[[], object]], device: torch.device) -> float:
    """How many times as long ``work`` takes in fp32 as in bf16."""
    works = {dtype: work(dtype, device) for dtype in (torch.float32, torch.bfloat16)}
    times: dict[torch.dtype, list[float]] = {dtype: [] for dtype in works}
    end = time.perf_counter() + _LIMIT
    for turn in range(_TURNS + 1):
        for dtype, act in works.items():
            began = time.perf_counter()
            act()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[dtype].append(time.perf_counter() - began)
        if turn and time.perf_counter() > end:
            break
    fp32, bf16 = (statistics.median(each[1:]) for each in times.values())
    return fp32 / bf16


def _product(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    a = torch.full((512, 512), 0.5, dtype=dtype, device=device)
    return lambda: a @ a


def _convolution(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """The second layer of the MNIST network, forward and backward, on a small batch."""
    given = (torch.full(shape, 0.5, dtype=dtype, device=device) for shape in ((16, 32, 12, 12), (64, 32, 5, 5)))
    x, weight = (tensor.contiguous(memory_format=torch.channels_last).requires_grad_() for tensor in given)

    def both() -> object:
        return torch.autograd.grad(functional.conv2d(x, weight).sum(), [x, weight])

    return both
