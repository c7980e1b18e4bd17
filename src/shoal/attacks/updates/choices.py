"""Inference of a client's group, and whether the client is strict about risk, from the clusters it chose in each round.

The server sees the cluster that each client trained in each round, knows some clients' groups, and infers the other
clients' groups. If clients choose by risk (IFCA-MIR) or refuse models above their threshold, the server may also infer
whether a client is strict or lax.

Source: MingledPie, NDSS 2025 (a client's choices can reveal its data). The estimator is ours: naive Bayes over rounds,
fitted on the choices of clients with known groups.
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
"""The classes of clients in `strictness`."""


@dataclass(frozen=True, eq=False)
class IdentityGuesses:
    """The accuracy of guesses of clients' groups.

    Args:
        clients: the number of guesses.
        accuracy: the balanced accuracy: the fraction of correct guesses, averaged over groups.
        low, high: the 95 % interval of the accuracy over clients (`mean_rate_interval`), for fixed rounds.
        last_round: the balanced accuracy of guesses from each client's last choice alone.
        chance: the chance level, 1 / (number of groups).
        margin: the true group's log-likelihood minus the highest log-likelihood of another group, in nats, after each
            round, (T,); averaged over each group's clients, then over groups.
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
    """The attack that guesses a client's group: the group for which the client's choices are most likely.

    The attack treats rounds as independent. Each round has a separate table P(cluster | group) with Laplace smoothing,
    because cluster numbers may change between rounds. Each group is split into two random halves; the known groups of
    one half serve to guess the groups of the other half. All groups have the same prior.

    Args:
        splits: the number of random splits into halves; the accuracy is averaged over splits.
        smoothing: the number that is added to every count.

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
            assignment: the cluster that each client chose in each round, (T, N); -1 if the client did not take part.
            group: the group of each client, (N,), from 0; -1 if unknown. Clients without a known group or a choice are
                left out.
            strata: the stratum of each client, (N,), from 0; both halves have the same mix of strata. ``None`` means
                one stratum.

        Raises:
            InputError: there are fewer than two groups, a group has one client, or clients chose fewer than two
                clusters.
        """
        used = np.flatnonzero((group >= 0) & (assignment >= 0).any(axis=0))
        used = used[np.argsort(clients[used], kind="stable")]
        names, index = np.unique(group[used], return_inverse=True)
        sizes = np.bincount(index, minlength=len(names))
        choices = assignment[:, used]
        cell = index if strata is None else np.unique(index + len(names) * strata[used], return_inverse=True)[1]
        require(len(names) > 1, f"the clients must belong to at least two groups (got {len(names)})")
        require(
            bool(sizes.min() >= 2),
            "every group must have at least two clients (got a group with 1)",
        )
        clusters = len(np.unique(choices[choices >= 0]))
        require(clusters > 1, f"the clients must have chosen at least two clusters in total (got {clusters})")
        last_choice = len(choices) - 1 - (choices[::-1] >= 0).argmax(axis=0)
        right, last = np.zeros((2, len(used)))
        margin = np.zeros(len(choices))
        for split in range(self.splits):
            half = _halves(cell, stream("split", split))
            likelihood = np.where(half[:, None], *(self._likelihood(choices, index, half != side) for side in (1, 0)))
            right += likelihood.sum(axis=0).argmax(axis=1) == index
            last += likelihood[last_choice, np.arange(len(used))].argmax(axis=1) == index
            margin += _margin(likelihood.cumsum(axis=0), index) @ (1 / sizes[index] / len(names))
        rates, last_rates = (np.bincount(index, hits / self.splits) / sizes for hits in (right, last))
        low, high = mean_rate_interval(rates.tolist(), sizes.tolist())
        return IdentityGuesses(
            clients=len(used),
            accuracy=float(rates.mean()),
            low=low,
            high=high,
            last_round=float(last_rates.mean()),
            chance=1 / len(names),
            margin=margin / self.splits,
        )

    def _likelihood(self, choices: Ints, group: Ints, labelled: Bools) -> Floats:
        """Estimate log P(choice | group), (T, N, G), on the ``labelled`` clients; 0 if a client did not take part."""
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
    """The attack that guesses whether a client is in its group's stricter or laxer half, by `ClusterIdentity`.

    Every group has as many stricter as laxer clients. Knowledge of the group therefore does not help the attack.
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
        """Guess whether each of N clients is strict or lax, from their choices in T rounds.

        Args:
            assignment, group, clients, stream: the arguments of `ClusterIdentity.guess`.

        Raises:
            InputError: fewer than two clients are stricter than another client of their group, or only one cluster was
                chosen.
        """
        seen = np.where((assignment >= 0).any(axis=0), group, -1)
        half = strictness(preferences, seen, clients)
        stricter = int((half == STRICTER).sum())
        require(
            stricter >= 2,
            f"at least two clients must be stricter than another client of their group (got {stricter})",
        )
        return self.identity.guess(assignment, half, clients, stream, strata=np.maximum(seen, 0))


def strictness(preferences: Preferences, group: Ints, clients: Ints) -> Ints:
    """Return the class of each client, `STRICTER`, `LAXER` or `NEITHER`, (N,).

    The lower of two thresholds is stricter; between equal thresholds, the larger beta is stricter. Every group has as
    many stricter as laxer clients. `NEITHER` is the class of a group's middle client, of clients exactly as strict as
    this client, and of clients without a group (-1).

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
        keys = np.stack([thresholds, betas], axis=1)
        while count > 0 and np.array_equal(keys[ranked[count - 1]], keys[ranked[-count]]):
            count -= 1
        classes[ranked[:count]], classes[ranked[len(ranked) - count :]] = STRICTER, LAXER
    return classes


def _halves(cell: Ints, stream: Stream) -> Bools:
    """Draw a random half of each cell, (N,) bool; in a cell of odd size, the half is rounded up or down at random."""
    half = np.zeros(len(cell), dtype=bool)
    generator = stream.generator()
    for c in range(int(cell.max()) + 1):
        members = np.flatnonzero(cell == c)
        extra = int(torch.randint(2, (), generator=generator))
        order = torch.randperm(len(members), generator=generator).numpy()
        half[members[order[: (len(members) + extra) // 2]]] = True
    return half


def _margin(likelihood: Floats, group: Ints) -> Floats:
    """Return the true group's log-likelihood minus the highest of another group, (T, N), from (T, N, G)."""
    true = group[:, None] == np.arange(int(group.max()) + 1)
    return np.where(true, likelihood, 0.0).sum(axis=2) - np.where(true, -np.inf, likelihood).max(axis=2)
