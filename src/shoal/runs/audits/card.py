"""The privacy card of a released model: its exposure, its guarantees, and the privacy questions that remain.

The questions follow the differential privacy pyramid of NIST SP 800-226 (Guidelines for Evaluating Differential Privacy
Guarantees, March 2025, Figure 1). Shoal adds questions about the choice of a client's model, the choice of
hyper-parameters, the empirical lower bound, the attacks, and property inference.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.audit.finding import Finding, every_attack, findings
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_text
from shoal.core.foreign_files import read_json
from shoal.core.formats import number
from shoal.data.preferences import VIEWS
from shoal.reports.card_page import card_page, epsilon_by_view
from shoal.runs.audits.audit_files import make_directory
from shoal.runs.files import stored_files
from shoal.runs.result import Result, read_tables

SCHEMA = 2
"""The version of card.json; new keys do not change the version."""


@dataclass(frozen=True)
class Card:
    """A privacy card, and the paths of card.json and card.html."""

    document: Mapping[str, Any]
    file: Path
    page: Path


def write_card(run: Path, out: Path | None = None, *, allow_code: bool = False) -> Card:
    """Write card.json and card.html of a finished run into ``out``, by default the run's directory.

    Raises:
        InputError: ``run`` is not the directory of a finished run, or ``out`` cannot be written.
    """
    result, folder = read_tables(run, allow_code=allow_code), run if out is None else out
    document = privacy_card(run, result)
    make_directory(folder)
    write_text(folder / "card.json", json.dumps(document, indent=2, allow_nan=False) + "\n")
    write_text(folder / "card.html", card_page(document))
    return Card(document, folder / "card.json", folder / "card.html")


def privacy_card(run: Path, result: Result) -> dict[str, Any]:
    """Return the content of card.json; docs/audit.md lists the keys."""
    about, summary, settings = result.description, result.summary, read_toml(run / "config.toml")
    promise = _stated_epsilon(summary.overall, settings)
    exposure, files = _exposure(run, result), stored_files(run)
    names = {"configuration": "config.toml", "models": "models.safetensors"}
    accuracies = {"all": summary.overall.get("accuracy.overall")}
    accuracies |= {name: metrics.get("accuracy") for name, metrics in summary.by_group.items()}
    return {
        "schema": SCHEMA,
        "shoal": version("shoal"),
        "run": {
            "title": about.title,
            "algorithm": about.algorithm,
            "dataset": about.dataset,
            "seed": about.seed,
            "rounds": int(summary.run["rounds"]),
            "clients": {str(name): int(n) for name, n in result.clients["group"].value_counts(sort=False).items()},
            "training_examples": int(result.clients["examples"].sum()),
            "metric": about.metric,
            "accuracy": {
                key: float(value) for key, value in accuracies.items() if value is not None and isfinite(value)
            },
            "sha256": {"examples": about.examples} | {key: files[name] for key, name in names.items() if name in files},
        },
        "exposure": exposure,
        "promise": promise,
        "questions": _questions(len(summary.by_cluster), settings, promise, exposure),
    }


def _exposure(run: Path, result: Result) -> dict[str, Any]:
    """Return the audit's findings by view, group and model; without an audit, the command to run one."""
    command = f"shoal audit {run} --references 4"
    audit = result.audit_in_directory
    if audit is None:
        return {"asked": False, "command": command}
    flat = read_json(run / "audit.json")
    rows, models = findings(audit), every_attack(audit, "model")
    return {
        "asked": True,
        "command": command,
        "references": int(flat["references"]),
        "members": int(flat["members"]),
        "non_members": int(flat["non_members"]),
        "views": {view: {row.group: _figures_of(row) for row in rows if row.view == view} for view in VIEWS},
        "models": {name: _figures_of(decides) for name, (decides, *_) in models.items()},
    }


def _figures_of(finding: Finding) -> dict[str, Any]:
    accuracy = finding.accuracy
    figures = {
        "accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high,
        "chance_high": finding.chance_high, "auc": finding.auc.value,
    }  # fmt: skip
    return {
        "attack": finding.attack,
        "outcome": finding.verdict,
        "members": finding.members,
        "non_members": finding.non_members,
        **{key: value for key, value in figures.items() if isfinite(value)},
    }


