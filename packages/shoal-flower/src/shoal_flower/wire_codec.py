"""Conversion of messages to Flower's records and back, as plain arrays that are checked and never unpickled."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from shoal.core.errors import InputError
from shoal.data import Standardizer
from shoal.engine import ClientUpdate
from shoal_flower.flower_config import CLIENT_NAME
from shoal_flower.messages import (
    Limits,
    Offer,
    Refusal,
    RejectedReplyError,
    Stamp,
    check_update,
    plain,
    reject_unless,
)

_ARRAY_HEADER = 4096
"""The largest number of bytes of an array in NumPy's format besides its numbers."""

_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord)


@dataclass(frozen=True)
class _Header:
    """The fields of an offer, except its models, in JSON's types."""

    round: int
    client: int
    config: str
    risks: list[float]
    directives: dict[str, list[float]]
    classes: tuple[str, ...]
    scale: Standardizer | None
    ledger: Stamp
    features: str
    frozen: str


_HEADERS = TypeAdapter(_Header)


def pack_models(models: Tensor) -> ArrayRecord:
    """Pack the models (K, P) of an offer into one array."""
    return ArrayRecord({"models": _pack_tensor(models)})


def pack_offer(offer: Offer, models: ArrayRecord | None = None) -> RecordDict:
    """Pack an offer; ``models`` may be the result of `pack_models`."""
    header = {name: value for name, value in vars(offer).items() if name != "models"}
    text = json.dumps(header, default=lambda value: value.tolist() if isinstance(value, Tensor) else vars(value))
    packed = pack_models(offer.models) if models is None else models
    return RecordDict({"models": packed, "offer": ConfigRecord({"header": text})})


