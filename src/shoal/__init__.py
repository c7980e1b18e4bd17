"""Shoal: clustered federated learning with a red team in the loop.

`__init__.pyi` lists the public names. Each name is loaded at its first use, which keeps the import of the package fast.
`docs/house.md` describes the structure of the code.
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 (it takes as long as the rest of the import)

        return version("shoal")
    return _load(name)
