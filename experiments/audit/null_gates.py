"""Sequential gates where nothing is exposed: how often a gate whose limit is the true value is called broken.

    python experiments/audit/null_gates.py OUT.csv [--seeds 40] [--first 0]

Noise of 1,000 times the clipping bound hides every record, so each attack's AUC and accuracy are 0.5 up to the fourth
decimal. Each gate is an audit of its own with at most 16 reference federations, that is eight looks. OUT.csv has a row
per seed and gate; at most 5 % of a gate's rows should be broken, and none of these gates can hold.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import shoal
from shoal.config.schema import parse_config
from shoal.runs.audits.gate import parse_gates

CONFIGURATION: dict[str, Any] = {
    "data": {
        "source": "digits", "clients": 10, "examples_per_client": 15, "shadow_examples": 100, "test_examples": 300,
    },
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "rounds": 3},
    "local": {"epochs": 1, "batch_size": 15, "learning_rate": 0.1},
    "defenses": {"dp_sgd": {"noise_multiplier": 1000.0}},
    "red_team": {"every": 0, "attack": "gap"},
    "engine": {"threads": 1},
}  # fmt: skip
GATES = ("auc <= 0.5", "views.outsider.all.accuracy <= 0.5")
"""On every attack and group, and on the attack that decides for an outsider."""


def rows(seed: int) -> Iterator[dict[str, Any]]:
    """Train one federation, and audit it once per gate; the second audit has the reference federations of the first."""
    with TemporaryDirectory() as folder:
        out = shoal.run(parse_config({"seed": seed, **CONFIGURATION}, "null_gates.py"), Path(folder, "run"))
        for gate in parse_gates(GATES):
            audit = shoal.audit_run(out, references=16, gates=[str(gate)]).flat
            said, verdict = (
                gate.verdict(audit)[0],
                {True: "holds", False: "broken", None: "not decided"}[gate.decision(audit)],
            )
            yield {"seed": seed, "gate": str(gate), "verdict": verdict, "references": audit["references"], "said": said}


def main() -> None:
    """Audit the federations of all seeds, and print how many of each gate's audits are broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=40, help="the number of federations")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    asked, found = parser.parse_args(), list[dict[str, Any]]()
    for seed in range(asked.first, asked.first + asked.seeds):
        found += rows(seed)
        pd.DataFrame(found).to_csv(asked.out, index=False)
    print(pd.DataFrame(found).groupby("gate")["verdict"].value_counts().to_string(), file=sys.stderr)


if __name__ == "__main__":
    main()
