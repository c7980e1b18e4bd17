"""The config.toml of a run, from a configuration or from a simulation in Python.

The file of a simulation in Python has a table ``[simulation]`` with facts for reports, and with hashes of the parts
that a file cannot describe. The key ``unnamed`` lists the configuration keys that are missing in the file.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from shoal.audit.measurement import declared_metrics
from shoal.config.build import build
from shoal.config.defense_sections import PRIOR_EFFECTS, CoordinatorSection, DefensesSection
from shoal.config.kinds import RoundAttackSection, name_of, own_code, require_data
from shoal.config.schema import (
    SIMULATION,
    AlgorithmSection,
    Config,
    EvaluationSection,
    ForgettingSection,
    PrivacySection,
    read_config,
)
from shoal.config.settings_tables import described_by, read, table_of
from shoal.config.toml_files import read_toml
from shoal.control import LimitController
from shoal.core.errors import InputError, require
from shoal.data import Group, Preferences
from shoal.data.content import fingerprint
from shoal.defenses import DEFENSES, Defense
from shoal.metrics import Metric
from shoal.models import FeatureMap, Model, metric_name
from shoal.models.named_models import NamedBuild, Network
from shoal.reports.run.description import RunDescription, title_with_base
from shoal.runs.files import require_same_examples, require_unchanged, stored_examples
from shoal.simulation.play import EngineSettings
from shoal.simulation.simulation import Simulation, apply_feature_map


def describe_simulation(simulation: Simulation, engine: EngineSettings) -> RunDescription:
    """Describe a simulation in Python, with its config.toml.

    Args:
        simulation: the simulation, before its data are moved to the engine.
        engine: the engine's settings, with the backend resolved.
    """
    federation, model, attack = simulation.federation, simulation.model, simulation.round_attack
    canaries, start, coordinator = simulation.canaries, simulation.start, simulation.coordinator
    digest, algorithm = fingerprint(federation), simulation.algorithm
    evaluation = [("every", "evaluate_every"), *((name, name) for name in _EVALUATION_FIELDS)]
    section = None if attack is None else described_by(RoundAttackSection).from_simulation(simulation)
    parts = {
        "algorithm": (algorithm, lambda: AlgorithmSection(algorithm, simulation.last_round, simulation.participation)),
        "model": ({name: getattr(model, name) for name in _MODEL_FIELDS}, lambda: _network(simulation)),
        "local": (simulation.local, lambda: simulation.local),
        "privacy": (None, lambda: _privacy_section(federation.preferences)),
        "red_team": (simulation.red_team, lambda: simulation.red_team),
        "defenses": (simulation.defenses or None, lambda: _defenses(simulation.defenses)),
        "release": (simulation.release, lambda: simulation.release),
        "coordinator": (coordinator and coordinator.knobs, lambda: coordinator and _coordinator(coordinator)),
        "forgetting": (
            simulation.forgetting if simulation.events else None,
            lambda: ForgettingSection(simulation.forgetting) if simulation.events else None,
        ),
        "evaluation": (None, lambda: EvaluationSection(**{key: getattr(simulation, name) for key, name in evaluation})),
    }
    tables = {name: _table(make) for name, (_, make) in parts.items()}
    keys = {"algorithm": "algorithm.name", "model": "model.name", "privacy": "privacy.thresholds"}
    unnamed = ["data.source", *(keys.get(name, name) for name, table in tables.items() if table is None)]
    unnamed += [f"evaluation.{name}" for name in ("attacks", "metrics") if getattr(simulation, name)]
    without_key = ("canaries", "start", "round_attack", "malicious_clients")
    about = {
        "unnamed": [*unnamed, *(name for name in without_key if getattr(simulation, name))],
        "parts": {name: _class_table(part) for name, (part, _) in parts.items() if tables[name] is None and part}
        or None,
        "federation": repr(federation),
        "examples": digest,
        "kind": federation.kind,
        "metric": metric_name(simulation.setup.model.metric_for(federation.classes)),
        "network": model.structure(),
        "title": title_with_base(algorithm),
        "attack": name_of(type(simulation.red_team.attack)),
        "estimator": simulation.red_team.estimator,
        "canaries": None if canaries is None else fingerprint(tuple(vars(canaries).values())),
        "start": start and {"models": fingerprint((start.state.models,)), "public": start.public},
        "malicious_clients": simulation.malicious_clients,
        "round_attack": attack and _class_table(attack) | {"table": attack.name, "columns": attack.columns},
        "metrics": [vars(metric) for metric in declared_metrics((*simulation.metrics, attack))] or None,
        # Without the knobs: each has a table under a name of its own.
        "law": coordinator and table_of(replace(coordinator, knobs={})),
        "property_attack": section and table_of(section),
    }
    schedule = {"rounds": simulation.last_round, "participation": simulation.participation}
    groups = {name: {"share": share} for name, share in federation.shares.items()}
    table = {
        "seed": simulation.seed,
        SIMULATION: about,
        "data": {"source": f"memory-{digest[:8]}", "groups": groups},
        "engine": table_of(engine),
        "events": [table_of(event) for event in simulation.events] or None,
        "record": {"updates": simulation.record_updates} if simulation.record_updates else None,
        **{name: table for name, table in tables.items() if table},
        "algorithm": tables["algorithm"] or {"name": name_of(type(algorithm))} | schedule,
    }
    text = tomli_w.dumps(_to_toml(table), multiline_strings=True)
    return replace(_parse_description(tomllib.loads(text), text), examples=digest)


_MODEL_FIELDS = ("loss", "metric", "outputs", "inputs")
"""The fields that identify a model in addition to its network's layers."""

