"""Messages as Flower's records and back: plain arrays, never pickled, and checked before they are read."""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.data import Standardizer
from shoal.deployment.client.node_settings import CLIENT_NAME
from shoal.deployment.messages import Limits, Offer, Refusal, RejectedReplyError, check_update, reject_unless
from shoal.engine import ClientUpdate

_HEADER = 4096
"""Bytes that an array in NumPy's format may have beside its numbers."""


def pack_offer(offer: Offer) -> RecordDict:
    """The records of an offer: all models in one array."""
    about: dict[str, Any] = {
        "round": offer.round,
        "client": offer.client,
        "config": offer.config,
        "risks": offer.risks.tolist(),
        "directives": sorted(offer.directives),
        "classes": list(offer.classes),
        "inputs": [] if offer.scale is None else list(offer.scale.inputs),
        "mean": [] if offer.scale is None else list(offer.scale.mean),
        "deviation": [] if offer.scale is None else list(offer.scale.std),
        "words": [] if offer.scale is None else [json.dumps(each) for each in offer.scale.words],
        "fill": [] if offer.scale is None else list(offer.scale.fill),
    }
    about |= {f"directive.{name}": values.tolist() for name, values in offer.directives.items()}
    models = ArrayRecord({"models": _packed(offer.models)})
    return RecordDict({"models": models, "offer": ConfigRecord(about)})


def unpack_offer(records: RecordDict) -> Offer:
    """The offer in ``records``.

    Raises:
        InputError: they are no offer, as those of a server of another version.
    """
    try:
        about = dict(records.config_records["offer"])
        given: Array = records.array_records["models"]["models"]
        models = _unpacked(given, tuple(given.shape))
        names = [str(name) for name in _list(about["directives"])]
        return Offer(
            round=_whole(about["round"]),
            client=_whole(about["client"]),
            config=str(about["config"]),
            models=models,
            risks=torch.tensor(_list(about["risks"]), dtype=torch.float64),
            directives={n: torch.tensor(_list(about[f"directive.{n}"]), dtype=torch.float64) for n in names},
            classes=tuple(str(name) for name in _list(about["classes"])),
            scale=_scale(about),
        )
    except (KeyError, TypeError, ValueError, RejectedReplyError) as error:
        raise InputError(f"the server's message is no offer of this version of shoal: {error}") from error


def _scale(about: Mapping[str, Any]) -> Standardizer | None:
    names = tuple(str(name) for name in _list(about["inputs"]))
    mean, deviation = (tuple(float(each) for each in _list(about[key])) for key in ("mean", "deviation"))
    if not len(names) == len(mean) == len(deviation):
        raise ValueError(f"{len(names)} inputs have {len(mean)} means and {len(deviation)} deviations")
    words = tuple(tuple(str(word) for word in json.loads(str(each))) for each in _list(about["words"]))
    fill = tuple(float(each) for each in _list(about["fill"]))
    if {len(words), len(fill)} - {0, len(names)}:
        raise ValueError(f"{len(names)} inputs have {len(words)} lists of words and {len(fill)} values for empty cells")
    return Standardizer(names, mean, deviation, words, fill) if names else None


def pack_reply(reply: ClientUpdate | Refusal) -> RecordDict:
    """The records of a client's reply."""
    if isinstance(reply, Refusal):
        return RecordDict({"refusal": ConfigRecord({"reason": reply.reason})})
    numbers: dict[str, Any] = {"cluster": reply.cluster, "examples": reply.examples}
    if reply.best is not None:
        numbers["best"] = reply.best.tolist()
    model = ArrayRecord({"model": _packed(reply.end)})
    return RecordDict({"model": model, "update": MetricRecord(numbers)})


def unpack_reply(records: RecordDict, offered: Tensor, limits: Limits, *, counts_best: bool) -> ClientUpdate | Refusal:
    """The reply in ``records`` to an offer of the models ``offered`` (K, P).

    Raises:
        RejectedReplyError: missing or further tensors or numbers, wrong shapes or types, or as `check_update`.
    """
    if set(records) == {"refusal"} and "refusal" in records.config_records:
        reason = records.config_records["refusal"].get("reason")
        return Refusal(str(reason)[:500])
    _names("records", records, {"model", "update"})
    reject_unless("model" in records.array_records and "update" in records.metric_records, "records of other kinds")
    tensors, numbers = records.array_records["model"], records.metric_records["update"]
    _names("tensors", tensors, {"model"})
    _names("numbers", numbers, {"cluster", "examples", *(["best"] if counts_best else [])})
    best = _counts(numbers["best"]) if counts_best else None
    end = _unpacked(tensors["model"], tuple(offered.shape[1:]))
    update = ClientUpdate(_whole(numbers["cluster"]), _whole(numbers["examples"]), end, best)
    check_update(update, offered, limits, counts_best=counts_best)
    return update


