"""The protocols that the packages above implement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

from torch import Tensor

from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine.cohort import Cohort
from shoal.engine.engine import Engine
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.rounds.round_outcome import Aggregate, Deployed
from shoal.engine.rounds.round_plan import RoundPlan
from shoal.engine.state import UNKNOWN_RISK, RiskEstimate, State, Tensors


@runtime_checkable
class Algorithm(Protocol):
    """A federated algorithm: pure methods, all that changes is in `State`.

    A frozen dataclass of hyper-parameters implements it; `shoal.FedAvg` is the shortest example. Algorithms
    wrap others: the wrapper calls its base's methods and adds its own tensors to the state. One whose server moves a
    model by anything else than the weighted mean of the updates sent for it, such as by an optimizer, has the attribute
    ``moves_by_average = False``: property attacks, which take single updates out of that mean, refuse it.

    Example:
        >>> import torch, shoal
        >>> from shoal.engine import Algorithm
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> isinstance(shoal.FedAvg(), Algorithm)
        True
        >>> with shoal.Engine(shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))) as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     state = training.start()
        ...     plan = training.algorithm.plan(state, training.cohort_of(state, torch.arange(2)))
        ...
        >>> plan.trainings[0].weights
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where this algorithm cannot do with that local training, or with risks that are estimated
        every ``risk_period`` rounds (0: never).
        """
        ...

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """The state before the first round."""
        ...

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Clients choose, and the server weighs them."""
        ...

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The state after the round: ``state``, in which round and assignment are already those of this round, with the
        models and the algorithm's own tensors moved. It may change K, and then the assignment, risks and directives.
        """
        ...

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """What each client of ``cohort`` (all clients, all their examples) uses after the last round."""
        ...


@runtime_checkable
class RiskEstimator(Protocol):
    """Estimates how exposed each model's members are; it changes nothing but the risks.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import RiskEstimate, RiskEstimator
        >>> @dataclass(frozen=True)
        ... class AlwaysTheSame:
        ...     every: int = 1
        ...     def estimate(self, state, federation, engine, local, stream):
        ...         risks = torch.full((len(state.models),), 0.7, dtype=torch.float64)
        ...         return RiskEstimate(risks, torch.stack([risks, risks], dim=1))
        ...
        >>> isinstance(AlwaysTheSame(), RiskEstimator), isinstance(shoal.RedTeam(), RiskEstimator)
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
        """The parameters that the server goes on with, or that the client sends.

        Args:
            starts: (u, P), what u clients started from.
            ends: (u, P), what they sent, or trained.
            seeds: (u,) int64, a seed for each client and round, for filters that draw noise.

        Returns:
            (u, P).
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

    Example:
        >>> import shoal
        >>> from shoal.engine import ClusterRound
        >>> coordinator = shoal.Coordinator({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> at = [ClusterRound(round=1, cluster=0, risk=0.7, directive={"l2": strength}) for strength in (0.0, 0.5)]
        >>> [coordinator.local(shoal.LocalSGD(), each).weight_decay for each in at]
        [0.0, 0.05]
    """

    round: int
    cluster: int
    risk: float = UNKNOWN_RISK
    directive: Mapping[str, float] = field(default_factory=dict)
    __repr__ = one_line


@runtime_checkable
class LocalDefense(Protocol):
    """A defence that changes local training, decided anew for each cluster in each round.

    Example:
        >>> import shoal
        >>> from dataclasses import dataclass, replace
        >>> from shoal.engine import ClusterRound, LocalDefense
        >>> @dataclass(frozen=True)
        ... class SlowWhereExposed:
        ...     limit: float = 0.6
        ...     def local(self, local, at):
        ...         return replace(local, learning_rate=local.learning_rate / 2) if at.risk > self.limit else local
        ...
        >>> isinstance(SlowWhereExposed(), LocalDefense)
        True
        >>> [SlowWhereExposed().local(shoal.LocalSGD(), ClusterRound(1, 0, risk)).learning_rate for risk in (0.5, 0.7)]
        [0.1, 0.05]
    """

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """The local training of that cluster's clients in that round."""
        ...


