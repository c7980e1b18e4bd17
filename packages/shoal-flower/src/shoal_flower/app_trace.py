"""The trace of an existing Flower app, recorded by a mod that stores received and sent models.

The file FOLDER/round-0001/client-3.npz contains the models that client 3 received and sent in round 1.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.attacks import OwnedRecords
from shoal.attacks.updates.update_scores import NOBODY
from shoal.core.atomic_files import write_bytes
from shoal.core.errors import describe, path_of, require, require_instance
from shoal.data.user.arrays import require_finite, tensors_of
from shoal.engine import LocalSGD, RoundUpdates
from shoal.models import Model
from shoal.models.validation import require_fits
from shoal.runs.audits.trace import Trace, parse_arrays, vectors_of
from shoal.runs.updates import round_files, round_of


@dataclass(frozen=True)
class AppRecorder:
    """A mod of Flower's `ClientApp` that records a client's received and sent models.

    The recorder works in simulations, where all clients write into one folder, and with messages that have one model:
    ``app = ClientApp(mods=[AppRecorder("/tmp/trace")])``. Clients are numbered by Flower's ``partition-id``, or by
    ``node_id`` without a partition. `app_trace` reads the folder.

    Args:
        folder: the absolute path of the trace's folder.

    Example:
        >>> from shoal_flower import AppRecorder
        >>> AppRecorder("/tmp/trace")
        AppRecorder(folder=PosixPath('/tmp/trace'))
    """

    folder: str | Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", path_of("folder", self.folder).absolute())

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:  # noqa: ANN401
        """Record the models and return the app's reply, as a Flower ``Mod``."""
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        # Copy the model first, because the app may train in place.
        received, number = _flat(message.content), _round(message)
        reply = call_next(message, context)
        if reply.has_content():
            client = int(context.node_config.get("partition-id", context.node_id))
            folder = Path(self.folder) / f"round-{number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            file = BytesIO()
            np.savez(file, received=received, sent=_flat(reply.content), run=np.array(str(context.run_id)))
            write_bytes(folder / f"client-{client}.npz", file.getvalue())
        return reply


def _flat(content: Any) -> NDArray[np.float32]:  # noqa: ANN401
    records = [*content.array_records.values()]
    require(len(records) == 1, f"AppRecorder needs messages with one model (got {len(records)})")
    return np.concatenate([array.numpy().ravel() for array in records[0].values()]).astype(np.float32)


def _round(message: Any) -> int:  # noqa: ANN401
    """Return the round from the message's configuration or, in the older interface, from the message's group."""
    stated = [record["server-round"] for record in message.content.config_records.values() if "server-round" in record]
    number = stated[0] if stated else message.metadata.group_id
    require(bool(re.fullmatch(r"\d+", str(number))), "AppRecorder needs the round's number in the message's config")
    return int(number)


def app_trace(
    folder: str | Path,
    model: nn.Module | Model,
    members: Sequence[object] | Mapping[int, object],
    others: object,
    *,
    local: LocalSGD | None = None,
) -> Trace:
    """Return the trace that `AppRecorder` wrote, with the records to attack, for `audit_trace`.

    Args:
        model: the app's network, or a `Model` with the network and its loss.
        members: each client's training examples, by the client's number: a pair (x, y), a `torch.utils.data.Dataset` of
            pairs, or a `DataLoader` of pairs or of dictionaries with ``label``.
        others: the non-members: examples that no client trained on, as a pair, a data set or a loader.
        local: the clients' local training settings, or ``None`` if unknown; the span attack subtracts weight decay.

    Raises:
        InputError: the folder has no trace or the traces of several runs, a client has no members, or the network
            cannot take the examples.
    """
    folder = path_of("folder", folder)
    if isinstance(model, nn.Module):
        network = model
        model = Model(partial(copy.deepcopy, network))
    require_instance("model", model, Model, "the app's network or a shoal.Model of it")
    mapped = isinstance(members, Mapping)
    listed = mapped or (isinstance(members, Sequence) and not isinstance(members, str))
    require(listed, f"'members' must be a list of examples or a dictionary by client (got {describe(members)})")
    by_client = dict(members.items() if mapped else enumerate(members))
    records = _records({**by_client, NOBODY: others}, model)
    files = round_files(folder, "")
    return Trace(
        model, records, tuple(files), partial(_read_round, model=model, network=model.structure()), local=local
    )


def _records(examples: Mapping[int, object], model: Model) -> OwnedRecords:
    pairs = {who: tensors_of("others" if who == NOBODY else f"members {who}", given) for who, given in examples.items()}
    x, y = torch.cat([x for x, _ in pairs.values()]), torch.cat([y for _, y in pairs.values()])
    require_finite("members and others", x)
    client = torch.cat([torch.full((len(y),), who) for who, (_, y) in pairs.items()])
    require_fits(model, x[:2], y[:2], int(y.max()) + 1)
    return OwnedRecords(x, y, client, torch.zeros(len(y), dtype=torch.int64), ("all",))


def _read_round(path: Path, *, model: Model, network: nn.Module) -> RoundUpdates:
    """Return all clients' updates in a round; ``models`` are the distinct received models."""
    files = {int(file.stem.removeprefix("client-")): file for file in path.glob("client-*.npz")}
    require(bool(files), f"{path}: has no client; add files such as client-0.npz")
    arrays = {
        who: parse_arrays(files[who], ("received", "sent", "run"), "received, sent, run") for who in sorted(files)
    }
    runs = {str(array["run"]) for array in arrays.values()}
    require(len(runs) == 1, f"{path}: has {len(runs)} runs; record each run into its own folder")

    def rows(name: str) -> Tensor:
        return vectors_of(path, name, _stack(path, [array[name] for array in arrays.values()]), model, network)

    models, assignment = torch.unique(rows("received"), dim=0, return_inverse=True)
    clients = torch.tensor([*arrays], dtype=torch.int64)
    return RoundUpdates(round_of(path), clients, assignment, models, rows("sent") - models[assignment])


def _stack(path: Path, rows: Iterable[NDArray[Any]]) -> NDArray[Any]:
    rows = [*rows]
    require(len({row.shape for row in rows}) == 1, f"{path}: all clients' models must have the same size")
    return np.stack(rows)
