"""Global model acquisition: sybils obtain all clusters' models from a server that sends each client only one model.

Source: Kim et al., "Exploring Clustered Federated Learning's Vulnerability against Property Inference Attack", RAID
2023, Appendix A (on Sattler et al.'s CFL). CFL splits clusters into a tree, and a new sybil receives the models on its
path down the tree. The first sybil sends honest updates. Later sybils send antiparallel updates, so that CFL assigns
them to other clusters. The paper does not define the sybils' order; here each sybil uses all models that earlier sybils
received (`SybilPaths`).

The attacker sees only models. Equal models in two rounds mean that the model is no longer trained and its cluster is
being split.
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
    """A model that a sybil received, and the reply.

    Args:
        round: the round's number.
        sybil: the sybil's client id.
        model: the received model, (P,).
        reply: the index of the sybil's reply in `ModelAcquisition.replies`.
        update: the update that the sybil sent, (P,).
    """

    round: int
    sybil: int
    model: Tensor
    reply: int
    update: Tensor
    __repr__ = one_line

    @cached_property
    def key(self) -> bytes:
        """The hash of the received model, equal for models with the same bits."""
        return key_of(self.model)


def key_of(model: Tensor) -> bytes:
    """Return a hash of a model (P,), equal for models with the same bits."""
    return hashlib.blake2b(model.detach().cpu().contiguous().numpy().tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class HarvestedModel:
    """A cluster's model that a sybil received.

    Args:
        round: the round's number.
        sybil: the sybil's number, from 1.
        cluster: the model's cluster, which the attacker does not know.
        model: the model's parameters, (P,).
    """

    round: int
    sybil: int
    cluster: int
    model: Tensor
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class Acquisition:
    """The models that sybils obtained.

    Args:
        harvest: the obtained models of honest clients' clusters, in order of rounds.
        clusters: the honest clients' final clusters, (K,) int64.
        join_rounds: the round in which each sybil joined.
        history: all models that sybils received, including models of clusters that were later split.
        state: the federation's state after the last round, with the sybils.
    """

    harvest: tuple[HarvestedModel, ...]
    clusters: Tensor
    join_rounds: tuple[int, ...]
    history: tuple[ReceivedModels, ...]
    state: State
    __repr__ = one_line

    def share(self, sybils: int | None = None, upto: int | None = None) -> float:
        """Return the fraction of clusters whose model the first ``sybils`` sybils obtained by round ``upto``."""
        obtained = {
            harvested.cluster
            for harvested in self.harvest
            if (sybils is None or harvested.sybil <= sybils) and (upto is None or harvested.round <= upto)
        }
        return len(obtained & set(self.clusters.tolist())) / len(self.clusters)

    def latest(self) -> dict[int, HarvestedModel]:
        """Return the last obtained model of each cluster."""
        current = set(self.clusters.tolist())
        return {harvested.cluster: harvested for harvested in self.harvest if harvested.cluster in current}


@settings
class ModelAcquisition:
    """The attack by sybils that join one at a time and choose updates from all models that sybils have received.

    A sybil answers each model with one of ``replies``, chosen by `SybilPaths.choice`. The same reply to the same model
    is always the same update. "honest" is the update of local training on the attacker's examples, and "antiparallel"
    is the opposite of the honest update, as in the paper. "away" points away from the models that followed earlier
    replies to the received model. "random" has a random direction.

    Args:
        replies: the kinds of reply, in the order of trial; a new model gets the first kind.
        scale: the length of every update, relative to the honest update (the paper uses 1). A long update that does not
            fit a cluster makes CFL split this cluster, which leaves the sybil alone.

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
        self, history: Sequence[ReceivedModels], number: int, model: Tensor, honest: Tensor, stream: Stream
    ) -> tuple[int, Tensor]:
        """Choose a sybil's reply in round ``number``, and return its index in ``replies`` and the update (P,).

        Args:
            model: the received model, (P,).
            honest: the update of local training from the received model, (P,).
        """
        paths = SybilPaths(history, len(self.replies))
        chosen = paths.choice(model, number)
        before = paths.update_of(model, chosen)
        if before is not None:
            return chosen, before
        kind, next_models = self.replies[chosen], paths.next_models(model)
        if kind == "random":
            direction = torch.randn(len(model), generator=stream("reply", chosen, len(history)).generator()).to(model)
        elif kind == "away" and next_models:
            direction = -normalize(torch.stack(next_models) - model, dim=1).sum(dim=0)
        else:
            direction = honest if kind == "honest" else -honest
        return chosen, self.scale * honest.norm() * normalize(direction, dim=0)

    def acquire(
        self, training: Training, state: State, examples: Shards, *, rounds: int, every: int = 1
    ) -> Acquisition:
        """Train a federation for some rounds while sybils join it.

        The attacker knows local training and the models that the server sends to sybils. Sybils join until every path
        of the tree is known.

        Args:
            training: the training of a federation with the clients of ``state``, followed by the sybils. The sybils'
                examples in this federation are not read; only their number is used, as a sybil's weight.
            state: the state before the first sybil joins.
            examples: the attacker's examples, with one owner.
            every: the number of rounds between two sybils. A sybil reaches its cluster before the next sybil joins if
                this number is larger than the number of splits on a path.

        Raises:
            InputError: there are no rounds or no sybils, examples have several owners, or training diverged.
        """
        honest, stream = len(state.assignment), training.stream("sybils")
        require(rounds >= 1 and every >= 1, f"'rounds' and 'every' must be at least 1 (got {rounds} and {every})")
        require(
            len(training.federation) > honest,
            f"the federation must have sybils after the state's {honest} clients (got none)",
        )
        require(len(examples) == 1, f"'examples' must belong to one owner (got {len(examples)} owners)")
        history, harvest, join_rounds = list[ReceivedModels](), list[HarvestedModel](), list[int]()
        for played in range(rounds):
            waiting = len(training.federation) - honest - len(join_rounds)
            if waiting and played % every == 0 and not SybilPaths(history, len(self.replies)).is_complete:
                join_rounds.append(state.round + 1)
            present = training.federation.take(torch.arange(honest + len(join_rounds)))
            now = replace(training, federation=present)
            state = now.with_newcomers(state) if len(present) > len(state.assignment) else state
            updates = dict[int, Tensor]()
            for client, model in _cohort_models(now, state):
                if client < honest:
                    continue
                update = _honest_update(now, state.round + 1, model, examples, stream)
                sybil = int(present.ids[client])
                chosen, update = self.reply(history, state.round + 1, model, update, stream)
                history.append(ReceivedModels(state.round + 1, sybil, model, chosen, update))
                updates[sybil] = model + update
                of_honest = state.assignment[:honest].unique().tolist()
                harvest += [
                    HarvestedModel(state.round + 1, client - honest + 1, k, model)
                    for k in of_honest
                    if k >= 0 and torch.equal(state.models[k], model)
                ]
            state, _ = replace(now, malicious_clients=_FixedEnds(updates)).round(state)
        clusters = state.assignment[:honest].unique()
        return Acquisition(tuple(harvest), clusters[clusters >= 0], tuple(join_rounds), tuple(history), state)


