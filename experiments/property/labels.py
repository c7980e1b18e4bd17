"""Asks whether a passive attack sees labels where it should see the property.

    python experiments/property/labels.py RUNS

RUNS is a sweep's folder of runs. Where clients' labels are skewed, the attacker's examples with and without the
property differ in their labels too, and in the rounds of the property so do the victim's. The "agreement" is the cosine
of these two changes in label shares. An attack that sees the property alone cannot depend on it. Printed are a row a
run, and the rank correlation of agreement and AUC within models over the runs of FL and of CFL.
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
import torch
from scipy.stats import spearmanr

from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.data.property_partition import ATTACKER, VICTIM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import table


def agreement(out: Path) -> float:
    """Cosine of how labels change with the property at the attacker and at the victim of a run."""
    federation = build(read_config(out / "config.toml"))[1].federation
    schedule, labels = federation.property_schedule, federation.clients.y
    assert schedule is not None

    def change(client: int) -> torch.Tensor:
        rows = federation.clients.owned(client)
        shares = [torch.bincount(labels[rows[kind]], minlength=federation.classes).double() for kind in
                  (schedule.has_property[rows], ~schedule.has_property[rows])]  # fmt: skip
        return shares[0] / shares[0].sum() - shares[1] / shares[1].sum()

    return float(torch.nn.functional.cosine_similarity(change(ATTACKER), change(VICTIM), dim=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a folder of finished runs")
    rows = []
    for path in sorted(parser.parse_args().runs.glob("*/summary.json")):
        told = json.loads(path.read_text())
        config = read_config(path.parent / "config.toml")
        section, defenses = config.property_attack, config.defenses
        plain = section is not None and section.mode == "passive" and not section.attack.match_labels
        if plain and section.attack.auxiliary == "attacker" and not defenses.all():
            name = "FL" if told["algorithm"] == "fedavg" else "CFL" if told["algorithm"] == "ifca" else ""
            if name and "property.auc_within" in told and config.data.partition.dirichlet_alpha == 0.5:
                rows.append((name, config.data.task, told["seed"], agreement(path.parent), told["property.auc_within"]))
    found = pd.DataFrame(rows, columns=["algorithm", "task", "seed", "agreement", "auc"]).sort_values(
        ["algorithm", "agreement"]
    )
    cells = [[*map(str, row[:3]), f"{row[3]:+.2f}", f"{row[4]:.3f}"] for row in found.itertuples(index=False)]
    print(table("Labels and the attack", ["", "task", "seed", "agreement", "AUC within models"], cells))
    for name, mine in found.groupby("algorithm"):
        rank = spearmanr(mine["agreement"], mine["auc"])
        agree, apart = (mine.loc[sign, "auc"].mean() for sign in (mine["agreement"] > 0, mine["agreement"] < 0))
        print(f"\n{name}: rank correlation {rank.statistic:.2f} (p = {rank.pvalue:.2g}, {len(mine)} runs); mean AUC "
              f"{agree:.3f} where the changes agree, {apart:.3f} where they do not")  # fmt: skip


if __name__ == "__main__":
    main()
