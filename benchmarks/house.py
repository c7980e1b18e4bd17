"""Figures of the source tree, and its import graph.

    python benchmarks/house.py                       # lines, files and words, as a Markdown table
    python benchmarks/house.py --root ../other       # of another checkout
    python benchmarks/house.py --graph docs/images/import-graph.svg

The graph has one box per room (a package directly below `shoal`) and one arrow per pair of rooms if one imports
the other. `tests/test_house.py` compares the imports that the picture shows with those of the code.
"""

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOM_SIZE = 12
"""The largest number of files in a folder."""


@dataclass(frozen=True)
class LineCount:
    """Lines of source files by kind: ``lines`` is the sum of the other four."""

    files: int = 0
    lines: int = 0
    code: int = 0
    docstrings: int = 0
    comments: int = 0
    blank: int = 0

    def __add__(self, other: "LineCount") -> "LineCount":
        return LineCount(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Line numbers of docstrings, those below a field or a constant included."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    numbers.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return numbers


def count_lines(path: Path) -> LineCount:
    """The lines of one Python file by kind; a line with code and a comment is code."""
    text = path.read_text(encoding="utf-8")
    documented, lines = docstring_lines(ast.parse(text)), text.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    kinds: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if number in documented:
            kinds["docstrings"] += 1
        elif not line.strip():
            kinds["blank"] += 1
        else:
            kinds["comments" if number in commented and line.lstrip().startswith("#") else "code"] += 1
    return LineCount(1, len(lines), **kinds)


def python_files(folder: Path) -> list[Path]:
    """The Python files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def count_folder(folder: Path) -> LineCount:
    """The lines of all Python files below a folder."""
    return sum((count_lines(path) for path in python_files(folder)), LineCount())


def repeated_names(folder: Path) -> list[str]:
    """File names that stand twice or more below a folder, `__init__.py` and `__main__.py` apart."""
    names = Counter(path.name for path in python_files(folder) if not path.name.startswith("__"))
    return sorted(name for name, count in names.items() if count > 1)


def repeated_classes(folder: Path) -> list[str]:
    """Names of classes and type aliases that files below a folder define twice or more."""
    names: Counter[str] = Counter()
    for path in python_files(folder):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                    names[name] += name[0].isupper() and not name.isupper()
    return sorted(name for name, count in names.items() if count > 1)


def folder_sizes(folder: Path) -> dict[str, int]:
    """The number of Python files directly in each folder."""
    return dict(Counter(str(path.parent.relative_to(folder)) for path in python_files(folder)))


def longest_functions(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Lines and parameters of each function, with its name."""
    for path in python_files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                parameters = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
                yield (node.end_lineno or node.lineno) - node.lineno + 1, parameters, f"{path.name}:{node.name}"


def documentation_words(root: Path) -> int:
    """Words of the Markdown files of `docs/`, the generated `configuration.md` apart."""
    listed = subprocess.run(["git", "ls-files", "docs"], cwd=root, capture_output=True, text=True, check=True)
    pages = [root / name for name in listed.stdout.splitlines() if name.endswith(".md")]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages if page.name != "configuration.md")


