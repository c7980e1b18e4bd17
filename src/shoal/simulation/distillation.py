"""What is released in the place of the clusters' models: averages over rounds, and students of them."""

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
    """Cross-entropy in nats with a teacher's posteriors: outputs (B, C), posteriors (B, C) -> (B,)."""
    return -(posteriors * functional.log_softmax(outputs, dim=1)).sum(dim=1)


_AVERAGE = "release.average"
"""The running average in `State.server`."""


@settings
class Distillation:
    """A student of each cluster's model, trained from a new start on the shadow set, without its labels.

    With ``average`` the model is first an average over the last rounds, which noise of single rounds moves less:

        average_t = average_(t-1) + (models_t - average_(t-1)) / min(t, N)

    the mean of the first N rounds, then an exponential average. Clients are sent the models themselves, and where their
    number changes the average begins anew. An average of models is no protection: it follows what they remember.

    The student minimises the cross-entropy with its teacher's posteriors ``softmax(outputs / T)``; of a regression, the
    model's loss with the teacher's outputs. What a teacher remembers of its members outside the span of the public
    examples does not reach the student. Where these span all that a model can express, a student is its teacher.

    It protects against whoever has the students alone: an outsider with ``distil = "end"``, other clients too with
    ``"round"``. The server has the teachers. Jagielski et al. attack students of teachers that were never asked about a
    training example and still find members (NeurIPS 2023, arXiv:2303.03446), so measure yours, with canaries too.

    Args:
        distil: "end": the models after the last round are replaced; "round": those of every round, so that clients are
            sent students, and train these; "never": there are no students, and the averages are released.
        average: N, rounds that an average reaches back; None: the models of the last round are released.
        steps: of SGD.
        batch_size: public examples per step.
        learning_rate: of the steps.
        temperature: T.

    Raises:
        InputError: neither students nor averages.

    Source: Shejwalkar and Houmansadr, "Membership privacy for machine learning models through knowledge transfer", AAAI
    2021, arXiv:1906.06589; of ours are the clusters and the use of all public examples. Averages under noise: De,
    Berrada, Hayes, Smith, Balle 2022, arXiv:2204.13650, section 3.2; over rounds instead of steps, ours.

    Example:
        >>> import shoal
        >>> one, shadow = ([[-1.0], [1.0]], [0, 1]), ([[-0.5], [0.7]] * 20, [0, 0] * 20)
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=one, shadow=shadow)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> setting = federation, model, shoal.FedAvg(), shoal.LocalSGD(steps=50)
        >>> trained = shoal.Run(shoal.Simulation(*setting, rounds=3, release=shoal.Distillation(steps=300))).train()
        >>> trained.summary.overall["accuracy.overall"]
        1.0
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
            "'release' changes nothing with distil = \"never\" and no 'average'; leave it out, or give one of them",
        )

    def after_round(self, before: State, after: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """The state ``after`` a round with students where each round has some, and with the average."""
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
        """The students (K, P) of ``models`` (K, P); they draw from ``stream``."""
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
            drawn = stream("student", k)
            start = teacher.init(drawn)
            students.append(engine.train_centrally(model, start, public.x, targets, local, drawn("batches")))
        return torch.stack(students)

    def check(self, federation: Federation) -> None:
        """Raise `InputError` where students have no public examples."""
        require(
            len(federation.shadow) > 0 or self.distil == "never",
            "'release' distils on a shadow set, public examples without labels; give shadow examples",
        )


def apply_release(release: Distillation | None, training: Training, state: State) -> State:
    """The state after the last round as it is released; itself without averages and distillation at the end."""
    if release is None:
        return state
    models = state.server.get(_AVERAGE, state.models).to(state.models)
    if release.distil == "end":
        models = release.release_models(models, training.federation, training.engine, training.stream("release"))
    return state if models is state.models else replace(state, models=models)
