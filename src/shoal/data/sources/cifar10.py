"""CIFAR-10 from its official archives, packed or extracted, in the python or the binary version.

Source: Krizhevsky, "The CIFAR-10 dataset" (2009). A binary batch is a sequence of records of one label byte and 3,072
pixel bytes; a python batch is a pickle of a dictionary with ``data`` ((n, 3072) uint8) and ``labels`` (n integers).
Either way an image is its red, green and blue plane, each 32 rows of 32 pixels.
"""

import io
import pickle
import pickletools
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import InputError, quoted, require
from shoal.data.datasets import ImageDataset
from shoal.data.sources.idx import opened

_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_PYTHON = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_BINARY = tuple(f"{name}.bin" for name in _PYTHON)
_FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
_ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz", "cifar-10-python.tar", "cifar-10-binary.tar")


def find_cifar10(folder: Path) -> Path | None:
    """The path of CIFAR-10 in a folder: the folder itself, an extracted folder with all batches, or an archive."""
    for batches in (folder, *(folder / name for name in _FOLDERS)):
        if any(all((batches / name).is_file() for name in names) for names in (_PYTHON, _BINARY)):
            return batches
    archives = (folder / name for name in _ARCHIVES)
    return next((path for path in archives if path.is_file()), None)


def load_cifar10(path: Path) -> ImageDataset:
    """CIFAR-10: 60,000 colour images of 32x32 pixels in 10 classes, the 50,000 for training first.

    Args:
        path: an archive, the folder of extracted batches, or a folder that contains either.

    Raises:
        InputError: something is missing, damaged, or not CIFAR-10.
    """
    if path.is_dir():
        path = find_cifar10(path) or path
    folder = path.is_dir()
    members = {} if folder else _members(path)
    present = {name for name in (*_PYTHON, *_BINARY) if (path / name).is_file()} if folder else set(members)
    names, read = (_PYTHON, _python_batch) if present & set(_PYTHON) else (_BINARY, _binary_batch)
    missing = [name for name in names if name not in present]
    whole = "CIFAR-10" if folder else "a CIFAR-10 archive"
    require(not missing, f"'{path}' lacks {quoted(missing)}; {whole} has {quoted(names)}")
    batches = []
    for name in names:
        source = f"{path / name}" if folder else f"{name} in {path}"
        batches.append(read(_content(path / name) if folder else members[name], source))
        _check(batches[-1][1], source)
    pixels, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return ImageDataset("cifar10", pixels, 255, labels, len(labels) - len(batches[-1][1]), 10)


def _content(path: Path) -> bytes:
    with opened(path) as file:
        return file.read()


def _members(path: Path) -> dict[str, bytes]:
    """The batches in an archive by their names without folders; nothing is extracted to disk."""
    members: dict[str, bytes] = {}
    with opened(path) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    part = archive.extractfile(member) if member.isfile() and name in _PYTHON + _BINARY else None
                    if part is not None:  # in blocks, so that a wrong size in its header cannot exhaust the memory
                        members[name] = b"".join(iter(partial(part.read, 1 << 20), b""))
            while file.read(1 << 24):  # to the end, where gzip keeps its checksum
                pass
        except tarfile.TarError as error:
            raise InputError(f"'{path}' is truncated or not a tar archive ({error}); fetch it again") from error
    return members


