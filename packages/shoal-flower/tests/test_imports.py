"""What the package imports of Shoal: as a user's own package would, not from files that may move."""

import ast
import importlib
from pathlib import Path

import shoal_flower

INNER = {
    "attacks.queries.loss_histograms", "attacks.updates.update_scores", "audit.red_team", "control.coordinator",
    "data.content", "data.shards", "data.user.arrays", "engine.engine", "engine.worker_pool",
    "metrics.intervals", "models.model", "models.validation",
}  # fmt: skip
"""Files with names that the package needs and that are not public. Add a file only if no public name would do."""


def test_it_imports_public_names_of_rooms_that_have_some_and_never_a_private_one():
    """The rooms core, config, simulation, runs and reports list no names: there every name without an underscore is
    public.
    """
    inner, private = set(), []
    for path in Path(shoal_flower.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "shoal":
                continue
            _, room, *files = [*str(node.module).split("."), ""]
            names = {alias.name for alias in node.names}
            private += [(path.name, name) for name in names if name.startswith("_")]
            public = set(getattr(importlib.import_module(f"shoal.{room}".rstrip(".")), "__all__", []))
            if public and names - public:
                inner.add(".".join([room, *files]).rstrip("."))
            assert not (files[:-1] and names & public), f"{path.name}: {node.module} is where {names & public} are made"
    assert inner == INNER
    assert private == []
