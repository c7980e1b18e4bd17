"""A random forest that classifies aggregated updates by whether they contain a property.

It is trained on simulated updates. Source: Melis et al. 2019, arXiv:1805.04049, section VII, and its published code for
the settings; one forest for all models: Kim et al., RAID 2023, section 3.3.3.
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
"""Forests trained on shuffled labels, each with a third of the trees; the control's AUC is the mean of theirs."""


@dataclass(frozen=True, eq=False)
class _Updates:
    """U updates: scaled features (U, F), the cluster of each (U,), and whether it has the property (U,)."""

    features: Floats
    cluster: NDArray[np.int64]
    has_property: NDArray[np.bool_]


def classify_updates(
    attack: PropertyAttack, observations: Sequence[RoundObservation], stream: Stream, *, jobs: int = 1
) -> pd.DataFrame:
    """Score each aggregated update of a whole training by how likely it contains the property.

    Args:
        attack: that made the observations.
        observations: of all rounds.
        stream: of the forests.
        jobs: threads.

    Returns:
        One row per update: ``round``, ``cluster``, ``clients``, ``present``, ``cosine``, ``score``, the forest's
        probability of the property, and ``control.0`` to ``control.4``, those of forests trained on shuffled labels.
        Without simulated updates there are no scores.
    """
    simulated_features, features = _scaled(
        torch.cat([each.simulated_features for each in observations]),
        torch.cat([each.features for each in observations]),
    )
    simulated = _Updates(
        simulated_features,
        torch.cat([each.simulated_clusters for each in observations]).numpy(),
        torch.cat([each.simulated_has_property for each in observations]).numpy(),
    )
    observed = _Updates(
        features,
        torch.cat([each.clusters for each in observations]).numpy(),
        torch.cat([each.has_property for each in observations]).numpy(),
    )
    rounds = [np.full(len(each.features), each.round) for each in observations]
    updates = pd.DataFrame(
        {
            "round": np.concatenate(rounds).astype(np.int64),
            "cluster": observed.cluster,
            "clients": torch.cat([each.clients for each in observations]).numpy(),
            "present": observed.has_property.astype(np.int64),
            "cosine": torch.cat([each.cosine for each in observations]).numpy(),
        }
    )
    if len(simulated.cluster) and len(observed.cluster):
        updates["score"] = _scores(attack, simulated, observed, stream("forest"), jobs)
        smaller = replace(attack, trees=max(1, attack.trees // 3))
        for i in range(CONTROLS):
            shuffled = replace(simulated, has_property=_shuffled(simulated.has_property, stream("shuffled", i).numpy()))
            updates[f"control.{i}"] = _scores(smaller, shuffled, observed, stream("control", i), jobs)
    return updates


def _scores(attack: PropertyAttack, training: _Updates, observed: _Updates, stream: Stream, jobs: int) -> Floats:
    """Probabilities of the property for the observed updates; NaN where a forest has only one kind to train on."""
    # Here, since scikit-learn takes long to import.
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415

    scores = np.full(len(observed.cluster), np.nan, dtype=np.float32)
    single = attack.forests == "single"
    for k in [-1] if single else np.unique(observed.cluster).tolist():
        of_training, of_observed = (
            (slice(None), slice(None)) if single else (training.cluster == k, observed.cluster == k)
        )
        label = training.has_property[of_training]
        if len(np.unique(label)) < 2:
            continue
        forest = RandomForestClassifier(
            attack.trees,
            min_samples_leaf=5,
            min_samples_split=5,
            n_jobs=jobs,
            random_state=stream("cluster", k).key() % 2**32,
        )
        fitted = forest.fit(training.features[of_training], label)
        scores[of_observed] = fitted.predict_proba(observed.features[of_observed])[:, 1]
    return scores


def _scaled(simulated: torch.Tensor, observed: torch.Tensor) -> tuple[Floats, Floats]:
    """Features (S, F) and (A, F), scaled so that the first have mean 0 and variance 1; unscaled if S or A is 0."""
    first, second = simulated.float().numpy(), observed.float().numpy()
    if not len(first) or not len(second):
        return first, second
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler().fit(first)
    return np.asarray(scaler.transform(first)), np.asarray(scaler.transform(second))


def _shuffled(label: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.bool_]:
    """Labels without information: half of each kind is labelled "with", half "without".

    A plain permutation would leave the two kinds slightly different in their features, and a forest would learn that.
    """
    shuffled = np.zeros_like(label)
    for kind in (False, True):
        rows = np.flatnonzero(label == kind)
        shuffled[generator.permutation(rows)[: len(rows) // 2]] = True
    return shuffled
