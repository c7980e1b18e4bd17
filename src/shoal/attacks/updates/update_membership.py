"""The server's membership attacks on clients' updates, by FedMIA, Grad-cosine and Grad-diff.

**FedMIA.** The other clients, which did not train on a record, replace shadow models. FedMIA scores a record x for
client i from the measurements m_k of each client k's update on x in round t:

    score = mean over t of Phi((m_i - mu) / sigma),   mu, sigma^2 = mean and variance of m_k over k != i  (+ 1e-8)

The variance is the population variance, as in the authors' code. Two things differ from that code: every client is
scored on the same records, and only clients that trained the same model in the same round are compared. Clients of
other clusters would show which cluster fits a record, not which client trained on the record.

If another client owns a record, the owner is among the compared clients and lowers the record's score. An audit
therefore reports records of other clients separately from records that no client trained on.

**Gradient alignment.** In large models the gradients g = grad l(w; x) of different records are nearly orthogonal. A
client's step D = w - w_k therefore aligns with the gradients of its records.

Source: Zhu, Li, Fan, Yang, CVPR 2025, arXiv:2402.06289 (FedMIA); Li, Li, Ribeiro, "Effective passive membership
inference attacks in federated learning against overparameterized models", ICLR 2023, arXiv:2111.00430.
"""

from typing import ClassVar

import numpy as np

from shoal.attacks.updates.update_scores import UpdateScores, mean_over_rounds
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats, Ints

MIN_OTHERS = 2
"""The smallest number of other clients to compare with, because one client gives no variance."""


@settings
class FedMIALoss:
    """FedMIA-I: the measurement is minus the loss of the client's sent model on the record.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import FedMIACosine, FedMIALoss, GradCosine, GradDifference, UpdateScores
        >>> fit = np.eye(4) + 0.1 * np.random.default_rng(0).random((1, 4, 4))  # one round, four clients, their records
        >>> four, zeros = np.arange(4), np.zeros(4, dtype=np.int64)
        >>> scores = UpdateScores(np.array([1]), four, zeros[None], -fit, fit, fit, zeros, four, zeros, ("all",))
        >>> (FedMIALoss().score(scores) > FedMIALoss.threshold).astype(int)
        array([[1, 0, 0, 0],
               [0, 1, 0, 0],
               [0, 0, 1, 0],
               [0, 0, 0, 1]])
        >>> attacks = FedMIACosine(), GradCosine(), GradDifference()
        >>> [attack.score(scores).argmax(axis=0).tolist() for attack in attacks]
        [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    """

    name: ClassVar[str] = "fedmia-i"
    title: ClassVar[str] = "FedMIA-I"
    view: ClassVar[View] = "server"
    threshold: ClassVar[float] = 0.5

    def score(self, scores: UpdateScores) -> Floats:
        """Return scores (N, M) in [0, 1], with NaN if no two other clients ever trained the client's model."""
        return _percentiles(-scores.loss.astype(np.float64), scores.assignment)


@settings
class FedMIACosine:
    """FedMIA-II: the measurement is the cosine of the record's gradient and the client's step.

    The paper's variant for heterogeneous clients, which removes outliers, is not implemented.
    """

    name: ClassVar[str] = "fedmia-ii"
    title: ClassVar[str] = "FedMIA-II"
    view: ClassVar[View] = "server"
    threshold: ClassVar[float] = 0.5

    def score(self, scores: UpdateScores) -> Floats:
        """Return scores (N, M) in [0, 1], with NaN if no two other clients ever trained the client's model."""
        return _percentiles(scores.cosine.astype(np.float64), scores.assignment)


@settings
class GradCosine:
    """The cosine of the record's gradient and the client's step, averaged over the recorded rounds."""

    name: ClassVar[str] = "grad-cosine"
    title: ClassVar[str] = "Grad-cosine"
    view: ClassVar[View] = "server"
    threshold: ClassVar[float] = 0.0

    def score(self, scores: UpdateScores) -> Floats:
        """Return scores (N, M) in [-1, 1], with NaN for a client without a recorded round."""
        return mean_over_rounds(scores.cosine.astype(np.float64))


@settings
class GradDifference:
    """The mean decrease of a step's squared length by removal of the record's gradient, ``|D|^2 - |D - g|^2``."""

    name: ClassVar[str] = "grad-diff"
    title: ClassVar[str] = "Grad-diff"
    view: ClassVar[View] = "server"
    threshold: ClassVar[float] = 0.0

    def score(self, scores: UpdateScores) -> Floats:
        """Return scores (N, M), with NaN for a client without a recorded round."""
        return mean_over_rounds(scores.difference.astype(np.float64))


def _percentiles(values: Floats, assignment: Ints) -> Floats:
    """Return the mean over rounds (N, M) of each client's percentile in its cluster, from values (T, N, M)."""
    from scipy.special import ndtr  # noqa: PLC0415 - scipy takes a while to import

    percentiles = np.full(values.shape, np.nan)
    for t, clusters in enumerate(assignment):
        for i in np.flatnonzero(clusters >= 0):
            same_model = np.flatnonzero(clusters == clusters[i])
            null = values[t, same_model[same_model != i]]
            if len(null) >= MIN_OTHERS:
                deviation = np.sqrt(null.var(axis=0) + 1e-8)
                percentiles[t, i] = ndtr((values[t, i] - null.mean(axis=0)) / deviation)
    return mean_over_rounds(percentiles)
