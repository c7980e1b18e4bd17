"""Canaries on the final models: how many of those trained on are found, by record and by client, and what that proves.

Every canary, trained on or left out, is scored on the model that its client trained last, by the logit of its wrong
label's probability. One threshold serves all models.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.attacks import logit_confidence
from shoal.audit.measurement import FinishedTraining
from shoal.audit.one_run_audit import one_run_audit
from shoal.audit.records import RecordTable, measure
from shoal.data import Canaries, Federation
from shoal.engine import Engine, PersonalModels
from shoal.metrics import canary_rate, exposure_of_canaries
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
        score[own] = logit_confidence(outputs, canaries.y[own])
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


@dataclass(frozen=True, eq=False)
class CanaryExposure:
    """How many of the canaries that were trained on are found, and what that proves; see `Measurement`.

    Rates come with their limits, ``.low`` and ``.high``. ``canaries.found`` is the share that scores above every
    left-out canary. ``canaries.epsilon_low`` is what one audit proves: with 95 % confidence training is not
    (epsilon, ``canaries.delta``)-DP towards one record for any smaller epsilon.

    Args:
        table: the rows of `canaries.csv`.
        delta: of the audit.
    """

    table: pd.DataFrame
    delta: float
    name, title = "canaries", "Canaries"

    @property
    def records(self) -> RecordTable:
        """The canaries that have a score."""
        scored = self.table[self.table["score"].notna()]
        names = ("record", "client", "model")
        columns = {name: scored[name].to_numpy() for name in names}
        return RecordTable.from_columns(scored["score"].to_numpy(), scored["member"].to_numpy(dtype=bool), **columns)

    def measure(self, finished: FinishedTraining) -> Summary:
        """See `Measurement`."""
        del finished
        scores, member = self.table["score"].to_numpy(), self.table["member"].to_numpy(dtype=bool)
        audit = one_run_audit(scores, member, delta=self.delta)
        records = self.records
        measured = measure(records)
        metrics: dict[str, float] = {
            "canaries.members": measured.members,
            "canaries.non_members": measured.non_members,
            "canaries.auc": measured.auc,
        }
        for name, max_fpr in {"found": 0.0, **{f"tpr_at_fpr_{rate:g}": rate for rate in _RATES}}.items():
            rate = canary_rate(records.score, records.member, max_fpr)
            metrics |= {f"canaries.{name}": rate.tpr, f"canaries.{name}.low": rate.low}
            metrics |= {f"canaries.{name}.high": rate.high}
        metrics |= {"canaries.epsilon_low": audit.epsilon, "canaries.delta": self.delta}
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
