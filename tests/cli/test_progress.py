"""The live display on a terminal, and its silence elsewhere."""

import io

from rich.console import Console

from shoal.cli.progress import Display
from shoal.config.schema import parse_config
from shoal.runs.run import run

SMALL = {
    "data": {
        "source": "digits",
        "clients": 6,
        "examples_per_client": 10,
        "shadow_examples": 40,
        "test_examples": 20,
        "groups": {"few": {"share": 0.3}, "nobody": {"share": 0.0}, "many": {"share": 0.7, "rotation": [60, 90]}},
    },
    "model": {"name": "logistic"},
    "algorithm": {"name": "ifca", "rounds": 3},
    "red_team": {"every": 2, "shadow_models": 1},
}


def shown(tmp_path, *, terminal: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100)
    with Display(console) as display:
        run(parse_config(SMALL, "test"), tmp_path / "out", watch=display)
    return written.getvalue()


def test_a_terminal_sees_rounds_clusters_accuracy_risk_and_time_left(tmp_path):
    printed = shown(tmp_path, terminal=True)
    for words in ("round", "3/3", "left", "cluster", "few", "many", "accuracy", "risk"):
        assert words in printed
    assert "nobody" not in printed, "a group without clients is in no cluster"


def test_elsewhere_it_is_silent(tmp_path):
    assert shown(tmp_path, terminal=False) == ""