_EVALUATION_FIELDS = ("member_rounds", "baselines", "min_clients", "reference_federations", "duplicates", "view")
"""Keys of [evaluation] that are fields of a simulation."""


def _table(make: Callable[[], object]) -> dict[str, Any] | None:
    """Return a part's configuration table; None if a file cannot describe the part."""
    try:
        part = make()
        if part is None:
            return {}
        table = table_of(part)
        same = read(type(part), table) == part and "__main__" not in str(own_code(table))
    except (InputError, TypeError, NameError):
        return None
    return table if same else None


def _network(simulation: Simulation) -> Network:
    model, features = simulation.model, simulation.features
    if not isinstance(model.build, NamedBuild) or model != Model(model.build) or isinstance(features, FeatureMap):
        raise InputError("a network without a name cannot be written to a file; use a registered model")
    return replace(model.build.network, features=features)


def _privacy_section(preferences: Preferences) -> PrivacySection:
    limits, betas = preferences.threshold.tolist(), preferences.beta.tolist()
    require(len(set(limits)) == 1, "a file cannot describe clients with different limits")
    view = None if preferences.view is None else tuple(preferences.views("outsider"))
    return PrivacySection((limits[0], limits[0]), betas[0] if len(set(betas)) == 1 else tuple(betas), view)


def _defenses(defenses: Sequence[Defense]) -> DefensesSection:
    keys: dict[type, str] = {cls: name for name, cls in DEFENSES.items()}
    shipped: dict[str, Any] = {keys[type(defense)]: defense for defense in defenses if type(defense) in keys}
    custom = {f"own{i}": defense for i, defense in enumerate(defenses) if type(defense) not in keys}
    section = DefensesSection(**shipped, custom=custom or None)
    require(section.all() == tuple(defenses), "a file cannot describe this order of the defences")
    return section


def _coordinator(coordinator: LimitController) -> CoordinatorSection:
    knobs = coordinator.knobs
    require(
        "pooling" not in knobs and not coordinator.min_clients,
        "a file cannot describe 'pooling' or 'min_clients' of the coordinator",
    )
    shipped: dict[str, Any] = {name: knob.defense for name, knob in knobs.items() if name in PRIOR_EFFECTS}
    custom: dict[str, Any] = {name: knob.defense for name, knob in knobs.items() if name not in shipped}
    relief = {name: knob.risk_reduction for name, knob in knobs.items()}
    cost = {name: knob.accuracy_cost for name, knob in knobs.items()}
    law = replace(coordinator, knobs={})
    section = CoordinatorSection(**shipped, custom=custom or None, law=law, relief=relief, cost=cost)
    restored = section.coordinator()
    same = restored == coordinator and [*restored.knobs] == [*knobs]
    require(same, "a file cannot describe this order of the coordinator's knobs")
    return section


def read_description(out: Path, *, allow_code: bool = False) -> RunDescription:
    """Read the config.toml of a run.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = out / "config.toml"
    table = read_toml(path)
    try:
        if SIMULATION in table:
            if not allow_code:
                require_data([table[SIMULATION].get(name) for name in ("property_attack", "law")], path)
            description = _parse_description(table, path.read_text("utf-8"))
        else:
            description = RunDescription.of(read_config(path, allow_code=allow_code))
        return replace(description, examples=stored_examples(out))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is damaged; the table [{SIMULATION}] lacks {error}") from error


def rebuild_simulation(
    out: Path, data_dir: Path | None = None, *, allow_code: bool = False
) -> tuple[Config, Simulation]:
    """Build the configuration of the run in ``out`` and its simulation, with features.

    Raises:
        InputError: the run was made from Python, its data or files have changed, or its configuration names code
            without ``allow_code``.
    """
    config = read_config(out / "config.toml", allow_code=allow_code)
    if (out / "summary.json").exists():
        require_unchanged(out)
    config, simulation = build(config, data_dir)
    require_same_examples(out, fingerprint(simulation.federation))
    return config, apply_feature_map(simulation, config.engine.threads)


def _parse_description(table: Mapping[str, Any], text: str) -> RunDescription:
    about, groups = table[SIMULATION], table["data"]["groups"]
    section, law, attack = about.get("property_attack"), about.get("law"), about.get("round_attack")
    return RunDescription(
        algorithm=table["algorithm"]["name"],
        algorithm_title=about["title"],
        dataset=table["data"]["source"],
        seed=table["seed"],
        groups={name: Group(name, group["share"]) for name, group in groups.items()},
        attack=about["attack"],
        estimator=about["estimator"],
        settings=text,
        metric=about["metric"],
        kind=about["kind"],
        property_attack=None if section is None else read(described_by(RoundAttackSection), section, "property_attack"),
        attack_table=None if attack is None else (attack["table"], attack["columns"]),
        metrics=tuple(Metric(**entry) for entry in about.get("metrics", ())),
        coordinator=None if law is None else read(LimitController, law, "coordinator"),
    )


def _class_table(value: object) -> dict[str, Any]:
    table = _to_toml(value)
    return table if isinstance(table, dict) else {"name": name_of(type(value)), "value": table}


def _to_toml(value: Any) -> Any:  # noqa: ANN401
    """Convert a value to TOML; dataclasses become tables, and memory addresses are removed."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: getattr(value, field.name) for field in fields(value)}
        return _to_toml(inside) | {"name": name_of(type(value))}
    if isinstance(value, Mapping):
        return {str(name): _to_toml(inside) for name, inside in value.items() if inside is not None}
    if isinstance(value, tuple | list):
        return [*map(_to_toml, value)]
    if isinstance(value, bool | int | float | str):
        return value
    named = getattr(value, "__qualname__", None)
    return str(named) if named is not None else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
