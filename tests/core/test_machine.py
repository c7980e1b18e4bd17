"""Cores that a process may use: by its affinity and by its control groups."""

import os

import pytest

from shoal.core import processes


def groups(tmp_path, limits, name):
    """A tree of control groups with ``limits`` (cpu.max by folder), and the file that names a process's own."""
    for folder, text in limits.items():
        (tmp_path / "groups" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / folder / "cpu.max").write_text(text)
    own = tmp_path / "cgroup"
    own.write_text(f"1:cpu:/old\n0::{name}\n")
    return tmp_path / "groups", own


@pytest.mark.parametrize(
    ("limits", "name", "cores"),
    [
        ({"": "150000 100000\n"}, "/", 2),
        ({"a/b": "max 100000\n", "a": "300000 100000\n", "": "max 100000\n"}, "/a/b", 3),
        ({"a/b": "400000 100000\n", "a": "100000 100000\n"}, "/a/b", 1),
        ({"a": "10000 100000\n"}, "/a", 1),
        ({"a": "max 100000\n"}, "/a", os.cpu_count()),
        ({"a": "broken\n"}, "/a", os.cpu_count()),
        # The name may be that of a group outside what is mounted.
        ({"": "150000 100000\n"}, "/../b", 2),
    ],
    ids=["rounded up", "of the group above", "the least of all", "at least one", "none", "damaged", "elsewhere"],
)
def test_control_groups_limit_the_cores(tmp_path, limits, name, cores):
    folder, own = groups(tmp_path, limits, name)
    assert processes._quota(folder, own) == cores


def test_without_control_groups_affinity_decides(tmp_path, monkeypatch):
    assert processes._quota(tmp_path, tmp_path / "missing") == os.cpu_count()
    monkeypatch.setattr(os, "process_cpu_count", None, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    monkeypatch.setattr(processes, "_quota", lambda: 100)
    assert processes.cores() == 3
    monkeypatch.setattr(processes, "_quota", lambda: 2)
    assert processes.cores() == 2
