"""Inference of a client's group, and of its tolerance of risk, from its choices of a model over rounds.

A server, or anyone who sees which model each client trained, knows the groups of some clients and guesses those of the
others. Where clients weigh a model's risk against its loss (IFCA-MIR), or take none above their threshold, it may also
tell strict clients from others.

Source: MingledPie, NDSS 2025, states the threat that a client's choices reveal its data. The estimator is ours, not
that paper's: naive Bayes over rounds, with tables of the choices of the clients whose groups are known.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data.preferences import Preferences, View
from shoal.metrics import mean_rate_interval
from shoal.metrics.intervals import Bools, Floats, Ints

STRICTER, LAXER, NEITHER = 1, 0, -1
"""The classes of clients that `strictness` gives."""


@dataclass(frozen=True, eq=False)
class IdentityGuesses:
    """Accuracy of the guesses of clients' groups.

    Args:
        clients: number of clients that were guessed.
        accuracy: balanced over groups: the mean over the groups of the fraction of its clients that were right.
        low, high: its 95 % interval over clients (`mean_rate_interval`), for these rounds.
        last_round: the balanced accuracy from each client's last choice alone.
        chance: that of always guessing the most frequent group, 1 / (number of groups).
        margin: (T,) log-likelihood in nats of the choices up to each round, of a client's own group minus the likeliest
            other; a mean over the clients of each group and over the groups.
    """

    clients: int
    accuracy: float
    low: float
    high: float
    last_round: float
    chance: float
    margin: Floats
    __repr__ = one_line


@settings
class ClusterIdentity:
    """Guesses the group that makes a client's choices over the rounds likeliest, each round independent of the others.

    Each round has a table of its own, P(cluster | group) with Laplace smoothing, since clusters may swap numbers or
    drift. The groups of one half of the clients of each group are known, those of the other half are guessed, and the
    other way round; so every client is guessed once. Large groups are not likelier than small ones, since the balanced
    accuracy counts them alike.

    Args:
        splits: into halves, over which figures are averaged.
        smoothing: added to every count.

    Example:
        >>> import numpy as np
        >>> from shoal import Stream
        >>> from shoal.attacks import ClusterIdentity
        >>> draw, group = np.random.default_rng(0), np.arange(40) % 2
        >>> loyal = np.where(draw.random((10, 40)) < 0.8, group, 1 - group)  # (T, N)
        >>> random = draw.integers(0, 2, (10, 40))
        >>> guess = ClusterIdentity().guess
        >>> [round(guess(chosen, group, np.arange(40), Stream(0)).accuracy, 2) for chosen in (loyal, random)]
        [0.93, 0.45]
    """

    name: ClassVar[str] = "cluster-identity"
    title: ClassVar[str] = "cluster identity"
    view: ClassVar[View] = "server"

    splits: Positive = 20
    smoothing: PositiveFloat = 1.0

    def guess(
        self,
        assignment: Ints,
        group: Ints,
        clients: Ints,
        stream: Stream,
        strata: Ints | None = None,
    ) -> IdentityGuesses:
        """Guess the groups of N clients from their choices in T rounds.

        Args:
            assignment: (T, N), the cluster that each client chose; -1: it did not take part.
            group: (N,) the group of each, from 0; -1: unknown. Such clients, and those that never took part, are
                neither known nor guessed.
            clients: (N,) ids, by which halves are drawn, whatever the order of clients.
            stream: of the halves.
            strata: (N,), from 0: halves have half of each group within each of these too, for what must not be guessed
                in place of the group; None: one.

        Raises:
            InputError: clients of one group alone or that chose one cluster alone, or a group of a single client.
        """
        asked = np.flatnonzero((group >= 0) & (assignment >= 0).any(axis=0))
        asked = asked[np.argsort(clients[asked], kind="stable")]
        names, index = np.unique(group[asked], return_inverse=True)
        sizes = np.bincount(index, minlength=len(names))
        choices = assignment[:, asked]
        cell = index if strata is None else np.unique(index + len(names) * strata[asked], return_inverse=True)[1]
        require(len(names) > 1, f"needs clients of at least two groups; got {len(names)}")
        require(
            bool(sizes.min() >= 2),
            "needs at least two clients of each group, one whose group is known and one that is guessed; a group has 1",
        )
        clusters = len(np.unique(choices[choices >= 0]))
        require(clusters > 1, f"needs clients that chose at least two clusters; they chose {clusters}")
        last_choice = len(choices) - 1 - (choices[::-1] >= 0).argmax(axis=0)
        right, last = np.zeros((2, len(asked)))
        margin = np.zeros(len(choices))
        for split in range(self.splits):
            half = _halves(cell, stream("split", split))
            likelihood = np.where(half[:, None], *(self._likelihood(choices, index, half != side) for side in (1, 0)))
            right += likelihood.sum(axis=0).argmax(axis=1) == index
            last += likelihood[last_choice, np.arange(len(asked))].argmax(axis=1) == index
            margin += _margin(likelihood.cumsum(axis=0), index) @ (1 / sizes[index] / len(names))
        rates, last_rates = (np.bincount(index, hits / self.splits) / sizes for hits in (right, last))
        low, high = mean_rate_interval(rates.tolist(), sizes.tolist())
        return IdentityGuesses(
            clients=len(asked),
            accuracy=float(rates.mean()),
            low=low,
            high=high,
            last_round=float(last_rates.mean()),
            chance=1 / len(names),
            margin=margin / self.splits,
        )

    def _likelihood(self, choices: Ints, group: Ints, labelled: Bools) -> Floats:
        """Values (T, N, G) of log P(choice | group) by the ``labelled`` clients; 0 where a client did not take part."""
        groups = np.arange(int(group.max()) + 1)
        likelihood, in_group = np.zeros((*choices.shape, len(groups))), (group[:, None] == groups) & labelled[:, None]
        for t, chosen in enumerate(choices):
            clusters = np.unique(chosen[chosen >= 0])
            ones = (chosen[:, None] == clusters).astype(np.float64)
            counts = ones.T @ in_group + self.smoothing
            likelihood[t] = ones @ np.log(counts / counts.sum(axis=0)) if len(clusters) else 0.0
        return likelihood


@settings
class PreferenceInference:
    """Guesses whether a client is one of the stricter or of the laxer half of its group.

    The classes of one half of the clients are known, those of the other half are guessed (`ClusterIdentity`). Every
    group has as many stricter as laxer clients, among the known too, so a group's clusters say nothing of the class.

    Args:
        identity: the estimator.
    """

    name: ClassVar[str] = "preference-inference"
    title: ClassVar[str] = "preference inference"
    view: ClassVar[View] = "server"

    identity: ClusterIdentity = ClusterIdentity()

    def guess(
        self,
        assignment: Ints,
        group: Ints,
        preferences: Preferences,
        clients: Ints,
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
        seen = np.where((assignment >= 0).any(axis=0), group, -1)
        half = strictness(preferences, seen, clients)
        stricter = int((half == STRICTER).sum())
        require(
            stricter >= 2,
            "needs at least two clients that are stricter than others of their groups, one whose preference is known "
            f"and one that is guessed; there are {stricter}",
        )
        return self.identity.guess(assignment, half, clients, stream, strata=np.maximum(seen, 0))


def strictness(preferences: Preferences, group: Ints, clients: Ints) -> Ints:
    """Classes (N,), `STRICTER` or `LAXER`: equally many in every group, and each stricter than all laxer ones.

    A client is stricter than another if its threshold is lower, or is the same and its beta larger. `NEITHER`: the
    middle one of an odd group, those as strict as the middle on both sides, and those of no group (-1).

    >>> import torch
    >>> tolerated = Preferences(torch.tensor([0.5, 0.6, 0.7, 0.7, 0.7]), torch.full((5,), 0.5))
    >>> strictness(tolerated, np.array([0, 0, 0, 1, 1]), np.arange(5)).tolist()
    [1, -1, 0, -1, -1]
    """
    classes = np.full(len(group), NEITHER)
    thresholds, betas = preferences.threshold.numpy(), preferences.beta.numpy()
    for value in np.unique(group[group >= 0]):
        members = np.flatnonzero(group == value)
        ranked = members[np.lexsort((clients[members], -betas[members], thresholds[members]))]
        count = len(ranked) // 2
        while count > 0 and _alike(preferences, int(ranked[count - 1]), int(ranked[-count])):
            count -= 1
        classes[ranked[:count]], classes[ranked[len(ranked) - count :]] = STRICTER, LAXER
    return classes


def _alike(preferences: Preferences, one: int, other: int) -> bool:
    same = preferences.threshold[one] == preferences.threshold[other]
    return bool(same and preferences.beta[one] == preferences.beta[other])


def _halves(cell: Ints, stream: Stream) -> Bools:
    """Random half (N,) bool of each cell; of an odd one the larger or the smaller half by a coin."""
    half = np.zeros(len(cell), dtype=bool)
    generator = stream.generator()
    for c in range(int(cell.max()) + 1):
        members = np.flatnonzero(cell == c)
        coin = int(torch.randint(2, (), generator=generator))
        drawn = torch.randperm(len(members), generator=generator).numpy()
        half[members[drawn[: (len(members) + coin) // 2]]] = True
    return half


def _margin(likelihood: Floats, group: Ints) -> Floats:
    """Log-likelihood (T, N) of a client's group minus the largest of another group, from those of all (T, N, G)."""
    true = group[:, None] == np.arange(int(group.max()) + 1)
    return np.where(true, likelihood, 0.0).sum(axis=2) - np.where(true, -np.inf, likelihood).max(axis=2)
