"""The results of property inference: the table of scored aggregated updates, and its metrics.

Source: Melis et al. 2019, arXiv:1805.04049, section VII, and its published code for the forest's settings; one forest
for all models: Kim et al., RAID 2023, section 3.3.3; t-SNE maps: Kim et al., section 4.4 and Figure 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.audit import RecordTable, measure
from shoal.audit.record_table import CLIENT
from shoal.core.randomness import Stream
from shoal.metrics.intervals import Bools, Floats
from shoal.metrics.summary import Metrics, Summary

Forests = Literal["single", "per-cluster"]

CONTROLS = 5
"""The number of control forests trained on shuffled labels, each with a third of the attack's trees."""

EARLY = 0.2
"""The fraction of the rounds in the first t-SNE map, as in the paper's Figure 2 (1,000 of 5,000 rounds)."""

PROPERTY_COLUMNS = ("round", "cluster", "clients", "present", "cosine")
"""The columns of `property.csv` in every run with a property attack; scores also need simulated updates."""

_PERPLEXITY = 30


@dataclass(frozen=True, eq=False)
class RoundObservation:
    """The attacker's view of a round, with the ground truth.

    The round has S simulated and A observed aggregated updates with F features. The victim contributed to C observed
    updates. A counterfactual update is an observed update, recomputed after the victim trained on its other examples.

    Args:
        simulated_features: the features of the simulated updates, (S, F) float16.
        simulated_has_property: a mask of the simulated updates with the property, (S,) bool.
        simulated_clusters: the model of each simulated update, (S,) int64.
        features: the features of the observed updates, (A, F) float16.
        clusters: the model of each observed update, (A,) int64.
        has_property: the true label of each observed update, (A,) bool.
        clients: the number of clients that contributed to each observed update, (A,) int64.
        swapped: the positions of the observed updates with the victim's contribution, (C,) int64.
        swapped_features: the features of the counterfactual updates, (C, F) float16.
        cosine: the cosine between each observed update and the same model's previous update, (A,) float64, or NaN
            without a previous update.
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
    """Score each aggregated update by its estimated probability of containing the property.

    Returns:
        One row per update with ``round``, ``cluster``, ``clients``, ``present``, ``cosine`` and several scores.
        ``score`` is the forest's probability of the property. ``swapped`` is the counterfactual update's score, or NaN
        if the victim did not contribute to the update. ``control.0`` to ``control.4`` are the scores of forests trained
        on shuffled labels. All scores are NaN without simulated updates.

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
        return torch.cat([getattr(part, name) for part in observations]).numpy()

    cluster, simulated_cluster = joined("clusters"), joined("simulated_clusters")
    updates = pd.DataFrame(
        {
            "round": np.repeat([part.round for part in observations], [len(part.clusters) for part in observations]),
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
    begins = np.cumsum([0, *(len(part.clusters) for part in observations)])[:-1]
    swapped = np.concatenate(
        [begin + part.swapped.numpy() for begin, part in zip(begins, observations, strict=True)], dtype=np.int64
    )
    observed = np.concatenate([seen, joined("swapped_features")]).astype(np.float32)
    observed_cluster = np.concatenate([cluster, cluster[swapped]])
    scaler = StandardScaler().fit(simulated)
    simulated, observed = np.asarray(scaler.transform(simulated)), np.asarray(scaler.transform(observed))
    # The simulated and the observed updates of each forest, by cluster; -1: one forest for all.
    trained = {k: (simulated_cluster == k, observed_cluster == k) for k in np.unique(cluster).tolist()}
    if forests == "single":
        trained = {-1: (slice(None), slice(None))}

    def scores(label: Bools, size: int, stream: Stream) -> NDArray[np.float32]:
        """Return the observed and the counterfactual updates' scores, or NaN unless both classes were simulated."""
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


def _shuffled(label: Bools, generator: np.random.Generator) -> Bools:
    """Return labels without information: half of each class is positive.

    A plain permutation can keep some information about the true labels, which a forest would learn.
    """
    shuffled = np.zeros_like(label)
    for kind in (False, True):
        rows = np.flatnonzero(label == kind)
        shuffled[generator.permutation(rows)[: len(rows) // 2]] = True
    return shuffled


def updates_table(
    observations: Sequence[RoundObservation],
    stream: Stream,
    *,
    forests: Forests = "single",
    trees: int = 100,
    maps: bool = True,
    jobs: int = 1,
) -> pd.DataFrame:
    """Return the rows of `property.csv`: the columns of `classify_updates`, and t-SNE coordinates if ``maps`` is set.

    ``early_x`` and ``early_y`` are coordinates in a map of the first fifth of the rounds.
    """
    updates = classify_updates(observations, stream, forests=forests, trees=trees, jobs=jobs)
    if maps:
        features = torch.cat([part.features for part in observations]).float().numpy()
        early = updates["round"].to_numpy() <= EARLY * max(part.round for part in observations)
        for name, rows in (("all", np.ones(len(updates), dtype=bool)), ("early", early)):
            points = np.full((len(updates), 2), np.nan)
            points[rows] = _tsne(features[rows], stream("map", name))
            updates[[f"{name}_x", f"{name}_y"]] = points
    return updates


def property_summary(updates: pd.DataFrame) -> Summary:
    """Compute the metrics of a property attack from the rows of `property.csv`.

    ``property.auc`` is the AUC over all aggregated updates (the paper's metric). With several models, recognising the
    victim's model raises ``property.auc``. ``property.auc_within`` compares only updates of the same model.
    ``property.auc_rounds`` is the AUC over rounds. A round's score is the highest rank that an update of the round has
    among its model's updates. ``property.auc_within`` and ``property.auc_rounds`` are comparable between runs with
    different numbers of models. ``property.auc_control`` is the mean AUC of classifiers trained on shuffled labels.

    ``property.pairs`` is the number of counterfactual pairs. A pair is an update with the victim's contribution, and
    its counterfactual update (see `RoundObservation`). ``property.auc_counterfactual`` is the fraction of pairs where
    the update with the property has the higher score; a tie counts half. ``property.auc_swapped`` is the AUC over all
    updates of the counterfactual pairs, where only updates of one model are compared.
    """
    present = updates["present"].to_numpy(dtype=bool)
    overall: dict[str, float] = {
        "property.updates": len(updates),
        "property.positives": int(present.sum()),
        "cosine.mean": float(updates["cosine"].mean()),
        "cosine.sd": float(updates["cosine"].std()),
    }
    clusters = {k: updates[updates["cluster"] == k] for k in np.unique(updates["cluster"]).tolist()}
    by_cluster: dict[int, dict[str, float]] = {
        k: {"cosine": float(rows["cosine"].mean()), "cosine_sd": float(rows["cosine"].std())}
        for k, rows in clusters.items()
    }
    if "score" in updates:
        overall["property.auc"] = auc(updates)
        overall["property.auc_control"] = control_auc(updates)
        overall["property.auc_rounds"] = _auc_of_rounds(updates)
        if "swapped" in updates:
            overall |= _counterfactual(updates)
        overall["property.auc_within"] = _auc_within(updates)
        for k, rows in clusters.items():
            by_cluster[k] |= {"property_auc": auc(rows), "property_updates": len(rows)}
    return Summary(overall=overall, by_cluster=by_cluster)


def update_records(updates: pd.DataFrame, score: str = "score") -> RecordTable:
    """Return the scored updates as attacked records, where "members" are the updates with the property."""
    scored = updates.dropna(subset=[score])
    scores, present = scored[score].to_numpy(), scored["present"].to_numpy(dtype=bool)
    return RecordTable.from_columns(scores, present, model=scored["cluster"].to_numpy(), attack="property", view=CLIENT)


def auc(updates: pd.DataFrame, score: str = "score") -> float:
    """Return the AUC of the scored updates, or NaN if the updates do not include both classes."""
    return measure(update_records(updates, score)).auc


def control_auc(updates: pd.DataFrame) -> float:
    """Return the mean AUC of the classifiers trained on shuffled labels, or NaN without such an AUC."""
    names = [name for name in updates.columns if name.startswith("control.")]
    return float(np.mean([auc(updates, name) for name in names])) if names else nan


def _auc_within(updates: pd.DataFrame) -> float:
    """Return the models' mean AUC, weighted by the numbers of pairs of updates with and without the property."""
    models = [metrics for _, metrics in sorted(measure(update_records(updates), by="model").items())]
    pairs = [metrics.members * metrics.non_members for metrics in models]
    return float(np.average(np.nan_to_num([metrics.auc for metrics in models]), weights=pairs)) if sum(pairs) else nan


def _counterfactual(updates: pd.DataFrame) -> Metrics:
    """Return the metrics of counterfactual pairs; see `property_summary`."""
    both = updates.dropna(subset=["score", "swapped"])
    # Without the property in the round as it was: with it in the other.
    having = both["score"].where(both["present"] == 1, both["swapped"])
    lacking = both["swapped"].where(both["present"] == 1, both["score"])
    higher = (having > lacking) + 0.5 * (having == lacking)
    pairs = pd.concat([both.assign(present=1, score=having), both.assign(present=0, score=lacking)])
    return {
        "property.pairs": len(both),
        "property.auc_counterfactual": float(higher.mean()),
        "property.auc_swapped": _auc_within(pairs),
    }


def _auc_of_rounds(updates: pd.DataFrame) -> float:
    """Return the AUC over rounds; see `property_summary`."""
    ranked = updates.assign(score=updates.groupby("cluster")["score"].rank(pct=True))
    return auc(
        ranked.groupby("round").agg(present=("present", "max"), score=("score", "max"), cluster=("cluster", "min"))
    )


def _tsne(features: NDArray[np.float32], stream: Stream) -> Floats:
    """Return t-SNE coordinates (R, 2) from 50 principal components of the features; NaN with too few updates."""
    if len(features) < 3 * _PERPLEXITY:
        return np.full((len(features), 2), np.nan)
    from sklearn.decomposition import PCA  # noqa: PLC0415 - scikit-learn takes a second to import
    from sklearn.manifold import TSNE  # noqa: PLC0415

    seed = stream.key() % 2**32
    reduced = PCA(min(50, *features.shape), random_state=seed).fit_transform(features)
    return TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed).fit_transform(reduced).astype(np.float64)
