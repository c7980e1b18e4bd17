"""The loss-threshold attack and the gap attack.

Source: Yeom, Giacomelli, Fredrikson, Jha 2018, arXiv:1709.01604.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from shoal.attacks.membership_attack import Needs, Query, Records, losses
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats


@settings
class LossThreshold:
    """Yeom's Adversary 1: an example is a member if the model's loss on the example is below the mean loss of members.

    The mean loss is computed on the members of the shadow models, because an outsider knows no other members.

    Args:
        name: the attack's name in a configuration.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Query, Records
        >>> outputs = torch.tensor([[4.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
        >>> labels, member = torch.zeros(4, dtype=torch.int64), torch.tensor([True, True, False, False])
        >>> records = Records(outputs, labels, member, shadow=labels, example=torch.arange(4))
        >>> fitted = shoal.LossThreshold().fit(records, shoal.Stream(0))
        >>> round(fitted.threshold, 3), fitted.score(Query(outputs, labels)) > fitted.threshold
        (-0.073, array([ True, False, False, False]))
    """

    needs: ClassVar[Needs] = "records"
    title: ClassVar[str] = "loss threshold"
    view: ClassVar[View] = "outsider"

    name: Literal["loss-threshold"] = "loss-threshold"

    def fit(self, records: Records, stream: Stream) -> "FittedLossThreshold":
        """Set the threshold to minus the mean loss of the members in ``records``; infinity if there are no members."""
        del stream
        of_members = losses(records.outputs, records.labels, records.loss)[records.member.numpy()]
        return FittedLossThreshold(-float(of_members.mean()) if len(of_members) else np.inf)


@dataclass(frozen=True)
class FittedLossThreshold:
    """A fitted loss-threshold attack, whose score is minus the training loss; cross-entropy is in nats."""

    threshold: float

    def score(self, query: Query) -> Floats:
        """Return minus the loss of each example, (M,)."""
        return -losses(query.outputs, query.labels, query.loss)


@settings
class Gap:
    """The gap attack: an example is a member if the model classifies the example correctly.

    The balanced accuracy of the attack is 0.5 + (train accuracy - test accuracy) / 2.

    Args:
        name: the attack's name in a configuration.
    """

    needs: ClassVar[Needs] = "nothing"
    title: ClassVar[str] = "gap"
    view: ClassVar[View] = "outsider"
    needs_classes: ClassVar[bool] = True

    name: Literal["gap"] = "gap"

    def fit(self, records: Records, stream: Stream) -> "FittedGap":
        """Return the fitted attack, which does not depend on the records."""
        del records, stream
        return FittedGap()


@dataclass(frozen=True)
class FittedGap:
    """A fitted gap attack, whose score is 1 if the model classifies the example correctly, else 0."""

    threshold: float = 0.5

    def score(self, query: Query) -> Floats:
        """Return 1 for each of the M examples that is classified correctly, else 0."""
        return (query.outputs.argmax(dim=1) == query.labels).double().numpy()
