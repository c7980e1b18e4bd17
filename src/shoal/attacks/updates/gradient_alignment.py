"""Grad-cosine and Grad-diff: whether a client's step points along a record's gradient.

Source: Li, Li, Ribeiro, "Effective passive membership inference attacks in federated learning against overparameterized
models", ICLR 2023, arXiv:2111.00430. In large models the gradients of different records are nearly orthogonal, so those
of the records that a client trained on are what its step is made of. D = w - w_k is the step, g = grad l(w; x).
"""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.attacks.updates.update_scores import UpdateScores, mean_over_rounds
from shoal.core.settings import settings


@settings
class GradCosine:
    """The cosine of D and g, on average over the recorded rounds.

    Args:
        name: of this attack.

    Source: Li, Li, Ribeiro, "Effective passive membership inference attacks in federated learning against
    overparameterized models", ICLR 2023, arXiv:2111.00430.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import GradCosine, UpdateScores
        >>> fit = np.eye(4) + 0.1 * np.random.default_rng(0).random((1, 4, 4))  # one round, four clients, their records
        >>> four, zeros = np.arange(4), np.zeros(4, dtype=np.int64)
        >>> scores = UpdateScores(np.array([1]), four, zeros[None], -fit, fit, fit, zeros, four, zeros, ("all",))
        >>> GradCosine().score(scores).argmax(axis=0)
        array([0, 1, 2, 3])
    """

    title: ClassVar[str] = "Grad-cosine"
    threshold: ClassVar[float] = 0.0

    name: Literal["grad-cosine"] = "grad-cosine"

    def score(self, scores: UpdateScores) -> NDArray[np.float64]:
        """(N, M) in [-1, 1]; NaN for a client in no recorded round."""
        return mean_over_rounds(scores.cosine.astype(np.float64))


@settings
class GradDifference:
    """``|D|^2 - |D - g|^2``: how much shorter the step is without the record's gradient, on average over the rounds.

    Args:
        name: of this attack.

    Source: Li, Li, Ribeiro, "Effective passive membership inference attacks in federated learning against
    overparameterized models", ICLR 2023, arXiv:2111.00430.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import GradDifference, UpdateScores
        >>> fit = np.eye(4) + 0.1 * np.random.default_rng(0).random((1, 4, 4))  # one round, four clients, their records
        >>> four, zeros = np.arange(4), np.zeros(4, dtype=np.int64)
        >>> scores = UpdateScores(np.array([1]), four, zeros[None], -fit, fit, fit, zeros, four, zeros, ("all",))
        >>> GradDifference().score(scores).argmax(axis=0)
        array([0, 1, 2, 3])
    """

    title: ClassVar[str] = "Grad-diff"
    threshold: ClassVar[float] = 0.0

    name: Literal["grad-diff"] = "grad-diff"

    def score(self, scores: UpdateScores) -> NDArray[np.float64]:
        """(N, M); NaN for a client in no recorded round."""
        return mean_over_rounds(scores.difference.astype(np.float64))
