"""The messages of secure sums as Flower's records: JSON in one, the masked blocks as an array beside it."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from shoal_flower.secure_sums.protocol_messages import (
    Answer,
    BlockShares,
    Card,
    CountShares,
    Letters,
    Masked,
    Question,
    RefusedError,
    read_answer,
    read_question,
    written,
)

_NAME, _BLOCKS = "secure", "blocks"
_KINDS: dict[str, type[Answer]] = {
    "opening": Card,
    "roster": Letters,
    "delivery": Masked,
    "members": CountShares,
    "transcript": BlockShares,
}


def pack_question(question: Question, offer: RecordDict | None = None) -> RecordDict:
    """The records of a question, with those of an ``offer``."""
    return RecordDict({**(offer or {}), _NAME: ConfigRecord({"text": written(question)})})


def unpack_question(records: RecordDict) -> Question:
    """The question in ``records``; raises `RefusedError` where there is none."""
    if _NAME not in records.config_records:
        raise RefusedError("no question of a secure sum")
    return read_question(str(records.config_records[_NAME].get("text")))


def pack_answer(answer: Answer, blocks: NDArray | None = None) -> RecordDict:
    """The records of an answer, with masked blocks where it has some."""
    records = RecordDict({_NAME: ConfigRecord({"text": written(answer)})})
    if blocks is not None:
        records[_BLOCKS] = ArrayRecord({_BLOCKS: Array(blocks.view(f"<i{blocks.dtype.itemsize}"))})
    return records


def unpack_answer(records: RecordDict, question: Question) -> tuple[Answer, bytes]:
    """The answer to ``question`` in ``records``, and its masked blocks; raises `RefusedError` where there is none."""
    if _NAME not in records.config_records:
        raise RefusedError("no answer of a secure sum")
    answer = read_answer(_KINDS[question.stage], str(records.config_records[_NAME].get("text")))
    if not isinstance(answer, Masked):
        return answer, b""
    arrays = records.array_records.get(_BLOCKS, ArrayRecord())
    if list(arrays) != [_BLOCKS] or arrays[_BLOCKS].dtype not in ("int32", "int64"):
        raise RefusedError("masked numbers without blocks of integers")
    try:
        return answer, arrays[_BLOCKS].numpy().astype(np.dtype(arrays[_BLOCKS].dtype).newbyteorder("<")).tobytes()
    except (ValueError, TypeError) as error:
        raise RefusedError(f"blocks that cannot be read: {error}") from error
