"""The section of a run's page on a property attack: who infers what, the metrics and the figures."""

from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import TYPE_CHECKING

import pandas as pd

from shoal.core.formats import DASH, count, decimal
from shoal.metrics.summary import Metrics, Summary
from shoal.property.property_figures import auc_over_rounds, cosines, maps
from shoal.property.update_table import control_auc
from shoal.reports.plotting import Figure
from shoal.reports.run.run_tables import Table, TableRow, cell

if TYPE_CHECKING:
    from shoal.property.scenario import PropertyAttackSection


@dataclass(frozen=True)
class PropertySection:
    """The section: its paragraphs, its metrics with a column for all models and one for each, and its figures."""

    paragraphs: tuple[str, ...]
    table: Table
    figures: tuple[Figure, ...]


def property_section(
    attack: "PropertyAttackSection", task: str | None, summary: Summary, updates: pd.DataFrame, clusters: int
) -> PropertySection:
    """The section on a property attack.

    Args:
        attack: its settings.
        task: the main task and the property, as "main/property"; None where the data have only one of each.
        summary: of the run.
        updates: one row per aggregated update, as in property.csv.
        clusters: K, the number of models.
    """
    drawn = (auc_over_rounds(updates), cosines(updates), maps(updates, clusters)) if len(updates) else ()
    return PropertySection(
        paragraphs=(_victim(attack.period, task), _attacker(attack), _reading(clusters)),
        table=_table(summary, updates, clusters),
        figures=tuple(figure for figure in drawn if figure is not None),
    )


def _victim(period: int, task: str | None) -> str:
    main, _, held = (task or "").partition("/")
    what = f"the property {held} (the models learn {main}, which is another matter)" if held else "a property"
    return (
        f"One client, the victim, holds examples with {what}. In every round whose number is a multiple of "
        f"{period} it trains on these alone, in all others on its other examples alone. Another client wants to "
        "know in which rounds the property was there."
    )


def _attacker(section: "PropertyAttackSection") -> str:
    attack = section.attack
    loss = f"{section.alpha:g} times the main task's loss plus {1 - section.alpha:g} times the property's"
    trains = f"trains on {loss}, so that the models learn to separate examples with the property"
    does = {
        "passive": "trains as every client does and only observes (a passive attack)",
        "active": f"{trains} (an active attack)",
        "scaled": f"{trains}, and sends its update {section.gamma:g} times as large (an active attack, scaled)",
    }[section.mode]
    visible = "all models" if attack.visible_models == "all" else "only the model that it trains in a round,"
    own = "examples of its own" if attack.auxiliary == "attacker" else "examples of its own and the test examples"
    forest = "a random forest" if attack.forests == "single" else "a random forest for each model"
    late = f" from round {attack.warm_up + 1} on" if attack.warm_up else ""
    return (
        f"That client, the attacker, {does}. It sees {visible} before and after each round{late}; their difference is "
        f"the aggregated update of those who trained the model. On {own} it simulates such updates with the property "
        f"and without, and {forest} that learned from these says how likely it is in a real one."
    )


def _reading(clusters: int) -> str:
    text = (
        "AUC, the area under the ROC curve, is how often the attacker is surer of an update with the property than of "
        "one without it: 0.5 is guessing, 1 always right."
    )
    several = (
        " Where the victim trains only some of the models, merely telling models apart can give a high AUC over all of "
        "them; over one model, or over rounds, that is no help."
    )
    return text + several * (clusters > 1)


def _table(summary: Summary, updates: pd.DataFrame, clusters: int) -> Table:
    """One column for all models, and one for each where there are several."""
    overall = summary.overall
    each = [summary.by_cluster.get(k, {}) for k in range(clusters)] if clusters > 1 else []
    heads = ("all models", *(f"cluster {k}" for k in range(clusters))) if each else ("value",)
    frames = [updates, *(updates[updates["cluster"] == k] for k in range(len(each)))]
    sizes = [(len(frame), int((frame["present"] > 0).sum())) for frame in frames]
    controls = [_decimal(control_auc(frame)) for frame in frames[1:]]

    def once(key: str) -> tuple[str, ...]:
        return (cell(overall, key, decimal), *("" for _ in each))

    return Table("Property inference", heads, (
        TableRow("Updates", "Aggregated updates that the attacker observed and classified.", tuple(
            count(total) for total, _ in sizes
        )),
        TableRow("… with the property", "Of models that the victim trained on the property in that round.", tuple(
            count(held) for _, held in sizes
        )),
        TableRow("AUC", "Over these updates.", (
            cell(overall, "property.auc", decimal), *(cell(metrics, "property_auc", decimal) for metrics in each)
        )),
        TableRow("AUC, control", (
            "The same by forests that learned from shuffled labels. Far from 0.5, the updates with the property stand "
            "out by chance or by something else, and the AUC above means less."
        ), (cell(overall, "property.auc_control", decimal), *controls)),
        TableRow("Standard deviation of guessing", (
            "Of the AUC of random scores, by the counts above: of few updates it is large."
        ), tuple(_decimal(_sd_of_guessing(*size)) for size in sizes)),
        TableRow("AUC within models", (
            "Over pairs of updates of the same model alone, so that telling models apart is no help."
        ), once("property.auc_within")),
        TableRow("AUC over rounds", (
            "How often the attacker is surer of a round with the property than of one without, each round counting by "
            "its update of highest rank among all of the same model. Compares one model with many."
        ), once("property.auc_rounds")),
        TableRow("AUC, counterfactual", (
            "Each update that holds a part of the victim's is computed once more with the victim's examples of the "
            "other kind: how often the attacker is surer of the one with the property. Labels, models and rounds are "
            f"the same in both. Of {count(int(overall.get('property.pairs', 0)))} pairs."
        ), once("property.auc_counterfactual")),
        TableRow("AUC, counterfactual, over rounds", (
            "Over the same updates, each with the property against each without it, of the same model and of any "
            "round: what other clients did in the round is in the attacker's way."
        ), once("property.auc_swapped")),
        TableRow("Cosine of consecutive updates", (
            "Mean ± standard deviation: 1 where a model's update keeps the direction of the one before."
        ), (
            _spread(overall, "cosine.mean", "cosine.sd"),
            *(_spread(metrics, "cosine", "cosine_sd") for metrics in each),
        )),
        TableRow("Main task, AUC", (
            "What clients get from the models: each client's model on test examples, in the mix of labels that the "
            "client itself has. Models that only know which labels their clients have are good at this."
        ), once("main.auc")),
        TableRow("Main task, AUC on even labels", (
            "The same with the test examples as they are: what the models know of an example beside whose it is."
        ), once("main.auc_even")),
    ))  # fmt: skip


def _sd_of_guessing(total: int, held: int) -> float:
    """The standard deviation of the AUC of random scores (Mann and Whitney 1947); NaN where one kind is missing.

    >>> round(_sd_of_guessing(180, 12), 4)
    0.0865
    """
    others = total - held
    return sqrt((total + 1) / (12 * held * others)) if held and others else nan


def _decimal(value: float) -> str:
    return DASH if isnan(value) else decimal(value)


def _spread(metrics: Metrics, mean: str, sd: str) -> str:
    return f"{cell(metrics, mean, decimal)} ± {cell(metrics, sd, decimal)}"
