"""Ctrl-C: the process ends in good order if it can do so at once, and is ended otherwise.

Python raises `KeyboardInterrupt` between two of its instructions, and worker threads end with their item: while an
attack's classifier is fitted, or shadow models are trained, either can take minutes. A run directory can be resumed
wherever its process is ended.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import NoReturn

GRACE = 1.2
"""Seconds to end in good order."""

SENTENCE = "shoal: interrupted; a run goes on with --resume, a sweep when it is started again"

_said = threading.Event()


def say_interrupted() -> None:
    """Print `SENTENCE`."""
    _said.set()
    print(SENTENCE, file=sys.stderr, flush=True)  # noqa: T201


def end_soon_after_interrupt() -> None:
    """From now on, end this process and its workers with exit code 130 within `GRACE` seconds of SIGINT."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # Somebody ignores Ctrl-C, such as a shell for its background processes.
        return
    # joblib's tracker, a process that frees what the workers shared, would warn of having to do it.
    others = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join([*([others] if others else []), "ignore:resource_tracker"])
    received, write = os.pipe()
    os.set_blocking(write, False)
    # Written to when the signal arrives, also while the main thread is in a function that Python cannot interrupt.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_end_after, args=(received,), name="shoal interrupt", daemon=True).start()


def _end_after(received: int) -> None:
    while os.read(received, 1) != bytes([signal.SIGINT]):
        pass
    time.sleep(GRACE)
    if not _said.is_set():
        if sys.stderr.isatty():
            # The live display hides the cursor.
            sys.stderr.write("\x1b[?25h\n")
        say_interrupted()
    end_interrupted()


def end_interrupted() -> NoReturn:
    """End the workers and this process with exit code 130; what libraries do at a normal exit takes seconds."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    os._exit(130)
