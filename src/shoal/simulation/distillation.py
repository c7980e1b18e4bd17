"""Distilled students and averages over rounds, released instead of the clusters' models."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, State, Training


def soft_cross_entropy(outputs: Tensor, posteriors: Tensor) -> Tensor:
    """Return the cross-entropy (B,) in nats between a model's outputs (B, C) and a teacher's posteriors (B, C)."""
    return -(posteriors * functional.log_softmax(outputs, dim=1)).sum(dim=1)


_AVERAGE = "release.average"
"""The key of the running average in `State.server`."""


@settings
class Distillation:
    """Distillation of each cluster's model into a student model, trained on the shadow set without labels.

    With ``average``, the model is first averaged over the last rounds, which reduces the noise of single rounds:

        average_t = average_(t-1) + (models_t - average_(t-1)) / min(t, N)

    The average is a plain mean in the first N rounds, and an exponential average in later rounds. Clients receive the
    models without averaging. The average restarts if the number of models changes.

    The student minimises the cross-entropy with the posteriors ``softmax(outputs / T)`` of its teacher, the cluster's
    model. In a regression, the student minimises the model's loss with the teacher's outputs as targets. If the shadow
    set determines the teacher completely, the student equals its teacher and protects nothing.

    Distillation protects against outsiders, and with ``distil = "round"`` also against other clients. Distillation does
    not protect against the server, which has the teachers. Jagielski et al. (NeurIPS 2023, arXiv:2303.03446) infer
    members from some students. Measure your own students, also with canaries.

    Args:
        distil: when students replace the clusters' models. "end" replaces models after the last round. "round" replaces
            models after every round, so clients train students. "never" releases the averages and trains no students.
        average: the number N of rounds in the average; without this key, models are not averaged.
        steps: the number of SGD steps per student.
        batch_size: the number of examples of the shadow set per step.
        learning_rate: the learning rate of SGD.
        temperature: the temperature T of the teacher's posteriors.

    Raises:
        InputError: the settings request neither students nor averages.

    Source: Shejwalkar and Houmansadr, "Membership privacy for machine learning models through knowledge transfer", AAAI
    2021, arXiv:1906.06589, for one model and selected public examples. De, Berrada, Hayes, Smith and Balle 2022,
    arXiv:2204.13650, section 3.2, average over steps under noise.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.noisy_groups()
        >>> release = shoal.Distillation(steps=300)
        >>> simulation = shoal.Simulation(federation, model, shoal.IFCA(clusters=2), local, rounds=3, release=release)
        >>> result = shoal.Run(simulation).train()
        >>> teacher, student = model.state_dict(result.state.models[0]), result.models[0]
        >>> all(teacher[name].equal(student[name]) for name in student)
        False
    """

    distil: Literal["end", "round", "never"] = "end"
    average: Positive | None = None
    steps: Positive = 1500
    batch_size: Positive = 100
    learning_rate: PositiveFloat = 0.1
    temperature: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        require(
            self.distil != "never" or self.average is not None,
            "'release' has no effect with distil = \"never\" and no 'average'; remove it, or set one of the two keys",
        )

    def after_round(self, before: State, after: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the state ``after`` a round with new students and the new average."""
        if self.distil == "round":
            after = replace(after, models=self.release_models(after.models, federation, engine, stream))
        if self.average is None:
            return after
        average, models = before.server.get(_AVERAGE), after.models.cpu()
        if average is None or average.shape != models.shape:
            average = models
        average = average + (models - average) / min(after.round, self.average)
        return replace(after, server={**after.server, _AVERAGE: average})

    def release_models(self, models: Tensor, federation: Federation, engine: Engine, stream: Stream) -> Tensor:
        """Train one student per model, and return the students (K, P)."""
        public, teacher = federation.shadow, engine.model
        local = LocalSGD(steps=self.steps, batch_size=self.batch_size, learning_rate=self.learning_rate)
        students = []
        for k, row in enumerate(models):
            outputs = engine.outputs(row, public.x)
            if federation.classes is None:
                model, targets = teacher, outputs
            else:
                model = replace(teacher, loss=soft_cross_entropy, metric=None)
                targets = functional.softmax(outputs / self.temperature, dim=1)
            draws = stream("student", k)
            start = teacher.init(draws)
            students.append(engine.train_centrally(model, start, public.x, targets, local, draws("batches")))
        return torch.stack(students)

    def check(self, federation: Federation) -> None:
        """Raise `InputError` if students have no public examples."""
        require(
            len(federation.shadow) > 0 or self.distil == "never",
            "'release' needs a shadow set, with or without labels; add shadow examples",
        )


def apply_release(release: Distillation | None, training: Training, state: State) -> State:
    """Return the state after the last round, with the models replaced by the released models."""
    if release is None:
        return state
    models = state.server.get(_AVERAGE, state.models).to(state.models)
    if release.distil == "end":
        models = release.release_models(models, training.federation, training.engine, training.stream("release"))
    return state if models is state.models else replace(state, models=models)
