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


def calls(tree, name):
    """The calls of ``name``, such as ``plt.show``."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]


def test_the_gallery_has_at_least_14_scripts_and_their_numbers_give_the_order_without_gaps():
    numbers = [int(re.fullmatch(r"plot_(\d\d)_[a-z_]+", path.stem)[1]) for path in SCRIPTS]
    assert numbers == list(range(1, len(SCRIPTS) + 1))
    assert len(SCRIPTS) >= 14


@every_script
def test_a_script_begins_with_a_heading_and_a_question(path):
    title, line, blank, *text = ast.get_docstring(ast.parse(path.read_text())).split("\n")
    assert line == "=" * len(title)
    assert blank == ""
    question = " ".join(text).strip().partition("?")
    assert question[1] == "?"
    assert "." not in re.sub(r"\.\w", "", question[0]), "the first sentence is the question"


@every_script
def test_a_script_draws_one_figure_in_the_house_style(path):
    tree = ast.parse(path.read_text())
    assert len(calls(tree, "plt.subplots")) == 1
    assert len(calls(tree, "plt.show")) == 1
    assert [ast.unparse(call) for call in calls(tree, "plt.style.use")] == ["plt.style.use('shoal.figures')"]


@every_script
def test_a_script_labels_its_axes_and_ends_with_figures_of_its_own(path):
    text = path.read_text()
    assert "ylabel=" in text or "yticklabels=" in text
    assert "xlabel=" in text or "xticklabels=" in text
    said = text.partition("# What it says")[2]
    assert "seed" in said.partition("\n")[0] or "records" in said.partition("\n")[0]
    assert "print(" in said


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
