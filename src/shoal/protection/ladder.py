"""The ladder of protections that a configuration allows, each as changes to its keys."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shoal.config.schema import Config
from shoal.config.toml_files import change_key

DIMENSIONS = {True: (32, 16), False: (32, 16, 8)}
"""Components of images' wavelets and of other inputs, from the most accurate to the least exposed."""

SHARES = {True: (0.5,), False: (0.5, 0.25)}
"""Shares of the rounds. A network on images has learned little after a quarter of them."""

FEATURE_ROUNDS = 15
"""Rounds of a linear head on features, at most: it learns in fewer than a network on raw inputs."""

COMPONENTS_RATE = 2.0
"""Learning rate of a linear head on components, which are of unit length."""

WAVELETS_RATE = 0.1
"""Learning rate of a linear head on all wavelets of an image."""

STUDENT_RATE = 0.1
"""Learning rate of a student. It is low: a student of the same features that is trained until it is its teacher would
protect nobody."""

_STUDENTS = ", and students of the models released in their place, trained on the shadow set"

SMALLEST_IMAGE = 8
"""Pixels a side of which wavelets make features."""


@dataclass(frozen=True)
class Rung:
    """A protection.

    Args:
        name: in tables.
        words: what it changes, as the rest of a sentence after "the federation with".
        changes: values by dotted key.

    Example:
        >>> from shoal.protection import Rung
        >>> shorter = Rung("5 rounds", "5 rounds instead of 15", {"algorithm.rounds": 5})
        >>> shorter.applied({"algorithm": {"name": "ifca", "rounds": 15}})
        {'algorithm': {'name': 'ifca', 'rounds': 5}}
    """

    name: str
    words: str
    changes: Mapping[str, Any]

    def applied(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The table of a configuration with these changes."""
        changed = copy.deepcopy(dict(table))
        for key, value in self.changes.items():
            change_key(changed, key.split("."), value)
        return changed


UNPROTECTED = Rung("as it is", "nothing changed", {})


def ladder(config: Config, inputs: tuple[int, ...], public: int) -> tuple[Rung, ...]:
    """The rungs, from the mildest of each kind to the strongest.

    Args:
        config: to be protected.
        inputs: the shape of an example.
        public: examples of the shadow set.
    """
    rounds = config.algorithm.rounds
    images = len(inputs) == 3 and min(inputs[1:]) >= SMALLEST_IMAGE
    fewer = dict.fromkeys(max(1, round(rounds * share)) for share in SHARES[images])
    rungs = [_fewer(number, rounds) for number in fewer if number < rounds]
    if config.model.features is None and len(inputs) > 0:
        rungs += _features(images, inputs, rounds, public)
    if public > 0:
        words = "students of the models released in their place, trained on the shadow set"
        rungs.append(Rung("student", words, {"release.distil": "end"}))
    return tuple(rungs)


def _fewer(number: int, rounds: int) -> Rung:
    return Rung(f"{number} rounds", f"{number} rounds instead of {rounds}", {"algorithm.rounds": number})


def _features(images: bool, inputs: tuple[int, ...], rounds: int, public: int) -> Iterator[Rung]:
    """A linear head on fixed features in place of the network."""
    most = min(rounds, FEATURE_ROUNDS)
    head = {"model.name": "logistic", "algorithm.rounds": most}
    release = {"release.distil": "end", "release.learning_rate": STUDENT_RATE}
    if images:
        words = f"a linear classifier on wavelet features in place of its network, {most} rounds"
        wavelets = {**head, "local.learning_rate": WAVELETS_RATE, "model.features.maps": ["scattering"]}
        yield Rung("wavelets", words, wavelets)
        if public > 0:
            yield Rung("wavelets, student", words + _STUDENTS, {**wavelets, **release})
    for dimension in DIMENSIONS[images]:
        if dimension >= min(prod(inputs), public):
            continue
        of = "wavelet features" if images else "inputs"
        words = f"a linear classifier on {dimension} principal components of the {of} in place of its network"
        components = {
            **head,
            "local.learning_rate": COMPONENTS_RATE,
            "model.features.maps": ["scattering", "pca"] if images else ["pca"],
            "model.features.dimension": dimension,
        }
        yield Rung(f"{dimension} components", f"{words}, {most} rounds", components)
        name, few = f"{dimension} components, student", max(1, round(most / 3))
        yield Rung(name, f"{words}, {most} rounds{_STUDENTS}", {**components, **release})
        if dimension == DIMENSIONS[images][0] and few < most:
            quick = {**components, **release, "algorithm.rounds": few}
            yield Rung(f"{name}, {few} rounds", f"{words}, {few} rounds{_STUDENTS}", quick)