def unpack_offer(records: RecordDict) -> Offer:
    """Unpack and check the server's offer, or raise `InputError`."""
    try:
        header = _HEADERS.validate_json(str(records.config_records["offer"]["header"]), strict=True)
        array = records.array_records["models"]["models"]
        models = _unpack_tensor(array, tuple(array.shape))
        if header.scale is not None:
            lengths = {name: len(values) for name, values in vars(header.scale).items()}
            columns, optional = lengths["inputs"], {lengths["words"], lengths["fill"]}
            if not lengths["mean"] == lengths["std"] == columns or not optional <= {0, columns}:
                raise ValueError(f"the lists of 'scale' have different lengths: {lengths}")
    except (KeyError, TypeError, ValueError, RejectedReplyError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise InputError(f"the server's message is not an offer of this version of Shoal: {reason}") from error
    risks = torch.tensor(header.risks, dtype=torch.float64)
    directives = {name: torch.tensor(row, dtype=torch.float64) for name, row in header.directives.items()}
    return Offer(**vars(header) | {"models": models, "risks": risks, "directives": directives})


def pack_reply(reply: ClientUpdate | Refusal) -> RecordDict:
    """Pack a client's reply."""
    if isinstance(reply, Refusal):
        return RecordDict({"refusal": ConfigRecord({"reason": reply.reason})})
    numbers: dict[str, Any] = {"cluster": reply.cluster, "examples": reply.examples}
    if reply.best is not None:
        numbers["best"] = reply.best.tolist()
    return RecordDict({"model": ArrayRecord({"model": _pack_tensor(reply.end)}), "update": MetricRecord(numbers)})


def unpack_reply(
    records: RecordDict, offered: Tensor, limits: Limits, *, counts_best: bool
) -> tuple[ClientUpdate, float] | Refusal:
    """Return a client's reply, with the norm of its update.

    Raises:
        RejectedReplyError: tensors or numbers are missing, unexpected or of a wrong shape or type, or `check_update`
            rejects the update.
    """
    if (refusal := unpack_refusal(records)) is not None:
        return refusal
    _require_names("records", records, {"model", "update"})
    tensors = _record(records, "model", ArrayRecord, "tensors", {"model"})
    keys = {"cluster", "examples", "best"} if counts_best else {"cluster", "examples"}
    numbers = _record(records, "update", MetricRecord, "numbers", keys)
    best = _counts(numbers["best"]) if counts_best else None
    end = _unpack_tensor(tensors["model"], tuple(offered.shape[1:]))
    update = ClientUpdate(_integer(numbers["cluster"]), _integer(numbers["examples"]), end, best)
    return update, check_update(update, offered, limits, counts_best=counts_best)


def unpack_refusal(records: RecordDict) -> Refusal | None:
    """Return the refusal in ``records``, or None if the records are an answer."""
    if set(records) == {"refusal"} and "refusal" in records.config_records:
        return Refusal(plain(records.config_records["refusal"].get("reason")))
    return None


def pack_histograms(counts: np.ndarray) -> RecordDict:
    """Pack a client's histograms (2, B)."""
    return RecordDict({"histograms": MetricRecord({"counts": counts.astype(float).flatten().tolist()})})


def unpack_histograms(records: RecordDict, bins: int) -> np.ndarray:
    """Unpack a client's histograms, (2, ``bins``), or raise `RejectedReplyError`."""
    _require_names("records", records, {"histograms"})
    values = _record(records, "histograms", MetricRecord, "numbers", {"counts"})["counts"]
    fits = isinstance(values, list) and len(values) == 2 * bins
    reject_unless(fits, f"histograms must have 2 x {bins} counts")
    counts = np.asarray(values, dtype=np.float64).reshape(2, bins)
    reject_unless(bool(np.isfinite(counts).all()), "histogram counts must not be NaN or infinite")
    return counts


def pack_vote(over: bool) -> RecordDict:
    """Pack a client's vote on whether its model's risk exceeds its limit."""
    return RecordDict({"vote": MetricRecord({"over": int(over)})})


def unpack_vote(records: RecordDict) -> bool:
    """Unpack a client's vote, or raise `RejectedReplyError`."""
    _require_names("records", records, {"vote"})
    over = _integer(_record(records, "vote", MetricRecord, "numbers", {"over"})["over"])
    reject_unless(over in (0, 1), f"the vote must be 0 or 1 (got {over})")
    return over == 1


def pack_identity(name: str, partition: int | None, leaves: bool = False) -> RecordDict:
    """Pack the name of a node's client, its partition, and whether it leaves for good."""
    number = -1 if partition is None else partition
    return RecordDict({"client": ConfigRecord({"name": name, "partition": number, "leaves": leaves})})


def unpack_identity(records: RecordDict) -> tuple[str, int | None, bool]:
    """Return a client's name, its partition (or None) and whether it leaves, or raise `RejectedReplyError`."""
    _require_names("records", records, {"client"})
    client = _record(records, "client", ConfigRecord, "keys", {"name", "partition", "leaves"})
    name, partition = client["name"], _integer(client["partition"])
    if not isinstance(name, str) or re.fullmatch(CLIENT_NAME, name) is None:
        raise RejectedReplyError(f"{name!r:.100} is not a client's name")
    reject_unless(-1 <= partition < 2**31, f"{partition} is not a partition")
    return name, None if partition < 0 else partition, client["leaves"] is True


def pack_features(digest: str, content: bytes) -> RecordDict:
    """Pack the file of a feature map with its hash."""
    array = Array(np.frombuffer(content, dtype=np.uint8))
    return RecordDict({"map": ArrayRecord({"map": array}), "features": ConfigRecord({"hash": digest})})


def unpack_features(records: RecordDict) -> tuple[str, bytes]:
    """Return the hash and the file of a feature map, which `keep_features` checks.

    Raises:
        InputError: the records have no feature map.
    """
    try:
        digest, array = str(records.config_records["features"]["hash"]), records.array_records["map"]["map"]
        values = array.numpy()
        if values.dtype != np.uint8:
            raise ValueError("it does not consist of bytes")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the server's message is not a feature map of this version of Shoal: {error}") from error
    return digest, values.tobytes()


def pack_kept_features(digest: str) -> RecordDict:
    """Pack a client's confirmation that it stores the feature map with this hash."""
    return RecordDict({"features": ConfigRecord({"hash": digest})})


def unpack_kept_features(records: RecordDict, digest: str) -> None:
    """Raise `RejectedReplyError` unless a client confirms that it stores the feature map with this hash."""
    if (refusal := unpack_refusal(records)) is not None:
        raise RejectedReplyError(refusal.reason)
    _require_names("records", records, {"features"})
    found = _record(records, "features", ConfigRecord, "keys", {"hash"})["hash"]
    reject_unless(found == digest, f"the client stored another feature map than the run's (got {found!r:.80})")


def pack_stamp(records: RecordDict, stamp: Stamp) -> None:
    """Add the last charge of the client's ledger to a reply."""
    records["ledger"] = ConfigRecord({"count": stamp[0], "hash": stamp[1]})


def unpack_stamp(records: RecordDict) -> Stamp:
    """Remove the last charge of the client's ledger from a reply and return the charge, or ``(0, "")``.

    Raises:
        RejectedReplyError: the record of the charge is malformed.
    """
    if "ledger" not in records:
        return 0, ""
    record = _record(records, "ledger", ConfigRecord, "keys", {"count", "hash"})
    count, link = _integer(record["count"]), str(record["hash"])
    reject_unless(
        0 <= count < 2**53 and re.fullmatch("[0-9a-f]{32}" if count else "", link) is not None,
        "the record 'ledger' is malformed",
    )
    del records["ledger"]
    return count, link


def _pack_tensor(tensor: Tensor) -> Array:
    return Array(tensor.detach().cpu().contiguous().numpy())


def _unpack_tensor(array: Array, shape: tuple[int, ...]) -> Tensor:
    """Return a float32 array of this shape; the bytes are checked too, because they may contradict the header."""
    announced = (array.stype, array.dtype, tuple(array.shape))
    reject_unless(
        announced == ("numpy.ndarray", "float32", shape), f"the announced array {announced} must be float32 {shape}"
    )
    largest = 4 * int(np.prod(shape, dtype=np.int64)) + _ARRAY_HEADER
    reject_unless(len(array.data) <= largest, f"the array has {len(array.data)} bytes (at most {largest})")
    try:
        numbers = array.numpy()
    except Exception as error:  # NumPy raises anything on a stranger's bytes.
        raise RejectedReplyError(f"the array cannot be read: {error}") from error
    form = (str(numbers.dtype), numbers.shape)
    reject_unless(form == ("float32", shape), f"the array must be float32 {shape} (got {form})")
    return torch.from_numpy(np.array(numbers))


def _record(records: RecordDict, name: str, kind: type[_Record], entries: str, keys: set[str]) -> _Record:
    """Return the record ``name``, or raise `RejectedReplyError` if it has another ``kind`` or other ``keys``."""
    record = records[name]
    if not isinstance(record, kind):
        raise RejectedReplyError(f"the record '{name}' is of another kind")
    _require_names(entries, record, keys)
    return record


def _require_names(entries: str, mapping: Mapping[str, object], names: set[str]) -> None:
    keys = {str(name) for name in mapping}
    missing, unexpected = sorted(names - keys), sorted(keys - names)
    reject_unless(not missing, f"missing {entries}: {missing}")
    reject_unless(not unexpected, f"unexpected {entries}: {unexpected[:5]}")


def _counts(value: object) -> Tensor:
    integers = isinstance(value, list) and all(type(count) is int and abs(count) < 2**62 for count in value)
    reject_unless(integers, "counts by model must be integers")
    return torch.tensor(value, dtype=torch.int64)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise RejectedReplyError(f"{value!r} is not an integer")
    return value
