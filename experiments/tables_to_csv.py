"""Turns the Markdown tables that scripts and sweeps wrote into CSV files, as docs/results keeps them.

    python experiments/tables_to_csv.py docs/results/control

Every Markdown file NAME.md below the directory is replaced by NAME.csv, or by NAME-summary.csv where NAME.csv is there
already (in a sweep's tables/ that is the same table, so the Markdown is only removed). Several tables of a page are
below each other, with the table's title as the first column. A column "0.910 ± 0.009" becomes two: the mean, and "std".
"""

import argparse
import re
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import write_text
from shoal.core.formats import DASH

SPREAD = re.compile(r"^(?P<mean>[-+]?[\d.]+%?) (?:±|\+-) (?P<std>[\d.]+)$")


def cells(line: str) -> list[str]:
    """The cells of a row, without marks of emphasis.

    >>> cells("| **IFCA** | 0.91 |")
    ['IFCA', '0.91']
    """
    return [cell.strip().replace("**", "").replace("`", "") for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> list[tuple[str, list[list[str]]]]:
    """Title and rows, the head first, of each table of a page."""
    result: list[tuple[str, list[list[str]]]] = []
    title, inside = "", False
    for line in text.splitlines():
        if line.startswith("|"):
            if not inside:
                result.append((title, []))
            inside = True
            if not re.fullmatch(r"[|\s:-]+", line):
                result[-1][1].append(cells(line))
        else:
            inside = False
            if found := re.match(r"(?:#+ |\*\*)(.+?)(?:\*\*)?$", line):
                title = found[1]
    return result


def with_spreads_apart(rows: list[list[str]]) -> list[list[str]]:
    """The rows with a column for the mean and one for the standard deviation, where cells have both.

    >>> with_spreads_apart([["", "accuracy"], ["IFCA", "0.91 ± 0.02"], ["local", ""]])
    [['', 'accuracy', 'accuracy std'], ['IFCA', '0.91', '0.02'], ['local', '', '']]
    """
    columns: list[list[str]] = []
    for head, *values in zip(*rows, strict=True):
        found = [SPREAD.match(value) for value in values]
        if any(found) and all(each or value in ("", DASH) for each, value in zip(found, values, strict=True)):
            columns.append([head, *(each["mean"] if each else "" for each in found)])
            columns.append([f"{head} std".strip(), *(each["std"] if each else "" for each in found)])
        else:
            columns.append([head, *values])
    return [list(row) for row in zip(*columns, strict=True)]


def named(heads: list[str]) -> list[str]:
    """The heads of a table, understood without their neighbours.

    >>> named(["accuracy", "of the minority", "of the majority", ""])
    ['accuracy', 'accuracy of the minority', 'accuracy of the majority', 'figure']
    """
    names: list[str] = []
    whole = ""
    for head in heads:
        if not head.startswith("of "):
            whole = head or "figure"
        names.append(f"{whole} {head}" if head.startswith("of ") else whole)
    return names


def convert(path: Path) -> Path | None:
    """Replaces one Markdown file; the file written."""
    found = [(title, rows) for title, rows in tables(path.read_text(encoding="utf-8")) if len(rows) > 1]
    path.unlink()
    out = path.with_suffix(".csv")
    if not found or (out.exists() and path.parent.name == "tables"):
        return None
    if out.exists():
        out = path.with_name(f"{path.stem}-summary.csv")
    frames = []
    for title, rows in found:
        heads, *values = with_spreads_apart([named(rows[0]), *rows[1:]])
        frame = pd.DataFrame(values, columns=heads)
        if len(found) > 1:
            frame.insert(0, "table", title)
        frames.append(frame)
    write_text(out, pd.concat(frames).to_csv(index=False, lineterminator="\n"))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+")
    for directory in parser.parse_args().directories:
        for path in sorted(directory.rglob("*.md")):
            if out := convert(path):
                print(out)


if __name__ == "__main__":
    main()
