"""The protections that a configuration allows, each as changes to its keys."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, prod, sqrt
from statistics import NormalDist
from typing import Any

from scipy.optimize import brentq

from shoal.config.named_keys import set_keys
from shoal.config.schema import Config
from shoal.data.preferences import View
from shoal.defenses.accounting import gaussian_epsilon
from shoal.models import Features

DIMENSIONS = {True: (32, 16), False: (32, 16, 8)}
"""The numbers of principal components, for image wavelets (True) and for other inputs (False)."""

SHARES = {True: (0.5,), False: (0.5, 0.25)}
"""Fractions of the rounds, for slow networks on images (True) and for others (False)."""

ONE_STEP_ROUNDS = 30
"""The number of rounds for a linear classifier with one step on all examples per round."""

NOISES = (4.0, 8.0, 24.0)
"""Noise multipliers for sums over all clients."""

CLUSTER_NOISES = (2.0, 4.0)
"""Noise multipliers for sums over a cluster's clients."""

CHOICE_NOISE = 2.0
"""The noise multiplier for private choices of clusters."""

DELTA = 1e-5
"""The delta of stated epsilons."""

MAX_CHOICE_SHARE = 0.25
"""The largest fraction of the privacy budget ``mu**2`` for a private choice of clusters."""

STEP_RATES = (4.0, 16.0)
"""Learning rates of linear classifiers on principal components, with one step on all examples."""

WAVELETS_RATES = (0.1, 0.4)
"""Learning rates of linear classifiers on all wavelets, with one step on all examples."""

START = {"epochs": 20, "batch_size": 10, "learning_rate": 1.0}
"""The training of a linear classifier on the labelled shadow set."""

STUDENT_RATE = 0.1
"""The learning rate of a distilled student; a student equal to its teacher would not protect."""

COPIES = 4
"""The number of augmented copies per image and step."""

SMALLEST_IMAGE = 8
"""The smallest side, in pixels, of images with wavelet features."""

_ONE_STEP: dict[str, Any] = {"steps": 1, "batch_size": "all"}
_ROUNDS = ("rounds", "participation")


