"""Each row of docs/results/security.md names the test that holds it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results" / "security.md").read_text(encoding="utf-8")


def rows() -> list[tuple[str, str, list[str]]]:
    """The heading, the first cell and the tests in the last cell of each row of the page's tables."""
    found = []
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE):
        lines = [line for line in text.splitlines() if line.startswith("|")][2:]
        for line in lines:
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) in {3, 4}, line
            assert all(cells), f"an empty cell: {line}"
            found.append((heading, cells[0], re.findall(r"`([^`]+)`", cells[-1])))
    return found


@pytest.mark.parametrize("heading", ["A malicious client, or a stranger who reaches the port",
                                     "A malicious server, or whoever gives you a run", "Faults"])  # fmt: skip
def test_the_page_has_its_tables(heading):
    assert any(row[0] == heading for row in rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1][:60])
def test_a_row_names_tests_that_there_are(row):
    _, attempt, tests = row
    assert tests, f"no test holds '{attempt}'"
    for test in tests:
        file, _, name = test.partition("::")
        path = ROOT / file
        assert path.is_file(), test
        functions = {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if hasattr(node, "name")}
        assert name in functions, test


def test_no_attempt_is_listed_twice():
    attempts = [row[:2] for row in rows()]
    assert len(attempts) == len(set(attempts))
