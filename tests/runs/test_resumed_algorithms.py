"""Algorithms with states of their own, killed after any round and resumed, are never killed: bit for bit."""

import pytest
import torch

from run_files import content, stop_after
from shoal.engine import ClientVectors
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.run import run

ALGORITHMS = {
    # Every average is short and every update long: clusters divide in every round, and absent clients walk the tree.
    "cfl": {"eps1": 1000.0, "eps2": 0.0, "sketch": 64},
    "one-shot": {"clusters": 2},
    "r-dpcfl": {"clusters": 2},
    "fedem": {"clusters": 2},
    "ditto": {},
    "scaffold": {},
    "apfl": {"adaptive": True},
    "group-privacy": {"clusters": 2},
}
BRIEF = {"red_team__every": 0, "red_team__attack": "gap", "evaluation__every": 3, "data__test_examples": 20}


def state_of(out):
    """The fields of the state in the last checkpoint, each tensor by its name."""
    progress = load_checkpoint(out / "checkpoint")
    found = dict(vars(progress.state))
    for kind, value in vars(progress.state).items():
        if isinstance(value, dict):
            values = found.pop(kind).items()
            found |= {f"{kind}/{name}": v.tensor() if isinstance(v, ClientVectors) else v for name, v in values}
    return found


def alike(one, other):
    """Equal, NaN to NaN."""
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and torch.equal(one.nan_to_num(nan=torch.pi), other.nan_to_num(nan=torch.pi))
    return one == other


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_killed_after_each_round_and_resumed_is_never_killed(toy_config, tmp_path, name):
    algorithm = {"name": name, "rounds": 3, "participation": 0.7} | ALGORITHMS[name]
    config = toy_config(algorithm=algorithm, **BRIEF)
    whole, killed = run(config, tmp_path / "whole"), tmp_path / "killed"
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            run(config, killed, resume=True, watch=stop_after(number))
    run(config, killed, resume=True)
    one, other = state_of(whole), state_of(killed)
    assert one.keys() == other.keys()
    assert [key for key in one if not alike(one[key], other[key])] == []
    assert content(killed) == content(whole)
    if name == "cfl":
        assert len(one["models"]) > 2, "clusters were divided before and after it was killed"
