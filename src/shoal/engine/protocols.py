"""What passes between the rounds and the rooms above, and the sockets that those rooms fill."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.federation import Federation, Preferences
from shoal.data.shards import Shards
from shoal.engine.engine import Engine
from shoal.engine.local_sgd import LocalRandomness, LocalSGD


@dataclass(frozen=True, eq=False)
class State:
    """Where a federation stands after a round.

    Args:
        round: rounds done.
        models: (K, P) float32.
        risks: (K,) float64, the last red-team estimate of each model.
        choice: (N,) int64, each client's last choice; -1 for a client that has not yet taken part.
        memory: what an malicious_client keeps from round to round; None where there is none, or nothing to keep.
    """

    round: int
    models: Tensor
    risks: Tensor
    assignment: Tensor
    memory: Tensor | None = None


@dataclass(frozen=True, eq=False)
class RoundReport:
    """What happened in a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        losses: (n, K) float64, the losses they chose by; None where the algorithm needs none.
        choice: (n,) int64, the models they chose.
        sensed: whether the risks were estimated anew at the end of this round.
        seconds: wall time of "choose", "train" and "red_team".
    """

    cohort: Tensor
    losses: Tensor | None
    assignment: Tensor
    sensed: bool
    seconds: dict[str, float]


class Algorithm(Protocol):
    """A federated algorithm is a value with three pure methods; the engine plays the rounds."""

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where this algorithm cannot do with that local training, or with risks that are estimated
        every ``risk_period`` rounds (0: never).
        """
        ...

    @property
    def clusters(self) -> int:
        """K, the number of models."""
        ...

    @property
    def chooses_by(self) -> Literal["all", "batch"] | None:
        """On which examples clients score the models: "all" their own, the first "batch", or None: no scores."""
        ...

    def init(self, engine: Engine, federation: Federation, stream: Stream) -> Tensor:
        """The initial models (K, P)."""
        ...

    def choose(self, losses: Tensor, risks: Tensor, preferences: Preferences) -> Tensor:
        """Client side. From losses (n, K), risks (K,) and the n clients' preferences to their choices (n,)."""
        ...

    def shares(self, assignment: Tensor, sizes: Tensor) -> Tensor:
        """Server side. From choices (n,) and numbers of examples (n,) to the shares W (K, n)."""
        ...


class RiskEstimator(Protocol):
    """Estimates how exposed each model's members are; what it does changes nothing but the risks."""

    @property
    def every(self) -> int:
        """Rounds between estimates; 0: never."""
        ...

    def risks(self, state: State, federation: Federation, engine: Engine, local: LocalSGD, stream: Stream) -> Tensor:
        """(K,) float64 in [0, 1], the membership-inference accuracy on each model of ``state``."""
        ...


class UpdateFilter(Protocol):
    """What the server does to an update before it merges it."""

    def filter(self, starts: Tensor, ends: Tensor) -> Tensor:
        """From starts and ends (u, P) of u clients to the ends (u, P) that the server goes on with."""
        ...


class MaliciousClient(Protocol):
    """A client that trains in a way of its own, and sends what it likes."""

    @property
    def client(self) -> int:
        """Its id."""
        ...

    def start(self, stream: Stream) -> Tensor | None:
        """What it remembers before the first round."""
        ...

    def train(
        self, state: State, k: int, shards: Shards, randomness: LocalRandomness, local: LocalSGD, engine: Engine
    ) -> tuple[Tensor, Tensor | None]:
        """What it sends in a round, and what it remembers.

        Args:
            state: before the round; its ``memory`` is what this malicious_client remembered last.
            k: the model it chose.
            shards: one owner, the client's examples of this round.
            draws: that owner's.
            local: what every other client does.
            engine: computes it.

        Returns:
            Its end (P,), and its memory.
        """
        ...
