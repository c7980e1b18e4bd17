"""What the package loads: only what every command needs. The rest is imported in the functions that use it."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal
from shoal.algorithms import ALGORITHMS
from shoal.attacks import MEMBERSHIP_ATTACKS
from shoal.config.schema import Config
from shoal.defenses import DEFENSES

HEAVY = ("matplotlib", "jinja2", "fairlearn", "opacus", "sklearn", "scipy.stats", "datasets", "PIL", "ray")


def loaded(statements: str, names: tuple[str, ...]) -> list[str]:
    """Which of the modules ``names`` these statements load."""
    script = f"import sys\n{statements}\nprint(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.processes
def test_the_bare_package_and_the_options_of_the_command_line_load_next_to_nothing():
    assert loaded("import shoal, shoal.cli.app", (*HEAVY, "torch", "pandas", "numpy", "pydantic")) == []


@pytest.mark.processes
def test_neither_all_public_names_nor_a_run_load_what_they_may_not_need(
    tmp_path: Path, toy_config: Callable[..., Config]
):
    """Scikit-learn takes 0.6 s of processor time, a tenth of a short run, with its page. In one process, after
    every public name, since that takes seconds itself.
    """
    (tmp_path / "toy.toml").write_text(toy_config(algorithm__rounds=2).toml())
    arguments = ["run", str(tmp_path / "toy.toml"), "--out", str(tmp_path / "run"), "--quiet"]
    everything = "import shoal, shoal.cli.displays\nfor name in shoal.__all__: getattr(shoal, name)"
    before = f"print(*[name for name in {HEAVY} if name in sys.modules], 'run')"
    run = f"import os; from shoal.cli.app import main; sys.stdout = open(os.devnull, 'w'); code = main({arguments})"
    back = "sys.stdout = sys.__stdout__; assert code == 0"
    unneeded = (
        "sklearn",
        "scipy.stats",
        "torch._dynamo",
        "torch._inductor",
        "sympy",
        "fairlearn",
        "opacus",
        "ray",
        "flwr",
    )
    assert loaded(f"{everything}\n{before}\n{run}; {back}", (*unneeded, "matplotlib")) == ["run", "matplotlib"]
    assert (tmp_path / "run" / "report.html").exists()


def test_every_public_name_is_there_and_an_unknown_one_is_not():
    assert [name for name in shoal.__all__ if not hasattr(shoal, name)] == []
    assert not hasattr(shoal, "Unknown")
    named = {**ALGORITHMS, **MEMBERSHIP_ATTACKS, **DEFENSES}.values()
    assert [cls for cls in named if getattr(shoal, cls.__name__, None) is not cls] == [], "missing in __init__.pyi"


def test_no_file_imports_another_of_the_package_late_to_hide_a_circle():
    """But for pages and figures, which load matplotlib and jinja2 although runs, sweeps and property inference may not
    need them; and for the command line, which loads what a command does when it is called.
    """
    root = Path(shoal.__file__).parent
    late = []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in {"runs", "sweeps"} or path in (
            root / "cli" / "app.py",
            root / "cli" / "displays.py",
            root / "__main__.py",
            root / "property" / "scenario.py",
        ):
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found = [each for each in ast.walk(function) if isinstance(each, ast.ImportFrom)]
                late += [f"{path.name}: {each.module}" for each in found if (each.module or "").startswith("shoal")]
    assert late == []
