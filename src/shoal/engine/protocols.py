"""Protocols of algorithms, attacks, defences and coordinators, and the local trainings that privacy counts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Protocol, Self, runtime_checkable

from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine.engine import Engine
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.rounds.round_plan import Aggregate, Cohort, Deployed, RoundPlan
from shoal.engine.state import UNKNOWN_RISK, RiskEstimate, State, Tensors


@runtime_checkable
class Algorithm(Protocol):
    """A federated algorithm: pure methods; everything that changes is in `State`.

    A frozen dataclass of hyper-parameters implements it; `shoal.algorithms.FedAvg` is the shortest example. Algorithms
    wrap others: the wrapper calls its base's methods and adds its own tensors to the state. An algorithm whose server
    moves a model by anything else than the weighted mean of the updates sent for it, such as by an optimizer, has the
    attribute ``moves_by_average = False``: property attacks, which take single updates out of that mean, refuse it.

    Two further attributes are about clients that leave. ``fixed_clients`` says in half a sentence why nobody can leave
    or join, such as "decides clusters in its first round"; empty, as where it is missing: anybody can.
    ``trains_clusters_alone = True`` says that, given the clients' choices, a model depends on its own clients alone,
    and that training changes nothing but models; exact forgetting then retrains the leaver's clusters alone.
    """

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where this algorithm cannot work with that local training, or with risks that are
        estimated every ``risk_period`` rounds (0: never).
        """
        ...

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """The state before the first round."""
        ...

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Clients choose, and the server weighs them."""
        ...

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The state after the round: ``state``, whose round and assignment are already new, with the models and the
        algorithm's own tensors moved. It may change K, and then the assignment, risks and directives.
        """
        ...

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """The model of each client of ``cohort`` (all clients, all their examples) after the last round."""
        ...


def with_bases(algorithm: object) -> Iterator[object]:
    """An algorithm, its ``base``, the base's ``base``, and so on."""
    while algorithm is not None:
        yield algorithm
        algorithm = getattr(algorithm, "base", None)


@runtime_checkable
class PlanRule(Protocol):
    """A defence with a rule for which updates may be averaged, such as a fewest number of clients."""

    def planned(self, plan: RoundPlan, sizes: Tensor) -> RoundPlan:
        """The plan of a round as it is carried out; ``sizes`` (n,) are the clients' numbers of examples."""
        ...


