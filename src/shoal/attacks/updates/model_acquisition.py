"""Global model acquisition: sybils that obtain the models of all clusters from a server that sends a client only one.

Source: Kim et al., "Exploring Clustered Federated Learning's Vulnerability against Property Inference Attack", RAID
2023, Appendix A, on Sattler et al.'s CFL. A newcomer is sent the models of the splits on its way down the tree. The
first sybil answers with honest updates; the next ones send antiparallel vectors, and so end up in other clusters. The
paper leaves open in which order: here each sybil makes use of all that the ones before it were sent (`SybilPaths`).

The attacker sees models alone. One that is sent in two rounds with the same bits no longer trains, so a split comes
after it; a cluster's model is another one in every round. A reply to a model leads to the next model that the sybil is
sent, and to the same one again where the server refused it.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.core.settings import PositiveFloat, settings
from shoal.data.shards import Shards
from shoal.engine import MaliciousTraining, State, Tensors, Training


@dataclass(frozen=True, eq=False)
class ReceivedModels:
    """A model that a sybil was sent, and its reply.

    Args:
        round: its number.
        sybil: id of the client.
        model: (P,) what it was sent.
        reply: which of the attacker's replies it sent, from 0.
        update: (P,) that reply.
    """

    round: int
    sybil: int
    model: Tensor
    reply: int
    update: Tensor
    __repr__ = one_line

    @cached_property
    def key(self) -> bytes:
        """Equal for models with the same bits."""
        return key_of(self.model)


def key_of(model: Tensor) -> bytes:
    """A hash of a model (P,), equal for those with the same bits."""
    return hashlib.blake2b(model.detach().cpu().contiguous().numpy().tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class HarvestedModel:
    """A cluster's model as a sybil was sent it.

    Args:
        round: its number.
        sybil: which sybil, numbered from 1.
        cluster: whose model it is; the attacker is not told.
        model: (P,).
    """

    round: int
    sybil: int
    cluster: int
    model: Tensor
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class Acquisition:
    """Models that sybils obtained.

    Args:
        harvest: the models of honest clients' clusters, in order of rounds.
        clusters: (K,) int64, the honest clients' clusters in the end.
        joined: the round in which each sybil joined.
        received: all that the attacker saw, models of splits too.
        state: of the federation, sybils included, after the last round.
    """

    harvest: tuple[HarvestedModel, ...]
    clusters: Tensor
    joined: tuple[int, ...]
    received: tuple[ReceivedModels, ...]
    state: State
    __repr__ = one_line

    def share(self, sybils: int | None = None, upto: int | None = None) -> float:
        """The share of the clusters of which a model was obtained, by the first ``sybils`` and until round ``upto``."""
        obtained = {
            harvested.cluster
            for harvested in self.harvest
            if (sybils is None or harvested.sybil <= sybils) and (upto is None or harvested.round <= upto)
        }
        return len(obtained & set(self.clusters.tolist())) / len(self.clusters)

    def latest(self) -> dict[int, HarvestedModel]:
        """The last model that was obtained of each cluster."""
        current = set(self.clusters.tolist())
        return {harvested.cluster: harvested for harvested in self.harvest if harvested.cluster in current}


@settings
class ModelAcquisition:
    """Sybils that join one after another and choose their updates by what all of them have been sent.

    A sybil answers each model with one of ``replies``, which `SybilPaths.choice` chooses, and the same reply to the
    same model is the same update:

    - "honest": the update of local training on the attacker's examples;
    - "antiparallel": its opposite, the paper's;
    - "away": the opposite of the sum of the directions in which the models lie that replies to this one led to;
    - "random": a random direction.

    Args:
        replies: in the order in which they are tried at a split; the first is sent to models that are new.
        scale: of all updates, in norms of an honest one. Cosines do not depend on it, but a long update from a cluster
            where it does not belong makes CFL divide that cluster, and the sybil is left with a model of its own. The
            paper's is 1.

    Example:
        >>> from dataclasses import replace
        >>> import torch, shoal
        >>> from shoal.attacks import ModelAcquisition
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other] + [one] * 2, test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     local, algorithm = shoal.LocalSGD(steps=5, learning_rate=1.0), shoal.CFL(eps1=0.4, eps2=1.0)
        ...     training = shoal.Training(federation, algorithm, local, engine, shoal.Stream(0))
        ...     honest = replace(training, federation=federation.take(torch.arange(4)))
        ...     *_, (state, _) = honest.rounds(honest.start(), 3)
        ...     sybil = federation.clients.take(torch.tensor([4]))
        ...     acquired = ModelAcquisition().acquire(training, state, sybil, rounds=6, every=2)
        ...
        >>> acquired.share(1), acquired.share(2)
        (0.5, 1.0)
    """

    replies: Annotated[tuple[Literal["honest", "antiparallel", "away", "random"], ...], Field(min_length=1)] = (
        "honest",
        "antiparallel",
    )
    scale: PositiveFloat = 0.01

    def reply(
        self, received: Sequence[ReceivedModels], number: int, model: Tensor, honest: Tensor, stream: Stream
    ) -> tuple[int, Tensor]:
        """Reply of a sybil in round ``number``: its position in ``replies``, and the update (P,).

        Args:
            received: by all sybils until now.
            number: of the round.
            model: (P,) that the sybil is sent.
            honest: (P,) the update of local training from that model.
            stream: of random directions.
        """
        paths = SybilPaths(received, len(self.replies))
        chosen = paths.choice(model, number)
        before = paths.sent(model, chosen)
        if before is not None:
            return chosen, before
        kind, next_models = self.replies[chosen], paths.next_models(model)
        if kind == "random":
            direction = torch.randn(len(model), generator=stream("reply", chosen, len(received)).generator()).to(model)
        elif kind == "away" and next_models:
            direction = -normalize(torch.stack(next_models) - model, dim=1).sum(dim=0)
        else:
            direction = honest if kind == "honest" else -honest
        return chosen, self.scale * honest.norm() * normalize(direction, dim=0)

    def acquire(
        self, training: Training, state: State, examples: Shards, *, rounds: int, every: int = 1
    ) -> Acquisition:
        """Let sybils join a federation, and play its rounds with them.

        Sybils know how clients train and, as all clients, the model that `Algorithm.plan` sends them in a round.
        Further sybils join until nothing is unknown to the attacker.

        Args:
            training: whose federation has the clients of ``state`` first, and then the sybils as they join. Their
                examples are not read, but their number counts in averages.
            state: before the first sybil joins.
            examples: the attacker's, of one owner.
            rounds: that are played.
            every: rounds from one sybil's joining to the next; at least as many as there are splits on a way, one
                more, and every sybil knows what became of the one before it.

        Raises:
            InputError: no rounds, no sybils, examples of several owners, or training diverged.
        """
        honest, stream = len(state.assignment), training.stream("sybils")
        require(rounds >= 1 and every >= 1, f"'rounds' and 'every' must be at least 1; got {rounds} and {every}")
        require(len(training.federation) > honest, f"needs sybils after the {honest} clients of the state; got none")
        require(len(examples) == 1, f"'examples' must be of one owner; got {len(examples)}")
        received, harvest, joined = list[ReceivedModels](), list[HarvestedModel](), list[int]()
        for played in range(rounds):
            waiting = len(training.federation) - honest - len(joined)
            if waiting and played % every == 0 and not SybilPaths(received, len(self.replies)).finished:
                joined.append(state.round + 1)
            present = training.federation.take(torch.arange(honest + len(joined)))
            now = replace(training, federation=present)
            state = now.with_newcomers(state) if len(present) > len(state.assignment) else state
            updates = dict[int, Tensor]()
            for client, model in _sent(now, state):
                if client < honest:
                    continue
                update = _honest_update(now, state.round + 1, model, examples, stream)
                sybil = int(present.ids[client])
                chosen, update = self.reply(received, state.round + 1, model, update, stream)
                received.append(ReceivedModels(state.round + 1, sybil, model, chosen, update))
                updates[sybil] = model + update
                of_honest = state.assignment[:honest].unique().tolist()
                harvest += [
                    HarvestedModel(state.round + 1, client - honest + 1, k, model)
                    for k in of_honest
                    if k >= 0 and torch.equal(state.models[k], model)
                ]
            state, _ = replace(now, malicious_clients=_Prepared(updates)).round(state)
        clusters = state.assignment[:honest].unique()
        return Acquisition(tuple(harvest), clusters[clusters >= 0], tuple(joined), tuple(received), state)


def _sent(training: Training, state: State) -> list[tuple[int, Tensor]]:
    """The clients of the round after ``state``, positions in the federation, and the model (P,) that each is sent."""
    cohort = training.cohort_of(state, training.cohort(state.round + 1))
    if not len(cohort):
        return []
    plan = training.algorithm.plan(state, cohort)
    (first, *_) = [training for training in plan.trainings if training.weights is not None]
    return list(zip(cohort.clients.tolist(), first.initial_rows(), strict=True))


def _honest_update(training: Training, number: int, model: Tensor, examples: Shards, stream: Stream) -> Tensor:
    """Update (P,) of local training from ``model``; the same one whenever a sybil is sent that model."""
    local, engine = training.local.at_round(number), training.engine
    drawn = local.randomness(examples, torch.zeros(1, dtype=torch.int64), stream("batches"))
    ((_, end),) = engine.train(model[None], torch.zeros(1, dtype=torch.int64), examples, drawn, local)
    return end[0].cpu() - model


@dataclass(frozen=True)
class _Prepared:
    """Malicious clients whose ends (P,), by id, are known before the round."""

    ends: Mapping[int, Tensor] = field(default_factory=dict)
    __repr__ = one_line

    @property
    def clients(self) -> Tensor:
        return torch.tensor(list(self.ends), dtype=torch.int64)

    def start(self, state: State, stream: Stream) -> Tensors:
        del state, stream
        return {}

    def train(self, request: MaliciousTraining) -> tuple[Tensor, Tensors]:
        return self.ends[request.client], request.state.adversary


class SybilPaths:
    """The tree of all that sybils were sent.

    Args:
        received: in the order in which it was sent.
        replies: number of replies to each model.
    """

    def __init__(self, received: Sequence[ReceivedModels], replies: int) -> None:
        self._replies = range(replies)
        self._rounds = defaultdict[bytes, set[int]](set)
        self._sent = dict[tuple[bytes, int], Tensor]()
        self._next = defaultdict[tuple[bytes, int], dict[bytes, Tensor]](dict)
        self._first = dict[int, bytes]()
        last = dict[int, ReceivedModels]()
        for item in received:
            self._rounds[item.key].add(item.round)
            self._sent[item.key, item.reply] = item.update
            self._first.setdefault(item.sybil, item.key)
            before = last.get(item.sybil)
            if before is not None and before.key != item.key:
                self._next[before.key, before.reply].setdefault(item.key, item.model)
            last[item.sybil] = item

    def choice(self, model: Tensor, number: int) -> int:
        """The reply of a sybil that is sent a model (P,) in round ``number``.

        The first to a model that was never sent before; to a known one the first that no sybil has tried, or else the
        one that leads the soonest to something unknown.
        """
        key = key_of(model)
        if not any(sent < number for sent in self._rounds[key]):
            return 0
        untried = [reply for reply in self._replies if (key, reply) not in self._sent]
        return untried[0] if untried else min(self._replies, key=lambda reply: self._behind(key, reply, {key}))

    def sent(self, model: Tensor, reply: int) -> Tensor | None:
        """The update (P,) that a sybil has sent as this reply to this model; None where nobody has."""
        return self._sent.get((key_of(model), reply))

    def next_models(self, model: Tensor) -> list[Tensor]:
        """The models (P,) to which the replies to ``model`` first led, of the replies that led anywhere."""
        key = key_of(model)
        return [next(iter(self._next[key, reply].values())) for reply in self._replies if self._next.get((key, reply))]

    @property
    def finished(self) -> bool:
        """True if nothing is unknown: every way leads to models that were tried in all ways, or to a cluster's."""
        firsts = set(self._first.values())
        if len(firsts) != 1:
            # Two newcomers were sent two models, so nothing comes before a cluster's.
            return len(firsts) > 1
        return math.isinf(self._steps(next(iter(firsts)), set()))

    def _steps(self, key: bytes, above: set[bytes]) -> float:
        """Replies from a model to something unknown: 0 where it is unknown whether a split comes after it."""
        if len(self._rounds[key]) < 2:
            return 0
        if any((key, reply) not in self._sent for reply in self._replies):
            return 1
        return min(self._behind(key, reply, above | {key}) for reply in self._replies)

    def _behind(self, key: bytes, reply: int, above: set[bytes]) -> float:
        """`_steps` by way of a reply; infinite where it leads to a cluster's model, to one above it, or nowhere."""
        reached = self._next.get((key, reply), {})
        # Sent the same, two sybils are at the same place; if their models differ, it is that of a cluster.
        if len(reached) != 1 or (after := next(iter(reached))) in above:
            return math.inf
        return 1 + self._steps(after, above)
