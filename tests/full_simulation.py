"""A simulation with any of its settings, trained in one call, for tests."""

from typing import Any

from shoal.runs.result import Result
from shoal.runs.run import Run
from shoal.simulation.play import EngineSettings
from shoal.simulation.simulation import Simulation

_OF_ENGINES = ("device", "threads", "precision", "backend")


def simulate_with(*values: Any, out: Any = None, resume: bool = False, watch: Any = None, **settings: Any) -> Result:
    """The result of a `Simulation` with these settings; those of `EngineSettings` stand among them."""
    engine = EngineSettings(**{name: settings.pop(name) for name in _OF_ENGINES if name in settings})
    more = {"max_megabytes": settings.pop("max_megabytes")} if "max_megabytes" in settings else {}
    if isinstance(settings.get("start"), Result):
        settings["start"] = settings["start"].start()
    given = {name: value for name, value in settings.items() if (name, value) != ("red_team", None)}
    return Run(Simulation(*values, **given), out, engine, watch=watch, **more).train(resume=resume)
