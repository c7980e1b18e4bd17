"""Preference inference: what the choices of a model over rounds say of how much risk a client tolerates.

Where clients weigh a model's risk against its loss (IFCA-MIR), or take none above their threshold, whoever sees who
trained which model may tell strict clients from others. Ours; the estimator is that of `cluster_identity.py`.
"""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.attacks.updates.cluster_identity import ClusterIdentity, IdentityGuesses
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.preferences import Preferences

STRICTER, LAXER, NEITHER = 1, 0, -1
"""The classes of clients that `strictness` gives."""


@settings
class PreferenceInference:
    """Guesses whether a client is one of the stricter or of the laxer half of its group.

    The classes of one half of the clients are known, those of the other half are guessed (`ClusterIdentity`). Every
    group has as many stricter as laxer clients, among the known too, so a group's clusters say nothing of the class.

    Args:
        name: of this attack.
        identity: the estimator.

    Example:
        >>> import numpy as np
        >>> import torch, shoal
        >>> from shoal.attacks import PreferenceInference
        >>> strict, none = np.arange(40) % 2, np.zeros(40, dtype=np.int64)
        >>> chosen = np.where(np.random.default_rng(0).random((10, 40)) < 0.9, strict, 1 - strict)
        >>> preferences = shoal.Preferences(torch.tensor(0.8 - 0.2 * strict), torch.full((40,), 0.5))
        >>> guesses = PreferenceInference().guess(chosen, none, preferences, np.arange(40), shoal.Stream(0))
        >>> guesses.accuracy > 0.9, guesses.chance
        (True, 0.5)
    """

    title: ClassVar[str] = "preference inference"

    name: Literal["preference-inference"] = "preference-inference"
    identity: ClusterIdentity = ClusterIdentity()

    def guess(
        self,
        assignment: NDArray[np.int64],
        group: NDArray[np.int64],
        preferences: Preferences,
        clients: NDArray[np.int64],
        stream: Stream,
    ) -> IdentityGuesses:
        """Guess the classes of N clients from their choices in T rounds.

        Args:
            assignment, group, clients, stream: as in `ClusterIdentity.guess`.
            preferences: of the N clients, the truth: known of one half, and by which the guesses are judged.

        Raises:
            InputError: fewer than two clients that took part and are stricter than as many others of their groups, or
                clients that chose one cluster alone.
        """
        known = np.where((assignment >= 0).any(axis=0), group, -1)
        half = strictness(preferences, known, clients)
        require(
            int((half == STRICTER).sum()) >= 2,
            "needs at least two clients that are stricter than others of their groups, one whose preference is known "
            f"and one that is guessed; there are {int((half == STRICTER).sum())}",
        )
        return self.identity.guess(assignment, half, clients, stream, strata=np.maximum(known, 0))


def strictness(preferences: Preferences, group: NDArray[np.int64], clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,), `STRICTER` or `LAXER`, equally many of each in every group, each stricter than all laxer ones.

    A client is stricter than another if its threshold is lower, or is the same and its beta larger. `NEITHER`: the
    middle one of an odd group, those as strict as the middle on both sides, and those of no group (-1).

    >>> import torch
    >>> tolerated = Preferences(torch.tensor([0.5, 0.6, 0.7, 0.7, 0.7]), torch.full((5,), 0.5))
    >>> strictness(tolerated, np.array([0, 0, 0, 1, 1]), np.arange(5)).tolist()
    [1, -1, 0, -1, -1]
    """
    found = np.full(len(group), NEITHER)
    thresholds, betas = preferences.threshold.numpy(), preferences.beta.numpy()
    for each in np.unique(group[group >= 0]):
        members = np.flatnonzero(group == each)
        ranked = members[np.lexsort((clients[members], -betas[members], thresholds[members]))]
        count = len(ranked) // 2
        while count > 0 and _alike(preferences, int(ranked[count - 1]), int(ranked[-count])):
            count -= 1
        found[ranked[:count]], found[ranked[len(ranked) - count :]] = STRICTER, LAXER
    return found


def _alike(preferences: Preferences, one: int, other: int) -> bool:
    same = preferences.threshold[one] == preferences.threshold[other]
    return bool(same and preferences.beta[one] == preferences.beta[other])