class Release(Protocol):
    """Replaces the models of a round by what is sent to clients in their place, such as students, or keeps some."""

    def after_round(self, before: State, after: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """The state ``after`` a round in which somebody trained, with other models or further tensors."""
        ...


@runtime_checkable
class RiskEstimator(Protocol):
    """Estimates how exposed each model's members are; it changes nothing but the risks.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import RiskEstimate, RiskEstimator, unknown_intervals
        >>> @dataclass(frozen=True)
        ... class Constant:
        ...     every: int = 1
        ...     def estimate(self, state, federation, engine, local, stream):
        ...         risks = torch.full((len(state.models),), 0.7, dtype=torch.float64)
        ...         return RiskEstimate(risks, unknown_intervals(len(risks)))
        ...
        >>> isinstance(Constant(), RiskEstimator), isinstance(shoal.RedTeam(), RiskEstimator)
        (True, True)
    """

    @property
    def every(self) -> int:
        """Rounds between estimates; 0 is never."""
        ...

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """The membership-inference accuracy on each of the K models of ``state``.

        ``local`` is the local training of each cluster, so that shadow models train as the clients do.
        """
        ...


@runtime_checkable
class UpdateFilter(Protocol):
    """A function of each update: of the server before aggregation, or of the client before it sends.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import UpdateFilter
        >>> @dataclass(frozen=True)
        ... class SignsOnly:
        ...     step: float
        ...     def filter(self, starts, ends, seeds):
        ...         return starts + self.step * (ends - starts).sign()
        ...
        >>> isinstance(SignsOnly(0.1), UpdateFilter), isinstance(shoal.NormClipping(1.0), UpdateFilter)
        (True, True)
        >>> SignsOnly(0.1).filter(torch.zeros(1, 3), torch.tensor([[5.0, -0.2, 0.0]]), torch.tensor([0]))
        tensor([[ 0.1000, -0.1000,  0.0000]])
    """

    def filter(self, starts: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        """The parameters (u, P) that the server uses, or that the client sends.

        Args:
            starts: (u, P), parameters before the training of u clients.
            ends: (u, P), parameters after it.
            seeds: (u,) int64, a seed for each client and round, for filters that draw noise.
        """
        ...


@dataclass(frozen=True, eq=False)
class ClusterRound:
    """One cluster in one round, as seen by a defence of local training.

    Args:
        round: number of the round, from 1.
        cluster: its index.
        risk: the last estimate of its model's risk.
        directive: `State.directives` of this cluster, by name.
    """

    round: int
    cluster: int
    risk: float = UNKNOWN_RISK
    directive: Mapping[str, float] = field(default_factory=dict)
    __repr__ = one_line


@runtime_checkable
class LocalDefense(Protocol):
    """A defence that changes local training, separately for each cluster in each round.

    Example:
        >>> import shoal
        >>> from dataclasses import dataclass, replace
        >>> from shoal.engine import ClusterRound, LocalDefense, ScalableDefense
        >>> @dataclass(frozen=True)
        ... class SlowWhereExposed:
        ...     limit: float = 0.6
        ...     def local(self, local, at):
        ...         return replace(local, learning_rate=local.learning_rate / 2) if at.risk > self.limit else local
        ...
        >>> [SlowWhereExposed().local(shoal.LocalSGD(), ClusterRound(1, 0, risk)).learning_rate for risk in (0.5, 0.7)]
        [0.1, 0.05]
        >>> isinstance(SlowWhereExposed(), LocalDefense), isinstance(SlowWhereExposed(), ScalableDefense)
        (True, False)
        >>> shoal.L2(0.1).scaled(0.5)
        L2(penalty=0.05)
    """

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """The local training of that cluster's clients in that round."""
        ...


@runtime_checkable
class ScalableDefense(LocalDefense, Protocol):
    """A defence of local training that can be applied at any share of its strength, as a directive may ask."""

    def scaled(self, strength: float) -> Self:
        """The same defence at ``strength`` of its full strength.

        Args:
            strength: in [0, 1]; at 0 local training stays the same, bit for bit, and at 1 it is this defence itself.

        Raises:
            InputError: a strength outside [0, 1].
        """
        ...


@runtime_checkable
class SteeringRule(Protocol):
    """Steers the local training of every cluster by directives, which follow from the estimated risks."""

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` before the first round, with its first directives and `State.control`."""
        ...

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` after an estimate of its risks, with new directives and `State.control`, and nothing else new."""
        ...


@dataclass(frozen=True, eq=False)
class MaliciousTraining:
    """The training of a malicious client in a round.

    Args:
        state: before the round, but for ``adversary``, which the malicious clients before this one have updated.
        cluster: the cluster that it chose.
        client: its id.
        shards: one owner, the client's examples of this round.
        randomness: of that owner.
        local: an honest client's local training.
        engine: of the training.
    """

    state: State
    cluster: int
    client: int
    shards: Shards
    randomness: LocalRandomness
    local: LocalSGD
    engine: Engine
    __repr__ = one_line

    @property
    def start(self) -> Tensor:
        """The parameters (P,) of the cluster's model before the round."""
        return self.state.models[self.cluster]


@runtime_checkable
class MaliciousClients(Protocol):
    """Clients that replace local training and may send any update."""

    @property
    def clients(self) -> Tensor:
        """Their ids (m,) int64."""
        ...

    def start(self, state: State, stream: Stream) -> Tensors:
        """`State.adversary` before the first round; ``state`` has everything else."""
        ...

    def train(self, request: MaliciousTraining) -> tuple[Tensor, Tensors]:
        """The parameters (P,) that one of them sends in a round, and `State.adversary` after it."""
        ...


@dataclass(frozen=True)
class ClientTrainings:
    """The local trainings that a client takes on its own examples in a run, whether or not it sends their results.

    Args:
        rounds: those of each round that it takes part in, in order.
        first: those of the run's first round with clients, in their place; None: the same.
        final: those after the last round, by every client (`Deployed.fine_tuning`).

    Example:
        >>> import shoal
        >>> from shoal.engine import client_trainings
        >>> ditto = client_trainings(shoal.Ditto(local=shoal.LocalSGD(epochs=3)), shoal.LocalSGD(epochs=1))
        >>> [local.epochs for local in ditto.rounds]
        [1, 3]
        >>> tuned = client_trainings(shoal.FedProx(shoal.FineTuning()), shoal.LocalSGD())
        >>> len(tuned.rounds), tuned.first, len(tuned.final)
        (1, None, 1)
    """

    rounds: tuple[LocalSGD, ...]
    first: tuple[LocalSGD, ...] | None = None
    final: tuple[LocalSGD, ...] = ()

    def changed(self, change: Callable[[LocalSGD], LocalSGD]) -> "ClientTrainings":
        """Every training changed, for example by defences."""
        first = None if self.first is None else tuple(map(change, self.first))
        return ClientTrainings(tuple(map(change, self.rounds)), first, tuple(map(change, self.final)))


@runtime_checkable
class HasClientTrainings(Protocol):
    """An algorithm whose clients do not train exactly once a round by the run's local training.

    It declares their trainings beside its plan, since privacy is counted before the first round.
    """

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        """The trainings of a client, where ``local`` is the run's local training."""
        ...


def client_trainings(algorithm: object, local: LocalSGD) -> ClientTrainings:
    """The trainings of a client of an algorithm in a run of local training ``local``.

    An algorithm that does not declare them (`HasClientTrainings`) has those of the one that it wraps, in any field.
    """
    if isinstance(algorithm, HasClientTrainings):
        return algorithm.client_trainings(local)
    for declared in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, declared.name)
        if isinstance(value, Algorithm):
            return client_trainings(value, local)
    return ClientTrainings((local,))


def require_counted_trainings(
    algorithm: object, local: LocalSGD, trained: Iterable[Sequence[LocalSGD | None]], *, final: bool = False
) -> None:
    """Raise `InputError` where clients take local trainings that an algorithm does not declare.

    Args:
        algorithm: of the run.
        local: the run's local training.
        trained: sequences of trainings that clients take in a round; None stands for the run's.
        final: whether that is after the last round.
    """
    declared = client_trainings(algorithm, local)
    sequences = (declared.final,) if final else (declared.rounds, declared.first or ())
    allowed = [Counter(map(_spending, sequence)) for sequence in sequences]
    for sequence in trained:
        taken = Counter(_spending(local if settings is None else settings) for settings in sequence)
        require(
            any(taken <= counts for counts in allowed),
            f"with DP-SGD every local training must be counted, but {type(algorithm).__name__} has clients train what "
            "its method 'client_trainings' does not say (see shoal.engine.HasClientTrainings)",
        )


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """The settings that decide, beside defences and a client's examples, how much privacy a training spends."""
    return local.batch_size, local.epochs, local.steps
