"""What the package loads: only what every command needs. The rest is imported in the functions that use it."""

import ast
import subprocess
import sys
from pathlib import Path

import shoal

HEAVY = ("matplotlib", "jinja2", "fairlearn", "opacus", "sklearn", "scipy", "datasets", "PIL", "ray")
SCRIPT = f"""
import sys
import shoal
import shoal.cli.app
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_neither_the_package_nor_the_command_line_loads_what_it_may_not_need():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_file_imports_another_of_the_package_late_to_hide_a_circle():
    """But for pages and figures, which load matplotlib and jinja2, and which runs and sweeps may not need."""
    root = Path(shoal.__file__).parent
    late = []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in {"runs", "sweeps"}:
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found = [each for each in ast.walk(function) if isinstance(each, ast.ImportFrom)]
                late += [f"{path.name}: {each.module}" for each in found if (each.module or "").startswith("shoal")]
    assert late == []
