"""The protocol of membership-inference attacks, and the data types for fitting and querying an attack.

An attack is fitted on the outputs of shadow models, then scores examples. Some attacks also use the shadow models as
reference models.
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
"""The shadow-model data that an attack needs; "reference models" adds `Records.reference` and reference outputs in
queries."""


@dataclass(frozen=True, eq=False)
class Query:
    """The outputs of the attacked model and of the reference models on M examples to score.

    Args:
        outputs: the attacked model's outputs before softmax, (M, C) float32.
        labels: true classes, (M,) int64, or regression targets, (M, d) float32.
        reference: the reference models' outputs, (R, M, C) float32, or ``None`` if the attack does not use reference
            models.
        reference_member: whether each reference model was trained on each example, (R, M) bool, or ``None`` if the
            attack does not use reference models.
        loss: the training loss of the attacked model.
    """

    outputs: Tensor
    labels: Tensor
    reference: Tensor | None = None
    reference_member: Tensor | None = None
    loss: Loss = cross_entropy

    @staticmethod
    def offline(outputs: Tensor, labels: Tensor, reference: Tensor | None, loss: Loss = cross_entropy) -> "Query":
        """Return a query with reference models that trained on none of the query's examples."""
        reference_member = None if reference is None else torch.zeros(reference.shape[:2], dtype=torch.bool)
        return Query(outputs, labels, reference, reference_member, loss)


@dataclass(frozen=True, eq=False)
class ReferenceModels:
    """The shadow models of one cluster.

    Args:
        models: the shadow models' parameters, (R, P) float32 on the CPU.
        member: whether each model was trained on each example of the shadow set, (R, S) bool.
        outputs: the shadow models' outputs on the shadow set, (R, S, C) float32.
    """

    models: Tensor
    member: Tensor
    outputs: Tensor

    def evaluate(self, x: Tensor, rows: Tensor, engine: Engine) -> Tensor:
        """Compute the shadow models' outputs on the rows ``rows`` (m,) of ``x``, (R, m, C) float32 on the CPU."""
        return torch.stack([engine.outputs(model, x, rows).cpu() for model in self.models])

    def without(self, model: int) -> "ReferenceModels":
        """Return the reference models without the model at index ``model``."""
        rest = torch.arange(len(self.models)) != model
        return ReferenceModels(self.models[rest], self.member[rest], self.outputs[rest])


@dataclass(frozen=True, eq=False)
class Records:
    """The outputs of one cluster's shadow models on their members and non-members.

    Args:
        outputs: outputs before softmax, (M, C) float32.
        labels: true classes, (M,) int64, or regression targets, (M, d) float32.
        member: whether each record's shadow model was trained on the record's example, (M,) bool.
        shadow: the index of each record's shadow model, (M,) int64.
        example: the index of each record's example in the shadow set, (M,) int64.
        reference: the shadow models, or ``None`` if the attack does not use reference models.
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
        """Remove one shadow model and its records, and decrease the later models' indices by 1."""
        rest = self.where(self.shadow != model)
        reference = None if self.reference is None else self.reference.without(model)
        return replace(rest, shadow=rest.shadow - (rest.shadow > model).long(), reference=reference)

    def query(self, model: int) -> Query:
        """Return a query on the records of one shadow model, with the other shadow models as reference models.

        The members among the records are ``member[shadow == model]``.
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
        """Concatenate records of models with the same loss, and attach the reference models."""
        columns = {name: torch.cat([getattr(part, name) for part in records]) for name in _COLUMNS}
        return Records(**columns, reference=reference, loss=records[0].loss)

    @staticmethod
    def empty() -> "Records":
        """Return zero records, for an attack that needs no shadow models."""
        nothing = torch.empty(0, dtype=torch.int64)
        return Records(torch.empty(0, 0), nothing, nothing.bool(), nothing, nothing)


_COLUMNS = ("outputs", "labels", "member", "shadow", "example")
"""The fields of `Records` with one value per record."""


class FittedAttack(Protocol):
    """A fitted attack, which classifies an example as a member if the example's score exceeds ``threshold``."""

    @property
    def threshold(self) -> float:
        """The largest score that is classified as a non-member."""
        ...

    def score(self, query: Query) -> Floats:
        """Return one score per example, (M,); a higher score means more likely a member."""
        ...


@runtime_checkable
class MembershipAttack(Protocol):
    """A membership-inference attack before fitting, as a frozen dataclass of hyper-parameters.

    An attack on posteriors or predicted classes sets the class variable ``needs_classes = True`` and is refused in a
    regression.

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
        """Fit the attack to one model of the federation.

        Args:
            records: the records of the model's shadow models.
        """
        ...


def needs_classes(attack: MembershipAttack | type) -> bool:
    """Return whether an attack uses posteriors or predicted classes, which a regression does not have."""
    return bool(getattr(attack, "needs_classes", False))


def losses(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Floats:
    """Return the loss of each output (M, C) for labels (M,) or targets (M, d), as (M,); cross-entropy is in nats.

    >>> losses(torch.zeros(1, 4), torch.tensor([2])).round(3)
    array([1.386])
    """
    if not len(labels):
        return np.empty(0)  # A user's loss may fail without examples.
    # A user's loss may hold float32 tensors, such as class weights, so it gets the precision of training.
    return loss(outputs.double() if loss is cross_entropy else outputs, labels).detach().double().numpy()


def logit_confidence(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """Return the logit-scaled confidence in the true class, log(p / (1 - p)), of outputs (M, C) and labels (M,).

    For logits z, this is z_y - log sum_{j != y} exp(z_j), which is finite even if p rounds to 1. For losses other than
    cross-entropy the confidence is minus the loss.

    Returns:
        One confidence per output, (M,) float64.

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
