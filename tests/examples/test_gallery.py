"""The scripts of the gallery: headings, one figure each, and no name of Shoal that a user would not import.

Nothing is run here; building the site runs them.
"""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import shoal

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))
LIBRARIES = {"matplotlib", "numpy", "pandas", "peft", "scipy", "sklearn", "torch"}
every_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


def imports(tree):
    """(module, name) of everything that a script imports; no name where a module is imported whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, each.name) for each in node.names)


def test_the_gallery_has_at_least_14_scripts_and_their_numbers_give_the_order_without_gaps():
    numbers = [int(re.fullmatch(r"plot_(\d\d)_[a-z_]+", path.stem)[1]) for path in SCRIPTS]
    assert numbers == list(range(1, len(SCRIPTS) + 1))
    assert len(SCRIPTS) >= 14


@every_script
def test_a_script_imports_public_names_alone(path):
    tree = ast.parse(path.read_text())
    for module, name in imports(tree):
        package, *below = module.split(".")
        if package != "shoal":
            assert package in LIBRARIES | set(sys.stdlib_module_names)
        elif name is None:
            assert not below
        else:
            assert len(below) <= 1, f"{module} is inside a package"
            assert name in importlib.import_module(module).__all__


@every_script
def test_the_names_of_shoal_that_it_uses_exist(path):
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "shoal"
    }
    assert used
    assert used <= set(shoal.__all__)
