"""The guarantee of differential privacy that the clients of a finished training have."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan

import torch

from shoal.algorithms.wrapper import choice_noise
from shoal.audit.measurement import FinishedTraining
from shoal.audit.red_team import NEED_HOLDOUT
from shoal.control import LimitController
from shoal.data.content import most_copies
from shoal.data.preferences import VIEWS, View
from shoal.defenses import accounting
from shoal.engine import ClientTrainings, ClusterRound, LocalSGD, State, Training, client_trainings
from shoal.metrics.attack_bounds import AttackBound
from shoal.metrics.summary import Summary

LOG = logging.getLogger(__name__)


def accountable_trainings(training: Training, state: State) -> ClientTrainings | None:
    """A client's local trainings, whose spending of privacy bounds that of every round; None where directives decide
    how private steps are.

    Without a coordinator they are those of cluster 0 in the last round. With one they are those under the fixed
    defences alone, whose steps in a round are the most that shorter training leaves.
    """
    fixed = tuple(defense for defense in training.defenses if defense is not training.coordinator)
    last = replace(state, round=max(0, state.round - 1))
    fixedly = replace(training, defenses=fixed)
    trainings = client_trainings(training.algorithm, training.local).changed(
        lambda local: fixedly.local_of(last, 0, local)
    )
    local = trainings.rounds[0]
    knobs = training.coordinator.knobs.values() if isinstance(training.coordinator, LimitController) else ()
    for knob in knobs:
        steered = local if knob.defense is None else knob.defense.local(local, ClusterRound(round=1, cluster=0))
        if _spending(steered) != _spending(local):
            return None
    return trainings


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """The settings that, with a client's examples, decide the privacy that a round spends."""
    return (local.gradient_privacy if local.private else None), local.batch_size, local.epochs, local.steps


@dataclass(frozen=True)
class PrivacyBudget:
    """The guarantee of differential privacy where local steps are private; adds the clients' column "epsilon".

    Args:
        first_round: the number of the first round; epsilon is of the rounds from it on.
    """

    first_round: int = 1
    name, title = "epsilon", "Privacy budget"

    def measure(self, finished: FinishedTraining) -> Summary:
        """See `Measurement`."""
        training, state = finished.training, finished.state
        trainings = accountable_trainings(training, state)
        if trainings is None:
            LOG.warning("no epsilon is stated, since a coordinator decided how private local steps were")
            return Summary()
        rule = accounting.private_rule(trainings.rounds[0])
        if rule is None:
            return Summary()
        cohorts = [training.cohort(number) for number in range(self.first_round, state.round + 1)]
        choice, by_view, bounds = choice_noise(training.algorithm), {}, dict[View, AttackBound]()
        copies = most_copies(training.federation.clients)
        if int(copies.max()) > 1:
            LOG.warning(
                "client %d has one record %d times, and epsilon is of all its copies; without copies it would be "
                "smaller",
                training.federation.ids[int(copies.argmax())],
                int(copies.max()),
            )
        if rule.noise == "sum":
            attended = torch.bincount(torch.cat(cohorts), minlength=len(training.federation))
            by_view = accounting.epsilons_by_view(rule, attended, choice, copies=copies)
            spent, bounds = by_view["client"], accounting.bounds_by_view(rule, attended, choice, copies=copies)
        else:
            count = training.federation, cohorts, trainings, rule, self.first_round, choice, copies
            private = accounting.PrivateTrainings(*count)
            spent, bounds = private.epsilons(), dict.fromkeys(VIEWS, private.bound())
        finished.clients["epsilon"] = spent.numpy()
        largest = {"epsilon": float(spent.max())}
        largest |= {f"epsilon.{view}": float(epsilons.max()) for view, epsilons in by_view.items()}
        if choice is not None:
            largest["epsilon.choice"] = accounting.gaussian_epsilon(
                int(copies.max()) / choice if choice else inf, rule.delta
            )
        # Without noise nothing is guaranteed, and infinity is no number of JSON.
        finite = {key: value if isfinite(value) else nan for key, value in largest.items()}
        if isfinite(largest["epsilon"]):
            for view in _views_covered(finished):
                finite |= {f"bound.{view}.{name}": value for name, value in bounds[view]._asdict().items()}
        return Summary(overall={**finite, "delta": rule.delta})


def _views_covered(finished: FinishedTraining) -> Sequence[View]:
    """The views to which nothing is shown that the guarantee leaves out.

    A choice of model without noise is seen by the server, and it decides which of the released models have a client's
    update. So it reaches every view. Counts that the red team asks clients for reach the server, and through a
    coordinator's directives everybody.
    """
    training, team = finished.training, finished.red_team
    counts = team.every > 0 and team.estimator in NEED_HOLDOUT
    chosen = len(finished.state.models) > 1 and choice_noise(training.algorithm) is None
    if chosen or (counts and training.coordinator is not None):
        return ()
    return VIEWS[:-1] if counts else VIEWS
