"""A client's side of one secure sum: the answers to five questions, each once and in order."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from shoal_flower.secure_sums.primitives import (
    BYTES,
    KnownKeys,
    NodeKey,
    draw_secret,
    is_signed,
    public_of,
    seal,
    shared_key,
    shares_of,
    unseal,
)
from shoal_flower.secure_sums.protocol_messages import (
    COUNTS,
    BlockShares,
    Card,
    CountShares,
    Delivery,
    Letters,
    Masked,
    Members,
    Session,
    SumMembers,
    Transcript,
    binding_of,
    counts_part,
    half_of,
    may_be_compared,
    opened_counts,
    own_mask,
    pair_mask,
    refuse_unless,
    threshold_of,
)


@dataclass(frozen=True)
class Participant:
    """A client in one secure sum; each method returns the client's next state and its answer.

    Each question is answered once, because a second answer with the same secrets could be subtracted from the first. In
    particular, `count_shares` never reveals both a seed and the mask key of one client.

    Args:
        config: the run's configuration from the server, which the clients' signatures cover.
        seeds: the seeds of the client's self-masks, one for the counts and one per block.
        share: a fraction; more than this fraction of the clients must help to reveal a sum (`threshold_of`).
        stage: the number of questions that the client has answered.
        cards: the public keys (`Card`) of all clients, sorted by name.
        sharers: the names of the clients that sent letters.
        held: secret shares of other clients, by name: the share of the mask key, and the shares of the seeds.
        binding: the digest of everything that clients must agree on; see `binding_of`.
        subjects: digests of the models and of the choice, to compare the sum's members with other sums' members.
        members: the names of the clients in the sum.
    """

    session: Session
    config: str
    card: Card
    letters_key: bytes = field(repr=False)
    mask_key: bytes = field(repr=False)
    seeds: tuple[bytes, ...] = field(repr=False)
    share: float = 2 / 3
    stage: int = 1
    cards: tuple[Card, ...] = ()
    sharers: tuple[str, ...] = ()
    held: dict[str, tuple[bytes, ...]] = field(default_factory=dict, repr=False)
    binding: bytes = b""
    subjects: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    __pydantic_config__ = Card.__pydantic_config__

    @staticmethod
    def begin(session: Session, config: str, name: str, key: NodeKey, clusters: int, share: float) -> "Participant":
        """Draw new secrets for a client, and sign a card of the public keys and hashes. ``clusters`` is K."""
        letters_key, mask_key, *seeds = (draw_secret() for _ in range(clusters + 3))
        hashes = tuple(hashlib.sha256(seed).digest() for seed in seeds)
        card = Card(name, key.public, public_of(letters_key), public_of(mask_key), hashes)
        card = replace(card, signature=key.sign(card.signed_part(session, config)))
        return Participant(session, config, card, letters_key, mask_key, tuple(seeds), share)

    def letters(self, roster: SumMembers, known: KnownKeys, least: int) -> tuple["Participant", Letters]:
        """Return sealed shares of the client's secrets for each other client in ``roster``.

        Args:
            least: the smallest allowed number of clients whose shares reveal the sum.

        Raises:
            RefusedError: the question is out of order; a card has a wrong signature or unusable keys, or belongs to
                another sum; the client's own card is missing; or fewer than ``least`` clients could reveal the sum.
        """
        self._require(roster.session, 1)
        cards = tuple(sorted(roster.cards, key=lambda card: card.name))
        fault = known.fault((card.name, card.key) for card in cards)
        refuse_unless(not fault, fault)
        refuse_unless(self.card in cards, "the client's own card is missing")
        for card in cards:
            signed = is_signed(card.key, card.signature, card.signed_part(self.session, self.config))
            refuse_unless(signed, f"the card of '{card.name}' is not signed by its node for this sum")
            refuse_unless(
                len(card.seeds) == len(self.seeds), f"the card of '{card.name}' has another number of clusters"
            )
            refuse_unless(card.has_usable_keys, f"the card of '{card.name}' has a key of small order")
        threshold = threshold_of(len(cards), self.share)
        refuse_unless(threshold >= least, f"{threshold} clients can open the sum; at least {least} must be required")
        split = [shares_of(secret, threshold, len(cards)) for secret in (self.mask_key, *self.seeds)]
        letters, held = dict[str, bytes](), dict[str, tuple[bytes, ...]]()
        digest = binding_of(self.session, self.config, cards, (), b"")
        for card, *shares in zip(cards, *split, strict=True):
            if card.name == self.card.name:
                held[card.name] = tuple(shares)
            else:
                letters[card.name] = seal(self._letter_key(card, self.card.name, digest), b"".join(shares))
        known.pin({card.name: card.key for card in cards})
        return replace(self, stage=2, cards=cards, held=held), Letters(letters)

    def half(self, delivery: Delivery) -> int:
        """Return the client's half of its cluster, 0 or 1."""
        sharers = sorted({self.card.name, *delivery.letters})
        digest = binding_of(self.session, self.config, self.cards, sharers, b"")
        return half_of(self.card.name, sharers, digest)

    def masked(
        self,
        delivery: Delivery,
        offer: bytes,
        cluster: int,
        block: NDArray,
        key: NodeKey,
        subjects: Sequence[str] = (),
    ) -> tuple["Participant", Masked, NDArray]:
        """Return the client's masked counts and blocks (K, L).

        Args:
            block: the block of the client's cluster, (L,); other clusters have zeros.

        Raises:
            RefusedError: the question is out of order, or too few clients sent letters.
        """
        self._require(delivery.session, 2)
        mine, cards = self.card.name, {card.name: card for card in self.cards}
        others = set(delivery.letters)
        refuse_unless(others < set(cards) and mine not in others, "a letter comes from a client that is not in the sum")
        sharers = tuple(sorted({mine, *others}))
        refuse_unless(
            len(sharers) >= self.threshold, f"{len(sharers)} clients sent letters; {self.threshold} are needed"
        )
        held, digest = dict(self.held), binding_of(self.session, self.config, self.cards, (), b"")
        for name, letter in delivery.letters.items():
            # A damaged letter gives no share, but enough other clients may have shares.
            try:
                text = unseal(self._letter_key(cards[name], name, digest), letter)
            except ValueError:
                continue
            if len(text) == BYTES * (1 + len(self.seeds)):
                held[name] = tuple(text[i : i + BYTES] for i in range(0, len(text), BYTES))
        binding = binding_of(self.session, self.config, self.cards, sharers, offer)
        clusters = len(self.seeds) - 1
        counts, blocks = np.zeros(clusters, COUNTS), np.zeros((clusters, *block.shape), block.dtype)
        counts[cluster], blocks[cluster] = 1, block
        counts += own_mask(self.seeds[0], binding, counts.shape, COUNTS)
        for k, seed in enumerate(self.seeds[1:]):
            blocks[k] += own_mask(seed, binding, block.shape, block.dtype)
        for other in (cards[name] for name in sharers if name != mine):
            pair = partial(pair_mask, self.mask_key, self.card, other, binding)
            counts += pair(b"counts", counts.shape, COUNTS)
            blocks += pair(b"blocks", blocks.shape, block.dtype)
        after = replace(self, stage=3, sharers=sharers, held=held, binding=binding, subjects=tuple(subjects))
        signature = key.sign(counts_part(binding, counts.tobytes()))
        return after, Masked(counts.tobytes(), signature), blocks

    def count_shares(
        self, question: Members, earlier: Sequence[Collection[str]] = (), least: int = 1
    ) -> tuple["Participant", CountShares]:
        """Return the client's shares of the members' seeds for counts, and of the other clients' mask keys.

        Args:
            earlier: the members of each earlier sum with the same `subjects`.
            least: the smallest allowed difference between the members of two sums, as a number of clients.

        Raises:
            RefusedError: the question is out of order, the client is not a member, the sum has too few members, or the
                members differ from an earlier sum's members by fewer than ``least`` clients.
        """
        self._require(question.session, 3)
        members = tuple(sorted(question.names))
        refuse_unless(len(set(members)) == len(members), "a client is a member twice")
        refuse_unless(set(members) <= set(self.sharers), "a member is not in the sum")
        refuse_unless(self.card.name in members, "the sum excludes this client, although it sent its numbers")
        refuse_unless(
            len(members) >= self.threshold, f"the sum has {len(members)} members; {self.threshold} are needed"
        )
        for others in earlier:
            refuse_unless(
                may_be_compared(members, others, least),
                f"the members differ by {len({*members} ^ {*others})} from those of a sum over the same models, and "
                f"must differ by at least {least}",
            )
        shares = {name: self.held[name][1 if name in members else 0] for name in self.sharers if name in self.held}
        return replace(self, stage=4, members=members), CountShares(shares)

    def block_shares(self, transcript: Transcript, least: int) -> tuple["Participant", BlockShares]:
        """Return the client's shares of the block seeds for each cluster that at least ``least`` members chose.

        Raises:
            RefusedError: the question is out of order, the members have changed, or `opened_counts` refuses the
                transcript.
        """
        self._require(transcript.session, 4)
        refuse_unless(transcript.counts.keys() == set(self.members), "the members have changed")
        counts = opened_counts(transcript, {card.name: card for card in self.cards}, self.sharers, self.binding)
        shares = {
            k: {name: self.held[name][2 + k] for name in self.members if name in self.held}
            for k in np.flatnonzero(counts >= least).tolist()
        }
        return replace(self, stage=5), BlockShares(shares)

    @property
    def is_finished(self) -> bool:
        """Whether the client has answered all questions and can delete its secrets."""
        return self.stage == 5

    @property
    def threshold(self) -> int:
        """The number of clients whose shares reveal a secret."""
        return threshold_of(len(self.cards), self.share)

    def to_json(self) -> str:
        """Return the client's state as JSON."""
        return _PARTICIPANTS.dump_json(self).decode()

    @staticmethod
    def read(text: str) -> "Participant":
        """Read a client's state from JSON, or raise ValueError if the text is damaged."""
        return _PARTICIPANTS.validate_json(text)

    def _letter_key(self, other: Card, sender: str, digest: bytes) -> bytes:
        """Return the key of a letter from ``sender`` between this client and ``other``; ``digest`` covers all cards."""
        return shared_key(self.letters_key, other.letters, b"letter", sender.encode(), digest)

    def _require(self, session: Session, stage: int) -> None:
        refuse_unless(session == self.session, "the question belongs to another sum")
        refuse_unless(self.stage == stage, "the question was answered already, or comes too early")


_PARTICIPANTS: TypeAdapter[Participant] = TypeAdapter(Participant)
