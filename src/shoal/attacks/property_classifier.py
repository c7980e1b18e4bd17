"""Tells aggregated updates with a property from others, by a random forest that learned from simulated ones.

Source: Melis et al. 2019, arXiv:1805.04049, section VII, and its published code for the settings; one forest for all
models, Kim et al., RAID 2023, section 3.3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from shoal.attacks.property import PropertyAttack, RoundObservation
from shoal.core.randomness import Stream

Floats = NDArray[np.float32]

CONTROLS = 5
"""Forests that learn from shuffled labels, each of a third of the trees; the control's AUC is the mean of theirs."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Updates: scaled features (R, F), the model of each (R,), and whether it has the property (R,)."""

    features: Floats
    model: NDArray[np.int64]
    label: NDArray[np.bool_]


def classify_updates(
    attack: PropertyAttack, observations: Sequence[RoundObservation], stream: Stream, *, jobs: int = 1
) -> pd.DataFrame:
    """What the attacker says of each aggregated update of a whole training.

    Args:
        attack: whose observations these are.
        observations: of all rounds.
        stream: of the forests' draws.
        jobs: threads.

    Returns:
        A row an update: ``round``, ``cluster``, ``clients``, ``present``, ``cosine``, ``score``, the forest's
        probability of the property, and ``control.0`` and so on, the same by forests that learned from shuffled labels.
        Scores are missing where nothing was simulated.
    """
    simulated, updates = _scaled(
        torch.cat([each.simulated for each in observations]), torch.cat([each.seen for each in observations])
    )
    learned = _Rows(
        simulated,
        torch.cat([each.simulated_of for each in observations]).numpy(),
        torch.cat([each.with_property for each in observations]).numpy(),
    )
    seen = _Rows(
        updates,
        torch.cat([each.seen_of for each in observations]).numpy(),
        torch.cat([each.present for each in observations]).numpy(),
    )
    found = pd.DataFrame(
        {
            "round": np.concatenate([np.full(len(each.seen), each.round) for each in observations]).astype(np.int64),
            "cluster": seen.model,
            "clients": torch.cat([each.clients for each in observations]).numpy(),
            "present": seen.label.astype(np.int64),
            "cosine": torch.cat([each.cosine for each in observations]).numpy(),
        }
    )
    if len(learned.label) and len(seen.label):
        found["score"] = _scores(attack, learned, learned.label, seen, stream("forest"), jobs)
        smaller = replace(attack, trees=max(1, attack.trees // 3))
        for i in range(CONTROLS):
            shuffled = _shuffled(learned.label, stream("shuffled", i).numpy())
            found[f"control.{i}"] = _scores(smaller, learned, shuffled, seen, stream("control", i), jobs)
    return found


def _scores(
    attack: PropertyAttack, learned: _Rows, label: NDArray[np.bool_], seen: _Rows, stream: Stream, jobs: int
) -> Floats:
    """Probabilities (A,) of the property, by forests that learned ``label`` (S,); NaN where none could."""
    # Here, since scikit-learn takes long to import.
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415

    scores = np.full(len(seen.label), np.nan, dtype=np.float32)
    single = attack.forests == "single"
    for k in [-1] if single else np.unique(seen.model).tolist():
        of, among = (slice(None), slice(None)) if single else (learned.model == k, seen.model == k)
        if len(np.unique(label[of])) < 2:
            continue
        forest = RandomForestClassifier(
            attack.trees,
            min_samples_leaf=5,
            min_samples_split=5,
            n_jobs=jobs,
            random_state=stream("cluster", k).key() % 2**32,
        )
        scores[among] = forest.fit(learned.features[of], label[of]).predict_proba(seen.features[among])[:, 1]
    return scores


def _scaled(simulated: torch.Tensor, seen: torch.Tensor) -> tuple[Floats, Floats]:
    """Features (S, F) and (A, F), of which the first have mean 0 and variance 1; as they are where one has no row."""
    known, asked = simulated.float().numpy(), seen.float().numpy()
    if not len(known) or not len(asked):
        return known, asked
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler().fit(known)
    return np.asarray(scaler.transform(known)), np.asarray(scaler.transform(asked))


def _shuffled(label: NDArray[np.bool_], draw: np.random.Generator) -> NDArray[np.bool_]:
    """Labels that say nothing: half of each kind is called with, half without.

    Not a plain permutation, under which the kinds would still differ a little, and a forest would find that.
    """
    shuffled = np.zeros_like(label)
    for kind in (False, True):
        rows = np.flatnonzero(label == kind)
        shuffled[draw.permutation(rows)[: len(rows) // 2]] = True
    return shuffled