@runtime_checkable
class ScalableDefense(LocalDefense, Protocol):
    """A defence of local training that can be applied at any share of its strength, as a directive may ask.

    Example:
        >>> import shoal
        >>> from shoal.engine import ScalableDefense
        >>> isinstance(shoal.L2(0.1), ScalableDefense), isinstance(shoal.NormClipping(1.0), ScalableDefense)
        (True, False)
        >>> shoal.L2(0.1).scaled(0.5), shoal.L2(0.1).scaled(1.0) == shoal.L2(0.1)
        (L2(penalty=0.05), True)
    """

    def scaled(self, strength: float) -> Self:
        """The same defence at ``strength`` of its full strength.

        Args:
            strength: in [0, 1]; at 0 local training stays what it is, bit for bit, and at 1 it is this defence itself.

        Raises:
            InputError: a strength outside [0, 1].
        """
        ...


@runtime_checkable
class Coordinator(Protocol):
    """Steers the local training of every cluster by directives, which follow from the risks that are estimated.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass, replace
        >>> from shoal.engine import Coordinator, State
        >>> @dataclass(frozen=True)
        ... class PoolExposed:
        ...     def start(self, state, federation, engine, stream):
        ...         return replace(state, directives={"pooling": torch.zeros(len(state.models), dtype=torch.float64)})
        ...     def update(self, state, federation, engine, stream):
        ...         return replace(state, directives={"pooling": (state.risks > 0.6).double()})
        ...
        >>> isinstance(PoolExposed(), Coordinator)
        True
        >>> risks = torch.tensor([0.5, 0.7], dtype=torch.float64)
        >>> exposed = replace(State.initial(torch.zeros(2, 5), clients=3), risks=risks)
        >>> PoolExposed().update(exposed, None, None, None).strength("pooling")
        tensor([0., 1.], dtype=torch.float64)
    """

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` before the first round with its first directives and what the coordinator remembers."""
        ...

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` after an estimate of its risks, with new directives and with what the coordinator remembers now.

        It changes nothing else of the state.
        """
        ...


@runtime_checkable
class MaliciousClients(Protocol):
    """Clients that replace local training and may send any update.

    Example:
        >>> import torch, shoal
        >>> from shoal.engine import MaliciousClients
        >>> class FreeRider:
        ...     clients = torch.tensor([0])
        ...     def start(self, state, stream):
        ...         return {}
        ...     def train(self, state, cluster, client, shards, randomness, local, engine):
        ...         return state.models[cluster], {}
        ...
        >>> isinstance(FreeRider(), MaliciousClients)
        True
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     start = shoal.Training(*setting).start()
        ...     honest, _ = shoal.Training(*setting).round(start)
        ...     halved, _ = shoal.Training(*setting, malicious_clients=FreeRider()).round(start)
        ...
        >>> (2 * (halved.models - start.models)).allclose(honest.models - start.models)
        True
    """

    @property
    def clients(self) -> Tensor:
        """Their ids (m,) int64."""
        ...

    def start(self, state: State, stream: Stream) -> Tensors:
        """`State.adversary` before the first round, of which ``state`` has everything else."""
        ...

    def train(
        self,
        state: State,
        cluster: int,
        client: int,
        shards: Shards,
        randomness: LocalRandomness,
        local: LocalSGD,
        engine: Engine,
    ) -> tuple[Tensor, Tensors]:
        """What one of them sends in a round.

        Args:
            state: before the round, but for ``adversary``, which the malicious clients before this one have updated.
            cluster: the cluster that it chose.
            client: its id.
            shards: one owner, the client's examples of this round.
            randomness: that owner's.
            local: what an honest client does.
            engine: computes it.

        Returns:
            Its parameters (P,), and `State.adversary` after it.
        """
        ...
