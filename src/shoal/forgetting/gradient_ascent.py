"""Forgetting by projected gradient ascent on the leaver's loss."""

import logging
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import require
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.engine import (
    Algorithm,
    Departure,
    Gradient,
    Leaving,
    LocalSGD,
    LocalTraining,
    Release,
    RoundPlan,
    State,
    Training,
    client_updates,
)
from shoal.forgetting.past_rounds import BYTES, require_approximable

LOG = logging.getLogger("shoal")


@settings
class ProjectedGradientAscent:
    """Gradient ascent: the leaving client maximises its loss, close to a model that lacks its last update.

    Let w be the current model, w_i the leaver's model in its last round, and W_i the leaver's weight in that round. The
    reference model is ``w_ref = (w - W_i w_i) / (1 - W_i)``. The leaver takes gradient ascent steps from w_ref, each
    followed by a projection onto a ball around w_ref. The ball's squared radius is a third of the mean squared distance
    from w_ref to random initial models. The steps end when the squared distance to w_i exceeds ``stop_distance``, or
    after ``epochs``.

    The method is approximate and does not remove the influence of the leaver's earlier updates. The leaver must stay
    connected during the ascent. Extension: several leavers run the ascent in turn, each in every cluster that the
    leaver trained. Choose ``stop_distance`` for your network; the default suits the authors' network for MNIST.

    Args:
        epochs: the largest number of passes over the leaver's data.
        learning_rate: the learning rate of gradient ascent.
        momentum: the momentum of gradient ascent, in [0, 1).
        clip_norm: the largest L2 norm of a gradient.
        stop_distance: the squared L2 distance from the leaver's last model above which the ascent stops.
        random_models: the number of random initial models that set the ball's radius.

    Source: Halimi, Kadhe, Rawat, Baracaldo 2022, arXiv:2207.05521, sections 2 and 3; the authors' code and its settings
    (IBM/federated-unlearning).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> leave = [shoal.Event(round=3, leave=(0,))]
        >>> ascent = shoal.ProjectedGradientAscent(learning_rate=0.1)
        >>> simulation = shoal.Simulation(
        ...     federation, model, shoal.FedAvg(), local, rounds=4, events=leave, forgetting=ascent
        ... )
        >>> shoal.Run(simulation).train().summary.overall["forgetting.clusters"]
        1
    """

    epochs: Positive = 5
    learning_rate: PositiveFloat = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    clip_norm: PositiveFloat = 5.0
    stop_distance: PositiveFloat = 2.2
    random_models: Positive = 10
    name: Literal["gradient-ascent"] = "gradient-ascent"
    title: ClassVar[str] = "Projected gradient ascent"

    def check(self, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
        """Raise `InputError` for DP-SGD, for a release, and for models that depend on clients of other clusters."""
        require_approximable(self.name, algorithm, local, release)

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """Run each leaver's gradient ascent on the models that the leaver trained."""
        now, training = leaving.state, leaving.training
        models, sent, spent = now.models.clone(), dict[tuple[int, int], tuple[float, Tensor]](), 0.0
        by_id = leaving.leavers[training.federation.ids[leaving.leavers].argsort()].tolist()
        for before, report in leaving.history():
            for leaver in by_id:
                if before.round + 1 in now.trained[leaver].tolist():
                    client = int(training.federation.ids[leaver])
                    for k, weight, update in client_updates(training, before, report, client):
                        sent[leaver, k] = weight, before.models[k] + update
        for leaver in by_id:
            for k in torch.nonzero(now.trained[leaver]).flatten().tolist():
                weight, last = sent[leaver, k]
                client = int(training.federation.ids[leaver])
                require(
                    weight < 1,
                    f"'{self.name}' needs other clients in cluster {k} (got only client {client}); use 'exact'",
                )
                models[k] = self._ascended(leaving, leaver, (models[k] - weight * last) / (1 - weight), last, k)
                examples = int(training.federation.clients.sizes[leaver])
                spent += self._local(training).steps_of(examples) / training.local.steps_of(examples)
        # The leaver keeps its last model of each cluster.
        size = BYTES * len(sent) * models.shape[1]
        after = leaving.with_models(models)
        return after, leaving.departure(self.name, after, client_rounds=spent, megabytes=size / 1e6)

    def _local(self, training: Training) -> LocalSGD:
        """Return the settings of the leaver's ascent, without the run's defences."""
        return LocalSGD(epochs=self.epochs, batch_size=training.local.batch_size, learning_rate=self.learning_rate)

    def _ascended(self, leaving: Leaving, leaver: int, reference: Tensor, last: Tensor, cluster: int) -> Tensor:
        """Return the model (P,) after the ascent from ``reference`` (P,); ``last`` (P,) is the leaver's last model."""
        training, state = leaving.training, leaving.state
        model, stream = training.engine.model, training.stream("forgetting", leaving.state.round)
        width = model.layout.trainable
        starts = torch.stack([model.init(stream("random", i)) for i in range(self.random_models)])
        radius = float((starts - reference)[:, :width].double().square().sum(dim=1).mean()) / 3
        parts = [reference, torch.zeros(width), reference[:width], last[:width], torch.tensor([radius, 0.0])]
        row = torch.cat(parts)[None]
        rule = AscentStep(len(reference), width, self.momentum, self.clip_norm, self.stop_distance)
        local, only = self._local(training), torch.tensor([leaver])
        trainer = replace(training.trainer(state, only), local_of=lambda *_: local, batches=stream("batches", cluster))
        ascent = LocalTraining(row, torch.zeros(1, dtype=torch.int64), keep=lambda update: update, step_rule=rule)
        aggregate, _ = trainer.train(state, RoundPlan(torch.tensor([cluster]), (ascent,)))
        (update,) = aggregate.kept
        assert update is not None
        end = (row + update)[0]
        distance = float((end[:width] - last[:width]).square().sum())
        stopped = "stopped" if end[-1] > 0.5 else "took all its steps"
        LOG.info("gradient ascent on cluster %d %s, at a squared distance of %.3g", cluster, stopped, distance)
        return end[: len(reference)]


@dataclass(frozen=True)
class AscentStep:
    """An ascent step on rows [w, velocity, w_ref, w_i, squared radius, stopped], (u, P + 3 T + 2).

    Args:
        size: the number P of elements of a model.
        width: the number T of trained elements, which come first in a model.
        momentum, clip_norm, stop_distance: the settings of `ProjectedGradientAscent`.
    """

    size: int
    width: int
    momentum: float
    clip_norm: float
    stop_distance: float
    batches: int = 1

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """Return the rows after one step, as declared by `shoal.engine.StepRule`."""
        parts = [self.size, self.width, self.width, self.width, 1, 1]
        model, velocity, reference, last, radius, stopped = rows.split(parts, dim=1)
        descent = gradient(model, 0)[:, : self.width]
        norm = descent.norm(dim=1, keepdim=True)
        clipped = descent * (self.clip_norm / norm.clamp(min=self.clip_norm))
        faster = self.momentum * velocity - clipped
        moved = model[:, : self.width] - learning_rate * faster
        away = moved - reference
        distance = away.square().sum(dim=1, keepdim=True)
        moved = torch.where(distance > radius, reference + away * (radius / distance).sqrt(), moved)
        stops = ((moved - last).square().sum(dim=1, keepdim=True) > self.stop_distance).to(rows)
        after = torch.cat([moved, model[:, self.width :], faster, reference, last, radius, stops], dim=1)
        # Whoever has stopped stays, and so does a padded client without a gradient.
        return torch.where((stopped > 0.5) | (norm == 0), rows, after)
