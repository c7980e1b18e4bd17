"""Exact forgetting: retraining of models without the leaver."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.core.settings import settings
from shoal.engine import Algorithm, Departure, Leaving, LocalSGD, Release, State, Training
from shoal.engine.state import UNKNOWN_RISK
from shoal.forgetting.past_rounds import BYTES, new_draws, same_draws, trains_clusters_alone


@settings
class Exact:
    """Exact retraining of every model that the leaving client (leaver) trained, without the leaver's data.

    **Retraining by cluster** is used if each model depends only on the clients that chose the model, as in FedAvg,
    FedProx, IFCA, IFCA's variants and `shoal.ByGroup`. In each past round, the remaining clients choose again, and the
    clients of retrained models train again. A model is retrained from the first round in which a leaver trained the
    model, or in which another client's choice changed. If clients choose by loss alone, the result equals a run that
    never had the leaver. If clients choose by risk, the method uses the risks that the original run estimated.

    **Retraining of the whole federation** is used for other algorithms, and for runs with a coordinator or a
    `shoal.engine.Release`. All past rounds run again without the leaver, with new choices and new random draws.

    If clients add noise, the noise is drawn again, because equal noise on two models would cancel in their difference.
    Shoal reconstructs the past, including earlier departures, by training again (`Departure.history_seconds`). The
    training time therefore grows with the square of the number of departures.

    Source: retraining from scratch, as in Bourtoule et al. 2021, arXiv:1912.03817, with clusters instead of shards.

    Example:
        >>> import shoal.toy
        >>> from dataclasses import replace
        >>> federation, model, local = shoal.toy.two_groups()
        >>> leave = [shoal.Event(round=3, leave=(3,))]
        >>> left = shoal.Simulation(
        ...     federation, model, shoal.IFCA(clusters=2), local, rounds=4, events=leave, forgetting=shoal.Exact()
        ... )
        >>> never = replace(left, events=[shoal.Event(round=1, leave=(3,))], forgetting=shoal.Continue())
        >>> results = [shoal.Run(simulation).train() for simulation in (left, never)]
        >>> results[0].state.models.equal(results[1].state.models)
        True
        >>> {key: results[0].summary.overall[f"forgetting.{key}"] for key in ("client_rounds", "full_client_rounds")}
        {'client_rounds': 2.0, 'full_client_rounds': 6.0}
    """

    name: Literal["exact"] = "exact"
    title: ClassVar[str] = "Exact retraining"

    def check(self, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
        """Accept every algorithm."""

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """Retrain the affected models, or the whole federation if `by_cluster` is false."""
        return (_by_cluster if self.by_cluster(leaving.training) else _whole)(self.name, leaving)

    @staticmethod
    def by_cluster(training: Training) -> bool:
        """Return whether the method retrains only the affected models, instead of the whole federation."""
        alone = training.coordinator is None and training.release is None
        return alone and trains_clusters_alone(training.algorithm)


def _whole(name: str, leaving: Leaving) -> tuple[State, Departure]:
    """Run all past rounds again without the clients that left."""
    training, now, presence = leaving.training, leaving.state, leaving.training.presence
    assert presence is not None
    without = replace(training, presence=presence.without(leaving.gone))
    # The same first models: no client has a part in them.
    state, cohorts = without.start(), list[Tensor]()
    for after, report in new_draws(without, now).rounds(state, now.round):
        state = after
        cohorts.append(report.cohort)
    spent = float(sum(map(len, cohorts)))
    return state, leaving.departure(name, state, client_rounds=spent, cohorts=tuple(cohorts))


def _by_cluster(name: str, leaving: Leaving) -> tuple[State, Departure]:
    """Retrain the models that the leavers trained, and the models whose clients change as a result."""
    now, several = leaving.state, len(leaving.state.models) > 1
    training = same_draws(replace(leaving.training, presence=None), now)
    again = torch.zeros(len(now.models), dtype=torch.bool)
    # No risk of the past is used: it was estimated on models that the leavers trained.
    state = replace(now, risks=torch.full_like(now.risks, UNKNOWN_RISK))
    cohorts, assignment, choices, changed, size = list[Tensor](), now.assignment.clone(), 0, 0, 0
    for before, report in leaving.history():
        size += BYTES * (before.models.numel() + len(report.cohort))
        # Of a model that begins now, nobody who is gone is a member yet.
        models, trained = (torch.where(again[:, None], state.models, before.models), before.trained.clone())
        trained[:, again] = state.trained[:, again]
        state = replace(state, round=before.round, models=models, trained=trained)
        here = ~torch.isin(report.cohort, leaving.gone)
        again[report.assignment[~here]] = True
        clients, choice = report.cohort[here], report.assignment[here]
        if several and len(clients) and bool(again.any()):
            asked = replace(state, risks=before.risks)
            own = training.algorithm.plan(asked, leaving.training.cohort_of(asked, clients)).assignment
            others = own != choice
            # A model begins where its members are no longer those of the past.
            again[own[others]] = again[choice[others]] = True
            choices, changed, choice = choices + len(own), changed + int(others.sum()), own
        assignment[clients] = choice
        moves = again[choice]
        if bool(moves.any()):
            state, _, _ = training.round_of(state, clients[moves], choice[moves])
            cohorts.append(clients[moves])
    trained = now.trained.clone()
    trained[:, again] = state.trained[:, again]
    after = leaving.with_models(torch.where(again[:, None], state.models, now.models))
    spent, told = float(sum(map(len, cohorts))), {"choices": choices, "changed_choices": changed}
    return replace(after, trained=trained, assignment=assignment), leaving.departure(
        name, after, client_rounds=spent, cohorts=tuple(cohorts), megabytes=size / 1e6, **told
    )
