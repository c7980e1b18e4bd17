"""The config.toml of a simulation in Python, whose examples, network and perhaps algorithm no file can give back.

It has one table, ``[simulation]``, which says what was simulated: for readers, for the report, and so that another
simulation does not go on in its directory. ``settings`` in it is what decides the result, one text each.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from shoal.config.kinds import name_of
from shoal.config.round_attack_section import RoundAttackSection
from shoal.config.schema import SIMULATION, read_config
from shoal.config.settings_tables import described_by, read, table_of
from shoal.config.toml_files import read_toml
from shoal.control import Coordinator
from shoal.core.errors import InputError, require
from shoal.core.formats import ACCURACY
from shoal.data import Canaries, Group
from shoal.data.content import fingerprint, tensors_fingerprint
from shoal.defenses import Defense
from shoal.engine import Engine, LocalSGD
from shoal.models import metric_name
from shoal.reports.run.description import RunDescription
from shoal.runs.hashes import require_unchanged, stored_examples
from shoal.simulation.simulation import Simulation

_HEAD = """\
# What shoal.simulate did, from Python. This file is for reading: it cannot be run, since the examples are in no file.
"""


def record_of(simulation: Simulation, local: LocalSGD, defenses: Sequence[Defense], engine: Engine) -> RunDescription:
    """The description of a simulation in Python, with its config.toml.

    Args:
        simulation: as given, its data not yet moved to the engine.
        local: local training before the defences.
        defenses: in order.
        engine: that computes it. Its number of threads changes no bit and is left out.
    """
    federation, team, start = simulation.federation, simulation.red_team, simulation.start
    model, metric = simulation.setup.model, metric_name(simulation.setup.model.metric_for(federation.classes))
    digest, canaries = fingerprint(federation), simulation.canaries
    settings = {
        "algorithm": _spelled(simulation.algorithm),
        "local": _spelled(local),
        "rounds": f"{simulation.first_round} to {simulation.rounds}",
        "seed": str(simulation.seed),
        "participation": str(simulation.participation),
        "federation": repr(federation),
        "examples": digest if canaries is None else f"{digest}, canaries {_of_canaries(canaries)}",
        "network": _spelled(model.network()),
        "loss": _spelled(model.loss),
        "start": "" if start is None else tensors_fingerprint(start.state.models),
        "red_team": _spelled(team),
        "defenses": _spelled(tuple(defenses)),
        "round_attack": _spelled(simulation.round_attack),
        "malicious_clients": _spelled(simulation.malicious_clients),
        "engine": f"{engine.device}, {str(engine.dtype).removeprefix('torch.')}, {engine.backend}",
    }
    for name, function in (("metric", model.metric), ("outputs", model.outputs)):
        if function is not None:
            settings[name] = _spelled(function)
    if simulation.record_updates:
        settings["record_updates"] = str(simulation.record_updates)
    if simulation.reference_federations:
        settings["reference_federations"] = str(simulation.reference_federations)
    if simulation.duplicates != "keep":
        settings["duplicates"] = simulation.duplicates
    if start is not None and start.public:
        settings["public_start"] = "true"
    coordinator = simulation.coordinator
    if coordinator is not None:
        settings["coordinator"] = _spelled(_law(coordinator))
        settings["knobs"] = _spelled(tuple(coordinator.knobs.items()))
    shares = federation.group_fractions.tolist()
    table: dict[str, Any] = {
        "algorithm": name_of(type(simulation.algorithm)),
        "dataset": f"memory-{digest[:8]}",
        "seed": simulation.seed,
        "attack": name_of(type(team.attack)),
        "estimator": team.estimator,
        "kind": federation.kind,
        "settings": settings,
        "groups": dict(zip(federation.groups, shares, strict=True)),
    }
    if metric != ACCURACY:
        table["metric"] = metric
    if simulation.reference_federations:
        table["reference_federations"] = simulation.reference_federations
    if coordinator is not None:
        table["coordinator"] = table_of(_law(coordinator))
    attack = simulation.round_attack
    if attack is not None:
        table["round_attack"] = {"table": attack.name, "columns": list(attack.columns)}
        section = described_by(RoundAttackSection).of(simulation)
        table |= {} if section is None else {"property_attack": table_of(section)}
    described = _described(table, _HEAD + tomli_w.dumps({SIMULATION: table}, multiline_strings=True))
    return replace(described, examples=digest)


def read_description(out: Path) -> RunDescription:
    """What the config.toml in ``out`` says, of a run by configuration or of a simulation in Python.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = out / "config.toml"
    table = _simulation(path)
    try:
        found = RunDescription.of(read_config(path)) if table is None else _described(table, path.read_text("utf-8"))
        return replace(found, examples=stored_examples(out))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is damaged: its table [{SIMULATION}] lacks {error}") from error


def require_same_simulation(out: Path, described: RunDescription) -> None:
    """Raise unless the config.toml in ``out`` is that of the same simulation, and its files are what it wrote."""
    before = _simulation(out / "config.toml")
    if before is None:
        raise InputError(f"{out}: holds a run of a configuration file; choose another 'out'")
    settings, stored = _simulation_of(described)["settings"], before.get("settings", {})
    for key in {**settings, **stored}:
        old, new = stored.get(key), settings.get(key)
        if old != new:
            raise InputError(f"{out}: holds a simulation with {_difference(key, old, new)}; choose another 'out'")
    if (out / "summary.json").exists():
        require_unchanged(out)


def _difference(key: str, old: object, new: object) -> str:
    if len(f"{old}{new}") > 120 or "\n" in f"{old}{new}":
        return f"another '{key}'"
    return f"{key} = {old}, but this one has {new}"


def _simulation(path: Path) -> dict[str, Any] | None:
    """The table of a simulation in Python; None where the file is a configuration."""
    table = read_toml(path).get(SIMULATION)
    require(table is None or isinstance(table, dict), f"{path}: is damaged: [{SIMULATION}] must be a table")
    return table


def _simulation_of(described: RunDescription) -> dict[str, Any]:
    return tomllib.loads(described.settings)[SIMULATION]


def _described(table: Mapping[str, Any], text: str) -> RunDescription:
    section, attack, coordinator = (table.get(name) for name in ("property_attack", "round_attack", "coordinator"))
    return RunDescription(
        algorithm=table["algorithm"],
        dataset=table["dataset"],
        seed=table["seed"],
        groups={name: Group(name, share) for name, share in table["groups"].items()},
        attack=table["attack"],
        estimator=table["estimator"],
        settings=text,
        metric=table.get("metric", ACCURACY),
        # Directories of earlier versions do not say it.
        kind=table.get("kind", "images"),
        reference_federations=table.get("reference_federations", 0),
        property_attack=None if section is None else read(described_by(RoundAttackSection), section, "property_attack"),
        attack_table=None if attack is None else (attack["table"], attack["columns"]),
        coordinator=None if coordinator is None else read(Coordinator, coordinator, "coordinator"),
    )


def _law(coordinator: Coordinator) -> Coordinator:
    """The coordinator without its knobs, which no file can give back."""
    return replace(coordinator, knobs={})


def _of_canaries(canaries: Canaries) -> str:
    return tensors_fingerprint(canaries.x, canaries.y, canaries.client, canaries.record, canaries.member)


def _spelled(value: object) -> str:
    """A value in words that another process says too: dataclasses with all their fields, no addresses in memory."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{each.name}={_spelled(getattr(value, each.name))}" for each in fields(value))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_spelled, value))})"
    named = getattr(value, "__qualname__", None)
    return str(named) if named is not None else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
