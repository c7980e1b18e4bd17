"""The outcome of a property inference attack: its metrics, and one row per aggregated update with t-SNE coordinates."""

from collections.abc import Sequence
from math import nan

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from shoal.core.randomness import Stream
from shoal.metrics import roc_auc
from shoal.metrics.summary import Metrics, Summary
from shoal.property.update_classifier import Forests, RoundObservation, classify_updates

Floats = NDArray[np.float64]

EARLY = 0.2
"""Share of the rounds in the first t-SNE map, as in the paper's Figure 2: 1,000 of 5,000."""

PROPERTY_COLUMNS = ("round", "cluster", "clients", "present", "cosine")
"""The columns of `property.csv` that every run with a property attack has; scores only where updates were simulated."""

_PERPLEXITY = 30


def updates_table(
    observations: Sequence[RoundObservation],
    stream: Stream,
    *,
    forests: Forests = "single",
    trees: int = 100,
    maps: bool = True,
    jobs: int = 1,
) -> pd.DataFrame:
    """The rows of `property.csv`: those of `classify_updates`, and where ``maps`` is set their t-SNE coordinates.

    ``early_x`` and ``early_y`` are those of a map of the first fifth of the rounds alone.

    Source: Kim et al., RAID 2023, section 4.4 and Figure 2.
    """
    updates = classify_updates(observations, stream, forests=forests, trees=trees, jobs=jobs)
    if maps:
        features = torch.cat([each.features for each in observations]).float().numpy()
        early = updates["round"].to_numpy() <= EARLY * max(each.round for each in observations)
        for name, rows in (("all", np.ones(len(updates), dtype=bool)), ("early", early)):
            points = np.full((len(updates), 2), np.nan)
            points[rows] = _tsne(features[rows], stream("map", name))
            updates[[f"{name}_x", f"{name}_y"]] = points
    return updates


def property_summary(updates: pd.DataFrame) -> Summary:
    """The metrics of a property attack on aggregated ``updates``, the rows of `property.csv`.

    ``property.auc`` is over all aggregated updates (the paper's). With many models it is high where an attack tells the
    victim's model from others, round by round the same. ``property.auc_within`` counts pairs of updates of the same
    model alone, and ``property.auc_rounds`` is over rounds: among a round's updates the highest score, by its rank
    among its model's, against whether the victim trained on the property in that round. Both can be compared between
    algorithms with one model and with many. ``property.auc_control`` is the mean over classifiers that learned from
    shuffled labels.

    ``property.auc_counterfactual`` is over ``property.pairs`` pairs: a model's update in which the victim has a part,
    and the same update if it had trained on its examples of the other kind. It is the share of pairs in which the one
    with the property has the higher score, a tie counting half: whose examples they are, which model and which round
    are the same in both. ``property.auc_swapped`` is the AUC within models over all updates of these pairs: the other
    clients' batches and the noise of other rounds, which an attacker does not know, are in the way.
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
        overall["property.auc"] = auc(present, updates["score"].to_numpy())
        overall["property.auc_control"] = control_auc(updates)
        overall["property.auc_rounds"] = _auc_of_rounds(updates)
        if "swapped" in updates:
            overall |= _counterfactual(updates)
        overall["property.auc_within"] = _auc_within(updates["cluster"], present, updates["score"])
        for k, rows in clusters.items():
            held = rows["present"].to_numpy(dtype=bool)
            by_cluster[k] |= {"property_auc": auc(held, rows["score"].to_numpy()), "property_updates": len(rows)}
    return Summary(overall=overall, by_cluster=by_cluster)


def _auc_within(clusters: pd.Series, present: NDArray[np.bool_], scores: pd.Series) -> float:
    """The mean AUC of the models by their numbers of pairs of an update with the property and one without."""
    aucs, pairs = [], []
    for k in np.unique(clusters):
        rows = (clusters == k).to_numpy() & scores.notna().to_numpy()
        aucs.append(auc(present[rows], scores[rows].to_numpy()))
        pairs.append(int(present[rows].sum()) * int((~present[rows]).sum()))
    return float(np.average(np.nan_to_num(aucs), weights=pairs)) if sum(pairs) else nan


def _counterfactual(updates: pd.DataFrame) -> Metrics:
    """The metrics of the pairs of updates, as in `property_summary`."""
    both = updates.dropna(subset=["score", "swapped"])
    # Without the property in the round as it was: with it in the other.
    having = both["score"].where(both["present"] == 1, both["swapped"])
    lacking = both["swapped"].where(both["present"] == 1, both["score"])
    higher = (having > lacking) + 0.5 * (having == lacking)
    present = np.arange(2 * len(both)) < len(both)
    return {
        "property.pairs": len(both),
        "property.auc_counterfactual": float(higher.mean()),
        "property.auc_swapped": _auc_within(pd.concat([both["cluster"]] * 2), present, pd.concat([having, lacking])),
    }


def _auc_of_rounds(updates: pd.DataFrame) -> float:
    ranked = updates.assign(score=updates.groupby("cluster")["score"].rank(pct=True))
    by_round = ranked.groupby("round").agg(present=("present", "max"), score=("score", "max"))
    return auc(by_round["present"].to_numpy(dtype=bool), by_round["score"].to_numpy())


def control_auc(updates: pd.DataFrame) -> float:
    """The mean AUC of the classifiers that learned from shuffled labels; NaN where it is undefined."""
    present = updates["present"].to_numpy(dtype=bool)
    scores = updates.filter(regex=r"^control\.")
    return float(np.mean([auc(present, scores[name].to_numpy()) for name in scores])) if len(scores.columns) else nan


def auc(present: NDArray[np.bool_], scores: Floats) -> float:
    """Area under the ROC curve of the scores that are not NaN; NaN where it is undefined."""
    known = ~np.isnan(scores)
    if len(np.unique(present[known])) < 2:
        return nan
    return roc_auc(scores[known], present[known])


def _tsne(features: NDArray[np.float32], stream: Stream) -> Floats:
    """t-SNE coordinates (R, 2) of updates, over their first 50 principal components; NaN where they are too few."""
    if len(features) < 3 * _PERPLEXITY:
        return np.full((len(features), 2), np.nan)
    from sklearn.decomposition import PCA  # noqa: PLC0415 - scikit-learn takes a second to import
    from sklearn.manifold import TSNE  # noqa: PLC0415

    seed = stream.key() % 2**32
    reduced = PCA(min(50, *features.shape), random_state=seed).fit_transform(features)
    return TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed).fit_transform(reduced).astype(np.float64)
