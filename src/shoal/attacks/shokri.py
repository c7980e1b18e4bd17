"""The shadow-model attack: a classifier of posteriors, trained on what shadow models say.

Source: Shokri, Stronati, Song, Shmatikov 2017, arXiv:1610.05820; sorted posteriors: Salem et al. 2019,
arXiv:1806.01246. IFCA-MIR's Algorithm 2, lines 2 to 7.
"""

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from shoal.attacks.membership import Records
from shoal.core.randomness import Stream

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

Classifier = Literal["logistic", "mlp", "random-forest"]


@dataclass(frozen=True)
class ShadowModelAttack:
    """Classifies posteriors into members and non-members.

    Args:
        classifier: "logistic" regression, "mlp" (64 hidden neurons) or "random-forest" (100 trees).
        per_class: one classifier for each true class, as in the paper; otherwise one for all, which gets the
            true class as further inputs, one-hot. A linear classifier for all classes cannot know which
            posterior belongs to the true class, so "logistic" goes with ``per_class``.
        sorted_posteriors: posteriors in descending order, which forgets what the classes are.
    """

    classifier: Classifier = "logistic"
    per_class: bool = True
    sorted_posteriors: bool = False

    @property
    def learns(self) -> bool:
        """It needs records."""
        return True

    def fit(self, records: Records, stream: Stream) -> "FittedShadowModelAttack":
        """One classifier, or one for each class on whose records there are members and non-members."""
        features = self._features(records.outputs, records.labels)
        member = records.member.numpy()
        labels = records.labels.numpy()
        if not self.per_class:
            return FittedShadowModelAttack(self, {-1: _fitted(self.classifier, features, member, stream("all"))})
        fitted: dict[int, Pipeline] = {}
        for label in np.unique(labels):
            mine = labels == label
            if 0 < member[mine].sum() < mine.sum():
                fitted[int(label)] = _fitted(self.classifier, features[mine], member[mine], stream("class", int(label)))
        return FittedShadowModelAttack(self, fitted)

    def _features(self, outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
        posteriors = torch.softmax(outputs.double(), dim=1)
        if self.sorted_posteriors:
            posteriors = posteriors.sort(dim=1, descending=True).values
        if self.per_class:
            return posteriors.numpy()
        one_hot = torch.nn.functional.one_hot(labels, outputs.shape[1]).double()
        return torch.cat([posteriors, one_hot], dim=1).numpy()


@dataclass(frozen=True, eq=False)
class FittedShadowModelAttack:
    """Scores are the classifier's probability of "member"; a class without a classifier scores 0.5, "no"."""

    attack: ShadowModelAttack
    classifiers: dict[int, "Pipeline"]
    threshold: float = 0.5

    def score(self, outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """(M,) probabilities from outputs (M, C) and labels (M,)."""
        features = self.attack._features(outputs, labels)
        scores = np.full(len(labels), 0.5)
        for label, classifier in self.classifiers.items():
            mine = np.ones(len(labels), dtype=bool) if label < 0 else labels.numpy() == label
            if mine.any():
                with _one_thread():
                    scores[mine] = classifier.predict_proba(features[mine])[:, 1]
        return scores


@cache
def _controller() -> ThreadpoolController:
    # Made once: finding the process's libraries takes as long as fitting a classifier.
    return ThreadpoolController()


def _one_thread() -> AbstractContextManager[object]:
    return _controller().limit(limits=1)


def _fitted(kind: Classifier, features: NDArray[np.float64], member: NDArray[np.bool_], stream: Stream) -> "Pipeline":
    # Here, since scikit-learn takes long to import.
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    seed = stream.key() % 2**31
    estimator: Any
    match kind:
        case "logistic":
            estimator = LogisticRegression(max_iter=200)
        case "mlp":
            estimator = MLPClassifier((64,), max_iter=100, early_stopping=len(member) >= 100, random_state=seed)
        case "random-forest":
            estimator = RandomForestClassifier(100, min_samples_leaf=5, random_state=seed)
    pipeline = make_pipeline(StandardScaler(), estimator)
    # These problems are small: more BLAS threads only wait for each other, and may change the last bits.
    with warnings.catch_warnings(), _one_thread():
        # An attack model stopped at its limit of iterations is still an attack.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipeline.fit(features, member)
