"""Every public name says what it is, and its file shows it by an example that runs: the doctests of `src` run them all.

A name of `shoal` itself has an example of its own; one of a package below may share that of its file, one a concept.
None is needed of what another public name's example shows, or a public function or method returns.

A type alias or a constant has no docstring of its own in Python: the string below its assignment says what it is. It
needs no example, since those of the names that take it show it.
"""

import ast
import builtins
import doctest
import importlib
import inspect
import pkgutil
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import shoal

PACKAGES = [
    "shoal",
    *(f"shoal.{each.name}" for each in pkgutil.iter_modules(shoal.__path__) if each.ispkg),
]
OFFERED = {name: getattr(importlib.import_module(name), "__all__", []) for name in PACKAGES}
NAMES = {
    (package, name): getattr(importlib.import_module(package), name)
    for package in PACKAGES
    for name in OFFERED[package]
}
CALLABLE = {at: each for at, each in NAMES.items() if inspect.isclass(each) or inspect.isroutine(each)}
OTHERS = {at: each for at, each in NAMES.items() if at not in CALLABLE}


def each_of(names):
    return pytest.mark.parametrize(("package", "name"), list(names), ids=[".".join(at) for at in names])


def docstring(value: object) -> str:
    """Its own: a class without one would show its base's."""
    return inspect.cleandoc(vars(value).get("__doc__") or "") if inspect.isclass(value) else inspect.getdoc(value) or ""


def summary(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def example(text: str) -> list[doctest.Example]:
    """What is in the section of that name, which ends the docstring."""
    section = text.partition("\nExample:\n")[2]
    return doctest.DocTestParser().get_examples(section)


def undefined(code: str) -> set[str]:
    """The names that ``code`` reads and neither makes nor imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [each for each in nodes if isinstance(each, ast.Name)]
    made = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    made |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    made |= {each.name for each in nodes if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.ExceptHandler)}
    imports = [alias for each in nodes if isinstance(each, ast.Import | ast.ImportFrom) for alias in each.names]
    made |= {each.asname or each.name.partition(".")[0] for each in imports}
    return {each.id for each in names} - made - set(vars(builtins))


@cache
def described(folder: Path) -> frozenset[str]:
    """The names at the top of the modules in a folder whose assignment a string follows."""
    found = set()
    for path in folder.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in pairwise(body):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if is_text and isinstance(after.value.value, str) and isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return frozenset(found)


@cache
def shown() -> frozenset[str]:
    """The names in the examples of public names, and in what public functions and methods return."""
    found = set()
    for value in CALLABLE.values():
        found |= {*re.findall(r"\w+", "".join(step.source for step in example(docstring(value))))}
        members = [getattr(each, "__func__", each) for each in vars(value).values()] if inspect.isclass(value) else []
        for each in (value, *members):
            if inspect.isfunction(each):
                found |= {*re.findall(r"\w+", str(inspect.get_annotations(each).get("return", "")))}
    return frozenset(found)


@each_of(CALLABLE)
def test_a_class_or_function_has_a_summary(package, name):
    assert summary(docstring(CALLABLE[package, name])).endswith("."), "the first paragraph must be a sentence"


@cache
def file_has_example(path: str) -> bool:
    """Whether a docstring in a file has an example."""
    return "\nExample:\n" in inspect.cleandoc(Path(path).read_text(encoding="utf-8")).replace(" ", "")


@each_of(CALLABLE)
def test_a_class_or_function_has_an_example_that_stands_alone(package, name):
    steps = example(docstring(CALLABLE[package, name]))
    if not steps and name in shown():
        return
    if not steps:
        assert package != "shoal", "the docstring must end with a section 'Example:' that has '>>>'"
        assert file_has_example(inspect.getfile(CALLABLE[package, name])), "no docstring of its file has an example"
        return
    assert any(step.want for step in steps), "the example must show a result"
    assert not any(doctest.SKIP in step.options for step in steps), "an example that is not run shows nothing"
    assert undefined("".join(step.source for step in steps)) == set(), "a reader who copies the example lacks these"


@each_of(OTHERS)
def test_an_alias_or_a_constant_says_what_it_is(package, name):
    value = OTHERS[package, name]
    if isinstance(value, ModuleType):
        assert summary(value.__doc__ or "").endswith(".")
    else:
        assert name in described(Path(importlib.import_module(package).__path__[0]))


def test_names_that_a_reader_lacks_are_found():
    assert undefined("import numpy as np\nx = [np.sqrt(i) for i in range(3)]\nprint(x)") == set()
    assert undefined("x = torch.zeros(2)\ny = lambda z: z + x + w") == {"torch", "w"}
