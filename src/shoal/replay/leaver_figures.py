"""Whether scores of federations that had a client differ from those of federations that never had it."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.attacks import RMIA, LiRA, Population, ReferenceAttack, ReferenceScores
from shoal.core.errors import InputError
from shoal.metrics.intervals import Estimate, Floats
from shoal.metrics.run_auc import auc_over_runs

ATTACKS: Sequence[ReferenceAttack] = (RMIA(), LiRA())
"""Beside the plain score, the attacks that compare a record's score with those of other federations."""

SCORE = "score"
"""The name of the attack without reference federations: the logit-scaled confidence itself."""


def attacks_on_leaver(scores: Floats, population: Floats) -> dict[str, Estimate]:
    """The AUC over federations of each attack, by its name.

    Federations 2 i had the client and 2 i + 1 never had it. The plain score compares all of them. An attack with
    references has two halves, federations 4 i and 4 i + 1 and the others: the federations of a half are scored with the
    other half as references, and compared with each other. Left out one by one instead, a federation is scored by
    references with one more of the other kind than of its own, which puts LiRA at 0.45 where nothing is left.

    Args:
        scores: (2 R, Q) logit-scaled confidences of the client's training examples; R is even and at least 4.
        population: (2 R, Z) those of examples that no federation trained on; Z may be 0.

    Returns:
        An attack is missing where federations do not differ, so that it cannot be fitted.
    """
    number = np.arange(len(scores))
    had, second = number % 2 == 0, number // 2 % 2 == 1
    found = {SCORE: auc_over_runs((scores[had], scores[~had]))}
    for attack in ATTACKS:
        try:
            parts = [_half(attack, scores, population, had, half) for half in (second, ~second)]
        except InputError:
            continue
        found[attack.name] = auc_over_runs(*parts)
    return found


def _half(
    attack: ReferenceAttack, scores: Floats, population: Floats, had: np.ndarray, half: np.ndarray
) -> tuple[Floats, Floats]:
    """The attack's scores of the federations of a half that had the client, and of those that never had it."""
    of_one_model, references = np.zeros(scores.shape[1], dtype=np.int64), scores[~half].T
    trained = np.broadcast_to(had[~half], references.shape)

    def scored(run: int) -> Floats:
        others = population[run], population[~half].T, np.zeros(population.shape[1], dtype=np.int64)
        z = Population(*others) if population.size else None
        member = np.zeros(len(references), dtype=bool)
        return attack.scores(ReferenceScores(scores[run], member, references, trained, of_one_model, z))

    seen, unseen = (np.stack([scored(int(run)) for run in np.flatnonzero(half & side)]) for side in (had, ~had))
    return seen, unseen


def strongest_attack(attacks: Mapping[str, Estimate]) -> tuple[str, Estimate]:
    """The attack that decides, with an interval that all attacks keep at once.

    Where some are certainly above 0.5 it is the one of highest lower end; else the one that may reach most, so that
    "indistinguishable" is said of all.
    """
    wider = {name: estimate.among(len(attacks)) for name, estimate in attacks.items()}
    certain = any(estimate.low > 0.5 for estimate in wider.values())
    name = max(wider, key=lambda name: wider[name].low if certain else wider[name].high)
    return name, wider[name]
