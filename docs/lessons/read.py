"""Reads a run's audit: for each group and view, is it exposed? Usage: python read.py runs/ifca."""

import json
import sys
from pathlib import Path

audit = json.loads(Path(sys.argv[1], "audit.json").read_text())
for view in ("outsider", "client", "server"):
    for group in ("north", "south"):
        key = f"views.{view}.{group}.auc"
        low, high = audit[f"{key}.low"], audit[f"{key}.high"]
        # 0.5 is chance. An interval that holds it leaves open whether anybody is exposed.
        verdict = "exposed" if low > 0.5 else "open"
        print(f"{view:8} {group}  AUC {audit[key]:.3f} ({low:.3f} to {high:.3f})  {verdict}")
