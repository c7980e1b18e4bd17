"""FedEraser: the server replays the stored updates of the remaining clients, corrected by short new training."""

from dataclasses import replace
from math import ceil
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.layout import Layout
from shoal.core.settings import Positive, settings
from shoal.engine import Algorithm, Departure, Leaving, LocalSGD, Release, RoundReport, State
from shoal.forgetting.past_rounds import BYTES, require_approximable, same_draws


@settings
class FedEraser:
    """FedEraser: models are rebuilt from all clients' updates, which the server stored in every D-th round.

    Each model is rebuilt from the initial parameters of the run. The first stored round adds the mean stored update of
    the remaining clients. In each later stored round, the remaining clients train the rebuilt model for a fraction of
    their local epochs. Each tensor of a model changes by ``|U| V / |V|``, where U is the mean stored update and V the
    mean new update of the remaining clients. A tensor with V = 0 does not change.

    The result is an approximation of a run that never had the leaver, because the lengths of U come from training with
    the leaver. The cost is about ``ratio / interval`` of a full retraining.

    As in the paper but not the authors' code, U is relative to the model that the clients received, and the server
    stores every D-th round from round 1 on. As in the authors' code, updates are averaged before norms are computed.
    Extension to clusters: the clients that chose a cluster in a stored round rebuild its model, with the algorithm's
    weights.

    Args:
        interval: the number D of rounds from one stored round to the next.
        ratio: the fraction of the local epochs (or steps) that a client trains per stored round, rounded up.

    Source: Liu, Ma, Yang, Wang, Liu 2021, IWQoS, "FedEraser", through a mirror of the authors' code
    (Karlywang/FedEraser-reproduce) and lecture notes on its section "Design of FedEraser" (vicw0ng-hk/feul, notebook
    03).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> leave = [shoal.Event(round=5, leave=(0,))]
        >>> simulation = shoal.Simulation(
        ...     federation, model, shoal.FedAvg(), local, rounds=5, events=leave, forgetting=shoal.FedEraser()
        ... )
        >>> overall = shoal.Run(simulation).train().summary.overall
        >>> overall["forgetting.client_rounds"], overall["forgetting.full_client_rounds"]
        (1.0, 8.0)
    """

    interval: Positive = 2
    ratio: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.5
    name: Literal["fed-eraser"] = "fed-eraser"
    title: ClassVar[str] = "FedEraser"

    def check(self, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
        """Raise `InputError` for DP-SGD, for a release, and for models that depend on clients of other clusters."""
        require_approximable(self.name, algorithm, local, release)

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """Rebuild the models of the leavers' clusters from the stored updates."""
        now, wanted = leaving.state, leaving.clusters
        layout = leaving.training.engine.model.layout
        training = same_draws(replace(leaving.training, presence=None), now)
        short, share = _shortened(training.local, self.ratio)
        training = replace(training, local=short)
        kept, size = leaving.past_rounds[:: self.interval], 0
        built, cohorts = now.models[:0], list[Tensor]()
        begun = torch.zeros_like(wanted)
        for before, report in leaving.history(kept):
            if not len(built):
                built = before.models.clone()
            if before.round + 1 not in kept or report.updates is None:
                continue
            size += BYTES * report.updates.updates.numel()
            here = ~torch.isin(report.cohort, leaving.gone) & wanted[report.assignment]
            calibrated = here & begun[report.assignment]
            moved = built
            if bool(calibrated.any()):
                clients, state = report.cohort[calibrated], replace(before, models=built)
                moved = training.round_of(state, clients, report.assignment[calibrated])[0].models
                cohorts.append(clients)
            for k in report.assignment[here].unique().tolist():
                old = _mean_update(report, k, here)
                step = old if not begun[k] else _calibrated(old, moved[k] - built[k], layout)
                built[k] += step
                begun[k] = True
        after = leaving.with_models(torch.where(wanted[:, None], built, now.models))
        spent = share * sum(map(len, cohorts))
        return after, leaving.departure(
            self.name, after, client_rounds=spent, cohorts=tuple(cohorts), megabytes=size / 1e6
        )


def _shortened(local: LocalSGD, ratio: float) -> tuple[LocalSGD, float]:
    """Return local training with about ``ratio`` of the epochs or steps, and the exact ratio."""
    whole = local.steps or local.epochs or 1
    part = ceil(ratio * whole)
    short = replace(local, epochs=part) if local.steps is None else replace(local, steps=part)
    return short, part / whole


def _mean_update(report: RoundReport, cluster: int, here: Tensor) -> Tensor:
    """Return the mean update (P,) of a cluster's clients in the mask ``here`` (n,), by the algorithm's weights."""
    (training,), updates = report.plan.trainings, report.updates
    assert training.weights is not None
    assert updates is not None
    inside = here & (report.assignment == cluster)
    weights = training.weights[cluster, inside]
    # One update per client of the cohort, in its order: algorithms that send more are refused.
    rows = updates.updates[inside[training.participants()]]
    return ((weights / weights.sum()) @ rows.double()).float()


def _calibrated(old: Tensor, new: Tensor, layout: Layout) -> Tensor:
    """Return ``|U| V / |V|`` for each trained tensor, and V for buffers, with U = ``old`` (P,) and V = ``new`` (P,)."""
    step = new.clone()
    for slot in layout.slots:
        place = slice(slot.start, slot.start + slot.size)
        length = new[place].norm()
        if slot.start < layout.trainable and float(length) > 0:
            step[place] *= old[place].norm() / length
    return step
