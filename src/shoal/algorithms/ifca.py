"""IFCA: each client trains the model that loses least on its data, and so groups form.

Source: Ghosh, Chung, Yin, Ramchandran 2020, arXiv:2006.04088, Algorithm 1.
"""

import logging
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import OpenFraction, Positive, settings
from shoal.data.federation import Federation, Preferences
from shoal.engine import Engine, LocalSGD, averaging_weights

LOG = logging.getLogger(__name__)


@settings
class Redraw:
    """The official code's rule for initial models: draw all K anew until each wins enough clients.

    Args:
        share: of the sampled clients that every model must win (official: 0.35 for K = 2, 0.1 for K = 4).
        clients: how many clients are sampled (official: 20).
        attempts: draws before the last is taken anyway, with a warning.
    """

    share: OpenFraction = 0.35
    clients: Positive = 20
    attempts: Positive = 100


@settings
class IFCA:
    """Every client trains the model that loses least on its own examples; the server averages by cluster.

    Args:
        clusters: K.
        averaging: "model" averages the ends among the clients of a cluster (Option II); "gradient" (Option I)
            takes the clients' gradients, which are their updates after one local step, divided by the whole
            cohort's number as the paper and the official code do, so that a small cluster moves less.
        weighting: of clients in a cluster: "equal" (the paper), or by "examples".
        choose_by: score the models on "all" local examples, or on the first "batch" of the round's training.
        redraw: the official rule for initial models; None takes the first draw.

    Raises:
        InputError: fewer than one cluster.
    """

    title: ClassVar[str] = "IFCA"

    clusters: Positive = 2
    averaging: Literal["model", "gradient"] = "model"
    weighting: Literal["equal", "examples"] = "equal"
    choose_by: Literal["all", "batch"] = "all"
    redraw: Redraw | None = None
    name: Literal["ifca"] = "ifca"

    def __post_init__(self) -> None:
        share = 0.0 if self.redraw is None else self.redraw.share
        require(
            share * self.clusters <= 1,
            f"'redraw.share' = {share:g} for each of {self.clusters} models is more than all clients",
        )

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where gradients are averaged, but a round has not one of each client."""
        del risk_period
        require(
            self.averaging == "model" or local.steps == 1,
            "'averaging' = \"gradient\" takes one gradient from each client in a round, so local training must have "
            "'steps' = 1",
        )

    @property
    def chooses_by(self) -> Literal["all", "batch"]:
        """As ``choose_by`` says."""
        return self.choose_by

    def init(self, engine: Engine, federation: Federation, stream: Stream) -> Tensor:
        """K independent random models (K, P), redrawn by the official rule if that is asked for."""
        models = _draw(engine, self.clusters, stream)
        if self.redraw is None or self.clusters == 1:
            return models
        order = torch.randperm(len(federation), generator=stream("redraw clients").generator())
        sample = federation.clients.take(torch.argsort(federation.ids)[order[: self.redraw.clients]])
        for attempt in range(1, self.redraw.attempts + 1):
            winners = engine.losses(models, sample).argmin(dim=1)
            won = torch.bincount(winners, minlength=self.clusters) / len(winners)
            if float(won.min()) >= self.redraw.share:
                return models
            models = _draw(engine, self.clusters, stream("redraw", attempt))
        LOG.warning(
            "no draw of initial models in %d gave every model %g of the clients; going on with the last",
            self.redraw.attempts,
            self.redraw.share,
        )
        return models

    def choose(self, losses: Tensor, risks: Tensor, preferences: Preferences) -> Tensor:
        """The model of least loss: losses (n, K) -> (n,)."""
        del risks, preferences
        return losses.argmin(dim=1)

    def shares(self, assignment: Tensor, sizes: Tensor) -> Tensor:
        """(K, n): equal or by examples among a cluster's clients; with gradients, scaled by its part of the cohort."""
        weights = sizes.double() if self.weighting == "examples" else torch.ones(len(sizes), dtype=torch.float64)
        shares = averaging_weights(assignment, weights, self.clusters)
        if self.averaging == "model":
            return shares
        within = torch.zeros(self.clusters, dtype=torch.float64).index_add_(0, assignment, weights)
        return shares * (within / weights.sum())[:, None]


def _draw(engine: Engine, clusters: int, stream: Stream) -> Tensor:
    return torch.stack([engine.model.init(stream("model", k)) for k in range(clusters)])
