"""Source inference, of the owner of a record; and group inference, of a client's group from its cluster.

Source: Hu, Salcic, Sun, Dobbie, Zhang, "Source inference attacks in federated learning", ICDM 2021, arXiv:2109.05659:
the client whose model has the smallest loss on the record, which is the best guess where all are equally likely.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from shoal.attacks.updates.update_scores import UpdateScores, mean_over_rounds
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.metrics import clopper_pearson
from shoal.metrics.intervals import Bools, Floats, Ints


@dataclass(frozen=True)
class Guesses:
    """Accuracy of guesses.

    Args:
        right: number of correct guesses.
        count: number of guesses.
        chance: the accuracy by chance.
        low, high: 95 % interval of the accuracy (Clopper-Pearson). It takes the guesses as independent, which those on
            one client's records are not quite.
    """

    right: int
    count: int
    chance: float
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        """The fraction of right guesses; NaN without any."""
        return self.right / self.count if self.count else float("nan")

    @staticmethod
    def from_outcomes(right: Bools, chance: Floats) -> "Guesses":
        """Guesses (m,) that were right or not, and the chance of each."""
        low, high = (float(end) for end in clopper_pearson(right.sum(), len(right)))
        return Guesses(int(right.sum()), len(right), float(chance.mean()) if len(right) else float("nan"), low, high)


@settings
class SourceInference:
    """Guesses the client whose sent model has the smallest loss on a record.

    Args:
        among: whose models are compared: those of all clients of the "federation", or those of the owner's "cluster",
            which says what is left to guess once the cluster is known.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import SourceInference, UpdateScores
        >>> fit = np.eye(4) + 0.1 * np.random.default_rng(0).random((1, 4, 4))  # one round, four clients, their records
        >>> four, zeros = np.arange(4), np.zeros(4, dtype=np.int64)
        >>> scores = UpdateScores(np.array([1]), four, zeros[None], -fit, fit, fit, zeros, four, zeros, ("all",))
        >>> guesses = SourceInference().guess(scores)
        >>> guesses.right, guesses.count, guesses.chance
        (4, 4, 0.25)
    """

    name: ClassVar[str] = "source-inference"
    title: ClassVar[str] = "source inference"
    view: ClassVar[View] = "server"

    among: Literal["federation", "cluster"] = "federation"

    def guess(self, scores: UpdateScores) -> Guesses:
        """Guess the owner of every record that somebody trained on, by each client's mean loss over its rounds.

        A record is guessed where its owner and at least one other client could have been the answer. A client is in its
        last recorded round's cluster.
        """
        losses, assignment = mean_over_rounds(scores.loss.astype(np.float64)), last_assignment(scores)
        right, chance = [np.zeros(0, dtype=bool)], [np.zeros(0)]
        present = np.flatnonzero(assignment >= 0)
        for owner in present:
            asked = present if self.among == "federation" else np.flatnonzero(assignment == assignment[owner])
            records = np.flatnonzero(scores.client == owner)
            if len(asked) > 1:
                right.append(asked[losses[np.ix_(asked, records)].argmin(axis=0)] == owner)
                chance.append(np.full(len(records), 1 / len(asked)))
        return Guesses.from_outcomes(np.concatenate(right), np.concatenate(chance))


@settings
class GroupInference:
    """Guesses that a client is of the group that most clients of its cluster are of.

    An attacker who knows the groups of most members of a cluster, as by asking a few, knows that much of the others. A
    client alone in its cluster counts as guessed. The chance is the largest group's share.
    """

    name: ClassVar[str] = "group-inference"
    title: ClassVar[str] = "group inference"
    view: ClassVar[View] = "server"

    def guess(self, scores: UpdateScores) -> Guesses:
        """Guess the group of every client with records, from the cluster of its last recorded round."""
        assignment, of_client = last_assignment(scores), client_groups(scores)
        present = (assignment >= 0) & (of_client >= 0)
        group, cluster = of_client[present], assignment[present]
        guessed = np.array([_most(group[cluster == k]) for k in cluster], dtype=np.int64)
        share = float(np.bincount(group).max() / len(group)) if len(group) else float("nan")
        return Guesses.from_outcomes(guessed == group, np.full(len(group), share))


def last_assignment(scores: UpdateScores) -> Ints:
    """The cluster (N,) of each client in its last recorded round; -1 for one in none."""
    last = np.full(len(scores.clients), -1, dtype=np.int64)
    for assignment in scores.assignment:
        last = np.where(assignment >= 0, assignment, last)
    return last


def client_groups(scores: UpdateScores) -> Ints:
    """The group (N,) of most records of each client; -1 for one without records."""
    by_client = [scores.group[scores.client == i] for i in range(len(scores.clients))]
    return np.array([_most(groups) if len(groups) else -1 for groups in by_client], dtype=np.int64)


def _most(values: Ints) -> int:
    """The most frequent of some numbers, the smallest of several such."""
    return int(np.bincount(values).argmax())
