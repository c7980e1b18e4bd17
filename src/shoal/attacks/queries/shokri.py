"""The shadow-model attack: a classifier of posteriors, trained on the records of shadow models.

Source: Shokri, Stronati, Song, Shmatikov 2017, arXiv:1610.05820; Salem et al. 2019, arXiv:1806.01246 (sorted
posteriors); IFCA-MIR, Algorithm 2, lines 2 to 7.
"""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from shoal.attacks.membership_attack import Needs, Query, Records
from shoal.core.randomness import Stream
from shoal.core.settings import Flag, settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Bools, Floats

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

Classifier = Literal["logistic", "mlp", "random-forest"]


@settings
class ShadowModelAttack:
    """The shadow-model attack, which classifies a record as a member or a non-member by the model's posteriors.

    Args:
        classifier: the attack's classifier: "logistic" (logistic regression), "mlp" (64 hidden neurons) or
            "random-forest" (100 trees).
        per_class: whether each true class has a separate classifier, as in Shokri et al. If false, one classifier for
            all classes reads the true class as a one-hot input. "logistic" needs ``per_class`` or
            ``sorted_posteriors``, because a single linear classifier cannot select the true class's posterior.
        sorted_posteriors: whether the classifier receives the posteriors in descending order.
        name: the attack's name in a configuration.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Query, Records
        >>> sure, unsure, labels = [3.0, 0.0], [0.5, 0.0], torch.zeros(8, dtype=torch.int64)
        >>> member = torch.tensor([True, False] * 4)
        >>> records = Records(torch.tensor([sure, unsure] * 4), labels, member, shadow=labels, example=torch.arange(8))
        >>> fitted = shoal.ShadowModelAttack().fit(records, shoal.Stream(0))
        >>> fitted.score(Query(torch.tensor([sure, unsure]), labels[:2])) > fitted.threshold
        array([ True, False])
    """

    needs: ClassVar[Needs] = "records"
    title: ClassVar[str] = "shadow models"
    view: ClassVar[View] = "outsider"
    needs_classes: ClassVar[bool] = True

    classifier: Classifier = "logistic"
    per_class: Flag = True
    sorted_posteriors: Flag = False
    name: Literal["shadow"] = "shadow"

    def fit(self, records: Records, stream: Stream) -> "FittedShadowModelAttack":
        """Train one classifier for all classes, or a classifier for each class that has members and non-members."""
        features = self.features(records.outputs, records.labels)
        member, labels = records.member.numpy(), records.labels.numpy()
        if not self.per_class:
            return FittedShadowModelAttack(self, {-1: _classifier(self.classifier, features, member, stream("all"))})
        classifiers: dict[int, Pipeline] = {}
        for label in np.unique(labels):
            of_class = labels == label
            if 0 < member[of_class].sum() < of_class.sum():
                seeds = stream("class", int(label))
                classifiers[int(label)] = _classifier(self.classifier, features[of_class], member[of_class], seeds)
        return FittedShadowModelAttack(self, classifiers)

    def features(self, outputs: Tensor, labels: Tensor) -> Floats:
        """Return the classifiers' inputs (M, F) for outputs (M, C) and labels (M,)."""
        posteriors = torch.softmax(outputs.double(), dim=1)
        if self.sorted_posteriors:
            posteriors = posteriors.sort(dim=1, descending=True).values
        if self.per_class:
            return posteriors.numpy()
        one_hot = torch.nn.functional.one_hot(labels, outputs.shape[1]).double()
        return torch.cat([posteriors, one_hot], dim=1).numpy()


@dataclass(frozen=True, eq=False)
class FittedShadowModelAttack:
    """A fitted shadow-model attack, whose score is the probability of membership.

    The score is 0.5 (non-member) for a class without a classifier.

    Args:
        classifiers: the classifier of each class; -1 is the key of a classifier for all classes.
        threshold: the largest score that is classified as a non-member.
    """

    attack: ShadowModelAttack
    classifiers: dict[int, "Pipeline"]
    threshold: float = 0.5

    def score(self, query: Query) -> Floats:
        """Return the probability of membership of each record, (M,)."""
        features = self.attack.features(query.outputs, query.labels)
        scores = np.full(len(query.labels), 0.5)
        for label, classifier in self.classifiers.items():
            of_class = np.ones(len(scores), dtype=bool) if label < 0 else query.labels.numpy() == label
            if of_class.any():
                with _controller().limit(limits=1):
                    scores[of_class] = classifier.predict_proba(features[of_class])[:, 1]
        return scores


@cache
def _controller() -> ThreadpoolController:
    # Once per process, since the search for its libraries takes as long as fitting a classifier.
    return ThreadpoolController()


def _classifier(kind: Classifier, features: Floats, member: Bools, stream: Stream) -> "Pipeline":
    """Fit a classifier that predicts ``member`` (M,) from ``features`` (M, F)."""
    # Imported here because scikit-learn takes long to import.
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
    # Several BLAS threads are slower on such small problems, and may change the last bits.
    with warnings.catch_warnings(), _controller().limit(limits=1):
        # A classifier at its limit of iterations is still an attack.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipeline.fit(features, member)
