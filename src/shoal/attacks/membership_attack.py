"""The protocol of membership-inference attacks, and the values that they are fitted on and queried with.

An attack is fitted on the records of shadow models, then scores examples. The shadow models may also serve as reference
models, whose outputs on an example show how difficult it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.engine import Engine
from shoal.metrics.intervals import Floats
from shoal.models.model import Loss, cross_entropy

Needs = Literal["nothing", "records", "reference models"]
"""Input of an attack's fit: nothing, the shadow models' records, or those with `Records.reference`, whose queries have
the reference models' outputs too."""


@dataclass(frozen=True, eq=False)
class Query:
    """Examples to be scored, as outputs of the attacked model and of the reference models.

    Args:
        outputs: (M, C) float32, the attacked model's outputs before softmax.
        labels: (M,) int64, true classes; (M, d) float32 in a regression.
        reference: (R, M, C) float32, the reference models' outputs; None unless the attack needs them.
        reference_member: (R, M) bool, whether each reference model was trained on each example; None like
            ``reference``.
        loss: the training loss of the attacked model.
    """

    outputs: Tensor
    labels: Tensor
    reference: Tensor | None = None
    reference_member: Tensor | None = None
    loss: Loss = cross_entropy

    @staticmethod
    def offline(outputs: Tensor, labels: Tensor, reference: Tensor | None, loss: Loss = cross_entropy) -> "Query":
        """Return a query for an offline attack, where no reference model was trained on the examples."""
        reference_member = None if reference is None else torch.zeros(reference.shape[:2], dtype=torch.bool)
        return Query(outputs, labels, reference, reference_member, loss)


@dataclass(frozen=True, eq=False)
class ReferenceModels:
    """The shadow models of one cluster, to be evaluated on the examples that an attack scores.

    Args:
        models: (R, P) float32 on the CPU.
        member: (R, S) bool, which examples of the shadow set each model was trained on.
        outputs: (R, S, C) float32, the models' outputs on the shadow set.
    """

    models: Tensor
    member: Tensor
    outputs: Tensor

    def evaluate(self, x: Tensor, rows: Tensor, engine: Engine) -> Tensor:
        """Compute the outputs (R, m, C) float32 on the CPU for the inputs of x at ``rows`` (m,)."""
        return torch.stack([engine.outputs(model, x, rows).cpu() for model in self.models])

    def without(self, model: int) -> "ReferenceModels":
        """Leave out the model at position ``model``."""
        rest = torch.arange(len(self.models)) != model
        return ReferenceModels(self.models[rest], self.member[rest], self.outputs[rest])


@dataclass(frozen=True, eq=False)
class Records:
    """Outputs of the shadow models of one cluster on their members and non-members.

    Args:
        outputs: (M, C) float32, outputs before softmax.
        labels: (M,) int64, true classes; (M, d) float32 in a regression.
        member: (M,) bool, whether the shadow model was trained on the example.
        shadow: (M,) int64, the position of the shadow model.
        example: (M,) int64, the example's position in the shadow set.
        reference: the shadow models; None unless the attack needs reference models.
        loss: the training loss of the shadow models and of the attacked model.
    """

    outputs: Tensor
    labels: Tensor
    member: Tensor
    shadow: Tensor
    example: Tensor
    reference: ReferenceModels | None = None
    loss: Loss = cross_entropy

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, mask: Tensor) -> "Records":
        """Select the records at ``mask`` (M,) bool."""
        return replace(self, **{name: getattr(self, name)[mask] for name in _COLUMNS})

    def without(self, model: int) -> "Records":
        """Leave out one shadow model and its records; the shadow models after it move up by one."""
        rest = self.where(self.shadow != model)
        reference = None if self.reference is None else self.reference.without(model)
        return replace(rest, shadow=rest.shadow - (rest.shadow > model).long(), reference=reference)

    def query(self, model: int) -> Query:
        """Return a query about the records of one shadow model, with the other shadow models as reference models.

        Its members are ``member[shadow == model]``.
        """
        records = self.where(self.shadow == model)
        if self.reference is None:
            return Query(records.outputs, records.labels, loss=self.loss)
        reference, example = self.reference.without(model), records.example
        return Query(
            records.outputs, records.labels, reference.outputs[:, example], reference.member[:, example], self.loss
        )

    @staticmethod
    def concatenate(records: Sequence["Records"], reference: ReferenceModels | None) -> "Records":
        """Concatenate records of models with the same loss, and set their reference models."""
        columns = {name: torch.cat([getattr(part, name) for part in records]) for name in _COLUMNS}
        return Records(**columns, reference=reference, loss=records[0].loss)

    @staticmethod
    def empty() -> "Records":
        """Return zero records, for an attack that needs nothing."""
        nothing = torch.empty(0, dtype=torch.int64)
        return Records(torch.empty(0, 0), nothing, nothing.bool(), nothing, nothing)


