"""Site inference: a guess of a record's client, such as a hospital, from the model's outputs on the record.

The baseline guesses the largest site of each class, because a label alone can reveal the site.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from shoal.attacks.updates.source_inference import Guesses
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats, Ints, mean_interval


@dataclass(frozen=True)
class SiteGuesses:
    """Guesses of sites from the model's outputs, and a comparison with guesses from the label alone.

    Args:
        outputs: the guesses from outputs; their chance level is the accuracy of guesses from the label.
        gain: the accuracy of the guesses from outputs minus the chance level.
        low, high: the 95 % interval of the gain over paired records.
    """

    outputs: Guesses
    gain: float
    low: float
    high: float


@settings
class SiteInference:
    """The attack that predicts a record's client from the model's outputs by one logistic regression per class.

    The regression is cross-fitted on other records of the same clients. The attacker therefore needs outputs on records
    of known clients, for example from a shared evaluation.

    Args:
        folds: the number of folds of each class's records.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks.queries.site_inference import SiteInference
        >>> site, label = np.arange(200) % 2, np.arange(200) // 100
        >>> told = SiteInference().guess(site[:, None] * 1.0, label, site)
        >>> constant = SiteInference().guess(np.zeros((200, 1)), label, site)
        >>> told.outputs.accuracy, told.outputs.chance, constant.gain
        (1.0, 0.5, 0.0)
    """

    name: ClassVar[str] = "site-inference"
    title: ClassVar[str] = "site inference"
    view: ClassVar[View] = "outsider"

    folds: Annotated[int, Field(ge=2)] = 5

    def guess(self, outputs: Floats, label: Ints, site: Ints) -> SiteGuesses:
        """Guess the site of every record.

        Args:
            outputs: the outputs of the record's cluster model, (M, C).
            site: the client of each record, (M,).
        """
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import
        from sklearn.pipeline import make_pipeline  # noqa: PLC0415
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        guessed, prior = np.full(len(site), -1), np.full(len(site), -1)
        # Consecutive records of a site go to different folds.
        fold = np.empty(len(site), dtype=np.int64)
        fold[np.lexsort((site, label))] = np.arange(len(site)) % self.folds
        for c in np.unique(label):
            for part in range(self.folds):
                test, train = (label == c) & (fold == part), (label == c) & (fold != part)
                if not test.any() or not train.any():
                    continue
                sites, counts = np.unique(site[train], return_counts=True)
                prior[test] = guessed[test] = sites[counts.argmax()]
                if len(sites) > 1 and outputs[train].std(axis=0).any():
                    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
                    guessed[test] = regression.fit(outputs[train], site[train]).predict(outputs[test])
        right, by_prior = guessed == site, prior == site
        gains = right.astype(np.float64) - by_prior
        outcomes = Guesses.from_outcomes(right, by_prior.astype(np.float64))
        return SiteGuesses(outcomes, float(gains.mean()), *mean_interval(gains))
