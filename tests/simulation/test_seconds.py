"""The parts of a run's seconds add up to its total: by a clock that only moves where the test moves it."""

from collections import Counter
from types import SimpleNamespace

import pytest

import shoal
from full_simulation import simulate_with
from shoal.engine.worker_pool import RoundClock
from shoal.simulation import measure, play

ROUNDS = 3


class Clock:
    """A clock that only moves where a function that was made slow is called."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.time, self.calls = patch, 0.0, Counter[str]()

    def slow(self, owner: object, name: str, by: float) -> None:
        function = getattr(owner, name)

        def moved(*given: object, **named: object) -> object:
            self.time += by
            self.calls[name] += 1
            return function(*given, **named)

        self.patch.setattr(owner, name, moved)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that evaluating a round moves by 10 and the last measurement by 1,000."""
    clock = Clock(monkeypatch)
    # Parts of a round are timed in the engine, and the files of the last one where they are written.
    for module in ("engine.worker_pool", "simulation.play", "simulation.measure", "runs.run_training"):
        monkeypatch.setattr(f"shoal.{module}.time", SimpleNamespace(perf_counter=lambda: clock.time))
    clock.slow(play, "round_metrics", 10.0)
    clock.slow(measure, "measure_models", 1000.0)
    return clock


def test_parts_add_up_to_the_total(build, mlp, clock) -> None:
    clock.slow(shoal.IFCA, "plan", 1.0)
    clock.slow(shoal.IFCA, "server_update", 2.0)
    # A filter of updates: two clusters of clients are trained by one thread.
    clock.slow(shoal.NormClipping, "filter", 4.0)

    def watch(*_: object) -> None:
        clock.time += 100.0

    local = shoal.LocalSGD(epochs=1, batch_size=6)
    defenses = [shoal.NormClipping(max_norm=1.0)]
    result = simulate_with(
        build(), mlp, shoal.IFCA(clusters=2), local, rounds=ROUNDS, watch=watch, defenses=defenses, threads=1
    )
    filtered = 4.0 * clock.calls["filter"]
    seconds = {
        key.partition(".")[2]: each for key, each in result.summary.overall.items() if key.startswith("seconds.")
    }
    each, total = filtered / ROUNDS, ROUNDS * 113.0 + filtered + 1000.0
    assert each > 0
    whole = {
        "choose": ROUNDS * 1.0,
        "local_training": 0.0,
        "defenses": filtered,
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
    train = filtered + ROUNDS * 2.0
    assert seconds == whole | {"train": train, "total": total} | shares | medians
    assert sum(whole.values()) == seconds["total"]


def test_what_threads_do_side_by_side_is_scaled_to_the_wall_time(monkeypatch) -> None:
    times = iter([0.0, 0.0, 3.0, 3.0, 4.0, 2.0])
    monkeypatch.setattr("shoal.engine.worker_pool.time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = RoundClock()
    with clock.side_by_side():  # 2 s in all, in which two threads spend 3 s and 1 s.
        for part in ("local_training", "defenses"):
            with clock.part(part):
                pass
    expected = {"choose": 0.0, "local_training": 1.5, "defenses": 0.5, "aggregation": 0.0, "red_team": 0.0}
    assert clock.seconds() == expected | {"train": 2.0}
