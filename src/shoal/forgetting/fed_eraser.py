"""FedEraser: the updates of those who stay are replayed, each turned to where a short new training points."""

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
    """The server keeps all clients' updates of every D-th round; when clients leave, it builds their models again.

    A model begins at its initial parameters. The first kept round adds the mean update of the clients that stay. In
    each later one they train for a share of their local epochs from the model M that was reached. With U the mean of
    their kept updates and V that of the new ones, each tensor moves by ``|U| V / |V|``: the new direction, at the old
    length. A tensor whose V is 0 stays.

    It is an approximation: the lengths of U were those of a training with the leaver, so the result is not the run that
    never had it. It takes about ``ratio / interval`` of a full retraining.

    Text and code differ, and this follows the text: U is relative to the model that clients were sent (the code: to the
    one after that round), and rounds 1, 1 + D, ... are kept (the code: D, 2 D, ..., whose first model has seen the
    leaver). It follows the code in averaging before it takes norms. Ours: each cluster is built by the clients that
    chose it in a kept round, weighted as the algorithm weighs them, and a round without any is skipped.

    Args:
        interval: D, rounds from one kept round to the next.
        ratio: share of the local epochs, or steps, of a new training, rounded up.

    Source: Liu, Ma, Yang, Wang, Liu 2021, IWQoS, "FedEraser". The text was not at hand: this is from a mirror of
    the authors' code (Karlywang/FedEraser-reproduce) and from lecture notes on its section "Design of FedEraser"
    (vicw0ng-hk/feul, notebook 03).

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
        """Models must depend on their own clients alone, and steps must not be private."""
        require_approximable(self.name, algorithm, local, release)

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """See the class."""
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
    """Local training of about ``ratio`` of the epochs or steps, and the share of them that it is."""
    whole = local.steps or local.epochs or 1
    part = ceil(ratio * whole)
    short = replace(local, epochs=part) if local.steps is None else replace(local, steps=part)
    return short, part / whole


def _mean_update(report: RoundReport, cluster: int, here: Tensor) -> Tensor:
    """(P,), the mean of a cluster's kept updates over its clients ``here`` (n,) bool, by the algorithm's weights."""
    (training,), updates = report.plan.trainings, report.updates
    assert training.weights is not None
    assert updates is not None
    inside = here & (report.assignment == cluster)
    weights = training.weights[cluster, inside]
    # One update per client of the cohort, in its order: algorithms that send more are refused.
    rows = updates.updates[inside[training.participants()]]
    return ((weights / weights.sum()) @ rows.double()).float()


def _calibrated(old: Tensor, new: Tensor, layout: Layout) -> Tensor:
    """``|U| V / |V|`` for each trained tensor, from U = ``old`` (P,) and V = ``new`` (P,); V in buffers."""
    step = new.clone()
    for slot in layout.slots:
        place = slice(slot.start, slot.start + slot.size)
        length = new[place].norm()
        if slot.start < layout.trainable and float(length) > 0:
            step[place] *= old[place].norm() / length
    return step
