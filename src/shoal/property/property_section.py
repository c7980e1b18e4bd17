"""The section of a run's page on a property attack: who infers what, the metrics and the figures."""

from collections.abc import Sequence
from math import nan, sqrt
from typing import TYPE_CHECKING

import pandas as pd

from shoal.core.formats import capitalized, count
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Metrics, Summary
from shoal.property.property_figures import auc_over_rounds, cosines, maps
from shoal.property.update_table import control_auc
from shoal.reports.page import Section
from shoal.reports.table import Cell, Row, Table, metric_table, row

if TYPE_CHECKING:
    from shoal.property.scenario import PropertyAttackSection


def property_section(
    attack: "PropertyAttackSection", task: str | None, summary: Summary, updates: pd.DataFrame, clusters: int
) -> Section:
    """The section on a property attack.

    Args:
        attack: its settings.
        task: the main task and the property, as "main/property"; None where the data have only one of each.
        summary: of the run.
        updates: one row per aggregated update, as in property.csv.
        clusters: K, the number of models.
    """
    drawn = (auc_over_rounds(updates), cosines(updates), maps(updates, clusters)) if len(updates) else ()
    table = _table(summary, updates, clusters)
    return Section(
        "property",
        table.title,
        paragraphs=(_victim(attack.period, task), _attacker(attack), _reading(clusters)),
        table=table,
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
    overall, several = summary.overall, clusters > 1
    models = [summary.by_cluster.get(k, {}) for k in range(clusters)] if several else []
    columns = ("all models", *(f"cluster {k}" for k in range(clusters))) if several else ("value",)
    frames = [updates, *(updates[updates["cluster"] == k] for k in range(len(models)))]
    sizes = [(len(frame), int((frame["present"] > 0).sum())) for frame in frames]

    def named(key: str, cells: Sequence[str] | None = None, remark: str = "") -> Row:
        """A metric of all models, or its ``cells`` in every column."""
        metric = METRICS[key]
        texts = [metric.text(overall.get(key)), *("" for _ in models)] if cells is None else cells
        return row(Cell(capitalized(metric.name.removeprefix("property ")), metric.meaning + remark), *texts)

    control, auc = METRICS["property.auc_control"].text, METRICS["property_auc"].text
    guessing = "Of the AUC of random scores, by the counts above: of few updates it is large."
    spreads = [_spread(overall, "cosine.mean", "cosine.sd"), *(_spread(each, "cosine", "cosine_sd") for each in models)]
    rows = (
        named("property.updates", [count(total) for total, _ in sizes]),
        named("property.positives", [count(held) for _, held in sizes]),
        named("property.auc", [auc(overall.get("property.auc")), *(auc(each.get("property_auc")) for each in models)]),
        named("property.auc_control", [control(overall.get("property.auc_control")),
                                       *(control(control_auc(frame)) for frame in frames[1:])]),
        row(Cell("Standard deviation of guessing", guessing), *(control(_sd_of_guessing(*size)) for size in sizes)),
        named("property.auc_within"),
        named("property.auc_rounds"),
        named("property.auc_counterfactual", remark=f" Of {count(overall.get('property.pairs', 0))} pairs."),
        named("property.auc_swapped"),
        named("cosine.mean", spreads, " Mean ± standard deviation."),
        named("main.auc"),
        named("main.auc_even"),
    )  # fmt: skip
    return metric_table("Property inference", columns, rows)


def _sd_of_guessing(total: int, held: int) -> float:
    """The standard deviation of the AUC of random scores (Mann and Whitney 1947); NaN where one kind is missing.

    >>> round(_sd_of_guessing(180, 12), 4)
    0.0865
    """
    others = total - held
    return sqrt((total + 1) / (12 * held * others)) if held and others else nan


def _spread(metrics: Metrics, mean: str, deviation: str) -> str:
    return " ± ".join(METRICS[key].text(metrics.get(key)) for key in (mean, deviation))
