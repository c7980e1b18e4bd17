"""A run that is prolonged, or killed and resumed, is bit for bit the one that had as many rounds from the start."""

import pytest
import torch

import shoal
from run_files import content, stop_after
from shoal.core.errors import InputError
from shoal.engine import ClientVectors
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.run import run


# The third round, the last at first, is evaluated then and not in the longer run.
@pytest.mark.parametrize(
    "changes",
    [{"evaluation__every": 2, "local__decay": 0.9}, {"algorithm__name": "scaffold", "algorithm__participation": 0.5}],
    ids=["ifca-mir", "scaffold"],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_prolonged_run_is_the_longer_run(toy_config, tmp_path, changes, finished):
    short, long = (toy_config(**changes, algorithm__rounds=rounds) for rounds in (3, 6))
    out = tmp_path / "out"
    if finished:
        run(short, out)
        (out / "report.html").write_text("of the shorter run")
    else:
        with pytest.raises(KeyboardInterrupt):
            run(short, out, watch=stop_after(2))
    run(long, out, resume=True)
    assert content(out) == content(run(long, tmp_path / "whole"))
    assert "extended from 3 rounds to 6" in (out / "run.log").read_text()
    assert not (out / "report.html").exists(), "it was the shorter run's"


def test_killed_while_it_is_prolonged_it_goes_on(toy_config, tmp_path):
    out = run(toy_config(algorithm__rounds=1), tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run(toy_config(algorithm__rounds=3), out, resume=True, watch=stop_after(2))
    assert not (out / "summary.json").exists()
    run(toy_config(algorithm__rounds=3), out, resume=True)
    assert content(out) == content(run(toy_config(algorithm__rounds=3), tmp_path / "whole"))


def test_without_its_last_checkpoint_a_finished_run_stays_as_it_is(toy_config, tmp_path):
    out = run(toy_config(algorithm__rounds=1), tmp_path / "out")
    for path in (out / "checkpoint").iterdir():
        path.unlink()
    before = content(out)
    with pytest.raises(InputError, match="without the checkpoint"):
        run(toy_config(algorithm__rounds=2), out, resume=True)
    assert content(out) == before


def test_a_finished_simulation_that_is_resumed_can_be_audited_and_gone_on_from(build, mlp, tmp_path):
    settings = build(), mlp, shoal.IFCA(clusters=2), shoal.LocalSGD(learning_rate=0.3)
    trained = shoal.Run(shoal.Simulation(*settings, rounds=2), tmp_path / "out").train()
    read = shoal.Run(shoal.Simulation(*settings, rounds=2), tmp_path / "out").train(resume=True)
    assert read.audit(references=1).flat() == trained.audit(references=1).flat()
    further = [shoal.Run(shoal.Simulation(*settings, rounds=1, start=each.start())).train() for each in (trained, read)]
    assert torch.equal(further[0].state.models, further[1].state.models)


# --- algorithms with states of their own ----------------------------------------------------------------------------

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
