"""Texts of two words that spell their own number, also as a source: `numbered_texts:source`."""

from pathlib import Path

import torch

from shoal.data import TextDataset


def numbered(count: int) -> TextDataset:
    """At most 400 such texts; the label is the number's parity."""
    number = torch.arange(count)
    return TextDataset("numbers", torch.stack([number // 10, number % 10], dim=1) + 1, 40, number % 2, count, 2)


def source(_path: Path | None, _task: str | None) -> TextDataset:
    return numbered(250)
