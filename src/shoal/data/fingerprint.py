"""A hash of everything that a federation or a data set holds, by which two of the same sizes are told apart."""

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from shoal.data.client_dataset import SourceData

_BLOCK = 2**24
"""Numbers that are hashed in one go."""


def fingerprint(data: SourceData) -> str:
    """64 hexadecimal digits that depend on every example, label, name, group, preference and schedule of ``data``."""
    return _hash(data).hexdigest()


def tensors_fingerprint(*tensors: Tensor) -> str:
    """64 hexadecimal digits that depend on the shapes, types and values of ``tensors``."""
    return _hash(tensors).hexdigest()


def _hash(value: object) -> "hashlib._Hash":
    digest = hashlib.sha256()

    def feed(value: object) -> None:
        if isinstance(value, Tensor):
            digest.update(repr((value.dtype, tuple(value.shape))).encode())
            for part in _parts(value.detach().cpu()):
                # A copy, since a tensor of one number counts as contiguous with any stride, but is not to `view`.
                flat = part.contiguous().flatten()
                flat = flat.clone(memory_format=torch.contiguous_format) if len(flat) == 1 else flat
                digest.update(flat.view(torch.uint8).numpy().data)
        elif is_dataclass(value):
            for field in (each for each in fields(value) if each.compare):
                digest.update(field.name.encode())
                feed(getattr(value, field.name))
        elif isinstance(value, tuple):
            digest.update(f"{len(value)} values".encode())
            for each in value:
                feed(each)
        else:
            digest.update(repr(value).encode())

    feed(value)
    return digest


def _parts(value: Tensor) -> Sequence[Tensor]:
    """Its rows, some at a time, so that not all of them are copied at once where they do not lie in order."""
    return value.split(max(1, _BLOCK // max(1, value[:1].numel()))) if value.dim() else [value]
