"""Traces: the rounds of a federation in the server's view, recorded by Shoal or in the format of docs/trace.md."""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from torch import Tensor, nn

from shoal.attacks import Knowledge, OwnedRecords, UpdateScores, update_scores
from shoal.attacks.updates.update_scores import NOBODY, check_updates
from shoal.config.kinds import load_code, require_data
from shoal.config.toml_files import parse, read_toml
from shoal.core import foreign_files
from shoal.core.errors import InputError, locate_errors, path_of, read_error, require
from shoal.core.formats import one_line
from shoal.core.settings import Positive, settings
from shoal.data import Federation
from shoal.data.names import require_unambiguous
from shoal.data.user.arrays import require_finite, tensors_of
from shoal.engine import Engine, LocalSGD, RoundUpdates
from shoal.models import Model, Network, Shape, TextShape, VectorShape
from shoal.models.validation import require_fits
from shoal.replay.span_scores import knowledge_of
from shoal.runs.run_description import rebuild_simulation
from shoal.runs.updates import FOLDER, read_updates, round_files, round_of
from shoal.simulation.simulation import Simulation


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded rounds, the records to attack, and the trained model.

    Args:
        records: the members and non-members.
        files: the files of the recorded rounds, in order.
        read: the function that reads the updates in one file.
        preferences: each client's limit and beta (`Preferences`), by client id, or ``None`` if unknown.
        local: the clients' local training, if the server knows the settings; otherwise ``None``.
        simulation: the simulation of a run of Shoal, or ``None`` for a trace of another framework.
    """

    model: Model
    records: OwnedRecords
    files: tuple[Path, ...]
    read: Callable[[Path], RoundUpdates]
    preferences: Mapping[int, tuple[float, float]] | None = None
    local: LocalSGD | None = None
    simulation: Simulation | None = None
    __repr__ = one_line

    def knowledge(self, engine: Engine) -> Knowledge:
        """Return the server's knowledge of the clients' training."""
        if self.simulation is None:
            return Knowledge(self.local)
        training = self.simulation.on(engine)
        return knowledge_of(training, training.start())

    def rounds(self) -> Iterator[RoundUpdates]:
        """Read the updates of each round in order.

        Raises:
            InputError: a file is damaged, does not fit the network, has numbers that are not finite, or has a client
                without records.
        """
        owners = set(self.records.client.tolist())
        for path in self.files:
            updates = self.read(path)
            with locate_errors(path):
                check_updates(updates, self.model.layout.size)
                without = [client for client in updates.clients.tolist() if client not in owners]
                require(not without, f"client {(without or [0])[0]} has no records; add members of this client")
            yield updates


def update_scores_of_trace(trace: Trace, engine: Engine) -> UpdateScores:
    """Compute the scores of a trace's records for the server's attacks."""
    return update_scores(trace.rounds(), trace.records, engine)


def read_trace(folder: str | Path, data_dir: Path | None = None, *, allow_code: bool = False) -> Trace:
    """Read the trace in a directory with a trace.toml, or in the directory of a run with recorded updates.

    The files of rounds are checked when `Trace.rounds` reads them.

    Args:
        data_dir: the folder that is searched first for a run's data.

    Raises:
        InputError: the directory has no trace, a file is missing or damaged, two files do not fit together, or a run's
            data or files have changed.
    """
    folder = path_of("trace", folder)
    if (folder / FOLDER).is_dir():
        _, simulation = rebuild_simulation(folder, data_dir, allow_code=allow_code)
        trace = trace_of(folder, simulation.federation, simulation.setup.model, every=simulation.record_updates or None)
        return replace(trace, simulation=simulation)
    path = folder / "trace.toml"
    require(
        path.exists(),
        f"{folder}: is not a trace; name a directory with a trace.toml, or a run's directory with a folder '{FOLDER}'",
    )
    table = read_toml(path)
    if not allow_code:
        require_data(table, path)
    about = parse(TraceSettings, table, str(path))
    with locate_errors(path):
        model = about.network()
        network = model.structure()
    records = read_records(folder / "records.npz", about, model)
    files = round_files(folder, ".npz", ".safetensors")
    _require_no_gaps(files, about.every)
    return Trace(model, records, tuple(files), partial(read_round, model=model, network=network), local=about.local)


def trace_of(out: str | Path, federation: Federation, model: Model, every: int | None = None) -> Trace:
    """Return the trace of a run directory.

    The members are the clients' training examples, and the non-members are the test examples.

    Args:
        model: the trained model, with the defences that change its network (`Dropout`).
        every: the number of rounds from one recorded round to the next, or ``None`` if rounds may be missing.
    """
    files = round_files(Path(out) / FOLDER, ".safetensors")
    _require_no_gaps(files, every)
    limits = zip(federation.preferences.threshold.tolist(), federation.preferences.beta.tolist(), strict=True)
    preferences = dict(zip(federation.ids.tolist(), limits, strict=True))
    return Trace(model, OwnedRecords.from_federation(federation), tuple(files), read_updates, preferences)


def _require_no_gaps(files: Sequence[Path], every: int | None) -> None:
    rounds = [round_of(path) for path in files]
    missing = [] if every is None else sorted({*range(every, max(rounds) + 1, every)} - {*rounds})
    require(
        not missing,
        f"{files[0].parent}: lacks the file of round {(missing or [0])[0]}; recorded rounds must be the multiples of "
        f"{every}",
    )


@settings
class TraceSettings:
    """The settings in trace.toml.

    Args:
        model: the network, as in a run's configuration.
        classes: C, the number of classes.
        shape: the shape of an input, [channels, height, width] for an image or [numbers] for a vector, or None for
            texts.
        vocabulary: the number of words in texts, numbered from 1, or None for images and vectors.
        loss: ``cross-entropy``, or ``module:Name`` of a function from outputs (B, C) and labels (B,) to losses (B,).
        every: the number of rounds from one recorded round to the next, or None if rounds may be missing.
        local: the clients' local training, as in a run's configuration, or None if the server does not know the
            settings.
    """

    model: Network
    classes: Annotated[int, Field(ge=2, strict=True)]
    shape: tuple[Positive, ...] | None = None
    vocabulary: Positive | None = None
    loss: str = "cross-entropy"
    every: Positive | None = None
    local: LocalSGD | None = None

    def __post_init__(self) -> None:
        one = (self.shape is None) != (self.vocabulary is None)
        require(one, "the table needs either 'shape' (images and vectors) or 'vocabulary' (texts)")
        require(
            self.shape is None or len(self.shape) in (1, 3),
            f"'shape' must be [channels, height, width] or [numbers] (got {list(self.shape or ())})",
        )
        require(
            self.loss == "cross-entropy" or ":" in self.loss,
            f"'loss' must be 'cross-entropy' or 'module:Name' (got '{self.loss}')",
        )

    def network(self) -> Model:
        """Build the trained model.

        Raises:
            InputError: the network is unknown or cannot take inputs of this shape.
        """
        shape: Shape | VectorShape | TextShape
        if self.vocabulary is not None:
            shape = TextShape(self.vocabulary, self.classes)
        elif self.shape is not None and len(self.shape) == 3:
            shape = Shape(*self.shape, classes=self.classes)
        else:
            assert self.shape is not None
            shape = VectorShape(self.shape[0], self.classes)
        named = self.model.sized(self.classes)
        imported = ":" in named.name
        model = Model(partial(load_code(named.name, "model.name"), shape)) if imported else named.model(shape)
        return model if self.loss == "cross-entropy" else Model(model.build, load_code(self.loss, "loss"))


def read_records(path: Path, about: TraceSettings, model: Model) -> OwnedRecords:
    """Read records.npz.

    Raises:
        InputError: the file is missing or damaged, or does not fit the model.
    """
    arrays = parse_arrays(path, ("x", "y", "client"), "x, y and client (group is optional)")
    x, y = tensors_of(str(path), (arrays["x"], arrays["y"]))
    require(len(y) > 0, f"{path}: has no records")
    require_finite(str(path), x)
    shape = tuple(x.shape[1:])
    require(about.shape in (None, shape), f"{path}: 'x' has inputs of shape {shape}; trace.toml requires {about.shape}")
    require(
        bool(((y >= 0) & (y < about.classes)).all()),
        f"{path}: 'y' must be labels from 0 to {about.classes - 1} (got {int(y.min())} to {int(y.max())})",
    )
    client = _integers(path, "client", arrays["client"], len(y))
    require(bool((client >= NOBODY).all()), f"{path}: 'client' must be integers from 0, or -1 for non-members")
    group = arrays.get("group", np.full(len(y), "all"))
    text = group.shape == (len(y),) and group.dtype.kind == "U"
    require(text, f"{path}: 'group' must be an array of {len(y)} group names (got {_kind(group)})")
    names, index = np.unique(group, return_inverse=True)
    with locate_errors(path):
        require_unambiguous(names.tolist())
        require_fits(model, x[:2], y[:2], about.classes)
    return OwnedRecords(x, y, client, torch.from_numpy(index.astype(np.int64)), tuple(map(str, names)))


def read_round(path: Path, *, model: Model, network: nn.Module) -> RoundUpdates:
    """Read a round's file, whose numbers are in the order of the ``state_dict`` of ``network``."""
    arrays = parse_arrays(path, ("clients", "models", "parameters"), "clients, models and parameters")
    clients = _integers(path, "clients", arrays["clients"], arrays["clients"].size)
    assignment = _integers(path, "assignment", arrays.get("assignment", np.zeros(len(clients), int)), len(clients))
    models = vectors_of(path, "models", np.atleast_2d(arrays["models"]), model, network)
    ends = vectors_of(path, "parameters", arrays["parameters"], model, network)
    require(len(ends) == len(clients), f"{path}: 'parameters' must have {len(clients)} rows (got {len(ends)})")
    inside = bool(((assignment >= 0) & (assignment < len(models))).all())
    require(inside, f"{path}: 'assignment' must be model numbers from 0 to {len(models) - 1}")
    return RoundUpdates(round_of(path), clients, assignment, models, ends - models[assignment])


