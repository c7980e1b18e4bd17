"""Defences against inference from updates, as values that change a `TrainingSetup`.

To add a defence, write a frozen dataclass with a method ``apply``, a ``name`` and a ``title``, list the class in
`DEFENSES`, and add a field to `shoal.config.defense_sections`.
"""

from shoal.defenses import accounting
from shoal.defenses.augmentation import Augmentation
from shoal.defenses.ccl import CCL
from shoal.defenses.defense import Defense, LossDefense, TrainingSetup, apply_defenses
from shoal.defenses.dp_sgd import DPSGD
from shoal.defenses.flooding import Flooding
from shoal.defenses.laplace_noise import LaplaceNoise
from shoal.defenses.mixup import Mixup
from shoal.defenses.norm_clipping import NormClipping
from shoal.defenses.regularization import L2, Dropout, ShorterTraining
from shoal.defenses.relaxloss import RelaxLoss

DEFENSES = {
    cls.name: cls
    for cls in (
        Dropout, L2, ShorterTraining, DPSGD, Augmentation, Mixup, Flooding, RelaxLoss, CCL, LaplaceNoise, NormClipping,
    )
}  # fmt: skip
"""The defences by their keys in [defenses], in order of application. A coordinator can steer every defence with a
method ``with_strength``."""

__all__ = [
    "CCL", "DEFENSES", "DPSGD", "L2", "Augmentation", "Defense", "Dropout", "Flooding", "LaplaceNoise", "LossDefense",
    "Mixup", "NormClipping", "RelaxLoss", "ShorterTraining", "TrainingSetup", "accounting", "apply_defenses",
]  # fmt: skip
