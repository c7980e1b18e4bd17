"""Site inference: which client a record comes from, by what the client's model says of it.

Hospitals ask it of their outputs: the label alone says something where sites see different cases, so the outputs are
judged within each class, against always naming that class's largest site.
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
    """Guesses of sites by outputs, and of the prior on the same records.

    Args:
        outputs: by the outputs, with the chance that the prior gives.
        gain, low, high: accuracy beyond the prior, and its 95 % interval over the records, which are paired.
    """

    outputs: Guesses
    gain: float
    low: float
    high: float


@settings
class SiteInference:
    """Guesses a record's client by a regression of the client on the model's outputs, one per class.

    It is fitted on other records of the same clients, in turn on all folds but one. The attacker holds outputs on
    records of known clients, as from an evaluation that was shared.

    Args:
        folds: into which the records of a class are split.

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
            outputs: of the model of the record's client, (M, C).
            label: of the records (M,).
            site: the client of each (M,).
        """
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import
        from sklearn.pipeline import make_pipeline  # noqa: PLC0415
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        guessed, prior = np.full(len(site), -1), np.full(len(site), -1)
        # Records of a site one after another go to different folds.
        fold = np.empty(len(site), dtype=np.int64)
        fold[np.lexsort((site, label))] = np.arange(len(site)) % self.folds
        for c in np.unique(label):
            for part in range(self.folds):
                asked, known = (label == c) & (fold == part), (label == c) & (fold != part)
                if not asked.any() or not known.any():
                    continue
                sites, counts = np.unique(site[known], return_counts=True)
                prior[asked] = guessed[asked] = sites[counts.argmax()]
                if len(sites) > 1 and outputs[known].std(axis=0).any():
                    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
                    guessed[asked] = fitted.fit(outputs[known], site[known]).predict(outputs[asked])
        right, by_prior = guessed == site, prior == site
        gains = right.astype(np.float64) - by_prior
        outcomes = Guesses.from_outcomes(right, by_prior.astype(np.float64))
        return SiteGuesses(outcomes, float(gains.mean()), *mean_interval(gains))
