"""Canaries on the final models: how many of those trained on are found, by record and by client, and what that proves.

Every canary, trained on or left out, is scored on the model that its client trained last, by the logit of its wrong
label's probability. One threshold serves all models.
"""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.audit.one_run_audit import one_run_audit
from shoal.data import Canaries, Federation
from shoal.engine import Engine, PersonalModels
from shoal.metrics import canary_rate, exposure_of_canaries, roc_auc
from shoal.metrics.summary import Summary

CANARY_COLUMNS = ("client", "record", "model", "label", "true_label", "member", "score", "exposure")
"""The columns of `canaries.csv`."""

CLIENT_CANARY_COLUMNS = ("canaries", "canaries_found")
"""The columns of `clients.csv` with canaries: how many each client trained on, and how many of them are found."""

DELTA = 1e-5
"""Of the audit, where nothing else says one."""

_RATES = (0.1, 0.01)


def table_of_canaries(
    canaries: Canaries, federation: Federation, models: Tensor | PersonalModels, latest: Tensor, engine: Engine
) -> pd.DataFrame:
    """The rows of `canaries.csv`, one per canary.

    ``model`` is -1, and score and exposure are NaN, where the client trained no model lately.

    Args:
        canaries: of ``federation``.
        federation: that was trained.
        models: (S, P) the final models.
        latest: (N,) the model that each client trained last; -1: none.
        engine: evaluates them.
    """
    position = {client: i for i, client in enumerate(federation.ids.tolist())}
    model = latest[torch.tensor([position[client] for client in canaries.client.tolist()])]
    score = torch.full((len(canaries),), np.nan, dtype=torch.float64)
    for s in model[model >= 0].unique().tolist():
        own = torch.nonzero(model == s).flatten()
        outputs = engine.outputs(models[s], canaries.x, own).cpu().double()
        score[own] = _logits(outputs, canaries.y[own])
    member = canaries.member.numpy()
    return pd.DataFrame(
        {
            "client": canaries.client.numpy(),
            "record": canaries.record.numpy(),
            "model": model.numpy(),
            "label": canaries.y.numpy(),
            "true_label": canaries.true_label.numpy(),
            "member": member,
            "score": score.numpy(),
            "exposure": exposure_of_canaries(score.numpy(), member),
        }
    )


def canary_summary(table: pd.DataFrame, delta: float) -> Summary:
    """The metrics of a run with canaries, from the rows of `canaries.csv`.

    Rates come with their limits, ``.low`` and ``.high``. ``canaries.found`` is the share that scores above every
    left-out canary. ``canaries.epsilon_low`` is what one audit proves: with 95 % confidence training is not
    (epsilon, ``canaries.delta``)-DP towards one record for any smaller epsilon.
    """
    scores, member = table["score"].to_numpy(), table["member"].to_numpy(dtype=bool)
    audit = one_run_audit(scores, member, delta=delta)
    known = ~np.isnan(scores)
    scores, inside = scores[known], member[known]
    names = {"found": 0.0} | {f"tpr_at_fpr_{rate:g}": rate for rate in _RATES}
    metrics: dict[str, float] = {"canaries.members": int(inside.sum()), "canaries.non_members": int((~inside).sum())}
    if inside.any() and not inside.all():
        metrics["canaries.auc"] = roc_auc(scores, inside)
    for name, max_fpr in names.items():
        rate = canary_rate(scores, inside, max_fpr)
        metrics |= {f"canaries.{name}": rate.tpr, f"canaries.{name}.low": rate.low, f"canaries.{name}.high": rate.high}
    metrics |= {"canaries.epsilon_low": audit.epsilon, "canaries.delta": delta}
    return Summary(overall=metrics)


def canaries_of_clients(table: pd.DataFrame, federation: Federation) -> dict[str, list[int]]:
    """`CLIENT_CANARY_COLUMNS` of all N clients, from the rows of `canaries.csv`."""
    outside = table["score"][~table["member"]].max()
    trained = table[table["member"] & table["score"].notna()]
    # Without a left-out canary nothing can be said to stand out.
    found = trained[trained["score"] > outside]
    counts = (each["client"].value_counts().to_dict() for each in (trained, found))
    columns = [[of.get(client, 0) for client in federation.ids.tolist()] for of in counts]
    return dict(zip(CLIENT_CANARY_COLUMNS, columns, strict=True))


def _logits(outputs: Tensor, labels: Tensor) -> Tensor:
    """log(p / (1 - p)) (m,) of the probabilities of labels (m,) by outputs (m, C)."""
    own = outputs.gather(1, labels[:, None])
    others = outputs.scatter(1, labels[:, None], -torch.inf)
    return own.squeeze(1) - others.logsumexp(dim=1)