def _binary_batch(content: bytes, source: str) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, 32, 32) uint8 and labels (n,) int64."""
    require(
        len(content) % _RECORD == 0,
        f"'{source}' has {len(content):,} bytes, which is not whole records of {_RECORD:,} bytes: it is truncated "
        "or no CIFAR-10 batch",
    )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    pixels = torch.from_numpy(records[:, 1:].copy()).reshape(-1, *_SHAPE)
    return pixels, torch.from_numpy(records[:, 0].astype(np.int64))


def _python_batch(content: bytes, source: str) -> tuple[Tensor, Tensor]:
    """As `_binary_batch`."""
    try:
        _check_opcodes(content)
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except InputError as error:
        raise InputError(f"'{source}' {error}") from error
    except Exception as error:  # a damaged pickle can raise any exception
        raise InputError(f"'{source}' is truncated or no pickle of a CIFAR-10 batch ({error})") from error
    require(isinstance(batch, dict), f"'{source}' holds a {type(batch).__name__}; a CIFAR-10 batch is a dictionary")
    fields = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key, kind, expected in (("data", _Array, "an array"), ("labels", list, "a list")):
        given = f"'{key}' as {type(fields[key]).__name__.strip('_').lower()}" if key in fields else f"no '{key}'"
        require(isinstance(fields.get(key), kind), f"'{source}' has {given}; a CIFAR-10 batch has {expected} '{key}'")
    labels = fields["labels"]
    require(all(type(label) is int for label in labels), f"'{source}' has labels that are not integers; 0 to 9 allowed")
    pixels = fields["data"].numpy(source)
    require(
        len(pixels) == len(labels),
        f"'{source}' has {len(labels):,} labels for {len(pixels):,} images; the counts must be equal",
    )
    return torch.from_numpy(pixels).reshape(-1, *_SHAPE), torch.tensor(labels, dtype=torch.int64)


def _check_opcodes(content: bytes) -> None:
    """Refuse opcodes that the official batches do not use, before Python's unpickler trusts any size or index."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        require(opcode.name in _OPCODES, f"has the pickle opcode {opcode.name}; a CIFAR-10 batch does not use it")
        protocol_2 = opcode.name != "PROTO" or argument == 2
        require(protocol_2, f"is a pickle of protocol {argument}; a CIFAR-10 batch is one of protocol 2")
        small_memo = opcode.name != "LONG_BINPUT" or (argument is not None and argument <= count)
        require(small_memo, f"is damaged: its pickle has a memo {argument} after {count} opcodes; fetch it again")


class _Array:
    """Replaces ``numpy.ndarray`` while unpickling: it keeps an array's state, so that none of NumPy's code runs."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def numpy(self, source: str) -> np.ndarray:
        """The pixels, (n, 3072) uint8."""
        match self.state:
            case (int(), (*shape,), _Type(code=code), int() as fortran, bytes() as content):
                pass
            case _:
                raise InputError(f"'{source}' has a 'data' array that is incomplete; a CIFAR-10 batch has (n, 3072) u1")
        columns = _RECORD - 1
        require(
            code == "u1" and shape == [len(content) // columns, columns] and len(content) % columns == 0,
            f"'{source}' has a 'data' array of {len(content):,} bytes, shape {tuple(shape)} and type '{code}'; "
            f"a CIFAR-10 batch has shape (n, {columns}) and type 'u1'",
        )
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C").copy()


class _Type:
    """Replaces ``numpy.dtype`` while unpickling; the byte order in its state does not matter for bytes."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


def _encode(text: str, encoding: str) -> bytes:  # how Python 3 writes bytes into a protocol 2 pickle
    require(encoding in ("latin1", b"latin1"), f"asks for the encoding {encoding!r}; a CIFAR-10 batch uses 'latin1'")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


_OPCODE_TEXT = (
    "PROTO MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 SHORT_BINSTRING BINSTRING BINUNICODE EMPTY_DICT "
    "EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS GLOBAL REDUCE BUILD BINPUT "
    "LONG_BINPUT BINGET LONG_BINGET"
)
_OPCODES = frozenset(_OPCODE_TEXT.split())


class _Unpickler(pickle.Unpickler):
    """Unpickles the types of the official batches and refuses all others, so that no pickle runs code."""

    def find_class(self, module: str, name: str) -> object:
        require((module, name) in _ALLOWED, f"asks for '{module}.{name}'; a CIFAR-10 batch only has arrays and lists")
        return _ALLOWED[module, name]


def _check(labels: Tensor, source: str) -> None:
    require(len(labels) > 0, f"'{source}' holds zero images; a batch needs at least 1")
    low, high = int(labels.min()), int(labels.max())
    wrong = low if low < 0 else high
    require(low >= 0 and high <= 9, f"'{source}' has label {wrong}, a class that CIFAR-10 lacks; allowed are 0 to 9")
