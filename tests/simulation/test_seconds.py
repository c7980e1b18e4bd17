"""The parts of a run's seconds add up to its total: by a clock that only moves where the test moves it."""

from types import SimpleNamespace

import pytest

import shoal
from full_simulation import simulate_with
from shoal.engine.round_clock import RoundClock
from shoal.simulation import simulation
from shoal.simulation.play import PARTS, SimulationState

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
    # Parts of a round are timed in the engine, and the files of the last one where they are written.
    for module in ("shoal.engine.round_clock", "shoal.runs.run_training"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=lambda: clock["time"]))
    choose = shoal.IFCA.plan

    def slow(*given: object) -> object:
        clock["time"] += 1.0
        return choose(*given)

    monkeypatch.setattr(shoal.IFCA, "plan", slow)
    update = shoal.IFCA.server_update

    def slow_update(*given: object) -> object:
        clock["time"] += 2.0
        return update(*given)

    monkeypatch.setattr(shoal.IFCA, "server_update", slow_update)
    # A filter of updates: two clusters of clients are trained by one thread.
    clip, spent = shoal.NormClipping.filter, {"filter": 0.0}

    def slow_filter(*given: object) -> object:
        clock["time"] += 4.0
        spent["filter"] += 4.0
        return clip(*given)

    monkeypatch.setattr(shoal.NormClipping, "filter", slow_filter)

    def watch(*_: object) -> None:
        clock["time"] += 100.0

    local = shoal.LocalSGD(epochs=1, batch_size=6)
    defenses = [shoal.NormClipping(max_norm=1.0)]
    result = simulate_with(
        build(), mlp, shoal.IFCA(clusters=2), local, rounds=ROUNDS, watch=watch, defenses=defenses, threads=1
    )
    seconds = {
        key.partition(".")[2]: each for key, each in result.summary.overall.items() if key.startswith("seconds.")
    }
    each, total = spent["filter"] / ROUNDS, ROUNDS * 113.0 + spent["filter"] + 1000.0
    assert each > 0
    whole = {
        "choose": ROUNDS * 1.0,
        "local_training": 0.0,
        "defenses": spent["filter"],
        "aggregation": ROUNDS * 2.0,
        "red_team": 0.0,
        "evaluation": ROUNDS * 10.0,
        # After each round, not before the first.
        "files": ROUNDS * 100.0,
        "measurement": 1000.0,
        "other": 0.0,
    }
    of_rounds = {"choose": 1.0, "defenses": each, "aggregation": 2.0, "evaluation": 10.0, "files": 100.0}
    shares = {f"share.{part}": pytest.approx(spent / total, abs=1e-3) for part, spent in whole.items()}
    never = {"local_training": 0.0, "red_team": 0.0}
    medians = {f"round.{part}": spent for part, spent in (of_rounds | never).items()}
    train = spent["filter"] + ROUNDS * 2.0
    assert seconds == whole | {"train": train, "total": total} | shares | medians
    assert sum(whole.values()) == seconds["total"]


def test_what_threads_do_side_by_side_is_scaled_to_the_wall_time(monkeypatch) -> None:
    times = iter([0.0, 0.0, 3.0, 3.0, 4.0, 2.0])
    monkeypatch.setattr("shoal.engine.round_clock.time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = RoundClock()
    with clock.side_by_side():  # 2 s in all, in which two threads spend 3 s and 1 s.
        for part in ("local_training", "defenses"):
            with clock.part(part):
                pass
    expected = {"choose": 0.0, "local_training": 1.5, "defenses": 0.5, "aggregation": 0.0, "red_team": 0.0}
    assert clock.seconds() == expected | {"train": 2.0}


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
