"""The server's side of one secure sum: it forwards messages, adds masked numbers and reveals sums."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.metrics.intervals import Ints
from shoal_flower.secure_sums.primitives import KnownKeys, is_signed, public_of, secret_of, subsets, wrong_shares
from shoal_flower.secure_sums.protocol_messages import (
    COUNTS,
    Answer,
    BlockShares,
    Card,
    CountShares,
    Delivery,
    Letters,
    Masked,
    Members,
    Opening,
    Question,
    RefusedError,
    Session,
    SumMembers,
    Transcript,
    binding_of,
    counts_part,
    opened_counts,
    own_mask,
    pair_mask,
    threshold_of,
)

SendQuestions = Callable[[Mapping[str, Question]], Iterator[tuple[str, Answer, bytes]]]
"""A function that sends questions to clients, and yields name, answer and masked blocks of each client in time."""

_Kind = TypeVar("_Kind", bound=Answer)

_TRIES = 5000
"""The largest number of subsets of shares to try, enough for three wrong shares of 30, or two of 100."""


@dataclass(frozen=True)
class ClusterSums:
    """The outcome of a secure sum.

    Args:
        members: the names of the clients in the sum.
        counts: the number of clients per cluster, (K,).
        blocks: the sum of the encoded blocks, (L,), of each revealed cluster.
    """

    members: tuple[str, ...]
    counts: Ints
    blocks: Mapping[int, NDArray]


@dataclass
class CoordinatedSum:
    """One secure sum over clients.

    Args:
        clusters: K, the number of clusters.
        form: a function from the number of clients with cards to the length L of a block and the type of the block's
            numbers.
        share: a fraction; more than this fraction of the clients must help to reveal the sum.
        offer: the digest of the offer to all clients.
        ask: a function that sends questions.
        reject: a function that records a client's name and the reason to reject its answer.
        culprits: the clients that broke the protocol or sent wrong secret shares.
        members: the names of the clients in the sum; empty before the masked blocks arrive.
    """

    session: Session
    config: str
    clusters: int
    form: Callable[[int], tuple[int, np.dtype]]
    share: float
    offer: bytes
    ask: SendQuestions
    reject: Callable[[str, str], object]
    culprits: set[str] = field(default_factory=set)
    members: tuple[str, ...] = ()

    def run(self, names: Sequence[str], known: KnownKeys, least: int) -> ClusterSums:
        """Return the sums over the clients in ``names`` that answer.

        Blocks of clusters with ``least`` or more clients are revealed. New keys of clients are added to ``known``.

        Raises:
            RefusedError: too few clients answered with correct secret shares.
        """
        cards = self._cards(names, known)
        threshold = threshold_of(len(cards), self.share)
        self._enough(cards, max(threshold, least), "sent keys")
        letters = self._letters(cards)
        self._enough(letters, threshold, "sent shares of their secrets")
        sharers = tuple(sorted(letters))
        binding = binding_of(self.session, self.config, list(cards.values()), sharers, self.offer)
        counts, total = self._masked(cards, letters, binding)
        self._enough(counts, threshold, "sent their numbers")
        members = self.members = tuple(sorted(counts))
        secrets, holders = self._secrets(cards, members, sharers, threshold)
        transcript = Transcript(self.session, counts, secrets)
        numbers = opened_counts(transcript, cards, sharers, binding)
        for name in set(sharers) - set(members):
            for member in members:
                total -= pair_mask(
                    secrets[name], cards[member], cards[name], binding, b"blocks", total.shape, total.dtype
                )
        open_clusters = np.flatnonzero(numbers >= least).tolist()
        if not open_clusters:
            return ClusterSums(members, numbers, {})
        shares = self._block_shares(transcript, holders, open_clusters)
        blocks = dict[int, NDArray]()
        for k in open_clusters:
            row = total[k]
            given = {holder: held.get(k, {}) for holder, held in shares.items()}
            for name in members:
                seed = self._secret(cards, name, given, threshold, 1 + k)
                row -= own_mask(seed, binding, row.shape, row.dtype)
            blocks[k] = row
        return ClusterSums(members, numbers, blocks)

    def _cards(self, names: Sequence[str], known: KnownKeys) -> dict[str, Card]:
        cards = dict[str, Card]()
        for name, card, _ in self._answers(
            dict.fromkeys(names, Opening(self.session, self.config, self.clusters)), Card
        ):
            signed = is_signed(card.key, card.signature, card.signed_part(self.session, self.config))
            others = [(other.name, other.key) for other in cards.values()]
            if card.name != name or not signed or len(card.seeds) != self.clusters + 1:
                self.reject(name, "the card is not signed by its node, or has another name or number of seeds")
            elif not card.has_usable_keys:
                self._accuse(name, "other clients cannot use a key of small order")
            elif fault := known.fault([*others, (name, card.key)]):
                self.reject(name, fault)
            else:
                cards[name] = card
        known.pin({name: card.key for name, card in cards.items()})
        return dict(sorted(cards.items()))

    def _letters(self, cards: Mapping[str, Card]) -> dict[str, dict[str, bytes]]:
        """Return the letters of each client that sent one letter to every other client."""
        letters = dict[str, dict[str, bytes]]()
        roster = SumMembers(self.session, tuple(cards.values()))
        for name, answer, _ in self._answers(dict.fromkeys(cards, roster), Letters):
            if answer.letters.keys() == cards.keys() - {name}:
                letters[name] = answer.letters
            else:
                self.reject(name, "the client must send one letter to each other client")
        return letters

    def _masked(
        self, cards: Mapping[str, Card], letters: Mapping[str, Mapping[str, bytes]], binding: bytes
    ) -> tuple[dict[str, Masked], NDArray]:
        """Return the masked counts by client, and the sum of all blocks (K, L)."""
        deliveries: dict[str, Question] = {
            name: Delivery(self.session, {sender: sent[name] for sender, sent in letters.items() if sender != name})
            for name in letters
        }
        length, dtype = self.form(len(cards))
        counts, total = dict[str, Masked](), np.zeros((self.clusters, length), dtype)
        for name, answer, blocks in self._answers(deliveries, Masked):
            fits = len(answer.counts) == self.clusters * COUNTS.itemsize and len(blocks) == total.nbytes
            if fits and is_signed(cards[name].key, answer.signature, counts_part(binding, answer.counts)):
                counts[name] = answer
                total += np.frombuffer(blocks, dtype).reshape(total.shape)
            else:
                self.reject(name, "the masked numbers have another length, or are not signed by the node")
        return counts, total

    def _secrets(
        self, cards: Mapping[str, Card], members: Sequence[str], sharers: Sequence[str], threshold: int
    ) -> tuple[dict[str, bytes], list[str]]:
        """Return each member's seed for counts or other client's mask key, and the holders of shares."""
        questions = dict.fromkeys(members, Members(self.session, tuple(members)))
        given = {holder: answer.shares for holder, answer, _ in self._answers(questions, CountShares)}
        number = {name: 0 if name in members else None for name in sharers}
        return {name: self._secret(cards, name, given, threshold, which) for name, which in number.items()}, list(given)

    def _block_shares(
        self, transcript: Transcript, holders: Sequence[str], clusters: Sequence[int]
    ) -> dict[str, dict[int, dict[str, bytes]]]:
        """Return each holder's shares, by cluster and by the client that owns the seed."""
        shares = dict[str, dict[int, dict[str, bytes]]]()
        for holder, answer, _ in self._answers(dict.fromkeys(holders, transcript), BlockShares):
            if answer.shares.keys() == set(clusters):
                shares[holder] = answer.shares
            else:
                self.reject(holder, "the shares must belong to the requested clusters")
        return shares

    def _answers(self, questions: Mapping[str, Question], kind: type[_Kind]) -> Iterator[tuple[str, _Kind, bytes]]:
        asked = set(questions)
        for name, answer, blocks in self.ask(questions):
            if name not in asked:
                continue
            asked.discard(name)
            if isinstance(answer, kind):
                yield name, answer, blocks
            else:
                self.reject(name, f"the answer is not a {kind.__name__}")

    def _secret(
        self,
        cards: Mapping[str, Card],
        name: str,
        given: Mapping[str, Mapping[str, bytes]],
        threshold: int,
        number: int | None,
    ) -> bytes:
        """Return the seed ``number`` (None: the mask key) of the client ``name``, although some shares may be wrong.

        The order of ``cards`` numbers the holders.
        """
        card, holders = cards[name], [holder for holder in given if holder not in self.culprits]
        numbered = {x: holder for x, holder in enumerate(cards, start=1) if name in given.get(holder, {})}
        shares = {x: given[holder][name] for x, holder in numbered.items() if holder not in self.culprits}
        # More clients lack a share than may help the server, so the client did not send the shares.
        if len(shares) < threshold and len(holders) - len(shares) > len(cards) - threshold:
            self._accuse(name, "the client sent no correct shares of its secrets to other clients")
        self._enough(shares, threshold, f"gave their shares of the secrets of '{name}'")
        for tried, right in enumerate(subsets(shares, threshold, _TRIES)):
            secret = secret_of(right, threshold)
            hashed = hashlib.sha256(secret).digest
            if public_of(secret) == card.mask if number is None else hashed() == card.seeds[number]:
                # If the first subset fits, wrong shares do not matter.
                for x in wrong_shares(right, shares) if tried else ():
                    self._accuse(numbered[x], f"the client sent a wrong share of a secret of '{name}'")
                return secret
        if len(shares) > threshold:
            self._accuse(name, "the client's shares do not reproduce its secret")
        raise RefusedError(f"the shares do not reproduce a secret of '{name}'; nothing is opened")

    def _accuse(self, name: str, reason: str) -> None:
        self.culprits.add(name)
        self.reject(name, reason)

    def _enough(self, answered: Collection[object], least: int, what: str) -> None:
        if len(answered) < least:
            raise RefusedError(f"{len(answered)} clients {what}, and {least} are needed; nothing is opened")