def pack_counts(counts: np.ndarray) -> RecordDict:
    """A client's histograms (2, B)."""
    return RecordDict({"histograms": MetricRecord({"counts": [float(each) for each in counts.flatten()]})})


def unpack_counts(records: RecordDict, bins: int) -> np.ndarray:
    """A client's histograms (2, ``bins``); raises `RejectedReplyError` where they are none."""
    _names("records", records, {"histograms"})
    reject_unless("histograms" in records.metric_records, "records of other kinds")
    given = records.metric_records["histograms"].get("counts")
    fits = isinstance(given, list) and len(given) == 2 * bins
    reject_unless(fits, f"histograms that have not 2 x {bins} counts")
    counts = np.asarray(given, dtype=np.float64).reshape(2, bins)
    reject_unless(bool(np.isfinite(counts).all()), "histograms with NaN")
    return counts


def pack_answer(over: bool) -> RecordDict:
    """A client's one bit: whether its model's risk is over its limit, or what it says in its place."""
    return RecordDict({"vote": MetricRecord({"over": int(over)})})


def unpack_answer(records: RecordDict) -> bool:
    """A client's one bit; raises `RejectedReplyError` where ``records`` are none."""
    _names("records", records, {"vote"})
    reject_unless("vote" in records.metric_records, "records of other kinds")
    _names("numbers", records.metric_records["vote"], {"over"})
    over = _whole(records.metric_records["vote"]["over"])
    reject_unless(over in (0, 1), f"{over} is no bit")
    return over == 1


def _packed(tensor: Tensor) -> Array:
    return Array(tensor.detach().cpu().contiguous().numpy())


def _unpacked(array: Array, shape: tuple[int, ...]) -> Tensor:
    """A float32 array of a certain shape; its own header is checked too, since what is announced may differ."""
    announced = (array.stype, array.dtype, tuple(array.shape))
    reject_unless(announced == ("numpy.ndarray", "float32", shape), f"an array {announced}, not float32 {shape}")
    largest = 4 * int(np.prod(shape, dtype=np.int64)) + _HEADER
    reject_unless(len(array.data) <= largest, f"an array of {len(array.data)} bytes, above {largest}")
    try:
        numbers = array.numpy()
    except Exception as error:  # Whatever NumPy finds wrong with bytes of a stranger.
        raise RejectedReplyError(f"an array that cannot be read: {error}") from error
    real = (str(numbers.dtype), numbers.shape)
    reject_unless(real == ("float32", shape), f"an array that is {real}, not float32 {shape}")
    return torch.from_numpy(np.array(numbers))


def _names(kind: str, given: Mapping[str, object], wanted: set[str]) -> None:
    found = {str(name) for name in given}
    missing, further = sorted(wanted - found), sorted(found - wanted)
    reject_unless(not missing, f"{kind} are missing: {missing}")
    reject_unless(not further, f"there are further {kind}: {further[:5]}")


def _counts(value: object) -> Tensor:
    whole = isinstance(value, list) and all(type(each) is int and abs(each) < 2**62 for each in value)
    reject_unless(whole, "counts by model that are not integers")
    return torch.tensor(value, dtype=torch.int64)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise RejectedReplyError(f"{value!r} is not an integer")
    return value


def _list(value: object) -> list[Any]:
    require(isinstance(value, list), f"{value!r} is no list")
    assert isinstance(value, list)
    return value


def pack_identity(name: str, partition: int | None) -> RecordDict:
    """Which client a node has."""
    return RecordDict({"client": ConfigRecord({"name": name, "partition": -1 if partition is None else partition})})


def unpack_identity(records: RecordDict) -> tuple[str, int | None]:
    """The client's name and its partition, if it has one; raises `RejectedReplyError` where ``records`` do not say."""
    _names("records", records, {"client"})
    reject_unless("client" in records.config_records, "records of other kinds")
    about = records.config_records["client"]
    _names("keys", about, {"name", "partition"})
    name, partition = about["name"], _whole(about["partition"])
    if not isinstance(name, str) or re.fullmatch(CLIENT_NAME, name) is None:
        raise RejectedReplyError(f"{name!r:.200} is no name of a client")
    reject_unless(-1 <= partition < 2**31, f"{partition} is no partition")
    return name, None if partition < 0 else partition
