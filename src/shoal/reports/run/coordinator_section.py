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
"""The line of the coordinator's target share."""


def coordinator_section(coordinator: LimitController, rounds: pd.DataFrame) -> Section | None:
    """Create the section about a run's coordinator, or return ``None`` if rounds.csv has no directives."""
    if "over_limit" not in rounds:
        return None
    strengths = {column: rounds[column].fillna(0) for column in map(str, rounds) if column.startswith(DIRECTIVE_COLUMN)}
    asked = [column for column, values in strengths.items() if (values != 0).any()]
    never = [column for column in strengths if column not in asked]
    paragraphs = [_method(coordinator)]
    if not asked:
        paragraphs.append("The coordinator never asked for a defence, so training was the algorithm's alone.")
    if f"{DIRECTIVE_COLUMN}dp_sgd" in strengths:
        paragraphs.append("No epsilon is stated, since the strength of DP-SGD differs by cluster and round.")
    if (unmet := (rounds["limit_unmet"] == 1).groupby(rounds["cluster"]).sum()).any():
        often = ", ".join(f"cluster {k} in {count} rounds" for k, count in unmet.items() if count)
        paragraphs.append(f"Defences within this cost could not keep the limits: {often}.")
    return Section("coordinated", "Coordinator", paragraphs, figures=[_figure(coordinator, rounds, asked, never)])


def _method(coordinator: LimitController) -> str:
    """Describe the coordinator's method."""
    sentence = (
        "After each risk estimate, every client reports whether its model's risk is above its limit. If the share of "
        f"clients above their limit exceeds {decimal(coordinator.target)} in a cluster, the coordinator asks the "
        "cluster for stronger defences, the cheapest first, up to an estimated cost of "
        f"{decimal(coordinator.max_cost)} in held-out accuracy."
    )
    if coordinator.vote_epsilon is None:
        return sentence
    return (
        f"{sentence} Answers are randomised (epsilon {coordinator.vote_epsilon:g} per answer), so shares are estimates."
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
    """Draw risk, shares over the limit, and each given directive over rounds."""
    reported = rounds.assign(reported=coordinator.audit_level + coordinator.audit_factor * (rounds["risk"] - 0.5))

    def panel(label: str, title: str, column: str, **more: Any) -> RoundPanel:  # noqa: ANN401 - fields of a panel
        return RoundPanel(curves_by_cluster(reported, column), label, title, steps=True, **more)

    over = {"least": (-0.05, 1.05), "level": coordinator.target, "line": TARGET_LINE}
    panels = [
        panel(
            "risk",
            "Risk reported to clients (balanced accuracy)",
            "reported",
            level=0.5,
            least=(0.45, 0.6),
        ),
        panel("members", "Share of clients over their limit", "over_limit", **over),
    ]
    for column in asked:
        name = directive_name(column)
        if name == "price":
            panels.append(panel("price", "Price of the model, in nats of loss", column))
        else:
            panels.append(panel("strength", f"{capitalize(name)}: share of full strength", column, least=(-0.05, 1.05)))
    factor = coordinator.audit_factor
    times = "" if factor == 1 else f", its advantage over chance times {factor:g}"
    times += "" if coordinator.audit_level == 0.5 else f", above {coordinator.audit_level:g}"
    caption = (
        f"Top: the red team's estimate{times}. Below: the share of a cluster's clients that report a risk above their "
        "limit. Then: the strengths asked of each cluster from the next round on; 1 is the configured strength."
    )
    if never:
        caption += f" Never asked for: {', '.join(map(directive_name, never))}."
    keys = [plot.chance_key(), plot.key(f"target ({decimal(coordinator.target)})", **TARGET_LINE)]
    return rounds_chart("coordinator", _title(coordinator, rounds), caption, panels, rounds["round"], keys)


def _title(coordinator: LimitController, rounds: pd.DataFrame) -> str:
    """Describe the share of clients over their limit at the first and the last estimate."""
    known = rounds.dropna(subset=["over_limit"])
    share = (known["over_limit"] * known["clients"]).groupby(known["round"]).sum()
    share = (share / known["clients"].groupby(known["round"]).sum()).dropna()
    if share.empty:
        return "Risk was never estimated, so the coordinator asked for nothing"
    first, last = decimal(share.iloc[0]), decimal(share.iloc[-1])
    where = f"round {share.index[0]} to round {share.index[-1]}"
    if coordinator.vote_epsilon is not None:
        return f"Share of clients over their limit, estimated from noisy answers: {first} to {last}, {where}"
    if first == last:
        return f"Share of clients over their limit: {first} in round {share.index[0]} and in round {share.index[-1]}"
    way = "falls" if share.iloc[-1] < share.iloc[0] else "rises"
    return f"The share of clients over their limit {way} from {first} to {last}, {where}"
