"""The messages of one secure sum: five questions from the server, and five answers from each client.

- `Opening` -> `Card`: a client's signed public keys for this sum.
- `SumMembers` -> `Letters`: sealed shares of the client's secrets, one letter per other client.
- `Delivery`, with the offer of models -> `Masked`: the client's masked counts and blocks.
- `Members` -> `CountShares`: shares of the members' seeds for counts, and of the other clients' mask keys.
- `Transcript`, which reveals the counts -> `BlockShares`: shares of the seeds for the blocks of large clusters.

Messages travel as JSON with bytes in base64. The masked blocks travel beside the JSON as arrays.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from shoal.core.errors import ShoalError
from shoal.metrics.intervals import Ints
from shoal_flower.flower_config import CLIENT_NAME
from shoal_flower.secure_sums.primitives import derive_key, is_signed, is_usable, mask_of, public_of, shared_key

_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", extra="forbid")

Name = Annotated[str, Field(pattern=rf"^{CLIENT_NAME}$")]
Key = Annotated[bytes, Field(min_length=32, max_length=32)]
SumKind = Literal["train", "histograms"]
"""The summed numbers: a round's updates, or histograms of losses after the round."""

COUNTS = np.dtype("<u4")
"""The type of a count; sums are modulo 2^32."""


class RefusedError(ShoalError):
    """The refusal of a question, or the rejection of an answer."""


@dataclass(frozen=True)
class Session:
    """The name of one secure sum.

    Args:
        run: a random name for the server's process, 32 hexadecimal digits.
        number: the sum's number in the run, from 1.
        kind: the kind of the summed numbers.
    """

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    number: Annotated[int, Field(ge=1)]
    kind: SumKind


@dataclass(frozen=True)
class Opening:
    """The server's first question, with the run's configuration as TOML and the number of clusters.

    A sum of histograms has two clusters per cluster of the run, one per half of the cluster's clients (`half_of`).
    """

    session: Session
    config: str
    clusters: Annotated[int, Field(ge=1, le=1000)]
    stage: Literal["opening"] = "opening"


@dataclass(frozen=True)
class Card:
    """A client's public keys for one sum.

    Args:
        key: the node's long-term public key, in OpenSSH's format.
        letters: the X25519 public key for letters.
        mask: the X25519 public key for pairwise masks.
        seeds: SHA-256 hashes of the seeds of the client's self-masks, one for the counts and one per block.
        signature: the signature with ``key`` of the other fields, the session and the configuration.
    """

    name: Name
    key: Annotated[str, Field(max_length=2000)]
    letters: Key
    mask: Key
    seeds: tuple[Key, ...]
    signature: bytes = b""
    __pydantic_config__ = _BASE64

    @property
    def has_usable_keys(self) -> bool:
        """Whether other clients can use the client's keys."""
        return is_usable(self.letters) and is_usable(self.mask)

    def signed_part(self, session: Session, config: str) -> bytes:
        """Return the bytes that the signature covers."""
        fields = (self.name, self.key, self.letters.hex(), self.mask.hex(), [seed.hex() for seed in self.seeds])
        return _canonical("card", asdict(session), config, fields)


@dataclass(frozen=True)
class SumMembers:
    """The cards of all clients."""

    session: Session
    cards: tuple[Card, ...]
    stage: Literal["roster"] = "roster"


@dataclass(frozen=True)
class Letters:
    """Sealed letters to the other clients, by name."""

    letters: dict[Name, bytes]
    stage: Literal["letters"] = "letters"
    __pydantic_config__ = _BASE64


@dataclass(frozen=True)
class Delivery:
    """The other clients' letters, by name."""

    session: Session
    letters: dict[Name, bytes]
    stage: Literal["delivery"] = "delivery"
    __pydantic_config__ = _BASE64


@dataclass(frozen=True)
class Masked:
    """Masked counts (K,) with their signature; the masked blocks travel beside this message."""

    counts: bytes
    signature: bytes
    stage: Literal["masked"] = "masked"
    __pydantic_config__ = _BASE64


@dataclass(frozen=True)
class Members:
    """The names of the clients in the sum."""

    session: Session
    names: tuple[Name, ...]
    stage: Literal["members"] = "members"


