"""Reads a run's audit: for each view and group, is it exposed? Usage: python read.py runs/ifca."""

import json
import sys
from pathlib import Path

audit = json.loads(Path(sys.argv[1], "audit.json").read_text())
for view in ("outsider", "client", "server"):
    keys = sorted(key for key in audit if key.startswith(f"views.{view}.") and key.endswith(".auc"))
    for key in keys:
        group = key.removeprefix(f"views.{view}.").removesuffix(".auc")
        if group == "all" and len(keys) > 1:
            continue
        low, high = audit[f"{key}.low"], audit[f"{key}.high"]
        # 0.5 is chance. An interval that holds it leaves open whether anybody is exposed.
        verdict = "exposed" if low > 0.5 else "open"
        print(f"{view:8} {group}  AUC {audit[key]:.3f} ({low:.3f} to {high:.3f})  {verdict}")
