"""Prints the findings of a run's audit: for each view and group, is it exposed? Usage: python read.py runs/ifca."""

import json
import sys
from pathlib import Path

for finding in json.loads(Path(sys.argv[1], "audit.json").read_text())["findings"]:
    # Without an interval there were too few records for one, and nothing is decided.
    interval = f"({finding['low']:.3f} to {finding['high']:.3f})" if "low" in finding else ""
    print(f"{finding['view']:8} {finding['group']}  {finding['accuracy']:.3f} {interval}  {finding['verdict']}")
