"""A trace: what a server saw of a federation's rounds, recorded by another framework or by a run of Shoal.

docs/trace.md has the format of another framework's. A round's updates are in memory only while they are used.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.attacks import OwnedRecords, UpdateScores, update_scores
from shoal.attacks.updates.update_scores import check_updates
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.config.toml_files import parse, read_toml
from shoal.core.errors import InputError, path_of, require
from shoal.core.representation import one_line
from shoal.data import Federation
from shoal.data.content import fingerprint
from shoal.engine import Engine, RoundUpdates
from shoal.models import Model
from shoal.runs.directory import is_finished
from shoal.runs.hashes import require_same_examples, require_unchanged
from shoal.runs.trace_files import TraceSettings, read_records, read_round
from shoal.runs.updates import FOLDER, read_updates, round_files, round_of


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded rounds, the records to be attacked, and the model that was trained.

    Args:
        model: its network and loss.
        records: what clients trained on, and what nobody did.
        files: of the recorded rounds, in order.
        read: gives the updates in one of them.
        preferences: threshold and beta of each client, by its id; None: unknown.
    """

    model: Model
    records: OwnedRecords
    files: tuple[Path, ...]
    read: Callable[[Path], RoundUpdates]
    preferences: Mapping[int, tuple[float, float]] | None = None
    __repr__ = one_line

    def rounds(self) -> Iterator[RoundUpdates]:
        """The rounds' updates, one after another.

        Raises:
            InputError: a file that is damaged, does not fit the network, holds numbers that are not finite, or has a
                client without records; the sentence names it.
        """
        owners = set(self.records.client.tolist())
        for path in self.files:
            found = self.read(path)
            try:
                check_updates(found, self.model.layout.size)
                without = [client for client in found.clients.tolist() if client not in owners]
                require(not without, f"client {(without or [0])[0]} has no records, so nobody is a member of it")
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
            yield found


def update_scores_of_trace(trace: Trace, engine: Engine) -> UpdateScores:
    """What the server's attacks are computed from; ``engine`` is of the trace's model. See `attacks.update_scores`."""
    return update_scores(trace.rounds(), trace.records, engine)


def read_trace(folder: str | Path, data_dir: Path | None = None) -> Trace:
    """The trace in a directory: one with a trace.toml, or of a run with recorded updates.

    Args:
        folder: the directory.
        data_dir: where to look for a run's data first.

    Raises:
        InputError: it is neither; the data or files of a run have changed; a file is missing or damaged, or two do not
            fit each other. What is wrong with a round's file is found when that is read.
    """
    folder = path_of("trace", folder)
    if (folder / FOLDER).is_dir():
        config = read_config(folder / "config.toml")
        if is_finished(folder):
            require_unchanged(folder)
        _, simulation = build(config, data_dir)
        require_same_examples(folder, fingerprint(simulation.federation))
        return trace_of(folder, simulation.federation, simulation.setup.model, every=simulation.record_updates or None)
    path = folder / "trace.toml"
    require(
        path.exists(),
        f"{folder}: is no trace: it has no trace.toml, nor the folder '{FOLDER}' of a run that records its updates",
    )
    about = parse(TraceSettings, read_toml(path), str(path))
    try:
        model = about.network()
        network = model.network()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    records = read_records(folder / "records.npz", about, model)
    files = round_files(folder, ".npz", ".safetensors")
    _require_no_gaps(files, about.every)
    return Trace(model, records, tuple(files), partial(read_round, model=model, network=network))


def trace_of(out: str | Path, federation: Federation, model: Model, every: int | None = None) -> Trace:
    """The trace of a run directory in ``out`` whose federation and model are at hand, as after `shoal.simulate`.

    The records are the clients' training examples, and the test examples, which nobody trained on.

    Args:
        out: the run directory.
        federation: as it was given.
        model: that was trained, with the defences that change it (`Dropout`).
        every: rounds from one recorded round to the next; None: rounds may be missing.

    Raises:
        InputError: no round is recorded, or one is missing.
    """
    files = round_files(Path(out) / FOLDER, ".safetensors")
    _require_no_gaps(files, every)
    tolerated = zip(federation.preferences.threshold.tolist(), federation.preferences.beta.tolist(), strict=True)
    preferences = dict(zip(federation.ids.tolist(), tolerated, strict=True))
    return Trace(model, OwnedRecords.of(federation), tuple(files), read_updates, preferences)


def _require_no_gaps(files: Sequence[Path], every: int | None) -> None:
    found = [round_of(path) for path in files]
    missing = [] if every is None else sorted({*range(every, max(found) + 1, every)} - {*found})
    require(
        not missing,
        f"{files[0].parent}: has no file of round {(missing or [0])[0]}, although recorded rounds are {every} apart",
    )