def _stated_epsilon(overall: Mapping[str, float], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the differential-privacy guarantee and its settings; None without an epsilon."""
    if not isfinite(overall.get("epsilon", float("inf"))):
        return None
    by_view = {view: overall[f"epsilon.{view}"] for view in VIEWS if f"epsilon.{view}" in overall}
    rule = _private_rule(settings)
    bound = None
    if "canaries.epsilon_low" in overall:
        bound = {"epsilon": overall["canaries.epsilon_low"], "delta": overall["canaries.delta"], "by": "canaries"}
    return {
        "unit": "a training example",
        "adjacency": "one example is added or removed; the number of examples per client is public",
        "epsilon": by_view or dict.fromkeys(VIEWS, overall["epsilon"]),
        "delta": overall["delta"],
        "bound": {
            view: {name: overall[f"bound.{view}.{name}"] for name in ("accuracy", "auc")}
            for view in VIEWS
            if f"bound.{view}.accuracy" in overall
        },
        "accountant": "Gaussian mechanisms composed" if rule.get("noise") == "sum" else rule.get("accountant", "rdp"),
        "sampling": "all examples in each step" if rule.get("noise") == "sum" else rule.get("sampling", "shuffled"),
        "noise": rule.get("noise", "client"),
        "noise_multiplier": rule.get("noise_multiplier"),
        "max_grad_norm": rule.get("max_grad_norm"),
        "min_clients": rule.get("min_clients"),
        "choice_of_model_covered": "epsilon.choice" in overall,
        "lower_bound": bound,
    }


def _private_rule(settings: object) -> Mapping[str, Any]:
    """Search a configuration's tables for the settings of DP-SGD."""
    parts: Sequence[object] = ()
    if isinstance(settings, Mapping):
        if {"noise_multiplier", "max_grad_norm"} <= settings.keys():
            return settings
        parts = [*settings.values()]
    elif isinstance(settings, list):
        parts = settings
    return next((rule for part in parts if (rule := _private_rule(part))), {})


def _questions(
    models: int, settings: Mapping[str, Any], promise: Mapping[str, Any] | None, exposure: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the questions with their answers, or with the reason for a missing answer."""
    nothing, command = "no epsilon is stated", exposure["command"]
    attacked = [view for view in VIEWS if exposure.get("views", {}).get(view)]
    attacks = f"nothing was measured; run {command}"
    if attacked:
        attacks = f"views {', '.join(attacked)}, with {exposure['references']} references"
    server = "without secure aggregation, the server sees every client's update"
    if "secure_aggregation" in settings:
        server = "the configuration has secure aggregation, but a simulation adds unmasked updates"
    noise, unit, adjacency, mechanism, bound = "no noise is added", nothing, nothing, nothing, None
    epsilon, choice = f"{nothing}; add [defenses.dp_sgd] to the configuration", nothing
    if promise is not None:
        unit, adjacency = f"{promise['unit']}; not all examples of a client together", promise["adjacency"]
        epsilon = f"{epsilon_by_view(promise)}, at delta {promise['delta']:g}, over all rounds"
        noise = "each client adds noise to its update"
        if promise["noise"] == "sum":
            noise = f"each of at least {promise['min_clients']} clients adds its share of the noise; nobody checks this"
        approximate = " (epsilon is approximate)" if promise["sampling"] == "shuffled" else ""
        mechanism = (
            f"Gaussian noise of {promise['noise_multiplier']} times the clipping norm {promise['max_grad_norm']}; "
            f"sampling: {promise['sampling']}{approximate}; accountant: {promise['accountant']}"
        )
        choice = "clients choose by loss and send the choice without noise"
        if models == 1:
            choice = "there is only one model, so clients do not choose"
        elif promise["choice_of_model_covered"]:
            choice = "clients choose by noisy statistics, which epsilon covers"
        bound = promise["lower_bound"]
    covered = promise is not None
    lower = "run shoal run CONFIG --set canaries.per_client=4" if covered else nothing
    if bound is not None:
        lower = f"{number(bound['epsilon'])} at delta {bound['delta']:g}, by {bound['by']} (95 %)"
    answers: list[tuple[str, bool, str]] = [
        ("Unit of privacy", covered, unit),
        ("Adjacency", covered, adjacency),
        ("Epsilon and delta", covered, epsilon),
        ("Trust model", True, f"{noise}; {server}"),
        ("Mechanism and accounting", covered, mechanism),
        ("Choice of a client's model", covered and (models == 1 or promise["choice_of_model_covered"]), choice),
        ("Empirical lower bound", bound is not None, lower),
        ("Attacks asked", bool(attacked), attacks),
        ("Utility and bias", True, "accuracy by group is on this card"),
        ("Composition over releases", False, "epsilons of further runs on the same clients add up"),
        ("Choice of hyper-parameters", False, "epsilon does not cover runs that tune settings"),
        ("Side channels: floating point, timing, random numbers", False, "the noise is pseudo-random and float32"),
        ("Exposure at data collection", False, "data are collected before this run"),
        ("Access control and security of stored data", False, "this depends on who holds the run's directory"),
        ("Inference of properties, of groups, of participation", False, "epsilon and attacks concern single examples"),
    ]
    return [
        {"question": question, "covered": yes, "answer": answer if yes else f"not covered: {answer}"}
        for question, yes, answer in answers
    ]
