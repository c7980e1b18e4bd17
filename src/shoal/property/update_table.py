"""The result of property inference: a row per aggregated update with its scores, and their metrics.

A random forest, trained on simulated updates, classifies aggregated updates by whether they contain a property.

Source: Melis et al. 2019, arXiv:1805.04049, section VII, and its published code for the forest's settings; one forest
for all models: Kim et al., RAID 2023, section 3.3.3; maps: its section 4.4 and Figure 2.
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
"""Forests trained on shuffled labels, each with a third of the trees; the control's AUC is the mean of theirs."""

EARLY = 0.2
"""Share of the rounds in the first t-SNE map, as in the paper's Figure 2: 1,000 of 5,000."""

PROPERTY_COLUMNS = ("round", "cluster", "clients", "present", "cosine")
"""The columns of `property.csv` that every run with a property attack has; scores only where updates were simulated."""

_PERPLEXITY = 30


@dataclass(frozen=True, eq=False)
class RoundObservation:
    """The attacker's view of a round, with the ground truth.

    It has S simulated and A observed aggregated updates, each of one cluster's model, with F features. C observed ones
    contain the victim's update; their counterfactuals in a round of the other kind are added.

    Args:
        round: the round's number.
        simulated_features: (S, F) float16.
        simulated_has_property: (S,) bool, a mask of the simulated updates with the property.
        simulated_clusters: (S,) int64.
        features: (A, F) float16, of the round's aggregated updates.
        clusters: (A,) int64.
        has_property: (A,) bool, the truth: whether the victim trained that model on the property in this round.
        clients: (A,) int64, the number of clients that trained that model.
        swapped: (C,) int64, the positions of the updates that contain the victim's.
        swapped_features: (C, F) float16, of these updates had the victim trained on examples of the other kind.
        cosine: (A,) float64, of each update with the previous one of the same model; NaN without one.
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
    """Score each aggregated update of a training by its probability of containing the property.

    Returns:
        One row per update, with ``round``, ``cluster``, ``clients``, ``present``, ``cosine``; ``score``, the forest's
        probability of the property; ``swapped``, the score had the victim trained on its other examples, NaN for
        updates without the victim; and ``control.0`` to ``control.4``, scores of forests trained on shuffled labels.
        Scores need simulated updates.

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
        """Return scores of observed, then of swapped updates; NaN where a forest has only one kind to train on."""
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
    """Labels without information: half of each kind is labelled "with", half "without".

    A plain permutation would leave the two kinds slightly different in their features, and a forest would learn that.
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
    """Return the rows of `property.csv`: those of `classify_updates`, and where ``maps`` is set their t-SNE
    coordinates.

    ``early_x`` and ``early_y`` are those of a map of the first fifth of the rounds alone.
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
    """Return the metrics of a property attack on aggregated ``updates``, the rows of `property.csv`.

    ``property.auc`` is over all aggregated updates (the paper's). With many models it is high if an attack
    distinguishes the victim's model from others in the same way in every round. ``property.auc_within`` only counts
    pairs of updates of the same model. ``property.auc_rounds`` is over rounds: among a round's updates the highest
    score, by its rank among its model's scores, against whether the victim trained on the property in that round. Both
    can be compared between algorithms with one model and with many. ``property.auc_control`` is the mean over
    classifiers that learned from shuffled labels.

    ``property.auc_counterfactual`` is over ``property.pairs`` pairs: a model's update to which the victim contributed,
    and the same update if the victim had trained on its examples of the other kind. It is the fraction of pairs in
    which the update with the property has the higher score; a tie counts half. The victim, the model and the round are
    the same in both. ``property.auc_swapped`` is the AUC within models over all updates of these pairs. Here the other
    clients' batches and the noise of other rounds, which an attacker does not know, add to the difficulty.
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
    """Return the scored updates as the records of an attack; "members" have the property."""
    scored = updates.dropna(subset=[score])
    scores, present = scored[score].to_numpy(), scored["present"].to_numpy(dtype=bool)
    return RecordTable.from_columns(scores, present, model=scored["cluster"].to_numpy(), attack="property", view=CLIENT)


def auc(updates: pd.DataFrame, score: str = "score") -> float:
    """Area under the ROC curve of the updates that have a score; NaN where it is undefined."""
    return measure(update_records(updates, score)).auc


def control_auc(updates: pd.DataFrame) -> float:
    """Return the mean AUC of the classifiers that learned from shuffled labels; NaN where it is undefined."""
    names = [name for name in updates.columns if name.startswith("control.")]
    return float(np.mean([auc(updates, name) for name in names])) if names else nan


def _auc_within(updates: pd.DataFrame) -> float:
    """The mean AUC of the models by their numbers of pairs of an update with the property and one without."""
    models = [metrics for _, metrics in sorted(measure(update_records(updates), by="model").items())]
    pairs = [metrics.members * metrics.non_members for metrics in models]
    return float(np.average(np.nan_to_num([metrics.auc for metrics in models]), weights=pairs)) if sum(pairs) else nan


def _counterfactual(updates: pd.DataFrame) -> Metrics:
    """The metrics of the pairs of updates, as in `property_summary`."""
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
    """The AUC over rounds, of the highest rank of a round's updates."""
    ranked = updates.assign(score=updates.groupby("cluster")["score"].rank(pct=True))
    return auc(
        ranked.groupby("round").agg(present=("present", "max"), score=("score", "max"), cluster=("cluster", "min"))
    )


def _tsne(features: NDArray[np.float32], stream: Stream) -> Floats:
    """t-SNE coordinates (R, 2) of updates, over their first 50 principal components; NaN where they are too few."""
    if len(features) < 3 * _PERPLEXITY:
        return np.full((len(features), 2), np.nan)
    from sklearn.decomposition import PCA  # noqa: PLC0415 - scikit-learn takes a second to import
    from sklearn.manifold import TSNE  # noqa: PLC0415

    seed = stream.key() % 2**32
    reduced = PCA(min(50, *features.shape), random_state=seed).fit_transform(features)
    return TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed).fit_transform(reduced).astype(np.float64)
