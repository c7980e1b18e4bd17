"""Clients that leave a federation, and the protocol of forgetting methods."""

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.core.formats import one_line
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.protocols import Algorithm, Release
from shoal.engine.rounds.round_plan import Departure, RoundReport
from shoal.engine.state import UNKNOWN_RISK, State

if TYPE_CHECKING:
    from shoal.engine.rounds.training import Training

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Leaving:
    """Clients that leave, the input of a forgetting method.

    Args:
        training: the run's training, in which the leavers take part until their last round.
        state: the state after the leavers' last round.
        leavers: the positions of the clients that leave now, (m,) int64.
        seconds: wall time of `history`, under the key "history".

    Example:
        >>> import shoal.toy
        >>> from shoal.engine import Forgetting, Leaving
        >>> federation, model, local = shoal.toy.one_group()
        >>> presence = shoal.Presence.from_events([shoal.Event(round=3, leave=(0,))], federation, rounds=4)
        >>> with shoal.Engine(model) as engine:
        ...     toy = federation, shoal.FedAvg(), local, engine, shoal.Stream(0)
        ...     training = shoal.Training(*toy, presence=presence)
        ...     *_, (state, _) = training.rounds(training.start(), 2)
        ...     leaving = Leaving(training, state, presence.leavers(3))
        ...     print([report.cohort.tolist() for _, report in leaving.history()], leaving.staying(1).tolist())
        ...
        [[0, 1, 2], [0, 1, 2]] [1, 2]
        >>> isinstance(shoal.Exact(), Forgetting)
        True
    """

    training: "Training"
    state: State
    leavers: Tensor
    seconds: dict[str, float] = field(default_factory=dict)
    __repr__ = one_line

    @property
    def gone(self) -> Tensor:
        """The positions of the leavers and of all clients that left earlier."""
        presence = self.training.presence
        assert presence is not None
        return torch.nonzero((presence.last <= self.state.round) & (presence.first <= presence.last)).flatten()

    @property
    def clusters(self) -> Tensor:
        """A mask (K,) of the models that the leavers trained."""
        return (self.state.trained[self.leavers] > 0).any(dim=0)

    def staying(self, number: int) -> Tensor:
        """Return the cohort (n,) of a past round without the clients in `gone`."""
        cohort = self.training.cohort(number)
        return cohort[~torch.isin(cohort, self.gone)]

    @property
    def past_rounds(self) -> range:
        """The numbers of the completed rounds."""
        first = self.training.first_state
        return range(1 if first is None else first.round + 1, self.state.round + 1)

    def history(self, recorded: Collection[int] = ()) -> Iterator[tuple[State, RoundReport]]:
        """Retrain the past rounds, and yield the state before each round and the round's report.

        On the same machine, the result is bit-identical to the original rounds. Reports of the rounds in ``recorded``
        contain the clients' updates.
        """
        began, state = time.perf_counter(), self.training.start()
        for number in self.past_rounds:
            before = state
            state, report = replace(self.training, record_every=int(number in recorded)).round(before)
            if report.departure is not None:
                before = replace(before, models=report.departure.after)
            self.seconds["history"] = self.seconds.get("history", 0.0) + time.perf_counter() - began
            yield before, report
            began = time.perf_counter()
        if not state.models.equal(self.state.models):
            LOG.warning("the retrained past rounds differ from the run, as can happen on another machine")

    def departure(self, method: str, after: State, **figures: Any) -> Departure:  # noqa: ANN401
        """Return a forgetting method's report, given the state ``after`` and further fields of `Departure`."""
        same = after.models.shape == self.state.models.shape
        return Departure(
            round=self.state.round + 1,
            clients=self.leavers,
            before=self.state.models,
            after=after.models,
            method=method,
            full_client_rounds=float(sum(len(self.staying(number)) for number in self.past_rounds)),
            clusters=int((after.models != self.state.models).any(dim=1).sum()) if same else len(after.models),
            **figures,
        )

    def with_models(self, models: Tensor) -> State:
        """Return the present state with ``models`` (K, P); the risks of changed models become unknown."""
        changed = (models != self.state.models).any(dim=1)
        risks = torch.where(changed, UNKNOWN_RISK, self.state.risks)
        intervals = torch.where(changed[:, None], torch.nan, self.state.risk_intervals)
        return replace(self.state, models=models, risks=risks, risk_intervals=intervals)


@runtime_checkable
class Forgetting(Protocol):
    """A method that makes models forget the clients that leave, such as `shoal.Exact`.

    A frozen dataclass of settings implements this protocol.
    """

    @property
    def name(self) -> str:
        """The method's name in configuration files."""
        ...

    def check(self, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
        """Raise `InputError` if the method cannot be used in a run; ``local`` has all defences applied."""
        ...

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """Return the state after forgetting, in the same round, and the report."""
        ...
