"""The live display on a terminal, and a line a round elsewhere."""

import io
import re

import pytest
from rich.console import Console

from shoal.cli.progress import Display
from shoal.runs.run import run


@pytest.fixture
def printed(toy_config, tmp_path):
    """Returns what the display of a run prints."""
    groups = {"few": {"share": 0.3}, "nobody": {"share": 0.0}, "many": {"share": 0.7, "rotation": [60, 90]}}
    config = toy_config(data__groups=groups, algorithm={"name": "ifca", "rounds": 3}, red_team__attack="gap")

    def display_run(*, terminal: bool) -> str:
        output = io.StringIO()
        with Display(Console(file=output, force_terminal=terminal, width=100)) as display:
            run(config, tmp_path / "out", watch=display)
        return output.getvalue()

    return display_run


def test_a_terminal_sees_rounds_clusters_accuracy_risk_and_time_left(printed):
    live = printed(terminal=True)
    for words in ("round", "3/3", "left", "cluster", "few", "many", "accuracy", "risk"):
        assert words in live
    assert "nobody" not in live, "a group without clients is in no cluster"


def test_elsewhere_there_is_a_line_a_round(printed):
    lines = printed(terminal=False).splitlines()
    assert [line.split(":")[0] for line in lines] == [f"round {number} of 3" for number in (1, 2, 3)]
    assert all(
        re.search(r": clients \d+ / \d+, accuracy [\d.-]+ / [\d.-]+, risk .*; about .* left$", line) for line in lines
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_after_the_rounds_come_the_reference_federations(toy_config, tmp_path, terminal):
    config = toy_config(
        algorithm={"name": "ifca", "rounds": 1}, red_team__attack="gap", evaluation__reference_federations=2
    )
    output = io.StringIO()
    with Display(Console(file=output, force_terminal=terminal, width=100)) as display:
        run(config, tmp_path / "out", watch=display, watch_references=display.reference_federations)
    printed = output.getvalue()
    if terminal:
        assert "reference federation" in printed
        assert "2/2" in printed
        return
    first, second, third = printed.splitlines()
    assert first.endswith("left, and 2 reference federations")
    assert re.fullmatch(r"reference federation 1 of 2; about .* left", second)
    assert third == "reference federation 2 of 2"
