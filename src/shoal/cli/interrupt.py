"""Ctrl-C: the process ends cleanly within about a second, or is killed.

A process that is still loading has written no file and ends immediately. After loading, Python raises
`KeyboardInterrupt`, and worker threads stop after their current item, which can take minutes. Every run directory can
be resumed after a kill.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

GRACE = 1.2
"""The number of seconds for a clean end."""

_reported = threading.Event()

_resumable: list[tuple[str, str]] = []
"""Paths that exist once the command can be resumed, and instructions to resume."""


def say_interrupted() -> None:
    """Print that the process was interrupted, and how to resume."""
    _reported.set()
    how = [f"; {advice}" for path, advice in _resumable if os.path.exists(path)]  # noqa: PTH110 (pathlib loads slowly)
    print("shoal: interrupted" + "".join(how), file=sys.stderr, flush=True)  # noqa: T201


def end_at_once_on_interrupt() -> None:
    """Make SIGINT end this process immediately with exit code 130, unless SIGINT has another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(*_: object) -> None:
    say_interrupted()
    os._exit(130)


def end_soon_after_interrupt(begun: str | os.PathLike[str] = "", advice: str = "rerun the command to resume") -> None:
    """Make SIGINT end this process and its workers with exit code 130 within `GRACE` seconds.

    Call `end_at_once_on_interrupt` first.

    Args:
        begun: a path that exists as soon as the command can be resumed; empty if the command cannot be resumed.
        advice: the instruction to resume.
    """
    _resumable[:] = [(os.fspath(begun), advice)] if begun else []
    if signal.getsignal(signal.SIGINT) is not _end_at_once:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # joblib's resource tracker would warn about its cleanup.
    filters = filter(None, (os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"))
    os.environ["PYTHONWARNINGS"] = ",".join(filters)
    received, write = os.pipe()
    os.set_blocking(write, False)
    # The signal writes here even while the main thread is in a function that Python cannot interrupt.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_end_after, args=(received,), name="shoal interrupt", daemon=True).start()


def _end_after(received: int) -> None:
    while os.read(received, 1) != bytes([signal.SIGINT]):
        pass
    time.sleep(GRACE)
    if not _reported.is_set():
        if sys.stderr.isatty():
            # The live display hides the cursor.
            sys.stderr.write("\x1b[?25h\n")
        say_interrupted()
    end_interrupted()


def end_interrupted() -> NoReturn:
    """Kill the workers and end this process with exit code 130, without the usual cleanup, which takes seconds."""
    import multiprocessing  # noqa: PLC0415 (a third of the time until the first line above is in force)

    for worker in multiprocessing.active_children():
        # joblib's workers have no kill method.
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
    sys.stdout.flush()
    os._exit(130)
