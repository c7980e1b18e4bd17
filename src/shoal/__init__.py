"""Shoal: clustered federated learning with a red team in the loop.

The public names are in `__init__.pyi`, each loaded when it is first asked for, so that importing the package costs
nothing; the command ``shoal`` is built on the same. See `docs/house.md` for where everything is.
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 (it takes as long as the rest of the import)

        return version("shoal")
    return _load(name)
