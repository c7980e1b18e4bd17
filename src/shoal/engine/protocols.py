"""Protocols of algorithms, defences, coordinators and malicious clients."""

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
from shoal.engine.rounds.round_plan import Aggregate, Cohort, DeployedModels, RoundPlan
from shoal.engine.state import UNKNOWN_RISK, RiskEstimate, State, Tensors


@runtime_checkable
class Algorithm(Protocol):
    """A federated algorithm, whose methods are pure and keep all changing values in `State`.

    A frozen dataclass of hyper-parameters implements this protocol; `shoal.algorithms.FedAvg` is the shortest example.
    A wrapper calls its base's methods and adds its own tensors to the state. Three optional attributes describe an
    algorithm:

    - ``moves_by_average = False`` declares that models do not change by the weighted mean of updates, so property
      attacks do not apply.
    - ``membership_barrier`` states why clients cannot leave or join, such as "decides clusters in its first round"; it
      is empty if they can.
    - ``trains_clusters_alone = True`` declares that, given the clients' choices, each model depends only on its
      cluster's clients, and that training changes only models. `shoal.Exact` then retrains only the leavers' clusters.
    """

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` if the algorithm does not support ``local`` or ``risk_period`` (0: no risk estimates)."""
        ...

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Return the state before the first round."""
        ...

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Choose each client's model and the weights of the updates."""
        ...

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """Return the state after the round; ``state`` already has the new round and assignment.

        If the algorithm changes the number of models K, it must also change the assignment, risks and directives.
        """
        ...

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        """Choose each client's model after the last round; ``cohort`` has all clients and all their examples."""
        ...


def with_bases(algorithm: object) -> Iterator[object]:
    """Iterate over an algorithm, its ``base``, the base's ``base``, and so on."""
    while algorithm is not None:
        yield algorithm
        algorithm = getattr(algorithm, "base", None)


@runtime_checkable
class PlanRule(Protocol):
    """A defence that restricts averages of updates, for example to a minimum number of clients."""

    def adjust_plan(self, plan: RoundPlan, sizes: Tensor) -> RoundPlan:
        """Return the plan of a round under this rule; ``sizes`` (n,) are the clients' numbers of examples."""
        ...


class Release(Protocol):
    """A replacement of models before the server sends them to clients, for example by distilled students."""

    def after_round(self, before: State, after: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the state ``after`` a round with its models replaced."""
        ...


@runtime_checkable
class RiskEstimator(Protocol):
    """An estimator of the exposure of each model's members.

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
        """The number of rounds between estimates; 0 disables estimates."""
        ...

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """Estimate the accuracy of membership inference on each of the K models of ``state``.

        ``local`` contains the local training of each cluster, which shadow models use too.
        """
        ...


@runtime_checkable
class UpdateFilter(Protocol):
    """A function applied to each update, at the server before aggregation or at the client before sending.

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
        """Return the filtered parameters (u, P).

        Args:
            starts: the parameters of u clients before local training, (u, P).
            ends: the parameters of u clients after local training, (u, P).
            seeds: one seed per client and round, for filters with noise, (u,) int64.
        """
        ...


@dataclass(frozen=True, eq=False)
class ClusterRound:
    """One cluster in one round, the input of a defence of local training.

    Args:
        round: the number of the round, from 1.
        cluster: the cluster's index.
        risk: the last risk estimate of the cluster's model.
        directive: the cluster's values of `State.directives`, by name.
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
        >>> shoal.L2(0.1).with_strength(0.5)
        L2(penalty=0.05)
    """

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Return the changed local training of the clients of one cluster in one round."""
        ...


@runtime_checkable
class ScalableDefense(LocalDefense, Protocol):
    """A defence of local training with a strength that directives can reduce."""

    def with_strength(self, strength: float) -> Self:
        """Return the defence at a fraction of its full strength.

        Args:
            strength: the fraction, in [0, 1]; 0 gives results bit-identical to training without the defence.

        Raises:
            InputError: the strength is outside [0, 1].
        """
        ...


@runtime_checkable
class SteeringRule(Protocol):
    """A rule that sets every cluster's directives for local training from the estimated risks."""

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the initial ``state`` with initial directives and an initial `State.control`."""
        ...

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return ``state`` with new directives and `State.control` after a risk estimate."""
        ...


@dataclass(frozen=True, eq=False)
class MaliciousTraining:
    """The training of a malicious client in a round.

    Args:
        state: the state before the round, with ``adversary`` as updated by the round's earlier malicious clients.
        cluster: the index of the client's cluster.
        client: the client's id.
        shards: the client's examples in this round, with one owner.
        randomness: the client's randomness for honest training.
        local: the local training of an honest client.
        engine: the engine of the run.
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
        """The malicious clients' ids, (m,) int64."""
        ...

    def start(self, state: State, stream: Stream) -> Tensors:
        """Return `State.adversary` before the first round; ``state`` is otherwise complete."""
        ...

    def train(self, request: MaliciousTraining) -> tuple[Tensor, Tensors]:
        """Return the parameters (P,) that one client sends in a round, and the new `State.adversary`."""
        ...


@dataclass(frozen=True)
class ClientTrainings:
    """The local training runs of a client, whether or not the client sends their results.

    Args:
        rounds: the training runs in each round of participation, in order.
        first: the training runs of the first round with clients; ``None`` means the same as ``rounds``.
        final: every client's training runs after the last round (`DeployedModels.fine_tuning`).

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
        """Return a copy with ``change``, for example a defence, applied to each training run."""
        first = None if self.first is None else tuple(map(change, self.first))
        return ClientTrainings(tuple(map(change, self.rounds)), first, tuple(map(change, self.final)))


@runtime_checkable
class HasClientTrainings(Protocol):
    """An algorithm whose clients do not perform exactly one local training per round.

    The privacy account reads the declared training runs before the first round.
    """

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        """Declare a client's training runs; ``local`` is the experiment's local training."""
        ...


def client_trainings(algorithm: object, local: LocalSGD) -> ClientTrainings:
    """Return the training runs of a client; ``local`` is the experiment's local training.

    A wrapper that does not declare training runs (`HasClientTrainings`) has the training runs of the wrapped algorithm.
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
    """Raise `InputError` if clients perform local training runs that the algorithm does not declare.

    Args:
        trained: the sequences of training runs that clients perform; ``None`` in a sequence is the run's local
            training.
        final: whether clients perform the training runs after the last round.
    """
    declared = client_trainings(algorithm, local)
    sequences = (declared.final,) if final else (declared.rounds, declared.first or ())
    allowed = [Counter(map(_spending, sequence)) for sequence in sequences]
    for sequence in trained:
        taken = Counter(_spending(local if settings is None else settings) for settings in sequence)
        require(
            any(taken <= counts for counts in allowed),
            f"with DP-SGD, {type(algorithm).__name__}.client_trainings must declare every local training "
            "(see shoal.engine.HasClientTrainings)",
        )


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """Return the settings that affect the privacy cost of a training run."""
    return local.batch_size, local.epochs, local.steps
