"""What a run's page says of a property attack: who looked for what, what was found, and its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
import pandas as pd

from shoal.config.schema import Config, PropertyAttackSection
from shoal.reports.frames import column, rows
from shoal.reports.run import property_figures
from shoal.reports.run.round_curves import Drawing
from shoal.reports.run.tables import DASH, Line, Table, count, decimal, shown
from shoal.simulation.property_metrics import auc


@dataclass(frozen=True)
class Inference:
    """The section of a page.

    Args:
        words: its paragraphs.
        table: the figures, a column for all models and one for each.
        drawings: its figures.
    """

    words: tuple[str, ...]
    table: Table
    drawings: tuple[Drawing, ...]


def inference(config: Config, figures: Mapping[str, Any], updates: pd.DataFrame | None) -> Inference | None:
    """The section on a property attack; None where the run has none.

    Args:
        config: of the run.
        figures: of its summary, by key.
        updates: a row an update, as in property.csv; None where they are not known.
    """
    attack = config.property_attack
    if attack is None:
        return None
    models = config.algorithm.value.clusters
    drawings: tuple[Drawing | None, ...] = ()
    if updates is not None and len(updates):
        drawings = (
            property_figures.auc_over_rounds(updates),
            property_figures.cosines(updates),
            property_figures.maps(updates, models),
        )
    return Inference(
        words=(_victim(config, attack), _attacker(attack), _reading(models)),
        table=_table(figures, _split(updates, models)),
        drawings=tuple(each for each in drawings if each is not None),
    )


def _victim(config: Config, attack: PropertyAttackSection) -> str:
    task = config.data.task or ""
    main, _, held = task.partition("/")
    what = f"the property {held} (the models learn {main}, which is another matter)" if held else "a property"
    return (
        f"One client, the victim, holds examples with {what}. In every round whose number is a multiple of "
        f"{attack.period} it trains on these alone, in all others on its other examples alone. Somebody else wants to "
        "know in which rounds the property was there."
    )


def _attacker(attack: PropertyAttackSection) -> str:
    taught = f"{attack.alpha:g} times the main task's loss plus {1 - attack.alpha:g} times the property's"
    does = {
        "passive": "trains as everyone does and only watches (a passive attack)",
        "active": f"trains on {taught}, so that the models learn to tell the property apart (an active attack)",
        "scaled": f"trains on {taught}, so that the models learn to tell the property apart, and sends its update "
        f"{attack.gamma:g} times as large (an active attack, scaled)",
    }[attack.mode]
    seen = attack.attack
    sees = "all models" if seen.visible_models == "all" else "only the model that it trains in a round,"
    own = "examples of its own" if seen.auxiliary == "attacker" else "examples of its own and the test examples"
    forest = "a random forest" if seen.forests == "single" else "a random forest for each model"
    late = f" from round {seen.warm_up + 1} on" if seen.warm_up else ""
    return (
        f"That is another client, the attacker, who {does}. It sees {sees} before and after each round{late}; their "
        f"difference is the aggregated update of those who trained the model. On {own} it simulates such updates with "
        f"the property and without, and {forest} that learned from these says how likely it is in a real one."
    )


def _reading(models: int) -> str:
    told = (
        "AUC, the area under the ROC curve, is how often the attacker is surer of an update with the property than of "
        "one without it: 0.5 is a coin, 1 always right."
    )
    if models > 1:
        told += (
            " Where the victim trains only some of the models, merely telling models apart can give a high AUC over "
            "all of them; over one model, or over rounds, that is no help."
        )
    return told


def _split(updates: pd.DataFrame | None, models: int) -> list[pd.DataFrame | None]:
    """All updates, then those of each model where there are several."""
    if updates is None or models == 1:
        return [updates] * (models + 1 if models > 1 else 1)
    return [updates, *(rows(updates, column(updates, "cluster") == k) for k in range(models))]


def _table(figures: Mapping[str, Any], frames: Sequence[pd.DataFrame | None]) -> Table:
    """A column for all models, and one for each where there are several; ``frames`` are those of `_split`."""
    numbers = range(len(frames) - 1)

    def once(key: str) -> tuple[str, ...]:
        return (shown(figures, key, decimal), *("" for _ in numbers))

    each_auc = (shown(figures, f"clusters.{k}.property_auc", decimal) for k in numbers)
    controls = (_number(_control(each)) for each in frames[1:])
    cosine = (_spread(figures, f"clusters.{k}.cosine", f"clusters.{k}.cosine_sd") for k in numbers)
    heads = ("all models", *(f"cluster {k}" for k in numbers)) if numbers else ("value",)
    return Table("Property inference", heads, (
        Line("Updates", "Aggregated updates that the attacker saw and judged.", tuple(
            DASH if each is None else count(len(each)) for each in frames
        )),
        Line("… with the property", "Of models that the victim trained on the property in that round.", tuple(
            DASH if each is None else count(_held(each)) for each in frames
        )),
        Line("AUC", "Over these updates.", (shown(figures, "property.auc", decimal), *each_auc)),
        Line("AUC, control", (
            "The same by forests that learned from shuffled labels. Far from 0.5, the updates with the property stand "
            "out by chance or by something else, and the AUC above means less."
        ), (shown(figures, "property.auc_control", decimal), *controls)),
        Line("Spread of a coin's AUC", (
            "Standard deviation of the AUC of somebody who guesses, by the counts above: with few updates chance goes "
            "far."
        ), tuple(DASH if each is None else _number(_guesser(len(each), _held(each))) for each in frames)),
        Line("AUC within models", (
            "Over pairs of updates of the same model alone, so that telling models apart is no help."
        ), once("property.auc_within")),
        Line("AUC over rounds", (
            "How often the attacker is surer of a round with the property than of one without, a round counting by its "
            "update of highest rank among all of the same model. Lets one model be compared with many."
        ), once("property.auc_rounds")),
        Line("Cosine of consecutive updates", (
            "Mean ± standard deviation: 1 where a model's update keeps the direction of the one before."
        ), (_spread(figures, "cosine.mean", "cosine.sd"), *cosine)),
        Line("Main task, AUC", (
            "What clients get from the models: each client's model on test examples, in the mix of labels that the "
            "client itself has. Models that only know which labels their clients have are good at this."
        ), once("main.auc")),
        Line("Main task, AUC on even labels", (
            "The same with the test examples as they are: what the models know of an example beside whose it is."
        ), once("main.auc_even")),
    ))  # fmt: skip


def _held(updates: pd.DataFrame) -> int:
    return int((column(updates, "present") > 0).sum())


def _control(updates: pd.DataFrame | None) -> float:
    """The mean AUC of the forests with shuffled labels; NaN where it is undefined."""
    if updates is None:
        return nan
    names = [str(name) for name in updates if str(name).startswith("control.")]
    found = [auc(column(updates, "present") > 0, column(updates, name)) for name in names]
    return float(np.mean(found)) if found else nan


def _guesser(total: int, held: int) -> float:
    """The standard deviation of a guesser's AUC (Mann and Whitney 1947); NaN where one kind is missing.

    >>> round(_guesser(180, 12), 4)
    0.0865
    """
    others = total - held
    return sqrt((total + 1) / (12 * held * others)) if held and others else nan


def _number(value: float) -> str:
    return DASH if isnan(value) else decimal(value)


def _spread(figures: Mapping[str, Any], mean: str, sd: str) -> str:
    return f"{shown(figures, mean, decimal)} ± {shown(figures, sd, decimal)}"
