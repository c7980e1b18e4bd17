"""What a property attack found: figures by summary key, a row an update, and the updates as a map of points."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks import PropertyAttack, RoundObservation, classify_updates
from shoal.core.randomness import Stream
from shoal.data import Federation

Floats = NDArray[np.float64]

EARLY = 0.2
"""Share of the rounds that the first map shows, as the paper's Figure 2: 1,000 of 5,000."""

PROPERTY_COLUMNS = ("round", "cluster", "clients", "present", "cosine")
"""The columns of `property.csv` that every run with a property attack has; scores only where updates were simulated."""

_PERPLEXITY = 30


def updates_of(
    attack: PropertyAttack, observations: Sequence[RoundObservation], stream: Stream, *, jobs: int, maps: bool
) -> pd.DataFrame:
    """The rows of `property.csv`: what `infer` gives, and where ``maps`` is set the updates' places by t-SNE.

    ``early_x`` and ``early_y`` are those of a map of the first fifth of the rounds alone.

    Source: Kim et al., RAID 2023, section 4.4 and Figure 2.
    """
    found = classify_updates(attack, observations, stream, jobs=jobs)
    if maps:
        features = torch.cat([each.features for each in observations]).float().numpy()
        early = found["round"].to_numpy() <= EARLY * max(each.round for each in observations)
        for name, rows in (("all", np.ones(len(found), dtype=bool)), ("early", early)):
            places = np.full((len(found), 2), np.nan)
            places[rows] = _places(features[rows], stream("map", name))
            found[[f"{name}_x", f"{name}_y"]] = places
    return found


def figures_of(found: pd.DataFrame) -> dict[str, float]:
    """The figures of a property attack, by summary key.

    ``property.auc`` is over all aggregated updates (the paper's). With many models it is high where an attack tells the
    victim's model from others, round by round the same. ``property.auc_within`` counts pairs of updates of the same
    model alone, and ``property.auc_rounds`` is over rounds: among a round's updates the highest score, by its rank
    among its model's, against whether the victim trained on the property in that round. Both can be compared between
    algorithms with one model and with many.
    """
    present = found["present"].to_numpy(dtype=bool)
    figures: dict[str, float] = {
        "property.updates": len(found),
        "property.positives": int(present.sum()),
        "cosine.mean": float(found["cosine"].mean()),
        "cosine.sd": float(found["cosine"].std()),
    }
    for k, rows in found.groupby("cluster"):
        figures[f"clusters.{k}.cosine"] = float(rows["cosine"].mean())
        figures[f"clusters.{k}.cosine_sd"] = float(rows["cosine"].std())
    if "score" not in found:
        return figures
    figures["property.auc"] = auc(present, found["score"].to_numpy())
    controls = [auc(present, found[name].to_numpy()) for name in found if str(name).startswith("control.")]
    figures["property.auc_control"] = float(np.mean(controls))
    ranked = found.assign(score=found.groupby("cluster")["score"].rank(pct=True))
    by_round = ranked.groupby("round").agg(present=("present", "max"), score=("score", "max"))
    figures["property.auc_rounds"] = auc(by_round["present"].to_numpy(dtype=bool), by_round["score"].to_numpy())
    aucs, pairs = [], []
    for k, rows in found.groupby("cluster"):
        held = rows["present"].to_numpy(dtype=bool)
        figures[f"clusters.{k}.property_auc"] = auc(held, rows["score"].to_numpy())
        figures[f"clusters.{k}.property_updates"] = len(rows)
        aucs.append(figures[f"clusters.{k}.property_auc"])
        pairs.append(int(held.sum()) * int((~held).sum()))
    known = ~np.isnan(aucs)
    if known.any():
        figures["property.auc_within"] = float(np.average(np.array(aucs)[known], weights=np.array(pairs)[known]))
    return figures


def auc(present: NDArray[np.bool_], scores: Floats) -> float:
    """Area under the ROC curve of the scores that there are; NaN where it is undefined."""
    known = ~np.isnan(scores)
    if len(np.unique(present[known])) < 2:
        return float("nan")
    # Here and below, since scikit-learn takes long to import.
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415

    return float(roc_auc_score(present[known], scores[known]))


def main_task_metrics(outputs: Tensor, assignment: NDArray[np.int64], federation: Federation) -> dict[str, float]:
    """How well the main task is learned, as an AUC, by summary key.

    ``main.auc`` is over what clients see: each client's chosen model on the test examples, weighted to the labels that
    the client itself has. ``main.auc_even`` is over the test set as it is. Where clients differ in their labels, models
    that know nothing of an example but whose it is have a high `main.auc`, and an even one of 0.5.

    Args:
        outputs: (K, M, C), of each model for each test example.
        choice: (N,), each client's model.
        federation: whose clients and test examples these are.
    """
    labels = federation.test.y.cpu()
    own = torch.zeros(len(federation), federation.classes, dtype=torch.float64)
    clients = federation.clients
    own.index_put_(
        (clients.owners(), clients.y.cpu()[clients.indices]), torch.ones(len(clients.indices)).double(), True
    )
    own /= own.sum(dim=1, keepdim=True)
    even = torch.bincount(labels, minlength=federation.classes).double() / len(labels)
    ratio = torch.where(even > 0, own / even.clamp(min=1e-300), 0.0)[:, labels].numpy()
    chosen = np.unique(assignment)
    seen = np.stack([ratio[assignment == k].sum(axis=0) for k in chosen])
    equal = np.stack([np.full(len(labels), float((assignment == k).sum())) for k in chosen])
    answers = outputs[chosen].softmax(dim=2).double().numpy()
    return {
        "main.auc": _one_against_rest(answers, labels.numpy(), seen),
        "main.auc_even": _one_against_rest(answers, labels.numpy(), equal),
    }


def _one_against_rest(answers: Floats, labels: NDArray[np.int64], weights: Floats) -> float:
    """Mean over classes of the AUC of each against the others; of two classes, the AUC of the second."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415

    models, classes = len(answers), answers.shape[2]
    truth, weight = np.tile(labels, models), weights.ravel()
    found = []
    for c in range(classes) if classes > 2 else [1]:
        used = weight > 0
        if len(np.unique(truth[used] == c)) == 2:
            score = answers[:, :, c].ravel()[used]
            found.append(float(roc_auc_score(truth[used] == c, score, sample_weight=weight[used])))
    return float(np.mean(found)) if found else float("nan")


def _places(features: NDArray[np.float32], stream: Stream) -> Floats:
    """Points (R, 2) of updates by t-SNE over their first 50 principal components; NaN where they are too few."""
    if len(features) < 3 * _PERPLEXITY:
        return np.full((len(features), 2), np.nan)
    from sklearn.decomposition import PCA  # noqa: PLC0415
    from sklearn.manifold import TSNE  # noqa: PLC0415

    seed = stream.key() % 2**32
    reduced = PCA(min(50, *features.shape), random_state=seed).fit_transform(features)
    return TSNE(perplexity=_PERPLEXITY, init="pca", random_state=seed).fit_transform(reduced).astype(np.float64)
