"""The parts of a run's seconds add up to its total: by a clock that only moves where the test moves it."""

from types import SimpleNamespace

import pytest

import shoal
from full_simulation import simulate_with
from shoal.simulation import simulation
from shoal.simulation.simulation import PARTS, SimulationState

ROUNDS = 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock that evaluating a round moves by 10 and the last measurement by 1,000."""
    now = {"time": 0.0}

    def moving(name: str, by: float) -> None:
        function = getattr(simulation, name)

        def moved(*given: object, **named: object) -> object:
            now["time"] += by
            return function(*given, **named)

        monkeypatch.setattr(simulation, name, moved)

    monkeypatch.setattr(simulation, "time", SimpleNamespace(perf_counter=lambda: now["time"]))
    moving("round_metrics", 10.0)
    moving("measure_models", 1000.0)
    return now


def test_parts_add_up_to_the_total(build, mlp, clock, monkeypatch) -> None:
    # Parts of a round are timed in the engine.
    monkeypatch.setattr("shoal.engine.rounds.training.time", SimpleNamespace(perf_counter=lambda: clock["time"]))
    choose = shoal.IFCA.plan

    def slow(*given: object) -> object:
        clock["time"] += 1.0
        return choose(*given)

    monkeypatch.setattr(shoal.IFCA, "plan", slow)

    def watch(*_: object) -> None:
        clock["time"] += 100.0

    local = shoal.LocalSGD(epochs=1, batch_size=6)
    result = simulate_with(build(), mlp, shoal.IFCA(clusters=2), local, rounds=ROUNDS, watch=watch)
    seconds = {
        key.partition(".")[2]: each for key, each in result.summary.overall.items() if key.startswith("seconds.")
    }
    assert seconds == {
        "choose": ROUNDS * 1.0,
        "train": 0.0,
        "red_team": 0.0,
        "evaluation": ROUNDS * 10.0,
        # Between rounds: not before the first, nor after the last.
        "files": (ROUNDS - 1) * 100.0,
        "measurement": 1000.0,
        "total": ROUNDS * 11.0 + (ROUNDS - 1) * 100.0 + 1000.0,
    }


def test_a_checkpoint_of_an_earlier_version_lacks_parts(build, mlp, clock) -> None:
    local = shoal.LocalSGD(epochs=1, batch_size=6)
    given = simulation.Simulation(build(), mlp, shoal.IFCA(clusters=2), local, rounds=2)
    with shoal.Engine(mlp, threads=1) as engine:
        ready = simulation.move_to_engine(given, engine)
        first = simulation.initial_state(ready, engine)
        earlier = SimulationState(first.state, seconds=dict.fromkeys(("choose", "train", "red_team", "total"), 5.0))
        *_, (last, _) = simulation.run_rounds(ready, engine, earlier)
    assert last.seconds["evaluation"] == 20.0
    assert last.seconds["total"] == 25.0
    assert set(PARTS) - set(last.seconds) <= {"measurement"}
