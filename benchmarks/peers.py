"""What the sides need beside Shoal: the peers' own environments, and Fashion-MNIST as NPZ, made where missing."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

HOME = Path(__file__).resolve().parents[1] / ".bench"
PACKAGES = {
    "pfl": ("pfl==0.6.0",),
    "flower": ("flwr[simulation]==1.41.0",),
    # It imports packaging, and does not say so.
    "art": ("adversarial-robustness-toolbox==1.20.1", "packaging==26.3"),
}
_TORCH = "torch==2.13.0"
"""Exactly, as an open range could bring another build for the peers than for Shoal."""


@cache
def home() -> Path:
    """The folder for all this, which git ignores."""
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    return HOME


@cache
def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is missing or of other versions.

    Raises:
        RuntimeError: pip could not install it; the last line of what it said.
    """
    folder = home() / peer
    python = folder / "bin" / "python"
    wanted = [_TORCH, *PACKAGES[peer]]
    made = folder / "made-of.txt"
    if made.exists() and made.read_text() == "\n".join(wanted):
        return python
    print(f"making {folder} ({', '.join(wanted)})", file=sys.stderr, flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    # PyTorch first and alone: the peers' own open ranges could take the newest.
    for packages in ([_TORCH], wanted):
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    made.write_text("\n".join(wanted))
    return python


@cache
def fashion_mnist() -> Path:
    """Fashion-MNIST's training images as NPZ: x (60000, 28, 28) uint8, y (60000,) uint8.

    Raises:
        shoal.InputError: it is not on this machine.
    """
    path = home() / "fashion-mnist.npz"
    if not path.exists():
        from shoal import load_dataset  # noqa: PLC0415 - PyTorch, for nothing where the file is there

        images = load_dataset("fashion-mnist")
        count = images.train_count
        with (half := path.with_suffix(".half")).open("wb") as file:
            np.savez(file, x=images.pixels[:count, 0].numpy(), y=images.labels[:count].numpy().astype(np.uint8))
        half.rename(path)
    return path


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no word why"]
        errors = [line for line in said if line.startswith("ERROR")] or said
        wanted = [word for word in command if "==" in word] or command[-1:]
        raise RuntimeError(f"{' '.join(wanted)} could not be installed: {errors[-1]}")
