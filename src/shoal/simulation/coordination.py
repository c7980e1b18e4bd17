"""Checks of a coordinator before the first round, and metrics of it afterwards."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf, isfinite, nan

import torch

from shoal.algorithms.wrapper import choice_noise
from shoal.audit.measurement import FinishedTraining, measurement
from shoal.audit.red_team import NEED_HOLDOUT
from shoal.control import CHANCE, DIRECTIVE_COLUMN, Coordinator, directives_of
from shoal.data.content import most_copies
from shoal.data.preferences import VIEWS, Preferences, View
from shoal.defenses import accounting
from shoal.engine import ClientTrainings, ClusterRound, LocalSGD, State, Training, client_trainings
from shoal.metrics.attack_bounds import AttackBound
from shoal.metrics.summary import Summary

LOG = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, float]]
"""Rows of `rounds.csv`: one per round and cluster, in order."""

SUMMARY_COLUMNS = ("over_limit", "limit_unmet")
"""Columns of a coordinator's memory that `summary.json` has."""


def warn_of_impossible_limits(preferences: Preferences) -> None:
    """Say how many clients have a limit that no training can keep."""
    impossible = int((preferences.threshold <= CHANCE).sum())
    if impossible:
        LOG.warning(
            "the limit of %d clients is at most %g, the accuracy at chance, which no training can keep",
            impossible,
            CHANCE,
        )


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
    knobs = training.coordinator.knobs.values() if isinstance(training.coordinator, Coordinator) else ()
    for knob in knobs:
        steered = local if knob.defense is None else knob.defense.local(local, ClusterRound(round=1, cluster=0))
        if _spending(steered) != _spending(local):
            return None
    return trainings


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """The settings that, with a client's examples, decide the privacy that a round spends."""
    return (local.gradient_privacy if local.private else None), local.batch_size, local.epochs, local.steps


@measurement("directive", "Coordination")
def coordination(finished: FinishedTraining) -> Summary:
    """Measure each cluster's last directives and its members' limits; nothing without a coordinator."""
    state = finished.state
    columns = {name: state.control[name] for name in SUMMARY_COLUMNS if name in state.control}
    columns |= {f"{DIRECTIVE_COLUMN}{name}": values for name, values in state.directives.items()}
    # Where an algorithm changed the number of models since, these are of others.
    columns = {name: values for name, values in columns.items() if len(values) == len(state.models)}
    return Summary(
        by_cluster={
            k: {name: int(values[k]) if name == "limit_unmet" else float(values[k]) for name, values in columns.items()}
            for k in range(len(state.models))
            if columns
        }
    )


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
            count = training.federation, cohorts, trainings, rule, self.first_round
            spent = accounting.federation_epsilons(*count, choice, copies)
            bounds = dict.fromkeys(VIEWS, accounting.federation_bound(*count, choice, copies))
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


def changed_directives(rows: Rows) -> dict[str, list[float]]:
    """The directives (K,) that clusters were given after the last round, by name, where they are not those of before.

    >>> changed_directives([{"round": r, "cluster": 0, "directive.l2": s} for r, s in ((1, 0.0), (2, 0.5))])
    {'l2': [0.5]}
    """
    now, before = (directives_of(rows) for rows in _last_two_rounds(rows))
    return {name: values for name, values in now.items() if values != before.get(name, [0.0] * len(values))}


def became_unmet(rows: Rows) -> list[int]:
    """The clusters that cannot be brought within their members' limits since the last round, and could before."""
    now, before = ({row["cluster"] for row in rows if row.get("limit_unmet")} for rows in _last_two_rounds(rows))
    return sorted(int(k) for k in now - before)


def _last_two_rounds(rows: Rows) -> tuple[Rows, Rows]:
    """The rows of the last round, and of the one before."""
    last = rows[-1]["round"] if rows else 0
    recent = list(takewhile(lambda row: row["round"] >= last - 1, reversed(rows)))[::-1]
    now, before = ([row for row in recent if row["round"] == number] for number in (last, last - 1))
    return now, before
