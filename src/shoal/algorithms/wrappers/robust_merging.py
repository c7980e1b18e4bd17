"""Robust merging: a model moves by a statistic of its clients' updates that a few of them cannot carry far."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from shoal.algorithms.wrapper import Wrapper
from shoal.core.errors import require
from shoal.engine import Aggregate, Cohort, LocalTraining, RemoteRounds, RoundPlan, State, remote_rounds


class RobustMerging(Wrapper):
    """An algorithm that merges the updates of each cluster by `merged` in the place of the weighted mean of ``base``.

    Every client of a cluster counts alike: numbers of examples are what clients say. The updates of a round are all in
    memory, so this works where the server sees single updates, in a simulation and on several machines, and not with
    secure sums. `NormClipping` bounds updates before they are merged.

    A client whose data differ from those of its cluster looks like one that lies: what is robust against a few liars
    ignores a few honest clients as well (see docs/defenses.md).

    Raises:
        InputError: in the first round, where ``base`` merges by other weights than one cluster a client, or keeps
            clients' updates itself, as CFL does.
    """

    moves_by_average: ClassVar[bool] = False

    def merged(self, updates: Tensor) -> Tensor:
        """The update (P,) of a cluster's model from those of its m clients (m, P), float64."""
        raise NotImplementedError

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The base's plan, in which the server keeps all updates."""
        plan = super().plan(state, cohort)
        if not plan.trainings:
            return plan
        index, training = self._sent(plan)
        kept = replace(training, keep=lambda update: update)
        return replace(plan, trainings=(*plan.trainings[:index], kept, *plan.trainings[index + 1 :]))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The base's update from the robustly merged models."""
        if not plan.trainings:
            return super().server_update(state, cohort, plan, aggregate)
        index, training = self._sent(replace(plan, trainings=tuple(replace(one, keep=None) for one in plan.trainings)))
        updates, models = aggregate.kept[index], aggregate.models.clone()
        assert updates is not None
        assert training.weights is not None
        layout, before = cohort.layout, state.models.cpu()
        ends = training.initial_rows()[:, : layout.size].cpu() + updates[:, : layout.size]
        for k, weights in enumerate(training.weights):
            members = weights != 0
            if bool(members.any()):
                moves = training.shared_part(ends[members] - before[k], layout).double()
                models[k] = (before[k].double() + self.merged(moves)).to(models)
        kept = (*aggregate.kept[:index], None, *aggregate.kept[index + 1 :])
        return super().server_update(state, cohort, plan, replace(aggregate, models=models, kept=kept))

    def remote_rounds(self) -> RemoteRounds:
        """Merging is the server's."""
        base = remote_rounds(self.base)
        return replace(base, server=replace(self, base=base.server))  # pyright: ignore (a dataclass of settings)

    def _sent(self, plan: RoundPlan) -> tuple[int, LocalTraining]:
        """The one training whose results are sent, and its index."""
        sent = [(index, training) for index, training in enumerate(plan.trainings) if training.weights is not None]
        one = len(sent) == 1 and sent[0][1].keep is None and bool(((sent[0][1].weights != 0).sum(dim=0) <= 1).all())
        require(
            one,
            f"{type(self).__name__} merges one update of each client into one model; its 'base' merges otherwise, or "
            "keeps updates itself",
        )
        return sent[0]
