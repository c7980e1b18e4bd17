"""A baseline that trains on the server's labelled examples only."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, settings
from shoal.data import Federation
from shoal.engine import Aggregate, Cohort, Engine, LocalSGD, RoundPlan, State


def train_on_server(
    models: Tensor, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream, name: str
) -> Tensor:
    """Train models (K, P) on the server's labelled examples; equal models stay equal.

    Raises:
        InputError: the federation has no shadow examples.
    """
    shadow = federation.shadow
    require(len(shadow) > 0, f"'{name}' needs labelled examples of the server; add shadow examples")
    starts, which = models.unique(dim=0, return_inverse=True)
    ends = [engine.train_centrally(engine.model, row, shadow.x, shadow.y, local, stream("server")) for row in starts]
    return torch.stack(ends)[which]


@settings
class ServerOnly(Derived):
    """One model, trained on the server's labelled examples before the first round; clients send nothing.

    The exposure of the clients is at chance level. A federation less accurate than `ServerOnly` has no benefit.

    Args:
        epochs: the number of passes over the server's examples. Batch size and learning rate are those of local
            training.

    Example:
        >>> import shoal
        >>> one, shadow = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]] * 20, [0, 1] * 20)
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=one, shadow=shadow)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> result = shoal.simulate(federation, model, shoal.ServerOnly(), shoal.LocalSGD(), rounds=1)
        >>> result.summary.overall["accuracy.overall"]
        1.0
    """

    epochs: Positive = 20
    name: ClassVar[str] = "server-only"
    title: ClassVar[str] = "Shadow set alone"

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Train the model; raise `InputError` if the federation has no shadow examples."""
        state, passes = super().init(engine, federation, local, stream), replace(local, epochs=self.epochs, steps=None)
        return replace(state, models=train_on_server(state.models, engine, federation, passes, stream, self.name))

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        return RoundPlan(torch.zeros(len(cohort), dtype=torch.int64), ())

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        return state