def vectors_of(path: Path, name: str, rows: NDArray[Any], model: Model, network: nn.Module) -> Tensor:
    """Convert rows (n, S) in the order of a ``state_dict`` to rows (n, P) in the order of the model's layout."""
    tensors = network.state_dict()
    size = sum(tensor.numel() for tensor in tensors.values())
    fits = rows.ndim == 2 and rows.shape[1] == size and rows.dtype.kind == "f"
    require(
        fits,
        f"{path}: '{name}' must be floats of shape ({'K' if name == 'models' else 'n'}, {size}) in the order of the "
        f"network's state_dict (got {_kind(rows)})",
    )
    require(bool(np.isfinite(rows).all()), f"{path}: '{name}' must be finite numbers (got NaN or infinity)")
    vectors = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))
    sizes, packed = [tensor.numel() for tensor in tensors.values()], torch.empty(len(rows), model.layout.size)
    for row, vector in enumerate(vectors):
        pieces = zip(tensors.items(), vector.split(sizes), strict=True)
        state = {key: piece.view(tensor.shape) for (key, tensor), piece in pieces}
        model.require_same_frozen(state, f"{path}: '{name}'")
        packed[row] = model.layout.pack(state)
    return packed


def _integers(path: Path, name: str, array: NDArray[Any], count: int) -> Tensor:
    fits = array.shape == (count,) and array.dtype.kind in "iu"
    require(fits, f"{path}: '{name}' must be an array of {count} integers (got {_kind(array)})")
    return torch.from_numpy(array.astype(np.int64))


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def parse_arrays(path: Path, required: Sequence[str], allowed: str) -> dict[str, NDArray[Any]]:
    """Read the arrays in a file, by name.

    Raises:
        InputError: the file is missing or damaged, needs unpickling, or lacks one of the ``required`` arrays.
    """
    try:
        if path.suffix == ".safetensors":
            arrays = parse_tensors(path.read_bytes())
        else:
            # Opened here, since numpy leaves a damaged file open.
            with path.open("rb") as stream:
                file = np.load(stream, allow_pickle=False)
                require(isinstance(file, NpzFile), f"{path}: is damaged; write named arrays with numpy.savez")
                sizes = [] if file.zip is None else [member.file_size for member in file.zip.infolist()]
                foreign_files.require_at_most(sum(sizes), foreign_files.MAX_BYTES, "bytes, decompressed")
                arrays = {name: file[name] for name in file.files}
    except InputError:
        raise
    # A MemoryError comes from a header with a huge shape.
    except (ValueError, MemoryError, SafetensorError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path}: is damaged or holds objects: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {read_error(path, error)}") from error
    missing = [name for name in required if name not in arrays]
    require(not missing, f"{path}: the array '{(missing or [''])[0]}' is missing; the file must have {allowed}")
    return arrays
