"""The section about the coordinator in a run's page."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from shoal.control import DIRECTIVE_COLUMN, LimitController
from shoal.core.formats import capitalize, decimal
from shoal.reports import plotting as plot
from shoal.reports.charts import RoundPanel, curves_by_cluster, rounds_chart
from shoal.reports.page import Section

TARGET_LINE: Any = {"color": "#222222", "linewidth": 1.0, "linestyle": "-"}
"""The line of the share that a coordinator allows."""


def coordinator_section(coordinator: LimitController, rounds: pd.DataFrame) -> Section | None:
    """Create the section about a run's coordinator, or return ``None`` if rounds.csv has no directives."""
    if "over_limit" not in rounds:
        return None
    strengths = {column: rounds[column].fillna(0) for column in map(str, rounds) if column.startswith(DIRECTIVE_COLUMN)}
    asked = [column for column, values in strengths.items() if (values != 0).any()]
    never = [column for column in strengths if column not in asked]
    paragraphs = [_method(coordinator)]
    if not asked:
        paragraphs.append("It never asked for anything, so training was that of the algorithm alone.")
    if f"{DIRECTIVE_COLUMN}dp_sgd" in strengths:
        paragraphs.append("No epsilon is stated, since the strength of DP-SGD differs by cluster and round.")
    if (unmet := (rounds["limit_unmet"] == 1).groupby(rounds["cluster"]).sum()).any():
        often = ", ".join(f"cluster {k} in {count} rounds" for k, count in unmet.items() if count)
        paragraphs.append(f"Limits could not be kept with knobs of this cost: {often}.")
    return Section("coordinated", "Coordinator", paragraphs, figures=[_figure(coordinator, rounds, asked, never)])


def _method(coordinator: LimitController) -> str:
    """How it steers, in one sentence or two."""
    sentence = (
        "After each estimate of risk every client says whether its model's risk is above what it tolerates. Where the "
        f"share of a model's members who do is above {decimal(coordinator.target)}, the coordinator asks their cluster "
        "for stronger defences, the cheapest first, as far as they are thought to cost at most "
        f"{decimal(coordinator.max_cost)} of held-out accuracy."
    )
    if coordinator.vote_epsilon is None:
        return sentence
    return (
        f"{sentence} Answers are randomised (epsilon {coordinator.vote_epsilon:g} for each), so shares are estimates."
    )


def directive_name(column: str) -> str:
    """Return a directive's name in words, from its column in rounds.csv.

    >>> directive_name("directive.shorter_training")
    'shorter training'
    """
    return column.removeprefix(DIRECTIVE_COLUMN).replace("_", " ")


def _figure(
    coordinator: LimitController, rounds: pd.DataFrame, asked: Sequence[str], never: Sequence[str]
) -> plot.Figure:
    """Risk, shares over the limit, and each directive that was ever given, over rounds."""
    reported = rounds.assign(reported=coordinator.audit_level + coordinator.audit_factor * (rounds["risk"] - 0.5))

    def panel(label: str, title: str, column: str, **more: Any) -> RoundPanel:  # noqa: ANN401 - fields of a panel
        return RoundPanel(curves_by_cluster(reported, column), label, title, steps=True, **more)

    over = {"least": (-0.05, 1.05), "level": coordinator.target, "line": TARGET_LINE}
    panels = [
        panel(
            "risk", "Risk as told to clients: balanced accuracy of the attack", "reported", level=0.5, least=(0.45, 0.6)
        ),
        panel("members", "Share of the members who are over their limit", "over_limit", **over),
    ]
    for column in asked:
        name = directive_name(column)
        if name == "price":
            panels.append(panel("price", "Price of the model, in nats of loss", column))
        else:
            panels.append(
                panel("strength", f"{capitalize(name)}: share of its full strength", column, least=(-0.05, 1.05))
            )
    factor = coordinator.audit_factor
    times = "" if factor == 1 else f", its advantage over chance times {factor:g}"
    times += "" if coordinator.audit_level == 0.5 else f", above {coordinator.audit_level:g}"
    caption = (
        f"Top: the red team's estimate{times}. Below: the share of the members who say that it is too high. Then what "
        "each cluster was asked for, from the next round on; 1 is the strength that the configuration gives."
    )
    if never:
        caption += f" Never asked for: {', '.join(map(directive_name, never))}."
    keys = [plot.chance_key(), plot.key(f"target ({decimal(coordinator.target)})", **TARGET_LINE)]
    return rounds_chart("coordinator", _title(coordinator, rounds), caption, panels, rounds["round"], keys)


def _title(coordinator: LimitController, rounds: pd.DataFrame) -> str:
    """How many members were over their limit at the first estimate and at the last; votes with noise are no counts."""
    known = rounds.dropna(subset=["over_limit"])
    share = (known["over_limit"] * known["clients"]).groupby(known["round"]).sum()
    share = (share / known["clients"].groupby(known["round"]).sum()).dropna()
    if share.empty:
        return "Risk was never estimated, so nothing was asked for"
    first, last = decimal(share.iloc[0]), decimal(share.iloc[-1])
    where = f"round {share.index[0]} to round {share.index[-1]}"
    if coordinator.vote_epsilon is not None:
        return f"Share of members over their limit, estimated from noisy answers: {first} to {last}, {where}"
    if first == last:
        return f"Share of members over their limit: {first} in round {share.index[0]} and in round {share.index[-1]}"
    way = "falls" if share.iloc[-1] < share.iloc[0] else "rises"
    return f"The share of members over their limit {way} from {first} to {last}, {where}"
