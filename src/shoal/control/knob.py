"""What a coordinator steers, and what it is believed to buy and to cost before anything was measured."""

from shoal.core.settings import PositiveFloat, settings
from shoal.engine import ScalableDefense


@settings
class Knob:
    """A means whose strength u in [0, 1] is decided anew for each cluster.

    Args:
        defense: of local training, at full strength. None: an algorithm's own means, such as `Pooling`, which reads the
            directive of this knob's name.
        relief: by how much full strength lowers a model's risk, in balanced accuracy as the risk estimator gives it.
        cost: by how much full strength lowers accuracy on held-out examples.

    Both are beliefs that measured changes correct (`sensitivity`). What matters at the start is their ratio, which
    decides the defence that moves first.

    Example:
        >>> import shoal
        >>> knob = shoal.Knob(shoal.L2(0.1), relief=0.04, cost=0.01)
        >>> [knob.defense.scaled(strength).penalty for strength in (0.0, 0.5, 1.0)]
        [0.0, 0.05, 0.1]
    """

    defense: ScalableDefense | None
    relief: PositiveFloat = 0.05
    cost: PositiveFloat = 0.01