def figures(root: Path) -> str:
    """A Markdown table of lines by room, and a list of the other figures."""
    package = root / "src" / "shoal"
    rooms = sorted(path for path in package.iterdir() if path.is_dir() and python_files(path))
    counts = {room.name: count_folder(room) for room in rooms}
    counts["all"] = count_folder(package)
    rows = ["| room | files | lines | code | docstrings | comments | blank |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, count in counts.items():
        rows.append(f"| {name} | " + " | ".join(f"{getattr(count, field.name):,}" for field in fields(count)) + " |")
    sizes, tests = folder_sizes(package), count_folder(root / "tests")
    largest = max(sizes, key=lambda name: sizes[name])
    repeated = repeated_names(package)
    most = max(longest_functions(package), key=lambda function: function[1])
    return "\n".join(
        (
            *rows,
            "",
            f"- largest folder: {largest}, {sizes[largest]} files; folders above {ROOM_SIZE}: "
            f"{sum(size > ROOM_SIZE for size in sizes.values())}",
            f"- file names that stand twice or more: {len(repeated)} ({', '.join(repeated) or 'none'})",
            f"- files below 40 lines: {sum(count_lines(path).lines < 40 for path in python_files(package))}",
            f"- most parameters of a function: {most[1]} ({most[2]})",
            f"- tests: {tests.files} files, {tests.lines:,} lines, {tests.code:,} of code",
            f"- words of docs/, configuration.md apart: {documentation_words(root):,}",
        )
    )


def room_imports(package: Path) -> set[tuple[str, str]]:
    """The pairs (importing, imported) of rooms."""
    rooms = {path.name for path in package.iterdir() if path.is_dir()}
    arrows: set[tuple[str, str]] = set()
    for path in python_files(package):
        room = path.relative_to(package).parts[0]
        if room not in rooms:
            continue
        targets = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal."):
                targets.add((node.module or "").split(".")[1])
            elif isinstance(node, ast.ImportFrom) and node.module == "shoal":
                targets.update(alias.name for alias in node.names)
        arrows.update((room, target) for target in targets & rooms - {room})
    return arrows


def floors(root: Path) -> list[list[str]]:
    """The rooms floor by floor, the highest first, as the import rules of `pyproject.toml` order them."""
    rules = re.search(r"layers = \[(.*?)\]", (root / "pyproject.toml").read_text(encoding="utf-8"), re.DOTALL)
    assert rules is not None
    layers = re.findall(r'"([^"]+)"', rules[1])
    return [[part.strip(" ()").removeprefix("shoal.") for part in layer.split("|")] for layer in layers]


def direct_imports(arrows: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """The arrows that no chain of two or more others replaces (the transitive reduction), sorted."""
    below: dict[str, set[str]] = {}
    for importer, imported in arrows:
        below.setdefault(importer, set()).add(imported)

    def reachable(room: str) -> set[str]:
        return below.get(room, set()).union(*(reachable(other) for other in below.get(room, ())))

    return sorted(
        (importer, imported)
        for importer, imported in arrows
        if not any(imported in reachable(other) for other in below[importer] - {imported})
    )


def draw_graph(root: Path, out: Path) -> None:
    """Draw the rooms floor by floor with their direct imports, and beside them all imports as a matrix."""
    import matplotlib as mpl  # noqa: PLC0415 (the figures do without it)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    levels, arrows = floors(root), room_imports(root / "src" / "shoal")
    rooms = [room for level in levels for room in level]
    plt.style.use("shoal.figures")
    figure, (graph, matrix) = plt.subplots(1, 2, figsize=(12.8, 7.4), width_ratios=[1.1, 1])
    widest = max(len(level) for level in levels)
    places = {
        room: ((column + 0.5) * widest / len(level), -float(row))
        for row, level in enumerate(levels)
        for column, room in enumerate(level)
    }
    for importer, imported in direct_imports(arrows):
        (x0, y0), (x1, y1) = places[importer], places[imported]
        bend = 0.0 if round(y0 - y1) == 1 else 0.12
        arrow = {"arrowstyle": "-|>", "color": "#0072B2", "lw": 1.4, "connectionstyle": f"arc3,rad={bend}"}
        graph.annotate("", (x1, y1 + 0.26), (x0, y0 - 0.26), arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})
    for room, (x, y) in places.items():
        box = plt.Rectangle((x - 0.46, y - 0.26), 0.92, 0.52, fc="white", ec="#222222", zorder=3)
        graph.add_patch(box)
        graph.text(x, y, room, ha="center", va="center", fontsize=12, weight="bold", zorder=4)
    graph.set(
        xlim=(0, widest), ylim=(-len(levels) + 0.6, 0.4), title="Direct imports: each room imports those below it"
    )
    graph.axis("off")
    for importer, imported in sorted(arrows):
        corner, name = (rooms.index(imported) - 0.5, -rooms.index(importer) - 0.5), f"{importer}-imports-{imported}"
        matrix.add_patch(plt.Rectangle(corner, 1, 1, fc="#56B4E9", ec="white", gid=name))
    matrix.plot([-0.5, len(rooms) - 0.5], [0.5, -len(rooms) + 0.5], color="#222222", lw=1)
    matrix.set(xlim=(-0.5, len(rooms) - 0.5), ylim=(-len(rooms) + 0.5, 0.5), aspect="equal")
    matrix.set_xticks(range(len(rooms)), rooms, rotation=60, ha="left", rotation_mode="anchor", fontsize=11)
    matrix.set_yticks([-row for row in range(len(rooms))], rooms, fontsize=11)
    matrix.xaxis.tick_top()
    matrix.tick_params(length=0)
    matrix.grid(visible=False)
    matrix.set_title("All imports: the row's room imports the column's")
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Print the figures or draw the graph."""
    parser = argparse.ArgumentParser(description="Figures of the source tree, and its import graph.")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--graph", type=Path)
    arguments = parser.parse_args()
    if arguments.graph is None:
        print(figures(arguments.root.resolve()))
    else:
        draw_graph(arguments.root.resolve(), arguments.graph)


if __name__ == "__main__":
    main()
