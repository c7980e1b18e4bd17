"""A program that asks for it looks for reference cycles rarely, still frees them, and not as it ends."""

import subprocess
import sys

SCRIPT = """
import atexit, gc, weakref
atexit.register(lambda: print("frozen" if gc.get_freeze_count() > 1000 else "not frozen"))
from shoal.core.garbage_collection import collect_garbage_rarely
collect_garbage_rarely()
class Cycle:
    pass
one = Cycle()
one.itself = one
gone = weakref.ref(one)
del one
before = gc.get_stats()[0]["collections"]
kept = [[] for _ in range(30_000)]
print(1 <= gc.get_stats()[0]["collections"] - before <= 4, gone() is None)
"""


def test_cycles_are_freed_after_ten_thousand_objects_and_none_is_looked_for_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["True True", "frozen"]
