"""Without the extra ``flower``, what imports Flower is not collected for its doctests; its tests skip themselves."""

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if find_spec("flwr") is None:
    collect_ignore_glob.append("src/shoal/deployment/*.py")