@dataclass(frozen=True)
class CountShares:
    """A secret share of each member's seed for counts, and of each other client's mask key, by name."""

    shares: dict[Name, Key]
    stage: Literal["count shares"] = "count shares"
    __pydantic_config__ = _BASE64


@dataclass(frozen=True)
class Transcript:
    """The numbers that reveal the counts: the members' masked counts and seeds, and the other clients' mask keys."""

    session: Session
    counts: dict[Name, Masked]
    secrets: dict[Name, Key]
    stage: Literal["transcript"] = "transcript"
    __pydantic_config__ = _BASE64


@dataclass(frozen=True)
class BlockShares:
    """A secret share of each member's seed for each block to reveal, by cluster and name."""

    shares: dict[int, dict[Name, Key]]
    stage: Literal["block shares"] = "block shares"
    __pydantic_config__ = _BASE64


Question = Opening | SumMembers | Delivery | Members | Transcript
Answer = Card | Letters | Masked | CountShares | BlockShares
_Message = TypeVar("_Message", bound=Question | Answer)
_QUESTIONS: TypeAdapter[Question] = TypeAdapter(Annotated[Question, Field(discriminator="stage")])


def to_json(message: Question | Answer) -> str:
    """Convert a message to JSON."""
    return TypeAdapter(type(message)).dump_json(message).decode()


def read_question(text: str) -> Question:
    """Read a question from JSON, or raise `RefusedError`."""
    try:
        return _QUESTIONS.validate_json(text)
    except ValidationError as error:
        raise RefusedError(f"the message is not a question of a secure sum: {error.errors()[0]['msg']}") from error


def read_answer(kind: type[_Message], text: str) -> _Message:
    """Read an answer of this ``kind`` from JSON, or raise `RefusedError`."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise RefusedError(f"the answer must be a {kind.__name__}: {error.errors()[0]['msg']}") from error


def threshold_of(clients: int, share: float) -> int:
    """Return the number t of clients whose shares reveal a secret: more than the fraction ``share`` of all clients.

    A dishonest server that sends different lists of members to the n clients needs the help of at least 2 t - n
    clients. With ``share`` = 2 / 3, a dishonest server needs the help of at least a third of the clients.

    >>> [threshold_of(n, 2 / 3) for n in (3, 4, 20)]
    [3, 3, 14]
    """
    return min(clients, math.floor(share * clients + 1e-9) + 1)


def may_be_compared(members: Iterable[str], others: Iterable[str], least: int) -> bool:
    """Return whether the members of two sums over the same models are equal or differ by at least ``least`` clients."""
    return (apart := {*members} ^ {*others}) == set() or len(apart) >= least


def _canonical(*parts: object) -> bytes:
    return json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()


def binding_of(session: Session, config: str, cards: Sequence[Card], sharers: Sequence[str], offer: bytes) -> bytes:
    """Return a digest of everything that clients must agree on: cards, senders of letters, and the offer.

    Masks depend on the digest. If a server sends different models to different clients (Pasquini et al., CCS 2022),
    their masks do not cancel and the server receives noise.
    """
    roster = [(card.signed_part(session, config).hex(), card.signature.hex()) for card in cards]
    return hashlib.sha256(_canonical("sum", sorted(roster), sorted(sharers), offer.hex())).digest()


def half_of(name: str, sharers: Sequence[str], digest: bytes) -> int:
    """Return the half of a cluster, 0 or 1, for the client ``name`` in a sum of histograms.

    The server cannot choose the halves, because ``digest`` covers keys that the clients drew and signed.
    """
    order = sorted(sharers, key=lambda other: hashlib.sha256(_canonical("half", digest.hex(), other)).digest())
    return order.index(name) % 2


def counts_part(binding: bytes, counts: bytes) -> bytes:
    """Return the bytes that the signature of masked counts covers."""
    return _canonical("counts", binding.hex(), counts.hex())


def pair_mask(
    private: bytes, one: Card, other: Card, binding: bytes, label: bytes, shape: tuple[int, ...], dtype: np.dtype
) -> NDArray:
    """Return the pairwise mask of the client ``one``, which the mask of the client ``other`` cancels.

    Args:
        private: the private mask key of either client.
        label: the name of the masked numbers.
    """
    public = other.mask if public_of(private) == one.mask else one.mask
    mask = mask_of(shared_key(private, public, b"pair", label, binding), shape, dtype)
    return mask if one.name < other.name else -mask


def own_mask(seed: bytes, binding: bytes, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """Return a client's self-mask for a seed."""
    return mask_of(derive_key(seed, b"own", binding), shape, dtype)


