"""One line that updates on a terminal, and at most ten lines elsewhere."""

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from shoal.algorithms import IFCA
from shoal.data import Federation
from shoal.engine import LocalSGD, RoundPlan, RoundReport, State
from shoal.runs.progress import Display, LiveBar
from shoal.runs.run import run
from shoal.simulation.play import SimulationState
from shoal.simulation.simulation import Simulation


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


def test_a_terminal_sees_one_line_that_updates(printed):
    live = printed(terminal=True)
    for words in ("round", "3/3", "accuracy"):
        assert words in live
    assert live.count("\n") == live.count("\x1b[1A") == 1, "the cursor goes up once, to erase the line at the end"


def test_elsewhere_there_is_a_line_per_ten_percent(printed):
    lines = printed(terminal=False).splitlines()
    assert [line.split(";")[0] for line in lines] == [f"round {number} of 3" for number in (1, 2, 3)]
    assert re.search(r"; accuracy [\d.-]+; about .* left$", lines[0])
    output = io.StringIO()
    with LiveBar(Console(file=output), "round") as display:
        display.begin("round", 0, 1_000)
        for done in range(1, 1_001):
            display.show(done, 1_000)
    assert [line.split(";")[0] for line in output.getvalue().splitlines()] == [
        f"round {done} of 1000" for done in range(100, 1_001, 100)
    ]


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
    assert first.endswith("then 2 reference federations")
    assert re.fullmatch(r"reference federation 1 of 2; about .* left", second)
    assert third == "reference federation 2 of 2"


def steered(number: int, strengths: tuple[float, float], unmet: tuple[float, float]) -> list[dict[str, float]]:
    """The rows of one round of two clusters."""
    return [
        {"round": number, "cluster": k, "clients": 5, "clients.all": 5, "accuracy": 0.5, "risk": 0.6}
        | {"directive.l2": strengths[k], "limit_unmet": unmet[k]}
        for k in (0, 1)
    ]


STEERED = (
    *steered(1, (0.0, 0.0), (0.0, 0.0)),
    *steered(2, (0.0, 0.5), (0.0, 1.0)),
    *steered(3, (0.0, 0.5), (0.0, 1.0)),
    *steered(4, (0.25, 0.5), (1.0, 1.0)),
    *steered(5, (0.25, 0.0), (0.0, 0.0)),
    *steered(6, (0.25, 0.0), (0.0, 1.0)),
)


@pytest.mark.parametrize("terminal", [True, False])
def test_limits_that_cannot_be_kept_are_said_once(mlp, terminal):
    examples = torch.zeros(2, 1, 6, 6), torch.tensor([0, 1])
    federation = Federation.from_tensors([examples], test=examples)
    simulation = Simulation(federation, mlp, IFCA(2), LocalSGD(), rounds=6)
    state, output = State.initial(torch.zeros(2, 3), 1), io.StringIO()
    with Display(Console(file=output, force_terminal=terminal, width=200)) as display:
        display(simulation, SimulationState(state), None)
        for number in range(1, 7):
            rows = tuple(row for row in STEERED if row["round"] <= number)
            report = RoundReport(torch.tensor([0]), RoundPlan(torch.tensor([0]), ()), False, {})
            display(simulation, SimulationState(replace(state, round=number), rows), report)
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    said = re.findall(r"cluster (\d) stays above its members' limits", printed)
    assert said == ["1", "0", "1"]


@pytest.mark.parametrize(
    ("calls", "lines"),
    [
        (
            [(0, 3), (1, 3), (2, 3), (3, 3)],
            ["1 of 3; about 20 s left", "2 of 3; about 10 s left", "3 of 3"],
        ),
        # Stored ones took no time, and say nothing of it.
        (
            [(20, 32), (26, 32), (32, 32)],
            ["20 of 32 reference federations are already trained", "26 of 32; about 10 s left", "32 of 32"],
        ),
        ([(16, 16)], ["16 of 16 reference federations are already trained"]),
    ],
    ids=["none stored", "some stored", "all stored"],
)
def test_the_time_left_is_of_the_reference_federations_that_are_to_be_trained(calls, lines, monkeypatch):
    output = io.StringIO()
    with LiveBar(Console(file=output, width=100), "reference federation") as display:
        for i, call in enumerate(calls):
            monkeypatch.setattr("shoal.runs.progress.time.perf_counter", lambda now=10.0 * i: now)
            display.reference_federations(*call)
    assert [line.removeprefix("reference federation ") for line in output.getvalue().splitlines()] == lines
