"""The config.toml of a simulation in Python, whose examples and network no file can give back.

It has the tables of a configuration file, as far as it can, and one more, ``[simulation]``, with what describes the
rest: for readers, for the report, and so that another simulation does not go on in its directory.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from shoal.audit.measurement import declared_metrics
from shoal.config.build import build
from shoal.config.kinds import RoundAttackSection, algorithm_title, name_of, require_data, title_of
from shoal.config.schema import SIMULATION, Config, read_config
from shoal.config.settings_tables import described_by, read, table_of
from shoal.config.toml_files import read_toml
from shoal.control import LimitController
from shoal.core.errors import InputError
from shoal.core.formats import ACCURACY
from shoal.data import Group
from shoal.data.content import fingerprint
from shoal.metrics import Metric
from shoal.models import metric_name
from shoal.reports.run.description import RunDescription
from shoal.runs.files import require_same_examples, require_unchanged, stored_examples
from shoal.simulation.engine_settings import EngineSettings
from shoal.simulation.simulation import Simulation, apply_feature_map

_HEAD = "# A simulation in Python. This file is for reading: it cannot be run, since the examples are in no file.\n"


def description_of(simulation: Simulation, engine: EngineSettings) -> RunDescription:
    """The description of a simulation in Python, with its config.toml.

    Args:
        simulation: as given, its data not yet moved to the engine.
        engine: that computes it, with its backend decided.
    """
    federation, model, attack = simulation.federation, simulation.model, simulation.round_attack
    canaries, start, coordinator = simulation.canaries, simulation.start, simulation.coordinator
    digest, algorithm = fingerprint(federation), simulation.algorithm
    section = None if attack is None else described_by(RoundAttackSection).from_simulation(simulation)
    evaluation = ("member_rounds", "reference_federations", "duplicates", "view")
    about = {
        "federation": repr(federation),
        "examples": digest,
        "dataset": f"memory-{digest[:8]}",
        "kind": federation.kind,
        "metric": metric_name(simulation.setup.model.metric_for(federation.classes)),
        "network": model.structure(),
        "groups": dict(zip(federation.groups, federation.group_fractions.tolist(), strict=True)),
        "loss": model.loss,
        "measured_by": model.metric,
        "outputs": model.outputs,
        "inputs": model.inputs,
        "canaries": None if canaries is None else fingerprint(tuple(vars(canaries).values())),
        "start": start and {"models": fingerprint((start.state.models,)), "public": start.public},
        "malicious_clients": simulation.malicious_clients,
        "knobs": coordinator and coordinator.knobs,
        "round_attack": attack and _named(attack) | {"table": attack.name, "columns": attack.columns},
    }
    table = {
        "seed": simulation.seed,
        SIMULATION: about,
        "algorithm": _named(algorithm)
        | {"rounds": simulation.last_round, "participation": simulation.participation}
        | ({"title": title_of(algorithm)} if ":" in name_of(type(algorithm)) else {}),
        "local": simulation.local,
        "red_team": _written(simulation.red_team) | {"attack": _named(simulation.red_team.attack)},
        "defenses": simulation.defenses,
        "evaluation": {"every": simulation.evaluate_every} | {name: getattr(simulation, name) for name in evaluation},
        "engine": table_of(engine),
        "record": {"updates": simulation.record_updates} if simulation.record_updates else None,
        # The law alone: of knobs a file has a table each, under names of its own.
        "coordinator": coordinator and table_of(replace(coordinator, knobs={})),
        "metrics": [vars(metric) for metric in declared_metrics((*simulation.metrics, attack))] or None,
        "property_attack": section and table_of(section),
    }
    text = _HEAD + tomli_w.dumps(_written(table), multiline_strings=True)
    return replace(_described(tomllib.loads(text), text), examples=digest)


def read_description(out: Path, *, allow_code: bool = False) -> RunDescription:
    """Read the config.toml in ``out``, of a run by configuration or of a simulation in Python.

    Args:
        out: the run's directory.
        allow_code: whether code that it names (``module:Name``) is imported.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = out / "config.toml"
    table = read_toml(path)
    try:
        if SIMULATION in table:
            if not allow_code:
                require_data([table.get(name) for name in ("property_attack", "coordinator")], path)
            description = _described(table, path.read_text("utf-8"))
        else:
            description = RunDescription.of(read_config(path, allow_code=allow_code))
        return replace(description, examples=stored_examples(out))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is damaged: its table [{SIMULATION}] lacks {error}") from error


def rebuilt(out: Path, data_dir: Path | None = None, *, allow_code: bool = False) -> tuple[Config, Simulation]:
    """The configuration of the run in ``out`` and, with its features, the simulation that it describes.

    Raises:
        InputError: the run was made from Python; its data, or files of it if it is finished, have changed; or code that
            it names may not be imported.
    """
    config = read_config(out / "config.toml", allow_code=allow_code)
    if (out / "summary.json").exists():
        require_unchanged(out)
    config, simulation = build(config, data_dir)
    require_same_examples(out, fingerprint(simulation.federation))
    return config, apply_feature_map(simulation, config.engine.threads)


def _described(table: Mapping[str, Any], text: str) -> RunDescription:
    about, section, coordinator = table[SIMULATION], table.get("property_attack"), table.get("coordinator")
    attack = about.get("round_attack")
    return RunDescription(
        algorithm=(name := table["algorithm"]["name"]),
        algorithm_title=table["algorithm"].get("title", algorithm_title(name)),
        dataset=about["dataset"],
        seed=table["seed"],
        groups={name: Group(name, share) for name, share in about["groups"].items()},
        attack=table["red_team"]["attack"]["name"],
        estimator=table["red_team"]["estimator"],
        settings=text,
        metric=about.get("metric", ACCURACY),
        kind=about["kind"],
        reference_federations=table["evaluation"]["reference_federations"],
        property_attack=None if section is None else read(described_by(RoundAttackSection), section, "property_attack"),
        attack_table=None if attack is None else (attack["table"], attack["columns"]),
        metrics=tuple(Metric(**entry) for entry in table.get("metrics", ())),
        coordinator=None if coordinator is None else read(LimitController, coordinator, "coordinator"),
    )


def _named(value: object) -> dict[str, Any]:
    """A table that names the class of an algorithm or attack, which need be no dataclass."""
    written = _written(value)
    return written if isinstance(written, dict) else {"name": name_of(type(value)), "value": written}


def _written(value: Any) -> Any:  # noqa: ANN401
    """A value as another process writes it too: dataclasses as tables with all their fields, no addresses in memory."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: getattr(value, field.name) for field in fields(value)}
        return _written(inside) | {"name": name_of(type(value))}
    if isinstance(value, Mapping):
        return {str(name): _written(inside) for name, inside in value.items() if inside is not None}
    if isinstance(value, tuple | list):
        return [*map(_written, value)]
    if isinstance(value, bool | int | float | str):
        return value
    named = getattr(value, "__qualname__", None)
    return str(named) if named is not None else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
