"""A simulation that was played to its end, as audits attack it."""

from typing import Any

from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation


def attacked_run(simulation: Simulation, engine: Engine, **settings: Any) -> AttackedRun:
    """Play all rounds; the settings are those of `AttackedRun.from_run`."""
    simulation = move_to_engine(simulation, engine)
    *_, (now, _) = run_rounds(simulation, engine, initial_state(simulation, engine))
    return AttackedRun.from_run(simulation, now.state, now.rows, engine, **settings)
