"""A hash of everything that a federation holds, by which two of the same sizes are told apart."""

import hashlib
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from shoal.data.federation import Federation


def fingerprint(federation: Federation) -> str:
    """64 hexadecimal digits that depend on every example, label, group, preference and schedule of ``federation``."""
    return _hash(federation).hexdigest()


def tensors_fingerprint(*tensors: Tensor) -> str:
    """64 hexadecimal digits that depend on the shapes, types and values of ``tensors``."""
    return _hash(tensors).hexdigest()


def _hash(value: object) -> "hashlib._Hash":
    digest = hashlib.sha256()

    def feed(value: object) -> None:
        if isinstance(value, Tensor):
            digest.update(repr((value.dtype, tuple(value.shape))).encode())
            # A copy, since a tensor of one number counts as contiguous with any stride, but is not to `view`.
            flat = value.detach().cpu().contiguous().flatten()
            flat = flat.clone(memory_format=torch.contiguous_format) if len(flat) == 1 else flat
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        elif is_dataclass(value):
            for field in fields(value):
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
