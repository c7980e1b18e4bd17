"""The shape of the source tree: size of folders, names of files, and the import graph that the documentation shows."""

import ast
import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from house import ROOM_SIZE, folder_sizes, repeated_classes, repeated_names, room_imports  # noqa: E402 (a script, not a package)

PACKAGE = ROOT / "src" / "shoal"


def test_no_folder_has_more_than_twelve_files():
    assert {folder: size for folder, size in folder_sizes(PACKAGE).items() if size > ROOM_SIZE} == {}


def test_no_two_files_have_one_name():
    assert repeated_names(PACKAGE) == []


def test_no_two_classes_have_one_name():
    assert repeated_classes(PACKAGE) == []


def test_the_import_graph_of_the_documentation_shows_the_imports_of_the_code():
    """Drawn by `python benchmarks/house.py --graph docs/images/import-graph.svg`."""
    picture = (ROOT / "docs" / "images" / "import-graph.svg").read_text(encoding="utf-8")
    assert set(re.findall(r'id="(\w+)-imports-(\w+)"', picture)) == room_imports(PACKAGE)


def test_a_wing_imports_from_a_room_what_the_room_makes_public():
    """As a user's own package would: `from shoal.data import Shards`, not from the file that has it."""
    inner = []
    for path in (PACKAGE / "property").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            root, room, *files = [*module.split("."), ""]
            if root == "shoal" and room != "property" and files[:-1]:
                public = set(getattr(importlib.import_module(f"shoal.{room}"), "__all__", []))
                inner += [(path.name, module, name) for name in public & {files[-2], *(a.name for a in node.names)}]
    assert inner == []
