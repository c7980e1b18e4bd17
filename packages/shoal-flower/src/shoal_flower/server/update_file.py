"""The models that clients sent in a round, in a file, until all have come and their weights are known.

A client's weight is its share of those who replied, and the order of summation goes by their numbers of examples. So a
sum that is the simulation's bit for bit begins when the last reply is there, and what came before is kept on disk.
Memory is that of a few models for any number of clients; disk is 4 bytes a parameter and client.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor


@dataclass(eq=False)
class UpdateFile:
    """Rows of float32 in a file that has no name, so that it ends with the process.

    Args:
        folder: of the file.
        parameters: P, of a row.
        order: the rows that stand for positions 0, 1, ... when they are read; empty: all, as they came.
    """

    folder: Path
    parameters: int
    order: list[int] = field(default_factory=list)
    _rows: int = 0
    _file: IO[bytes] | None = None

    def add(self, end: Tensor) -> int:
        """Add a row (P,); returns its number."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - until `close`
        self._file.seek(0, 2)
        self._file.write(end.contiguous().numpy().data)
        self._rows += 1
        return self._rows - 1

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, positions: Tensor) -> Tensor:
        """The rows (u, P) at ``positions`` (u,)."""
        rows = np.empty((len(positions), self.parameters), dtype=np.float32)
        for row, position in zip(rows, positions.tolist(), strict=True):
            assert self._file is not None
            self._file.seek(4 * self.parameters * (self.order[position] if self.order else position))
            self._file.readinto(row.data)  # pyright: ignore[reportAttributeAccessIssue]
        return torch.from_numpy(rows)

    def close(self) -> None:
        """Give the disk back."""
        if self._file is not None:
            self._file.close()
