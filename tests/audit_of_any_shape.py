"""Audits made by hand, for the tests of their page."""

from math import nan
from typing import Any

import numpy as np
import pandas as pd

from shoal.audit.audit import ATTACK_COLUMNS, METRICS, RECORD_COLUMNS, Audit

ACCURACY = {"lira": 0.72, "rmia": 0.70, "other-clusters": 0.61, "posterior": 0.55, "gap": 0.58, "my-attack": 0.52}
"""Balanced accuracy of each attack on the more exposed group."""

VIEW = {"trajectory": "client", "span-models": "client", "fedmia-i": "server", "span": "server"}


def attack_row(
    attack: str,
    scope: str,
    name: str,
    accuracy: float,
    *,
    width: float = 0.08,
    records: int = 400,
    tpr: float = 0.1,
    **more: Any,
) -> dict[str, Any]:
    """A row of `Audit.attacks`, its intervals of the given width; true positive rates as non-members allow."""
    enough = {"tpr_at_fpr_0.01": records >= 300, "tpr_at_fpr_0.001": records >= 3000}
    values = {"auc": min(1.0, accuracy + 0.03), "accuracy": accuracy}
    values |= {metric: tpr if known else nan for metric, known in enough.items()}
    values["tpr_at_fpr_0.01_per_record"] = values["tpr_at_fpr_0.01"]
    row: dict[str, Any] = {"view": VIEW.get(attack, "outsider"), "attack": attack, "scope": scope, "name": name}
    row |= {"members": records, "non_members": records, "exact": nan}
    for metric in METRICS:
        low, high = values[metric] - width / 2, values[metric] + width / 2
        row |= {metric: values[metric], f"{metric}.low": low, f"{metric}.high": high}
    return row | {"accuracy.null_high": 0.5 + width / 2, "chosen": False, "strongest": False} | more


def records_frame(count: int = 120, references: int = 16, seed: int = 0) -> pd.DataFrame:
    """Rows of `Audit.records` of two groups, a quarter of them the minority's."""
    generator = np.random.default_rng(seed)
    exposure = np.clip(0.5 + 0.1 * generator.standard_normal(count) + 0.06 * (np.arange(count) % 4 == 0), 0.05, 0.99)
    frame = pd.DataFrame(
        {
            "record": [f"client-{i}" for i in range(count)],
            "client": [str(i % 6) for i in range(count)],
            "group": np.where(np.arange(count) % 4 == 0, "minority", "majority"),
            "member": np.arange(count) % 2 == 0,
            "score": generator.standard_normal(count),
            "exposure": exposure if references else np.full(count, nan),
            "exposure.low": exposure - 0.3 if references else np.full(count, nan),
        },
        columns=[*RECORD_COLUMNS],
    )
    return frame.sort_values("exposure", ascending=False, ignore_index=True)


def audit_of(
    accuracy: dict[str, float] | None = None,
    *,
    groups: tuple[str, ...] = ("majority", "minority"),
    models: int = 2,
    clients: int = 6,
    rows: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Audit:
    """An audit whose last group is the most exposed; of each earlier one accuracies are 0.04 closer to 0.5."""
    accuracy = ACCURACY if accuracy is None else accuracy
    made = list(rows or [])
    if rows is None:
        for attack, value in accuracy.items():
            made.append(attack_row(attack, "all", "all", value - 0.02, records=800))
            made += [
                attack_row(attack, "group", name, value - 0.04 * (len(groups) - 1 - g)) for g, name in enumerate(groups)
            ]
            made += [attack_row(attack, "model", str(k), value - 0.01 * k) for k in range(models)]
        best = max(accuracy, key=lambda attack: accuracy[attack])
        made += [
            attack_row(best, "client", str(i), 0.5 + 0.02 * i, width=0.3 if i == clients - 1 else 0.1, records=20)
            for i in range(clients)
        ]
    attacks = pd.DataFrame(made, columns=[*ATTACK_COLUMNS])
    known = attacks.fillna({"accuracy": -1.0}).groupby(["scope", "name"])["accuracy"]
    decides = known.idxmax() if len(attacks) else []
    attacks.loc[decides, "strongest"] = True
    # The one that decides is the one chosen beforehand, unless the rows say otherwise.
    if not attacks["chosen"].any():
        attacks.loc[decides, "chosen"] = True
    values = {
        "attacks": attacks,
        "records": records_frame(references=more.get("references", 16)),
        "references": 16,
        "members": 400,
        "non_members": 400,
        "empirical_epsilon": 1.25,
        "delta": 1e-5,
        "omitted": {"bavaria": "needs 64 reference models; there are 16"},
    }
    return Audit(**(values | more))
