"""A run that is prolonged is bit for bit the one that had as many rounds from the start."""

import pytest
import torch

import shoal
from run_files import content, stop_after
from shoal.core.errors import InputError
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
    assert "prolonged from 3 rounds to 6" in (out / "run.log").read_text()
    assert not (out / "report.html").exists(), "it was the shorter run's"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("algorithm", [shoal.IFCA(clusters=2), shoal.Scaffold()], ids=["ifca", "scaffold"])
def test_a_simulation_in_python_is_prolonged_as_a_file_s_run_is(build, mlp, tmp_path, algorithm, finished):
    def simulation(rounds):
        settings = {"participation": 0.7, "evaluate_every": 2, "red_team": shoal.RedTeam(every=2, attack=shoal.Gap())}
        return shoal.Simulation(build(), mlp, algorithm, shoal.LocalSGD(decay=0.9), rounds, **settings)

    out = tmp_path / "out"
    if finished:
        shoal.Run(simulation(3), out).train()
    else:
        with pytest.raises(KeyboardInterrupt):
            shoal.Run(simulation(3), out, watch=stop_after(2)).train()
    longer = shoal.Run(simulation(6), out).train(resume=True)
    shoal.Run(simulation(6), tmp_path / "whole").train()
    assert content(out) == content(tmp_path / "whole")
    assert torch.equal(longer.state.models, shoal.Run(simulation(6)).train().state.models)
    with pytest.raises(InputError, match=r"'algorithm\.rounds' must be at least 6; got 5"):
        shoal.Run(simulation(5), out).train(resume=True)


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
    with pytest.raises(InputError, match="cannot be prolonged"):
        run(toy_config(algorithm__rounds=2), out, resume=True)
    assert content(out) == before


def test_a_finished_simulation_that_is_resumed_can_be_audited_and_gone_on_from(build, mlp, tmp_path):
    settings = build(), mlp, shoal.IFCA(clusters=2), shoal.LocalSGD(learning_rate=0.3)
    trained = shoal.Run(shoal.Simulation(*settings, rounds=2), tmp_path / "out").train()
    read = shoal.Run(shoal.Simulation(*settings, rounds=2), tmp_path / "out").train(resume=True)
    assert read.audit(references=1).flat() == trained.audit(references=1).flat()
    further = [shoal.Run(shoal.Simulation(*settings, rounds=1, start=each.start())).train() for each in (trained, read)]
    assert torch.equal(further[0].state.models, further[1].state.models)
