"""What the figures were measured on, and how fast that is by itself.

Run as a script it prints, as JSON, what only PyTorch can tell; the conductor of the benchmarks does without PyTorch.
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

from shoal.core.processes import cores

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "sve", "bf16")


def processor() -> tuple[str, list[str]]:
    """The processor's name, and those of its extensions that matter to matrix products."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    return facts.get("model name", platform.machine()), [flag for flag in _FLAGS if flag in flags]


def commit() -> str:
    """The commit of the working tree, with a word where files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{name} with changes" if git("status", "--porcelain", "--untracked-files=no") else name


def probe(python: str) -> dict:
    """What the main program below prints in the environment of ``python``.

    Raises:
        RuntimeError: it has no PyTorch that runs.
    """
    done = subprocess.run([python, __file__], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return json.loads(done.stdout)


def header(before: dict, after: dict, threads: int, settings: str) -> str:
    """The paragraph above the tables, as Markdown.

    Args:
        before: `probe` before the measurements.
        after: and after.
        threads: of Shoal.
        settings: how the conductor was called, in words.
    """
    name, flags = processor()
    speeds = "; ".join(f"{key} {before[key]:,.0f} before, {after[key]:,.0f} after" for key in ("fp32", "bf16"))
    return "\n".join(
        [
            f"- commit {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {settings}",
            f"- {name}, {cores()} cores, {' '.join(flags) or 'no extension of note'}; {platform.system()}, "
            f"Python {platform.python_version()}, torch {before['torch']}",
            f"- Shoal on {threads} threads; the others on as many as they take by themselves (PyTorch: "
            f"{before['threads']}; Flower: a worker a core)",
            f"- the machine's own limit, 1024 x 1024 matrix products, one a core at the same time, GFLOP/s: {speeds}",
        ]
    )


def product_rate(dtype: "torch.dtype", threads: int = 1, size: int = 1024) -> float:
    """GFLOP/s of ``size`` x ``size`` matrix products, one on each of so many threads at the same time."""
    import torch  # noqa: PLC0415

    a, together, before = torch.full((size, size), 0.5, dtype=dtype), Barrier(threads), torch.get_num_threads()

    def median_seconds(_: int) -> float:
        torch.set_num_threads(1)
        times = []
        for _ in range(8):
            together.wait()
            began = time.perf_counter()
            torch.mm(a, a)
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])

    try:
        with ThreadPoolExecutor(threads) as pool:
            seconds = statistics.mean(pool.map(median_seconds, range(threads)))
    finally:
        torch.set_num_threads(before)
    return threads * 2 * size**3 / seconds / 1e9


def _main() -> None:
    import torch  # noqa: PLC0415

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    facts = {
        "torch": torch.__version__,
        "threads": threads,
        "cuda": torch.cuda.is_available(),
        "fp32": product_rate(torch.float32, cores()),
        "bf16": product_rate(torch.bfloat16, cores()),
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    _main()
