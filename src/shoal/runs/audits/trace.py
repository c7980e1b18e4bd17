"""A trace: a federation's rounds as its server saw them, recorded by another framework or by a run of Shoal.

docs/trace.md has the format of another framework's. A round's updates are in memory only while they are used.
"""

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
from shoal.core.errors import InputError, located, path_of, read_error, require
from shoal.core.formats import one_line
from shoal.core.settings import Positive, settings
from shoal.data import Federation
from shoal.data.names import require_unambiguous
from shoal.data.user.arrays import require_finite, tensors_of
from shoal.engine import Engine, LocalSGD, RoundUpdates
from shoal.models import Model, Network, Shape, TextShape, VectorShape
from shoal.models.validation import require_fits
from shoal.replay.span_scores import knowledge_of
from shoal.runs.run_description import rebuilt
from shoal.runs.updates import FOLDER, read_updates, round_files, round_of
from shoal.simulation.simulation import Simulation


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded rounds, the records to be attacked, and the model that was trained.

    Args:
        model: its network and loss.
        records: what clients trained on, and what nobody did.
        files: of the recorded rounds, in order.
        read: gives the updates in one of them.
        preferences: threshold and beta of each client, by its id; None: unknown.
        local: the clients' local training, as far as the server knows it; None: unknown.
        simulation: of a run of Shoal, by which the server knows how clients train; None: another framework's.
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
        """What the server knows of training."""
        if self.simulation is None:
            return Knowledge(self.local)
        training = self.simulation.on(engine)
        return knowledge_of(training, training.start())

    def rounds(self) -> Iterator[RoundUpdates]:
        """The rounds' updates, one after another.

        Raises:
            InputError: a file that is damaged, does not fit the network, holds numbers that are not finite, or has a
                client without records; the sentence names it.
        """
        owners = set(self.records.client.tolist())
        for path in self.files:
            updates = self.read(path)
            with located(path):
                check_updates(updates, self.model.layout.size)
                without = [client for client in updates.clients.tolist() if client not in owners]
                require(not without, f"client {(without or [0])[0]} has no records, so nobody is a member of it")
            yield updates


def update_scores_of_trace(trace: Trace, engine: Engine) -> UpdateScores:
    """The scores that the server's attacks read; ``engine`` is of the trace's model."""
    return update_scores(trace.rounds(), trace.records, engine)


def read_trace(folder: str | Path, data_dir: Path | None = None, *, allow_code: bool = False) -> Trace:
    """The trace in a directory: one with a trace.toml, or of a run with recorded updates.

    ``data_dir`` is where to look for a run's data first; ``allow_code`` is as of `shoal.load`. What is wrong with a
    round's file is found when that is read.

    Raises:
        InputError: it is neither; the data or files of a run have changed; a file is missing or damaged, or two do not
            fit each other.
    """
    folder = path_of("trace", folder)
    if (folder / FOLDER).is_dir():
        _, simulation = rebuilt(folder, data_dir, allow_code=allow_code)
        trace = trace_of(folder, simulation.federation, simulation.setup.model, every=simulation.record_updates or None)
        return replace(trace, simulation=simulation)
    path = folder / "trace.toml"
    require(
        path.exists(),
        f"{folder}: is no trace: it has no trace.toml, nor the folder '{FOLDER}' of a run that records its updates",
    )
    table = read_toml(path)
    if not allow_code:
        require_data(table, path)
    about = parse(TraceSettings, table, str(path))
    with located(path):
        model = about.network()
        network = model.structure()
    records = read_records(folder / "records.npz", about, model)
    files = round_files(folder, ".npz", ".safetensors")
    _require_no_gaps(files, about.every)
    return Trace(model, records, tuple(files), partial(read_round, model=model, network=network), local=about.local)


def trace_of(out: str | Path, federation: Federation, model: Model, every: int | None = None) -> Trace:
    """The trace of a run directory whose federation and model are at hand, as after `shoal.simulate`.

    The records are the clients' training examples, and the test examples, which nobody trained on.

    Args:
        out: the run directory.
        federation: as it was given.
        model: that was trained, with the defences that change it (`Dropout`).
        every: rounds from one recorded round to the next; None: rounds may be missing.
    """
    files = round_files(Path(out) / FOLDER, ".safetensors")
    _require_no_gaps(files, every)
    tolerated = zip(federation.preferences.threshold.tolist(), federation.preferences.beta.tolist(), strict=True)
    preferences = dict(zip(federation.ids.tolist(), tolerated, strict=True))
    return Trace(model, OwnedRecords.from_federation(federation), tuple(files), read_updates, preferences)


def _require_no_gaps(files: Sequence[Path], every: int | None) -> None:
    rounds = [round_of(path) for path in files]
    missing = [] if every is None else sorted({*range(every, max(rounds) + 1, every)} - {*rounds})
    require(
        not missing,
        f"{files[0].parent}: has no file of round {(missing or [0])[0]}, although recorded rounds are {every} apart",
    )


