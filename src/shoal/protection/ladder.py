"""The ladder of protections that a configuration allows, each as changes to its keys."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shoal.config.schema import Config
from shoal.config.toml_files import change_key

DIMENSIONS = (64, 32, 16, 8)
"""Components of features, from the most accurate to the least exposed."""

FEATURE_ROUNDS = 15
"""Rounds of a linear head on features, at most: it learns in fewer than a network on raw inputs."""

FEATURE_RATE = 2.0
"""Learning rate of a linear head on features of unit length."""

SMALLEST_IMAGE = 8
"""Pixels a side of which wavelets make features."""


@dataclass(frozen=True)
class Rung:
    """A protection.

    Args:
        name: in tables.
        words: what it changes, as the rest of a sentence after "the federation with".
        changes: values by dotted key.
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
    fewer = [max(1, round(rounds * share)) for share in (0.5, 0.25, 0.125)]
    rungs = [
        Rung(f"{number} rounds", f"{number} rounds instead of {rounds}", {"algorithm.rounds": number})
        for number in dict.fromkeys(fewer)
        if number < rounds
    ]
    images = len(inputs) == 3 and min(inputs[1:]) >= SMALLEST_IMAGE
    maps = ["scattering", "pca"] if images else ["pca"]
    wide = prod(inputs)
    for dimension in DIMENSIONS if config.model.features is None else ():
        if dimension < min(wide, public):
            what = "wavelet features" if images else "features"
            head = _head(maps, min(rounds, FEATURE_ROUNDS), dimension)
            words = f"a linear head on {dimension} {what}, components of the shadow set"
            rungs.append(Rung(f"{dimension} components", words, head))
            if dimension <= DIMENSIONS[1]:
                quick = {**head, "algorithm.rounds": max(1, round(head["algorithm.rounds"] / 3))}
                rounds_of = f"{quick['algorithm.rounds']} rounds"
                rungs.append(Rung(f"{dimension} components, {rounds_of}", f"{words}, {rounds_of}", quick))
    if public > 0:
        release = {"release.distil": "end"}
        rungs.append(Rung("student", "students of the models, released in their place", release))
    return tuple(rungs)


def _head(maps: list[str], rounds: int, dimension: int) -> dict[str, Any]:
    return {
        "model.name": "logistic",
        "model.features.maps": maps,
        "model.features.dimension": dimension,
        "algorithm.rounds": rounds,
        "local.learning_rate": FEATURE_RATE,
    }
