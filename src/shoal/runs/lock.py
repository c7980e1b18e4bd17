"""The lock of a run directory: one process at a time runs in it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.core.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has none; runs there go unlocked.
    fcntl = None

LOG = logging.getLogger(__name__)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep every other process, and every other run of this one, out of the run directory ``out``.

    What is locked is run.log: the directory needs no file for it, and the kernel unlocks the file of a killed process.

    Raises:
        InputError: another run is going on in it.
    """
    if fcntl is None:
        yield
        return
    with (out / "run.log").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{out}: another run is going on in it; wait until it ends, or choose another --out"
            ) from error
        except OSError as error:
            # Some network file systems have no locks; a run there is still worth having.
            LOG.warning("%s: cannot be locked (%s); start no second run in it", out, error.strerror)
        yield