@settings
class TraceSettings:
    """The settings in trace.toml.

    Args:
        model: the network, as in a run's configuration.
        classes: C, their number.
        shape: of an input: [channels, height, width], or [numbers] of a vector; None for texts.
        vocabulary: words of texts, numbered from 1; None for other inputs.
        loss: ``cross-entropy``, or ``module:Name`` of a function of outputs (B, C) and labels (B,) that returns the
            loss of each example (B,).
        every: rounds from one recorded round to the next; None: rounds may be left out.
        local: the clients' local training, as in a run's configuration, as far as the server knows it.
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
        require(one, "one of 'shape' and, for texts, 'vocabulary' must be given")
        require(
            self.shape is None or len(self.shape) in (1, 3),
            f"'shape' must be [channels, height, width] or [numbers]; got {list(self.shape or ())}",
        )
        require(
            self.loss == "cross-entropy" or ":" in self.loss,
            f"'loss' must be 'cross-entropy' or 'module:Name'; got '{self.loss}'",
        )

    def network(self) -> Model:
        """The model that was trained; `InputError` where the network is not found, or cannot take such inputs."""
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
    """The records in records.npz; `InputError` where it is missing or damaged, or does not fit the model."""
    arrays = parse_arrays(path, ("x", "y", "client"), "x, y, client and may have group")
    x, y = tensors_of(str(path), (arrays["x"], arrays["y"]))
    require(len(y) > 0, f"{path}: has no records")
    require_finite(str(path), x)
    shape = tuple(x.shape[1:])
    require(about.shape in (None, shape), f"{path}: has inputs of shape {shape}, but trace.toml says {about.shape}")
    require(
        bool(((y >= 0) & (y < about.classes)).all()),
        f"{path}: 'y' must be labels in 0..{about.classes - 1} (classes); got {int(y.min())} to {int(y.max())}",
    )
    client = _integers(path, "client", arrays["client"], len(y))
    require(bool((client >= NOBODY).all()), f"{path}: 'client' must be numbers from 0, or -1 for records of nobody")
    group = arrays.get("group", np.full(len(y), "all"))
    text = group.shape == (len(y),) and group.dtype.kind == "U"
    require(text, f"{path}: 'group' must be {len(y)} texts, the names of the records' groups; got {_kind(group)}")
    names, index = np.unique(group, return_inverse=True)
    with located(path):
        require_unambiguous(names.tolist())
        require_fits(model, x[:2], y[:2], about.classes)
    return OwnedRecords(x, y, client, torch.from_numpy(index.astype(np.int64)), tuple(map(str, names)))


def read_round(path: Path, *, model: Model, network: nn.Module) -> RoundUpdates:
    """The updates in a round's file: numbers in the order of the state_dict of ``network``, which is the model's."""
    arrays = parse_arrays(path, ("clients", "models", "parameters"), "clients, models and parameters")
    clients = _integers(path, "clients", arrays["clients"], arrays["clients"].size)
    assignment = _integers(path, "assignment", arrays.get("assignment", np.zeros(len(clients), int)), len(clients))
    models = vectors_of(path, "models", np.atleast_2d(arrays["models"]), model, network)
    ends = vectors_of(path, "parameters", arrays["parameters"], model, network)
    require(len(ends) == len(clients), f"{path}: has {len(clients)} clients, but 'parameters' of {len(ends)}")
    inside = bool(((assignment >= 0) & (assignment < len(models))).all())
    require(inside, f"{path}: 'assignment' must be numbers of the {len(models)} models, from 0")
    return RoundUpdates(round_of(path), clients, assignment, models, ends - models[assignment])


def vectors_of(path: Path, name: str, rows: NDArray[Any], model: Model, network: nn.Module) -> Tensor:
    """Rows (n, S) of a state_dict's numbers as rows (n, P) of the model's layout."""
    tensors = network.state_dict()
    size = sum(tensor.numel() for tensor in tensors.values())
    fits = rows.ndim == 2 and rows.shape[1] == size and rows.dtype.kind == "f"
    require(
        fits,
        f"{path}: '{name}' must be numbers of shape ({'K' if name == 'models' else 'n'}, {size}), those of the "
        f"network's state_dict; got {_kind(rows)}",
    )
    require(bool(np.isfinite(rows).all()), f"{path}: '{name}' must be finite numbers; some are NaN or infinite")
    vectors = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))
    sizes, packed = [tensor.numel() for tensor in tensors.values()], torch.empty(len(rows), model.layout.size)
    for row, vector in enumerate(vectors):
        pieces = zip(tensors.items(), vector.split(sizes), strict=True)
        named = {key: piece.view(tensor.shape) for (key, tensor), piece in pieces}
        model.require_same_frozen(named, f"{path}: '{name}'")
        packed[row] = model.layout.pack(named)
    return packed


def _integers(path: Path, name: str, array: NDArray[Any], count: int) -> Tensor:
    fits = array.shape == (count,) and array.dtype.kind in "iu"
    require(fits, f"{path}: '{name}' must be {count} integers; got {_kind(array)}")
    return torch.from_numpy(array.astype(np.int64))


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def parse_arrays(path: Path, required: Sequence[str], allowed: str) -> dict[str, NDArray[Any]]:
    """The arrays in a file, by name.

    Raises:
        InputError: it is missing, damaged, or would have to be unpickled, or lacks one of the ``required`` arrays.
    """
    arrays = _parsed(path)
    missing = [name for name in required if name not in arrays]
    require(not missing, f"{path}: has no array '{(missing or [''])[0]}'; it must have {allowed}")
    return arrays


def _parsed(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if path.suffix == ".safetensors":
            return parse_tensors(path.read_bytes())
        # Opened here, since numpy leaves a damaged file open.
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            require(isinstance(file, NpzFile), f"{path}: is damaged: it must hold arrays by name (numpy.savez)")
            sizes = [] if file.zip is None else [member.file_size for member in file.zip.infolist()]
            foreign_files.require_at_most(sum(sizes), foreign_files.MAX_BYTES, "bytes, decompressed")
            return {name: file[name] for name in file.files}
    except InputError:
        raise
    # A MemoryError: an array of the shape that its header states.
    except (ValueError, MemoryError, SafetensorError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path}: is damaged or no file of plain arrays: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {read_error(path, error)}") from error
