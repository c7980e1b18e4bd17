"""Shoal's own settings of tests, and Flower's programs on loopback, which scripts beside the experiments start."""

import sys
from pathlib import Path

import pytest

from conftest import _no_figures, _unrendered_figures  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "experiments" / "federation"), str(ROOT / "deploy")]


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """The address of a process whose forks are Flower's programs."""
    from forked_programs import forking  # noqa: PLC0415 - it imports what this file makes importable

    with forking(tmp_path_factory.mktemp("forks")) as address:
        yield address
