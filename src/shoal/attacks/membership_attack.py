"""Membership-inference attacks: the protocol they implement, and the values they are fitted on and queried with.

An attack is fitted on the records of shadow models (`MembershipAttack.fit`), then scores examples
(`FittedAttack.score`). The shadow models may also serve as reference models, whose outputs on the same examples say how
difficult these are; `MembershipAttack.needs` declares what is computed for an attack.
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
"""Input of an attack's fit: nothing, the shadow models' records, or records with `Records.reference`. With the last,
every query has the reference models' outputs too."""


@dataclass(frozen=True, eq=False)
class Query:
    """Examples to be scored, by the outputs of the attacked model and of the reference models.

    Args:
        outputs: (M, C) float32, the attacked model's outputs before softmax.
        labels: (M,) int64, true classes; of a regression (M, d) float32.
        reference: (R, M, C) float32, the reference models' outputs on the same examples; None unless the attack needs
            reference models.
        trained_on: (R, M) bool, whether each reference model was trained on each example; None like ``reference``.
        loss: of the attacked model's training.
    """

    outputs: Tensor
    labels: Tensor
    reference: Tensor | None = None
    trained_on: Tensor | None = None
    loss: Loss = cross_entropy

    @staticmethod
    def unseen(outputs: Tensor, labels: Tensor, reference: Tensor | None, loss: Loss = cross_entropy) -> "Query":
        """Query for an offline attack: no reference model was trained on the examples."""
        trained_on = None if reference is None else torch.zeros(reference.shape[:2], dtype=torch.bool)
        return Query(outputs, labels, reference, trained_on, loss)


@dataclass(frozen=True, eq=False)
class ReferenceModels:
    """The shadow models of one cluster, kept to be evaluated on the examples that an attack scores.

    Args:
        models: (R, P) float32 on the CPU.
        trained_on: (R, S) bool, which examples of the shadow set each was trained on.
        outputs: (R, S, C) float32, the outputs of each on the shadow set.
    """

    models: Tensor
    trained_on: Tensor
    outputs: Tensor

    def evaluate(self, x: Tensor, rows: Tensor, engine: Engine) -> Tensor:
        """Outputs (R, m, C) float32 on the CPU for the inputs of x at ``rows`` (m,), one model after another."""
        return torch.stack([engine.outputs(model, x, rows).cpu() for model in self.models])

    def without(self, model: int) -> "ReferenceModels":
        """Reference models but for number ``model``; later ones move up."""
        kept = torch.arange(len(self.models)) != model
        return ReferenceModels(self.models[kept], self.trained_on[kept], self.outputs[kept])


@dataclass(frozen=True, eq=False)
class Records:
    """Outputs of the shadow models of one cluster on their members and non-members.

    Args:
        outputs: (M, C) float32, outputs before softmax.
        labels: (M,) int64, true classes; of a regression (M, d) float32.
        member: (M,) bool, whether the shadow model was trained on the example.
        shadow: (M,) int64, which shadow model gave the outputs, from 0.
        example: (M,) int64, the example's position in the shadow set.
        reference: these shadow models; None unless the attack needs reference models.
        loss: with which they were trained, as the attacked model was.
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
        """The records at ``mask`` (M,) bool."""
        return replace(self, **{name: getattr(self, name)[mask] for name in _COLUMNS})

    def without(self, model: int) -> "Records":
        """Records but for those of shadow model ``model``; later shadow models move up."""
        kept = self.where(self.shadow != model)
        reference = None if self.reference is None else self.reference.without(model)
        return replace(kept, shadow=kept.shadow - (kept.shadow > model).long(), reference=reference)

    def query(self, model: int) -> Query:
        """Query against one shadow model about its records, with the other shadow models as reference models.

        Its members are ``member[shadow == model]``.
        """
        asked = self.where(self.shadow == model)
        if self.reference is None:
            return Query(asked.outputs, asked.labels, loss=self.loss)
        reference = self.reference.without(model)
        outputs, trained_on = reference.outputs[:, asked.example], reference.trained_on[:, asked.example]
        return Query(asked.outputs, asked.labels, outputs, trained_on, self.loss)

    @staticmethod
    def joined(records: Sequence["Records"], reference: ReferenceModels | None) -> "Records":
        """Records one after another, of models with one loss, with these reference models."""
        columns = {name: torch.cat([getattr(part, name) for part in records]) for name in _COLUMNS}
        return Records(**columns, reference=reference, loss=records[0].loss)

    @staticmethod
    def none() -> "Records":
        """No records, for an attack that needs nothing."""
        nothing = torch.empty(0, dtype=torch.int64)
        return Records(torch.empty(0, 0), nothing, nothing.bool(), nothing, nothing)


_COLUMNS = ("outputs", "labels", "member", "shadow", "example")
"""The fields of `Records` with one value per record."""


class FittedAttack(Protocol):
    """Scores examples; those with a score above ``threshold`` are called members."""

    @property
    def threshold(self) -> float:
        """The largest score of a non-member."""
        ...

    def score(self, query: Query) -> Floats:
        """Scores (M,) of the M examples; higher means more likely a member."""
        ...


@runtime_checkable
class MembershipAttack(Protocol):
    """An attack before it is fitted: a frozen dataclass of its hyper-parameters.

    One that reads posteriors or predicted classes has a class variable ``needs_classes = True``, and is then refused in
    a regression. To add one: its file, and its name in `shoal.attacks.MEMBERSHIP_ATTACKS`.

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
        >>> fitted = Confidence().fit(Records.none(), shoal.Stream(0))
        >>> fitted.score(Query(torch.tensor([[9.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))) > fitted.threshold
        array([ True, False])
    """

    needs: ClassVar[Needs]

    def fit(self, records: Records, stream: Stream) -> FittedAttack:
        """Fit the attack on one model of the federation.

        Args:
            records: of shadow models of that model, with as much in them as ``needs`` says.
            stream: of all that is random in fitting.
        """
        ...


def needs_classes(attack: MembershipAttack | type) -> bool:
    """True of an attack that reads posteriors or predicted classes, which a regression lacks."""
    return bool(getattr(attack, "needs_classes", False))


def losses(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Floats:
    """The loss (M,) of outputs (M, C) and labels (M,), of a regression (M, d); cross-entropy in nats.

    >>> losses(torch.zeros(1, 4), torch.tensor([2])).round(3)
    array([1.386])
    """
    if not len(labels):
        return np.empty(0)  # A user's loss may fail without examples.
    # Losses of a user may hold float32 tensors, such as weights of classes, so they get what they get in training.
    return loss(outputs.double() if loss is cross_entropy else outputs, labels).detach().double().numpy()


def logit_confidence(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """The logit-scaled confidence in the true class, log(p / (1 - p)): (M,) float64 of outputs (M, C), labels (M,).

    z_y - log sum_{j != y} exp(z_j), which is finite where p is 1 in floating point (Carlini et al. 2022, equation 3).
    A model with another loss than cross-entropy has minus the loss instead.

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
