"""Work that is shared out among processes."""

import gc
import os
import signal
from collections import Counter

import pytest

from shoal.core import processes
from shoal.core.errors import InputError, ShoalError
from shoal.core.processes import Workers

pytestmark = pytest.mark.processes


class Shared:
    """Something that is sent to processes, and counts there how often."""

    def __init__(self, factor):
        self.factor = factor

    def __setstate__(self, state):
        vars(self).update(state)
        self.process = os.getpid()


def multiplied(shared, item):
    return item * shared.factor, os.getpid(), id(shared), gc.get_threshold()[0]


def test_one_job_works_here_in_turn_and_two_jobs_elsewhere_with_the_same_results():
    here = [*Workers().unordered(multiplied, Shared(3), range(6))]
    assert [result for result, *_ in here] == [0, 3, 6, 9, 12, 15]
    assert {process for _, process, *_ in here} == {os.getpid()}
    there = [*Workers(2).unordered(multiplied, Shared(3), range(6))]
    assert sorted(result for result, *_ in there) == [0, 3, 6, 9, 12, 15]
    assert os.getpid() not in {process for _, process, *_ in there}
    assert {threshold for *_, threshold in there} == {10_000}
    # One copy in a process, not one for each item.
    assert set(Counter(process for process, _ in {(process, own) for _, process, own, _ in there}).values()) == {1}


def test_results_come_as_items_end():
    working = Workers(2).unordered(multiplied, Shared(1), range(4))
    next(working)
    working.close()


def refused(_, item):
    raise InputError(f"item {item} cannot be")


def killed(_, item):
    os.kill(os.getpid(), signal.SIGKILL if item else 0)
    return item


def test_what_a_process_raises_is_raised_here_and_one_that_is_killed_is_one_sentence():
    with pytest.raises(InputError, match="item 1 cannot be"):
        [*Workers(2).unordered(refused, None, [1])]
    with pytest.raises(ShoalError, match="a worker process was killed") as caught:
        [*Workers(2).unordered(killed, None, [0, 1])]
    assert not isinstance(caught.value, InputError)


@pytest.mark.parametrize("gone", [True, False])
def test_a_worker_ends_with_its_parent(monkeypatch, gone):
    class Ended(BaseException):
        pass

    def end(code):
        raise Ended(code)

    def later(_):
        raise TimeoutError

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(processes.time, "sleep", later)
    with pytest.raises(Ended if gone else TimeoutError):
        processes._end_with(-1 if gone else os.getppid())


def test_a_cluster_needs_ray_and_there_is_at_least_one_job(monkeypatch):
    with pytest.raises(InputError, match="'--jobs' must be at least 1"):
        Workers(0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'shoal\[ray\]'"):
        Workers(2, "auto")


def test_there_are_no_more_workers_than_items_and_they_share_the_cores(monkeypatch):
    assert [Workers(5, "auto" if cluster else None).at_most(3).jobs for cluster in (False, True)] == [3, 3]
    assert Workers(2).at_most(0).here
    monkeypatch.setattr(processes, "cores", lambda: 5)
    assert [Workers(jobs).threads for jobs in (1, 2, 8)] == [5, 2, 1]


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