_COLUMNS = ("outputs", "labels", "member", "shadow", "example")
"""The fields of `Records` with one value per record."""


class FittedAttack(Protocol):
    """An attack after its fit: an example is classified as a member if its score is above ``threshold``."""

    @property
    def threshold(self) -> float:
        """The largest score of a non-member."""
        ...

    def score(self, query: Query) -> Floats:
        """Return scores (M,) of the M examples; higher means more likely a member."""
        ...


@runtime_checkable
class MembershipAttack(Protocol):
    """An attack before it is fitted: a frozen dataclass of its hyper-parameters.

    An attack that reads posteriors or predicted classes has a class variable ``needs_classes = True``, and is refused
    in a regression. A new attack needs a file and its name in `shoal.attacks.MEMBERSHIP_ATTACKS`.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import ClassVar
        >>> import torch, shoal
        >>> from shoal.attacks import MembershipAttack, Query, Records
        >>> @dataclass(frozen=True)
        ... class Confidence:
        ...     needs: ClassVar[str] = "nothing"
        ...     threshold: float = 0.9
        ...     def fit(self, records, stream):
        ...         return self
        ...     def score(self, query):
        ...         return query.outputs.softmax(dim=1).amax(dim=1).double().numpy()
        ...
        >>> isinstance(Confidence(), MembershipAttack)
        True
        >>> fitted = Confidence().fit(Records.empty(), shoal.Stream(0))
        >>> fitted.score(Query(torch.tensor([[9.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))) > fitted.threshold
        array([ True, False])
    """

    needs: ClassVar[Needs]

    def fit(self, records: Records, stream: Stream) -> FittedAttack:
        """Fit the attack on one model of the federation.

        Args:
            records: records of that model's shadow models, as ``needs`` declares.
            stream: the randomness of fitting.
        """
        ...


def needs_classes(attack: MembershipAttack | type) -> bool:
    """Whether an attack reads posteriors or predicted classes, which a regression lacks."""
    return bool(getattr(attack, "needs_classes", False))


def losses(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Floats:
    """Return the losses (M,) of outputs (M, C) for labels (M,), or targets (M, d); cross-entropy in nats.

    >>> losses(torch.zeros(1, 4), torch.tensor([2])).round(3)
    array([1.386])
    """
    if not len(labels):
        return np.empty(0)  # A user's loss may fail without examples.
    # A user's loss may hold float32 tensors, such as class weights, so it gets the precision of training.
    return loss(outputs.double() if loss is cross_entropy else outputs, labels).detach().double().numpy()


def logit_confidence(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """Return the logit-scaled confidence in the true class, log(p / (1 - p)), of outputs (M, C) and labels (M,).

    It is computed as z_y - log sum_{j != y} exp(z_j), which stays finite where p rounds to 1. A model with another loss
    than cross-entropy gets minus its loss.

    Returns:
        (M,) float64.

    Source: Carlini et al. 2022, equation 3.

    Example:
        >>> import torch
        >>> from shoal import logit_confidence
        >>> logit_confidence(torch.tensor([[0.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 0]))
        tensor([  0., 100.], dtype=torch.float64)
    """
    if loss is not cross_entropy:
        return -torch.from_numpy(losses(outputs, labels, loss))
    outputs = outputs.double()
    true = outputs.gather(1, labels[:, None])
    other_classes = outputs.scatter(1, labels[:, None], -torch.inf)
    return true[:, 0] - other_classes.logsumexp(dim=1)
