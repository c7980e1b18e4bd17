"""A privacy card, which goes beside a released model: what was asked, what was found, what is promised, what is not.

The questions follow the differential privacy pyramid of NIST SP 800-226 (Guidelines for Evaluating Differential Privacy
Guarantees, March 2025; its Figure 1) in our words: privacy parameters and unit; algorithms and correctness, utility,
bias; access control, trust models, side channels, exposure at data collection. The choices of a model and of
hyper-parameters, the lower bound, the attacks and inference of properties are ours. Nothing is claimed without what
measured or computed it; of what nothing was asked, the card has the command that asks.
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
"""Version of card.json; a key that is added does not change it."""


@dataclass(frozen=True)
class Card:
    """A card that was written: its document, and the paths of card.json and card.html."""

    document: Mapping[str, Any]
    file: Path
    page: Path


def write_card(run: Path, out: Path | None = None, *, allow_code: bool = False) -> Card:
    """Write card.json and card.html of a finished run into its directory, or into ``out``.

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
    """The document of a card: ``run``, ``exposure``, ``promise`` and ``questions`` (docs/audit.md has the keys)."""
    about, summary, settings = result.description, result.summary, read_toml(run / "config.toml")
    promise = _stated_epsilon(summary.overall, settings)
    exposure = _exposure(run, result)
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
            "accuracy": {name: value for name, value in _accuracies(result).items() if isfinite(value)},
            "sha256": {"examples": about.examples} | _hashes(run),
        },
        "exposure": exposure,
        "promise": promise,
        "questions": _questions(len(summary.by_cluster), settings, promise, exposure),
    }


def _accuracies(result: Result) -> dict[str, float]:
    groups = {name: metrics.get("accuracy") for name, metrics in result.summary.by_group.items()}
    return {
        name: float(value)
        for name, value in {"all": result.summary.overall.get("accuracy.overall"), **groups}.items()
        if value is not None
    }


def _hashes(run: Path) -> dict[str, str]:
    files, names = stored_files(run), {"configuration": "config.toml", "models": "models.safetensors"}
    return {name: files[file] for name, file in names.items() if file in files}


def _exposure(run: Path, result: Result) -> dict[str, Any]:
    """What an audit of these models found of each view on each group and model; without one, what would ask."""
    command = f"shoal audit {run} --references 8"
    audit = result.audit_in_directory
    if audit is None:
        return {"asked": False, "command": command}
    flat = read_json(run / "audit.json")
    found, models = findings(audit), every_attack(audit, "model")
    return {
        "asked": True,
        "command": command,
        "references": int(flat["references"]),
        "members": int(flat["members"]),
        "non_members": int(flat["non_members"]),
        "views": {view: {one.group: _figures_of(one) for one in found if one.view == view} for view in VIEWS},
        "models": {name: _figures_of(decides) for name, (decides, *_) in models.items()},
    }


def _figures_of(finding: Finding) -> dict[str, Any]:
    """A finding: balanced accuracy with its interval, and its verdict."""
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
    """What differential privacy promises, with what computed it; None where no epsilon is stated."""
    if not isfinite(overall.get("epsilon", float("inf"))):
        return None
    by_view = {view: overall[f"epsilon.{view}"] for view in VIEWS if f"epsilon.{view}" in overall}
    rule = _private_rule(settings)
    bound = None
    if "canaries.epsilon_low" in overall:
        bound = {"epsilon": overall["canaries.epsilon_low"], "delta": overall["canaries.delta"], "by": "canaries"}
    return {
        "unit": "a training example",
        "adjacency": "one example more or less, the number of examples of its client known",
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
    """The settings of DP-SGD, wherever they stand in a configuration."""
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
    """The questions, each with its answer and whether this card covers it."""
    nothing = "no epsilon is stated"
    choice = nothing if promise is None else "a choice by loss is sent without noise"
    asked = [view for view in VIEWS if exposure.get("views", {}).get(view)]
    secure = "secure_aggregation" in settings
    answers: list[tuple[str, str | None]] = [
        ("Unit of privacy", f"{promise['unit']}; not all examples of a client together" if promise else None),
        ("Adjacency", promise["adjacency"] if promise else None),
        ("Epsilon and delta", _epsilon_words(promise) if promise else None),
        ("Trust model", _trust(promise, secure=secure)),
        ("Mechanism and accounting", _mechanism(promise) if promise else None),
        ("Choice of a client's model", _choice(promise, models) if promise else None),
        ("Empirical lower bound", _bound(promise) if promise else None),
        ("Attacks asked", f"views {', '.join(asked)}, with {exposure['references']} references" if asked else None),
        ("Utility and bias", "accuracy by group is on this card"),
        ("Composition over releases", None),
        ("Choice of hyper-parameters", None),
        ("Side channels: floating point, timing, random numbers", None),
        ("Exposure at data collection", None),
        ("Access control and security of stored data", None),
        ("Inference of properties, of groups, of participation", None),
    ]
    missing = {
        "Unit of privacy": nothing, "Adjacency": nothing, "Mechanism and accounting": nothing,
        "Epsilon and delta": f"{nothing}; [defenses.dp_sgd] in the configuration would",
        "Choice of a client's model": choice,
        "Empirical lower bound": "shoal run CONFIG --set canaries.per_client=4 asks" if promise else nothing,
        "Attacks asked": f"nothing was asked; {exposure['command']} asks",
        "Composition over releases": "this run alone; epsilons of further runs on the same clients add up",
        "Choice of hyper-parameters": "runs by which settings were chosen are not accounted for",
        "Side channels: floating point, timing, random numbers": "noise is of pseudo-random float32 numbers",
        "Exposure at data collection": "begins before this run",
        "Access control and security of stored data": "of those who hold the run's directory",
        "Inference of properties, of groups, of participation": "the epsilon and the attacks are of single examples",
    }  # fmt: skip
    return [
        {"question": name, "covered": answer is not None, "answer": answer or f"not covered: {missing[name]}"}
        for name, answer in answers
    ]


def _epsilon_words(promise: Mapping[str, Any]) -> str:
    return f"{epsilon_by_view(promise)}, at delta {promise['delta']:g}, over all rounds"


def _trust(promise: Mapping[str, Any] | None, *, secure: bool) -> str:
    sums = "the configuration asks for secure sums, of which a simulation only adds plain numbers"
    server = sums if secure else "without secure sums the server sees every client's update"
    noise = "no noise is added"
    if promise is not None:
        noise = "each client adds noise to what it sends"
        if promise["noise"] == "sum":
            noise = f"each of at least {promise['min_clients']} clients adds its share of the noise and is trusted to"
    return f"{noise}; {server}"


def _mechanism(promise: Mapping[str, Any]) -> str:
    rule = f"Gaussian noise of {promise['noise_multiplier']} times the clipping norm {promise['max_grad_norm']}"
    approximate = ", for which epsilon is an approximation" if promise["sampling"] == "shuffled" else ""
    return f"{rule}; sampling: {promise['sampling']}{approximate}; accountant: {promise['accountant']}"


def _choice(promise: Mapping[str, Any], models: int) -> str | None:
    if models == 1:
        return "there is one model, so none is chosen"
    return "by noisy statistics, which epsilon covers" if promise["choice_of_model_covered"] else None


def _bound(promise: Mapping[str, Any]) -> str | None:
    bound = promise["lower_bound"]
    return None if bound is None else f"{number(bound['epsilon'])} at delta {bound['delta']:g}, by {bound['by']} (95 %)"