def _cohort_models(training: Training, state: State) -> list[tuple[int, Tensor]]:
    """List the next round's clients, as positions in the federation, and the model (P,) that each client receives."""
    cohort = training.cohort_of(state, training.cohort(state.round + 1))
    if not len(cohort):
        return []
    plan = training.algorithm.plan(state, cohort)
    (first, *_) = [training for training in plan.trainings if training.weights is not None]
    return list(zip(cohort.clients.tolist(), first.initial_rows(), strict=True))


def _honest_update(training: Training, number: int, model: Tensor, examples: Shards, stream: Stream) -> Tensor:
    """Return the update (P,) of local training from ``model``; equal for every sybil that receives this model."""
    local, engine = training.local.at_round(number), training.engine
    drawn = local.randomness(examples, torch.zeros(1, dtype=torch.int64), stream("batches"))
    ((_, end),) = engine.train(model[None], torch.zeros(1, dtype=torch.int64), examples, drawn, local)
    return end[0].cpu() - model


@dataclass(frozen=True)
class _FixedEnds:
    """Malicious clients that send given models ``ends`` (P,), by client id."""

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
    """The tree of all models that sybils received.

    Args:
        history: the received models in order.
        replies: the number of possible replies to a model.
    """

    def __init__(self, history: Sequence[ReceivedModels], replies: int) -> None:
        self._replies = range(replies)
        self._rounds = defaultdict[bytes, set[int]](set)
        self._sent = dict[tuple[bytes, int], Tensor]()
        self._next = defaultdict[tuple[bytes, int], dict[bytes, Tensor]](dict)
        self._first = dict[int, bytes]()
        last = dict[int, ReceivedModels]()
        for item in history:
            self._rounds[item.key].add(item.round)
            self._sent[item.key, item.reply] = item.update
            self._first.setdefault(item.sybil, item.key)
            before = last.get(item.sybil)
            if before is not None and before.key != item.key:
                self._next[before.key, before.reply].setdefault(item.key, item.model)
            last[item.sybil] = item

    def choice(self, model: Tensor, number: int) -> int:
        """Choose the reply of a sybil that receives a model (P,) in round ``number``.

        A new model gets the first reply. A known model gets its first untried reply, or else the first reply on the
        shortest path to an unknown model.
        """
        key = key_of(model)
        if not any(earlier < number for earlier in self._rounds[key]):
            return 0
        untried = [reply for reply in self._replies if (key, reply) not in self._sent]
        return untried[0] if untried else min(self._replies, key=lambda reply: self._behind(key, reply, {key}))

    def update_of(self, model: Tensor, reply: int) -> Tensor | None:
        """Return the update (P,) that a sybil sent as ``reply`` to ``model``, or ``None`` if no sybil did."""
        return self._sent.get((key_of(model), reply))

    def next_models(self, model: Tensor) -> list[Tensor]:
        """List the models (P,) that followed the replies to ``model``."""
        key = key_of(model)
        return [next(iter(self._next[key, reply].values())) for reply in self._replies if self._next.get((key, reply))]

    @property
    def is_complete(self) -> bool:
        """Whether every path ends at a cluster's model or at a model whose replies were all tried."""
        firsts = set(self._first.values())
        if len(firsts) != 1:
            # Two newcomers received different models, so the first model is a cluster's.
            return len(firsts) > 1
        return math.isinf(self._steps(next(iter(firsts)), set()))

    def _steps(self, key: bytes, above: set[bytes]) -> float:
        """Count the replies from a model to an unknown model; 0 if the model was received in only one round."""
        if len(self._rounds[key]) < 2:
            return 0
        if any((key, reply) not in self._sent for reply in self._replies):
            return 1
        return min(self._behind(key, reply, above | {key}) for reply in self._replies)

    def _behind(self, key: bytes, reply: int, above: set[bytes]) -> float:
        """Count `_steps` after a reply; infinite if the next model is a cluster's, unknown, or already on the path."""
        reached = self._next.get((key, reply), {})
        # Two sybils with the same replies are at the same node; if their next models differ, it is a cluster.
        if len(reached) != 1 or (after := next(iter(reached))) in above:
            return math.inf
        return 1 + self._steps(after, above)
