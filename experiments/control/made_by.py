"""How results were made, in a sentence."""

import os
import platform
import subprocess
from pathlib import Path

import torch


def made_by(command: str) -> str:
    """The command, the commit, PyTorch's version and the machine."""
    folder = Path(__file__).parent
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, check=False, capture_output=True, text=True, cwd=folder).stdout.strip()
    return (
        f"Made by `{command}` at commit {commit or 'unknown'}, with PyTorch {torch.__version__} on "
        f"{os.cpu_count()} cores ({platform.system()}, {platform.machine()})"
    )
