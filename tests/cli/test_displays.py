"""The progress of an audit: its time left is that of the reference federations which are still to be trained."""

import io

import pytest
from rich.console import Console

from shoal.runs.progress import LiveBar


@pytest.fixture
def lines(monkeypatch):
    """Returns what is printed where a call (done, count) comes every ten seconds."""

    def printed(*calls):
        output = io.StringIO()
        with LiveBar(Console(file=output, width=100), "reference federation") as display:
            for i, call in enumerate(calls):
                monkeypatch.setattr("shoal.runs.progress.time.perf_counter", lambda now=10.0 * i: now)
                display.reference_federations(*call)
        return output.getvalue().splitlines()

    return printed


def test_the_time_left_is_of_those_that_are_to_be_trained(lines):
    assert lines((0, 3), (1, 3), (2, 3), (3, 3)) == [
        "reference federation 1 of 3; about 20 s left",
        "reference federation 2 of 3; about 10 s left",
        "reference federation 3 of 3",
    ]


def test_stored_reference_federations_took_no_time_and_say_nothing_of_it(lines):
    assert lines((30, 32), (31, 32), (32, 32)) == [
        "30 of 32 reference federations are there already",
        "reference federation 31 of 32; about 10 s left",
        "reference federation 32 of 32",
    ]


def test_where_all_are_there_that_is_said(lines):
    assert lines((16, 16)) == ["16 of 16 reference federations are there already"]
