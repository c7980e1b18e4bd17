"""Who recognises which records under which defence: three views of the coordinator's bar.

    python experiments/audit/views.py OUT [--seeds 0 1 2 3 4] [--settings none augmentation] [--references 2]

For each setting and seed `experiments/control/bar-base.toml` is run with that defence and audited with reference
federations. A run whose table is in OUT/runs is not run again, so an interrupted call goes on. Written: OUT/views.csv,
a row for each setting, seed, view and group with the attack that decides, and the accuracy that the setting keeps;
OUT/views-summary.csv, means over seeds; and OUT/views.svg (`views_figure.py`).
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.config.named_keys import set_keys
from shoal.config.schema import parse_config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_bytes, write_text
from shoal.data.preferences import VIEWS
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.files import read_summary
from shoal.runs.run import run

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "control"))
from made_by import made_by
from views_figure import views_figure

BASE = Path(__file__).resolve().parents[1] / "control" / "bar-base.toml"

CLIPPED = {"local.learning_rate": 0.3, "defenses.dp_sgd.max_grad_norm": 1.0}
"""Clipped gradients are short, so clients take longer steps, as in `experiments/control/front.toml`."""

FEATURES = {
    "model.name": "logistic", "model.features.maps": ["pca"], "local.learning_rate": 2.0,
}  # fmt: skip
"""A linear head is flat, and 40 rounds at the bar's rate do not finish it: accuracy 0.53 on 32 components."""

WAVELETS = {**FEATURES, "model.features.maps": ["scattering", "pca"], "model.features.dimension": 48}

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "fewer rounds": {"algorithm.rounds": 10},
    "L2": {"defenses.l2": 0.01},
    "pooling": {"algorithm.name": "pooling", "algorithm.share": 0.3, "algorithm.base.name": "ifca"},
    "one step a round": {"algorithm.rounds": 200, "local.epochs": 1, "local.batch_size": "all"},
    "augmentation": {
        "algorithm.rounds": 100, "defenses.augmentation.rotation": 15, "defenses.augmentation.shift": 2,
    },
    "student at the end": {"release.distil": "end"},
    "student every round": {"release.distil": "round", "release.steps": 300},
    "clipping": {**CLIPPED, "defenses.dp_sgd.noise_multiplier": 0.0},
    "DP-SGD 0.1": {**CLIPPED, "defenses.dp_sgd.noise_multiplier": 0.1},
    "DP-SGD 1": {**CLIPPED, "defenses.dp_sgd.noise_multiplier": 1.0},
    "32 features": {**FEATURES, "model.features.dimension": 32},
    "8 features": {**FEATURES, "model.features.dimension": 8},
    "48 wavelet features": WAVELETS,
    "48 wavelet features, noise in sums": {
        **WAVELETS, "algorithm.name": "private-means", "local.epochs": 1, "local.batch_size": "all",
        "local.learning_rate": 8.0, "defenses.dp_sgd.noise": "sum", "defenses.dp_sgd.noise_multiplier": 5.0,
        "defenses.dp_sgd.min_clients": 10,
    },
}  # fmt: skip
"""What each setting changes in the bar, whose 25 images a client are one batch: each of five passes is a step."""

GROUPS = ("minority", "majority")
FIGURES = ("auc", "accuracy", "tpr_at_fpr_0.01")
ENDS = ("", ".low", ".high")


def configuration(setting: str, seed: int) -> dict[str, Any]:
    """The bar's table with the keys of a setting."""
    table = read_toml(BASE) | {"seed": seed}
    changes = {"evaluation.reference_federations": 0, **SETTINGS[setting]}
    set_keys(table, changes)
    return table


def measured(folder: Path, setting: str, seed: int, references: int) -> pd.DataFrame:
    """The rows of one run."""
    shutil.rmtree(folder, ignore_errors=True)
    run(parse_config(configuration(setting, seed), "views.py"), folder)
    summary = read_summary(folder)
    found = audit_run(folder, references=references).audit.flat()
    rows = []
    for view in VIEWS:
        for group in GROUPS:
            key = f"views.{view}.{group}"
            row = {"setting": setting, "seed": seed, "view": view, "group": group, "attack": found[f"{key}.attack"]}
            row |= {f"{figure}{end}": found.get(f"{key}.{figure}{end}") for figure in FIGURES for end in ENDS}
            kept = {"test accuracy": summary["accuracy.overall"], "of the group": summary[f"accuracy.{group}"]}
            rows.append({**row, **kept, "epsilon": summary.get("epsilon"), "references": references})
    return pd.DataFrame(rows).round(4)


def summary_of(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting, view and group: means over seeds, smallest and largest AUC, and the attacks.

    "auc.within" is the largest AUC of the attacks that decide for the view and for those that see less, whose attacks
    are the view's too: where noise blinds the span attack, it decides all the same, since it was chosen beforehand.
    """
    # Rows of a setting, seed and group come by what views see, the least first.
    within = rows.groupby(["setting", "seed", "group"], sort=False)["auc"].cummax()
    parts = rows.assign(**{"auc.within": within}).groupby(["setting", "view", "group"], sort=False)
    return parts.agg(**{
        "seeds": ("seed", "nunique"), "auc": ("auc", "mean"), "auc.least": ("auc", "min"), "auc.most": ("auc", "max"),
        "auc.within": ("auc.within", "mean"),
        "tpr_at_fpr_0.01": ("tpr_at_fpr_0.01", "mean"), "accuracy": ("accuracy", "mean"),
        "attacks": ("attack", lambda names: " ".join(sorted(set(names)))),
        "test accuracy": ("test accuracy", "mean"), "of the group": ("of the group", "mean"),
        "epsilon": ("epsilon", "mean"),
    }).reset_index().round(4)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the tables and the figure are written, and runs/ with each run")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--references", type=int, default=2)
    given = parser.parse_args(arguments)
    folder = given.out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for setting in given.settings:
            path = folder / f"{setting.replace(' ', '-')}-{seed}.csv"
            if not path.exists():
                write_text(path, measured(path.with_suffix(""), setting, seed, given.references).to_csv(index=False))
                shutil.rmtree(path.with_suffix(""))
            print(f"{path.name}: done", file=sys.stderr, flush=True)
    rows = pd.concat([pd.read_csv(path) for path in folder.glob("*.csv")])
    rows["setting"] = pd.Categorical(rows["setting"], list(SETTINGS))
    rows["view"] = pd.Categorical(rows["view"], list(VIEWS))
    rows = rows.sort_values(["setting", "seed", "view", "group"], kind="stable").astype({"setting": str, "view": str})
    summary = summary_of(rows)
    write_text(given.out / "views.csv", rows.to_csv(index=False))
    write_text(given.out / "views-summary.csv", summary.to_csv(index=False))
    write_bytes(given.out / "views.svg", views_figure(summary))
    print(made_by("python experiments/audit/views.py OUT"))


if __name__ == "__main__":
    main()
