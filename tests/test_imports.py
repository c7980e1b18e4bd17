"""What the package loads: only what every command needs. The rest is imported in the functions that use it."""

import subprocess
import sys

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
