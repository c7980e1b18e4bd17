"""How often Python looks for garbage in reference cycles."""

import atexit
import gc

_THRESHOLDS = (10_000, 10, 10)


def collect_garbage_rarely() -> None:
    """Let this process look for reference cycles after 10,000 new objects (default: 700 to 2,000), and not at its end.

    For programs, and not for `import shoal`, since it is a setting of the whole process. Each search visits objects by
    the hundred thousand, most of them functions and classes of PyTorch: measured, 0.9 s of processor time while modules
    are loaded and 1.3 s as the interpreter ends, more than a short run takes for everything else. Tensors are freed as
    ever, when nothing refers to them any longer.
    """
    gc.set_threshold(*_THRESHOLDS)
    # Runs before the interpreter's own last search, which then has nothing to visit.
    atexit.register(gc.freeze)
