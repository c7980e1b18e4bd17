"""Ctrl-C: the process ends in good order if it can do so at once, and is ended otherwise.

While it loads it has written nothing, and ends at once. Later Python raises `KeyboardInterrupt` between two of its
instructions, and worker threads end with their item: while an attack's classifier is fitted, or shadow models are
trained, either can take minutes. A run directory can be resumed wherever its process is ended.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

GRACE = 1.2
"""Seconds to end in good order."""

_reported = threading.Event()

_resumable: list[tuple[str, str]] = []
"""What exists once the command can be resumed, and how."""


def say_interrupted() -> None:
    """Print that the process was interrupted, and how to resume, where there is something to resume."""
    _reported.set()
    how = [f"; {advice}" for path, advice in _resumable if os.path.exists(path)]  # noqa: PTH110 (pathlib loads slowly)
    print("shoal: interrupted" + "".join(how), file=sys.stderr, flush=True)  # noqa: T201


def end_at_once_on_interrupt() -> None:
    """End this process with exit code 130 on SIGINT from now on, unless SIGINT has another handler.

    A shell ignores Ctrl-C for its background processes, for example.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(*_: object) -> None:
    say_interrupted()
    os._exit(130)


def end_soon_after_interrupt(begun: str | os.PathLike[str] = "", advice: str = "the same command resumes") -> None:
    """After `end_at_once_on_interrupt`, end this process and its workers with 130 within `GRACE` seconds of SIGINT.

    Args:
        begun: a path that exists once there is something to resume; empty: the command cannot be resumed.
        advice: how to resume.
    """
    _resumable[:] = [(os.fspath(begun), advice)] if begun else []
    if signal.getsignal(signal.SIGINT) is not _end_at_once:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # joblib's tracker, a process that frees what the workers shared, would warn of having to do it.
    filters = filter(None, (os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"))
    os.environ["PYTHONWARNINGS"] = ",".join(filters)
    received, write = os.pipe()
    os.set_blocking(write, False)
    # Written to when the signal arrives, also while the main thread is in a function that Python cannot interrupt.
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
    """End the workers and this process with exit code 130; what libraries do at a normal exit takes seconds."""
    import multiprocessing  # noqa: PLC0415 (a third of the time until the first line above is in force)

    for worker in multiprocessing.active_children():
        # Those of joblib have no method for it.
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
    sys.stdout.flush()
    os._exit(130)
