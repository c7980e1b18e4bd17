"""Inference of a record's owner (source inference), and of a client's group from its cluster.

Source: Hu, Salcic, Sun, Dobbie, Zhang, "Source inference attacks in federated learning", ICDM 2021, arXiv:2109.05659.
The guess is the client whose model has the smallest loss on the record; this is optimal for a uniform prior.
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
    """The accuracy of guesses.

    Args:
        right: the number of correct guesses.
        count: the number of guesses.
        chance: the chance level of the accuracy.
        low, high: the 95 % interval of the accuracy (Clopper-Pearson), which treats the guesses as independent.
    """

    right: int
    count: int
    chance: float
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        """The fraction of correct guesses, or NaN without guesses."""
        return self.right / self.count if self.count else float("nan")

    @staticmethod
    def from_outcomes(right: Bools, chance: Floats) -> "Guesses":
        """Summarise m guesses by their outcomes and chance levels, (m,) each."""
        low, high = (float(end) for end in clopper_pearson(right.sum(), len(right)))
        return Guesses(int(right.sum()), len(right), float(chance.mean()) if len(right) else float("nan"), low, high)


@settings
class SourceInference:
    """The attack that guesses a record's owner as the client whose sent model has the smallest loss on the record.

    Args:
        among: the clients whose models are compared: all clients ("federation"), or only the owner's cluster
            ("cluster") for an attacker who knows the cluster.

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
        """Guess the owner of every member from each client's mean loss over the client's rounds.

        Records with fewer than two possible owners are left out. A client's cluster is the cluster of its last recorded
        round.
        """
        losses, assignment = mean_over_rounds(scores.loss.astype(np.float64)), last_assignment(scores)
        right, chance = [np.zeros(0, dtype=bool)], [np.zeros(0)]
        present = np.flatnonzero(assignment >= 0)
        for owner in present:
            clients = present if self.among == "federation" else np.flatnonzero(assignment == assignment[owner])
            records = np.flatnonzero(scores.client == owner)
            if len(clients) > 1:
                right.append(clients[losses[np.ix_(clients, records)].argmin(axis=0)] == owner)
                chance.append(np.full(len(records), 1 / len(clients)))
        return Guesses.from_outcomes(np.concatenate(right), np.concatenate(chance))


@settings
class GroupInference:
    """The attack that guesses the largest group in a client's cluster as the client's group.

    The attacker knows the groups of most clients in the cluster. The guess for a client alone in its cluster counts as
    correct. The chance level is the fraction of clients in the largest group.
    """

    name: ClassVar[str] = "group-inference"
    title: ClassVar[str] = "group inference"
    view: ClassVar[View] = "server"

    def guess(self, scores: UpdateScores) -> Guesses:
        """Guess the group of every client with records, from the cluster of the client's last recorded round."""
        assignment, of_client = last_assignment(scores), client_groups(scores)
        present = (assignment >= 0) & (of_client >= 0)
        group, cluster = of_client[present], assignment[present]
        guessed = np.array([_most(group[cluster == k]) for k in cluster], dtype=np.int64)
        share = float(np.bincount(group).max() / len(group)) if len(group) else float("nan")
        return Guesses.from_outcomes(guessed == group, np.full(len(group), share))


def last_assignment(scores: UpdateScores) -> Ints:
    """Return each client's cluster in its last recorded round, (N,); -1 without a recorded round."""
    last = np.full(len(scores.clients), -1, dtype=np.int64)
    for assignment in scores.assignment:
        last = np.where(assignment >= 0, assignment, last)
    return last


def client_groups(scores: UpdateScores) -> Ints:
    """Return the most frequent group among each client's records, (N,); -1 for a client without records."""
    by_client = [scores.group[scores.client == i] for i in range(len(scores.clients))]
    return np.array([_most(groups) if len(groups) else -1 for groups in by_client], dtype=np.int64)


def _most(values: Ints) -> int:
    """Return the most frequent number; the smallest if several are equally frequent."""
    return int(np.bincount(values).argmax())
