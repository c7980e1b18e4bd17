"""Values that a node, a run, its limits or a policy may not have: each is one sentence that names the key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal_flower.client.policy import Policy
from shoal_flower.flower_config import NodeSettings, RunSettings
from shoal_flower.messages import Limits

HERE = str(Path(__file__))
"""A file that there is."""


def node(config: dict[str, object]) -> NodeSettings:
    return NodeSettings.read({"partition-id": 0, **config})


def limits(values: dict[str, object]) -> Limits:
    return Limits(**values)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("read", "config", "words"),
    [
        (NodeSettings.read, {}, "give either 'data-path' or 'partition-id'"),
        (NodeSettings.read, {"data-path": "x"}, "needs a name"),
        (node, {"data-path": "x"}, "give either 'data-path' or 'partition-id'"),
        (node, {"partition-id": -1}, "at least 0"),
        (node, {"partion-id": 1}, "unknown key 'partion-id'; did you mean 'partition-id'"),
        (node, {"alpha": 0.5, "beta": 0.6}, "must sum to 1"),
        (node, {"threshold": 0.4}, "'threshold' must be at least 0.5"),
        (node, {"risk": "mine"}, "'server' or 'client'"),
        (node, {"noise": "x"}, "'secret' or 'seed'"),
        (node, {"client": "../etc"}, "'client' must be of letters"),
        (node, {"threads": 0}, "'threads' must be at least 1"),
        (node, {"noise": "seed", "epsilon-budget": 1.0}, "needs 'noise' to be 'secret'"),
        (node, {"epsilon-budget": "much"}, "'epsilon-budget' must be a number"),
        (RunSettings.read, {"config": ""}, "'config' must be a TOML file"),
        (RunSettings.read, {"config": "nowhere.toml"}, "a TOML file at the server; got 'nowhere.toml'"),
        (RunSettings.read, {"config": HERE, "min-nodes": 0}, "'min-nodes' must be at least 1"),
        (RunSettings.read, {"config": HERE, "round-timeout": -1.0}, "'round-timeout' must be at least 0"),
        (limits, {"max_examples": 0}, "'max_examples' must be"),
        (limits, {"max_update_norm": 0.0}, "'max_update_norm' must be"),
        (Policy.read, Path("missing.toml"), "missing.toml: cannot be read"),
    ],
)
def test_a_wrong_value_is_one_sentence(read: Callable[[object], object], config, words):
    with pytest.raises(InputError, match=words):
        read(config)