@dataclass(frozen=True)
class Rung:
    """A protection.

    Args:
        name: the protection's name in tables.
        description: the protection's change, as the end of a sentence after "the federation with".
        changes: the new values or whole tables, by dotted key.
        rates: the learning rates of local training to try; the search keeps the most accurate rate. An empty tuple uses
            the learning rate in ``changes``.
        slow: whether training is slow, because the protection keeps or enlarges the configuration's network.

    Example:
        >>> from shoal.protection import Rung
        >>> shorter = Rung("5 rounds", "5 rounds instead of 15", {"algorithm.rounds": 5})
        >>> shorter.apply({"algorithm": {"name": "ifca", "rounds": 15}})
        {'algorithm': {'name': 'ifca', 'rounds': 5}}
    """

    name: str
    description: str
    changes: Mapping[str, Any]
    rates: tuple[float, ...] = ()
    slow: bool = False

    def apply(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the changes to the table of a configuration."""
        changed = copy.deepcopy(dict(table))
        set_keys(changed, self.changes)
        return changed

    def extend_with(self, name: str, description: str, changes: Mapping[str, Any], rates: tuple[float, ...]) -> "Rung":
        """Return the protection with further changes."""
        pairs = (self.name, name), (self.description, description)
        name, description = (", ".join(filter(None, pair)) for pair in pairs)
        return Rung(name, description, {**self.changes, **changes}, rates)

    def at_rates(self) -> tuple["Rung", ...]:
        """List the protection at each of its learning rates, or the protection itself if it has none."""
        local = self.changes.get("local", {})
        at_rates = (
            self.extend_with(f"rate {rate:g}", "", {"local": {**local, "learning_rate": rate}}, ())
            for rate in self.rates
        )
        return tuple(at_rates) or (self,)


UNPROTECTED = Rung("as it is", "nothing changed", {})
"""The configuration itself."""


@dataclass(frozen=True)
class Ladder:
    """The protections that fit a configuration.

    Args:
        clients: the number of clients in a round.
        smallest: the number of clients of the smallest group in a round.
        public: the number of examples in the shadow set.
        view: the attacker's view in a guarantee.
        mu: the largest mu of Gaussian mechanisms in the guarantee, or ``None`` without a required guarantee.
    """

    config: Config
    inputs: tuple[int, ...]
    clients: float
    smallest: float
    public: int
    view: View = "outsider"
    mu: float | None = None

    @property
    def images(self) -> bool:
        """Whether the inputs are images that are large enough for wavelets."""
        return len(self.inputs) == 3 and min(self.inputs[1:]) >= SMALLEST_IMAGE

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The protections, mildest first within each kind. A required guarantee keeps only the protections with noise
        in sums.
        """
        if self.mu is not None:
            return (*self._noise_in_sums(),)
        return (*self._on_features(), *self._noise_in_sums(), *self._of_the_network())

    @property
    def server_alone(self) -> tuple[Rung, ...]:
        """The baseline that trains on the labelled shadow set without clients; empty without a shadow set."""
        if not self.public:
            return ()
        alone, most = {"algorithm": {"name": "server-only", "rounds": 1}, "red_team.every": 0}, self._most_components
        if self.config.model.features is None and self._fits(most):
            alone |= {**self._head(most).changes, "local": START, "defenses": {}}
        return (Rung("shadow set alone", "", alone),)

    @property
    def _most_components(self) -> int:
        return 2 * DIMENSIONS[self.images][0]

    def _fits(self, dimension: int) -> bool:
        """Return whether ``dimension`` is below both the number of features and the number of public examples."""
        inputs = Features(("scattering",)).width(self.inputs) if self.images else prod(self.inputs)
        return dimension < min(inputs, self.public)

    def _dimensions(self) -> tuple[int, ...]:
        return tuple(d for d in DIMENSIONS[self.images] if self._fits(d))

    def _head(self, dimension: int | None) -> Rung:
        """Replace the network by a linear classifier on ``dimension`` components, or on all wavelets without it."""
        maps, inputs = (["scattering"], "wavelet features") if self.images else ([], "inputs")
        features: dict[str, Any] = {"maps": maps}
        if dimension is not None:
            features = {"maps": [*maps, "pca"], "dimension": dimension}
            inputs = f"{dimension} principal components of the {inputs}"
        name = "wavelets" if dimension is None else f"{dimension} components"
        words = f"a linear classifier on {inputs} instead of its network"
        return Rung(name, words, {"model": {"name": "logistic", "features": features}})

    def _on_features(self) -> Iterator[Rung]:
        """Replace the network by linear classifiers on fixed features, and keep the algorithm.

        The features are principal components. Images without public examples use all wavelets, which are more exposed
        but not more accurate.
        """
        if self.config.model.features is not None or not self.inputs:
            return
        dimensions: tuple[int | None, ...] = self._dimensions()
        for dimension in dimensions or ((None,) if self.images else ()):
            head, rates = self._head(dimension), WAVELETS_RATES if dimension is None else STEP_RATES
            for number in (ONE_STEP_ROUNDS, ONE_STEP_ROUNDS // 5):
                changes: dict[str, Any] = {"algorithm.rounds": number, "local": _ONE_STEP}
                words = f"{number} rounds with one step per client on all its examples"
                yield head.extend_with(f"{number} steps", words, changes, rates)
                if self.public and number == ONE_STEP_ROUNDS:
                    changes |= {"release": {"distil": "end", "learning_rate": STUDENT_RATE}}
                    words += ", and students, distilled on the server's data, released instead of the models"
                    yield head.extend_with("student", words, changes, rates)

    def _noise_in_sums(self) -> Iterator[Rung]:
        """Add noise to sums over all clients or over a cluster, with one step on all examples per round."""
        every, cluster = max(2, round(0.8 * self.clients)), max(2, round(0.8 * self.smallest))
        heads = [Rung("", "", {})]
        if self.config.model.features is None and self.inputs:
            # With noise, fewer components reduce accuracy but not exposure.
            heads = [self._head(d) for d in self._dimensions()[:1]]
            # Training on labels precedes the noise, so more components increase accuracy.
            for d in (self._most_components, self._most_components // 2):
                if self._fits(d):
                    for noise, _ in self._noises(NOISES, every, chosen=False):
                        words = "one model for all clients, first trained on the server's labelled data"
                        algorithm = {"name": "server-start", "base": {"name": "fedavg"}, "local": START}
                        yield self._noisy(self._head(d), "public start", words, algorithm, noise, every)
        clusters = int(self.config.table()["algorithm"].get("clusters", 2))
        for head in heads:
            for noise, _ in self._noises(NOISES, every, chosen=False):
                yield self._noisy(head, "", "one model for all clients", {"name": "fedavg"}, noise, every)
            for noise, choice in self._noises(CLUSTER_NOISES, cluster, chosen=True):
                algorithm = {"name": "private-means", "clusters": clusters, "noise_multiplier": choice}
                yield self._noisy(head, "private clusters", "clusters chosen by noisy means", algorithm, noise, cluster)

    def _noisy(self, head: Rung, name: str, words: str, algorithm: dict[str, Any], noise: float, least: int) -> Rung:
        """Train ``head`` with noise in sums over at least ``least`` clients."""
        private = {"noise": "sum", "noise_multiplier": noise, "min_clients": least, "delta": DELTA}
        rounds = {"rounds": ONE_STEP_ROUNDS, "participation": self.config.algorithm.participation}
        changes = {
            "algorithm": {**algorithm, **rounds},
            "local": _ONE_STEP,
            "defenses": {"dp_sgd": private},
            "red_team.every": 0,
        }
        said = (
            f"{words}, noise of {noise:g} in each of {ONE_STEP_ROUNDS} sums of clipped gradients over at least {least} "
            "clients, and one step per client and round on all its examples"
        )
        return head.extend_with(f"{name}, noise {noise:g}".removeprefix(", "), said, changes, STEP_RATES)

    def _noises(self, usual: tuple[float, ...], least: int, *, chosen: bool) -> list[tuple[float, float]]:
        """List noise multipliers of sums and of a choice of clusters: ``usual``, or those for the guarantee."""
        if self.mu is None:
            return [(noise, CHOICE_NOISE) for noise in usual]
        share = {"outsider": 1.0, "client": (least - 1) / least, "server": 1 / least}[self.view]
        budget = self.mu**2
        choice = MAX_CHOICE_SHARE * budget if chosen else 0.0
        # Rounded up: less noise would break the promise.
        noise = _rounded_up(sqrt(ONE_STEP_ROUNDS / (share * (budget - choice))))
        return [(noise, _rounded_up(1 / sqrt(choice)) if chosen else inf)]

    def _of_the_network(self) -> Iterator[Rung]:
        """List protections that keep the network."""
        rounds, slow = self.config.algorithm.rounds, self.images and self.config.model.features is None
        for number in dict.fromkeys(max(1, round(rounds * share)) for share in SHARES[slow]):
            if number < rounds:
                words = f"{number} rounds instead of {rounds}"
                yield Rung(f"{number} rounds", words, {"algorithm.rounds": number}, slow=slow)
        if self.public:
            words = "students, distilled on the server's data, released instead of the models"
            yield Rung("student", words, {"release.distil": "end"}, slow=slow)
            if self.view != "outsider":
                often = {"release": {"distil": "round", "steps": 300}}
                yield Rung("student a round", "students of the models sent in every round", often, slow=slow)
        base = self.config.table()["algorithm"]
        of_rounds = {key: base.pop(key) for key in _ROUNDS if key in base}
        if base["name"] != "fedavg":
            pooling = {"algorithm": {"name": "pooling", "base": base, "share": 0.5, **of_rounds}}
            yield Rung("pooling", "each model moved half way to the mean of all after a round", pooling, slow=slow)
        if slow:
            shift = 0.07 * min(self.inputs[1:])
            augmented = {"defenses.augmentation": {"rotation": 15.0, "shift": round(shift, 2), "multiplicity": COPIES}}
            words = f"{COPIES} copies of each image per step, rotated by at most 15 degrees and shifted"
            yield Rung("augmentation", words, augmented, slow=slow)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the ``mu`` of Gaussian mechanisms whose `gaussian_epsilon` is ``epsilon``.

    >>> round(gaussian_epsilon(mu_of(2.0, 1e-5), 1e-5), 6)
    2.0
    """
    most = 1.0
    while gaussian_epsilon(most, delta) < epsilon:
        most *= 2
    solution: Any = brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, most, xtol=1e-9)
    return float(solution)


def mu_of_accuracy(accuracy: float) -> float:
    """Return the ``mu`` of Gaussian mechanisms that limits every attack to this balanced accuracy in (0.5, 1).

    >>> round(mu_of_accuracy(0.55), 3)
    0.251
    """
    return 2 * NormalDist().inv_cdf(accuracy)


def _rounded_up(noise: float) -> float:
    """Round ``noise`` up to three digits."""
    step = 10.0 ** (len(str(int(noise))) - 3)
    return round((noise // step + 1) * step, 6)
