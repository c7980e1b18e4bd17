"""A random forest that classifies aggregated updates by whether they contain a property.

It is trained on simulated updates. Source: Melis et al. 2019, arXiv:1805.04049, section VII, and its published code for
the settings; one forest for all models: Kim et al., RAID 2023, section 3.3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.randomness import Stream

Forests = Literal["single", "per-cluster"]

CONTROLS = 5
"""Forests trained on shuffled labels, each with a third of the trees; the control's AUC is the mean of theirs."""


@dataclass(frozen=True, eq=False)
class RoundObservation:
    """One round as the attacker sees it, with the ground truth beside it.

    S simulated and A observed aggregated updates, each of one cluster's model, with F features. C of the observed ones
    hold a part of the victim's, and are given once more as they would have been in a round of the other kind.

    Args:
        round: the round's number.
        simulated_features: (S, F) float16.
        simulated_has_property: (S,) bool, whether examples with the property are in each simulated update.
        simulated_clusters: (S,) int64.
        features: (A, F) float16, of the round's aggregated updates.
        clusters: (A,) int64.
        has_property: (A,) bool, the truth: whether the victim trained that model on the property in this round.
        clients: (A,) int64, the number of clients that trained that model.
        swapped: (C,) int64, which of the A updates hold a part of the victim's.
        swapped_features: (C, F) float16, of these updates if the victim had trained on examples of the other kind, and
            all else had been the same.
        cosine: (A,) float64, of each update with the previous one of the same model; NaN where there was none.
    """

    round: int
    simulated_features: Tensor
    simulated_has_property: Tensor
    simulated_clusters: Tensor
    features: Tensor
    clusters: Tensor
    has_property: Tensor
    clients: Tensor
    swapped: Tensor
    swapped_features: Tensor
    cosine: Tensor


def classify_updates(
    observations: Sequence[RoundObservation],
    stream: Stream,
    *,
    forests: Forests = "single",
    trees: int = 100,
    jobs: int = 1,
) -> pd.DataFrame:
    """Score each aggregated update of a whole training by how likely it contains the property.

    Returns:
        One row per update, with ``round``, ``cluster``, ``clients``, ``present``, ``cosine``; ``score``, the forest's
        probability of the property; ``swapped``, that of the update if the victim had trained on its other examples,
        NaN where it had no part in the update; and ``control.0`` to ``control.4``, those of forests trained on shuffled
        labels. Without simulated updates there are no scores.

    Example:
        >>> import torch, shoal
        >>> from shoal.property import RoundObservation, classify_updates
        >>> has, zeros = torch.tensor([True, False] * 20), torch.zeros(40, dtype=torch.int64)
        >>> features = (torch.randn(40, 5, generator=shoal.Stream(0).generator()) + 3 * has[:, None]).half()
        >>> simulated, seen, nothing = (features, has, zeros), slice(0, 4), slice(0, 0)
        >>> observed = (features[seen], zeros[seen], has[seen], zeros[seen] + 5)
        >>> cosine = torch.full((4,), torch.nan, dtype=torch.float64)
        >>> observation = RoundObservation(1, *simulated, *observed, zeros[nothing], features[nothing], cosine)
        >>> rows = classify_updates([observation], shoal.Stream(0), trees=10)
        >>> rows["present"].tolist(), (rows["score"] > 0.5).tolist()
        ([1, 0, 1, 0], [True, False, True, False])
    """

    def joined(name: str) -> NDArray[Any]:
        return torch.cat([getattr(each, name) for each in observations]).numpy()

    cluster, simulated_cluster = joined("clusters"), joined("simulated_clusters")
    updates = pd.DataFrame(
        {
            "round": np.repeat([each.round for each in observations], [len(each.clusters) for each in observations]),
            "cluster": cluster,
            "clients": joined("clients"),
            "present": joined("has_property").astype(np.int64),
            "cosine": joined("cosine"),
        }
    )
    if not len(cluster) or not len(simulated_cluster):
        return updates
    # Here, since scikit-learn takes long to import.
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    simulated, seen = joined("simulated_features").astype(np.float32), joined("features")
    begins = np.cumsum([0, *(len(each.clusters) for each in observations)])[:-1]
    swapped = np.concatenate(
        [begin + each.swapped.numpy() for begin, each in zip(begins, observations, strict=True)], dtype=np.int64
    )
    observed = np.concatenate([seen, joined("swapped_features")]).astype(np.float32)
    of_cluster = np.concatenate([cluster, cluster[swapped]])
    scaler = StandardScaler().fit(simulated)
    simulated, observed = np.asarray(scaler.transform(simulated)), np.asarray(scaler.transform(observed))
    # Which simulated and which observed updates each forest is for; the number -1 is that of a forest for all.
    trained = {k: (simulated_cluster == k, of_cluster == k) for k in np.unique(cluster).tolist()}
    if forests == "single":
        trained = {-1: (slice(None), slice(None))}

    def scores(label: NDArray[np.bool_], size: int, stream: Stream) -> NDArray[np.float32]:
        """Of the observed updates, then of the swapped; NaN where a forest has only one kind to train on."""
        scored = np.full(len(observed), np.nan, dtype=np.float32)
        for k, (of_training, of_observed) in trained.items():
            if len(np.unique(label[of_training])) == 2:
                seed = stream("cluster", k).key() % 2**32
                forest = RandomForestClassifier(
                    size, min_samples_leaf=5, min_samples_split=5, n_jobs=jobs, random_state=seed
                ).fit(simulated[of_training], label[of_training])
                scored[of_observed] = forest.predict_proba(observed[of_observed])[:, 1]
        return scored

    label = joined("simulated_has_property")
    scored = scores(label, trees, stream("forest"))
    updates["score"] = scored[: len(updates)]
    updates["swapped"] = np.full(len(updates), np.nan, dtype=np.float32)
    updates.loc[swapped, "swapped"] = scored[len(updates) :]
    for i in range(CONTROLS):
        shuffled = _shuffled(label, stream("shuffled", i).numpy())
        updates[f"control.{i}"] = scores(shuffled, max(1, trees // 3), stream("control", i))[: len(updates)]
    return updates


def _shuffled(label: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.bool_]:
    """Labels without information: half of each kind is labelled "with", half "without".

    A plain permutation would leave the two kinds slightly different in their features, and a forest would learn that.
    """
    shuffled = np.zeros_like(label)
    for kind in (False, True):
        rows = np.flatnonzero(label == kind)
        shuffled[generator.permutation(rows)[: len(rows) // 2]] = True
    return shuffled
