"""Exact forgetting: what the leaver trained is trained again without it."""

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
    """Each model that a leaver trained is trained again without it, from its last state that never saw it.

    **By cluster**, where a model depends on its own clients alone: FedAvg, FedProx, IFCA and its rules of choice, and
    one model per group, without a coordinator and without a release. In each past round the clients that stay choose
    anew, and those of retrained models train them. A model is retrained from the first round in which a leaver trained
    it, or in which another client chose differently; other models stay bit for bit. Where clients choose by loss alone,
    the result is the run that never had the leaver. Choices that weigh risk are made at the risks of the past.

    **The whole federation** otherwise: all past rounds, with choices of their own and new random draws; nothing is
    replayed.

    Where clients add noise it is drawn anew, since one noise on two models would cancel in their difference. The past
    is trained once more to know it (`Departure.history_seconds`), also what earlier leavers made of it, so the time
    grows with the square of the departures.

    Source: retraining from scratch, as in Bourtoule et al. 2021, arXiv:1912.03817, where shards keep it local; here
    clusters do.

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
        """Every algorithm will do."""

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """See the class."""
        return (_by_cluster if self.by_cluster(leaving.training) else _whole)(self.name, leaving)

    @staticmethod
    def by_cluster(training: Training) -> bool:
        """Whether single models are retrained; else the whole federation is."""
        alone = training.coordinator is None and training.release is None
        return alone and trains_clusters_alone(training.algorithm)


def _whole(name: str, leaving: Leaving) -> tuple[State, Departure]:
    """All past rounds without those who are gone."""
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
    """The models that the leavers trained, and those whose members change for it, in lock-step with the past."""
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
