"""Flower's programs on loopback are started by scripts beside the experiments, which the tests import too."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "federation"))


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """The address of a process whose forks are Flower's programs."""
    from forked_programs import forking  # noqa: PLC0415 - it imports what this file makes importable

    with forking(tmp_path_factory.mktemp("forks")) as address:
        yield address