def opened_counts(transcript: Transcript, cards: Mapping[str, Card], sharers: Sequence[str], binding: bytes) -> Ints:
    """Return the number of members per cluster, (K,), from the transcript.

    Args:
        sharers: the names of the clients that sent letters.

    Raises:
        RefusedError: the transcript contradicts the clients' signatures, or the counts do not add up to the members.
    """
    members, left = list(transcript.counts), [name for name in sharers if name not in transcript.counts]
    refuse_unless(set(members) <= set(sharers), "a member has sent no letters")
    refuse_unless(transcript.secrets.keys() == set(sharers), "the transcript must have one secret per client")
    total = np.zeros(len(cards[members[0]].seeds) - 1, COUNTS)
    for name in members:
        sent, card, seed = transcript.counts[name], cards[name], transcript.secrets[name]
        fits = len(sent.counts) == total.nbytes and is_signed(
            card.key, sent.signature, counts_part(binding, sent.counts)
        )
        refuse_unless(fits, f"'{name}' has not signed the counts")
        refuse_unless(hashlib.sha256(seed).digest() == card.seeds[0], f"the seed does not belong to '{name}'")
        total += np.frombuffer(sent.counts, COUNTS) - own_mask(seed, binding, total.shape, COUNTS)
    for name in left:
        private = transcript.secrets[name]
        refuse_unless(public_of(private) == cards[name].mask, f"the mask key does not belong to '{name}'")
        for member in members:
            total -= pair_mask(private, cards[member], cards[name], binding, b"counts", total.shape, COUNTS)
    counts = total.astype(np.int64)
    refuse_unless(
        int(counts.sum()) == len(members),
        f"the counts do not add up to {len(members)} clients: a client received other messages, or breaks the protocol",
    )
    return counts


def refuse_unless(condition: bool, reason: str) -> None:
    """Raise `RefusedError` with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise RefusedError(reason)


_NAME, _BLOCKS = "secure", "blocks"
_KINDS: dict[str, type[Answer]] = {
    "opening": Card,
    "roster": Letters,
    "delivery": Masked,
    "members": CountShares,
    "transcript": BlockShares,
}


def pack_question(question: Question, offer: RecordDict | None = None) -> RecordDict:
    """Pack a question, with an ``offer`` if given."""
    return RecordDict({**(offer or {}), _NAME: ConfigRecord({"text": to_json(question)})})


def unpack_question(records: RecordDict) -> Question:
    """Unpack a question, or raise `RefusedError`."""
    if _NAME not in records.config_records:
        raise RefusedError("the message is not a question of a secure sum")
    return read_question(str(records.config_records[_NAME].get("text")))


def pack_answer(answer: Answer, blocks: NDArray | None = None) -> RecordDict:
    """Pack an answer, with its masked ``blocks`` if given."""
    records = RecordDict({_NAME: ConfigRecord({"text": to_json(answer)})})
    if blocks is not None:
        records[_BLOCKS] = ArrayRecord({_BLOCKS: Array(blocks.view(f"<i{blocks.dtype.itemsize}"))})
    return records


def unpack_answer(records: RecordDict, question: Question) -> tuple[Answer, bytes]:
    """Unpack the answer to ``question``, and its masked blocks, or raise `RefusedError`."""
    if _NAME not in records.config_records:
        raise RefusedError("the message is not an answer of a secure sum")
    answer = read_answer(_KINDS[question.stage], str(records.config_records[_NAME].get("text")))
    if not isinstance(answer, Masked):
        return answer, b""
    arrays = records.array_records.get(_BLOCKS, ArrayRecord())
    if list(arrays) != [_BLOCKS] or arrays[_BLOCKS].dtype not in ("int32", "int64"):
        raise RefusedError("the masked blocks must be integers")
    try:
        return answer, arrays[_BLOCKS].numpy().astype(np.dtype(arrays[_BLOCKS].dtype).newbyteorder("<")).tobytes()
    except (ValueError, TypeError) as error:
        raise RefusedError(f"the masked blocks cannot be read: {error}") from error
