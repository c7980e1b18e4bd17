"""Audits of views where nothing is asked that was trained on: how often each view's interval holds chance.

    python experiments/audit/null_views.py OUT [--seeds 40] [--references 2] [--noise 1]

For each seed a small federation on Fashion-MNIST is trained with IFCA, so that both span attacks apply, and audited by
all views with reference federations, three times. With ``--noise`` clients train by DP-SGD, so that joint attacks
apply. "members": as it is, so that the attacks are known to find something.
"swapped": fair coins say which record of each pair is called a member. "unseen": the federation is asked of pairs of
which it trained on neither, while the reference federations trained on one of each.

A seed whose file is in OUT/runs is not trained again. Written: OUT/null-views.csv, a row for each kind and view: in how
many audits the 95 % interval of the AUC and of the balanced accuracy of the attack that decides, over all records, has
0.5 in it, and lies above it; the mean AUC; and of the view's span attack, on how many records of all audits it says
"member", and in how many audits it says of any record that its verdict is exact. "coins": the share of COINS further
swaps of each audit's pairs in which the interval of the AUC of the attack that decides holds 0.5, and lies above it;
whether a count out of 40 is chance or an interval that is too narrow is told by these.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from shoal.audit.attacked_records import attack_records
from shoal.audit.audit import audit_records
from shoal.audit.record_table import CHOSEN_OF_VIEW, RecordTable, measure
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream
from shoal.data.preferences import VIEWS
from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "control"))
from made_by import made_by
from null_runs import records_of, swapped, trained_run


def configuration(seed: int, noise: float = 0.0) -> dict[str, Any]:
    """12 clients with 15 images, upside up and upside down: fewer images a model than inputs and moves have."""
    return {
        "seed": seed,
        "data": {
            "source": "fashion-mnist", "clients": 12, "examples_per_client": 15, "shadow_examples": 300,
            "test_examples": 1600,
            "groups": {
                "minority": {"share": 0.5, "rotation": [0, 0]}, "majority": {"share": 0.5, "rotation": [180, 180]},
            },
        },
        "model": {"name": "mlp", "hidden": 100},
        "algorithm": {"rounds": 8, "name": "ifca", "clusters": 2},
        "local": {"epochs": 5, "batch_size": 15, "learning_rate": 0.1},
        "red_team": {"every": 0, "attack": "loss-threshold"},
        "engine": {"threads": 1},
        **({"defenses": {"dp_sgd": {"noise_multiplier": noise}}} if noise else {}),
    }  # fmt: skip


def unseen(attacked: AttackedRun, random: np.random.Generator) -> AttackedRun:
    """The run asked of pairs of test examples of one label and group, in place of its members and their partners."""
    records = attacked.records
    federation, indices = records.federation, records.federation.clients.indices.clone()
    labels, first = federation.clients.y.cpu(), records.first_test
    spare = np.setdiff1d(np.arange(len(federation.test)), records.test.numpy())
    spare = random.permutation(spare)
    group, of_client = federation.test.group[spare].numpy(), federation.group[records.client[: len(records)]].numpy()
    label, kept = labels[first + spare].numpy(), torch.zeros(len(records), dtype=torch.bool)
    free = np.ones(len(spare), dtype=bool)
    for pair in range(len(records)):
        wanted = labels[first + records.test[pair]].item()
        partners = np.flatnonzero(free & (group == of_client[pair]) & (label == wanted))
        if len(partners):
            free[partners[0]], kept[pair] = False, True
            indices[records.entry[pair]] = first + int(spare[partners[0]])
    other = replace(federation, clients=replace(federation.clients, indices=indices))
    return replace(attacked, records=replace(records, federation=other).take(kept))


COINS = 200
"""Swaps of the pairs of each audit, of a view."""


def by_coins(table: RecordTable, random: np.random.Generator) -> dict[str, float]:
    """In which share of swaps by fair coins the interval of the AUC has 0.5 in it, and lies above it."""
    assert table.pair is not None
    ends = np.empty((COINS, 2))
    for i in range(COINS):
        coins = (random.random(int(table.pair.max()) + 1) < 0.5)[table.pair]
        found = measure(replace(table, member=table.member ^ coins))
        ends[i] = found.auc_low, found.auc_high
    low, high = ends.T
    return {"coins hold 0.5": ((low <= 0.5) & (high >= 0.5)).mean(), "coins above": (low > 0.5).mean()}


def audited(seed: int, references: int, noise: float = 0.0) -> Iterator[dict[str, Any]]:
    """A row for each kind and view of one federation."""
    _, simulation = build(parse_config(configuration(seed, noise), "null_views.py"))
    with Engine(simulation.setup.model, threads=1) as engine:
        attacked = trained_run(simulation, engine)
        random = Stream(seed)("null", "views").numpy()
        members = records_of(attacked, references, engine)
        of_unseen = records_of(unseen(attacked, random), references, engine)
    kinds = {"members": members, "swapped": swapped(members, random), "unseen": of_unseen}
    for kind, records in kinds.items():
        found = audit_records(records, Stream(seed)("null", kind)).flat()
        tables = attack_records(records).attacks
        for view in VIEWS:
            span = records.further.get(CHOSEN_OF_VIEW.get(view, ""))
            called = np.nan if span is None else (span.score > span.threshold)[records.scores.member].mean()
            others = np.nan if span is None else (span.score > span.threshold)[~records.scores.member].mean()
            key = f"views.{view}.all"
            coins = by_coins(tables[str(found[f"{key}.attack"])], random)
            figures = {f"{name}{end}": found[f"{key}.{name}{end}"] for name in ("auc", "accuracy") for end in ENDS}
            known = {"kind": kind, "view": view, "attack": found[f"{key}.attack"], "pairs": len(records.scores) // 2}
            exact = np.nan if span is None or span.exact is None else span.exact.mean()
            yield {**known, **figures, **coins, "members called": called, "non-members called": others, "exact": exact}


ENDS = ("", ".low", ".high")

AVERAGED = ("coins hold 0.5", "coins above", "members called", "non-members called")
"""Columns of runs whose mean is in the table."""


def table_of(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each kind and view."""
    parts = []
    for (kind, view), mine in rows.groupby(["kind", "view"], sort=False):
        row: dict[str, Any] = {"kind": kind, "view": view, "audits": len(mine), "mean pairs": mine["pairs"].mean()}
        for name in ("auc", "accuracy"):
            low, high = mine[f"{name}.low"], mine[f"{name}.high"]
            row |= {f"{name} holds 0.5": ((low <= 0.5) & (high >= 0.5)).sum(), f"{name} above": (low > 0.5).sum()}
            row[f"mean {name}"] = mine[name].mean()
        row |= {name: mine[name].mean() for name in AVERAGED}
        row["audits with an exact verdict"] = (mine["exact"] > 0).sum() if mine["exact"].notna().all() else np.nan
        parts.append({**row, "attacks": " ".join(sorted(set(mine["attack"])))})
    return pd.DataFrame(parts).round(4)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the table is written, and runs/ with each seed's figures")
    parser.add_argument("--seeds", type=int, default=40, help="the number of federations")
    parser.add_argument("--references", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.0, help="noise multiplier of DP-SGD at clients")
    given = parser.parse_args(arguments)
    (given.out / "runs").mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(given.seeds):
        path = given.out / "runs" / f"{seed}-{given.references}-{given.noise:g}.csv"
        if not path.exists():
            write_text(path, pd.DataFrame(audited(seed, given.references, given.noise)).to_csv(index=False))
        rows.append(pd.read_csv(path))
        print(f"{path.name}: done", file=sys.stderr, flush=True)
    write_text(given.out / "null-views.csv", table_of(pd.concat(rows)).to_csv(index=False))
    print(made_by("python experiments/audit/null_views.py OUT"))


if __name__ == "__main__":
    main()
