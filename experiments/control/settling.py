"""When a strength has settled after an event, and how often it turns round: from the rows of `step_response.py`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

BAND = 0.1
"""A strength has settled once it stays so near to its final mean."""

FINAL = 4
"""The estimates at the end whose mean is the final one."""


def settled_after(before: float, after: Sequence[float]) -> int | None:
    """The number of estimates after an event from which on a strength stays within `BAND` of its final mean.

    Args:
        before: the strength at the event.
        after: as each estimate after it leaves the strength.

    Returns:
        0 where it never left the band; None where it is still outside in the last `FINAL` estimates.

    >>> settled_after(0.0, [0.4, 0.9, 1.0, 1.0, 1.0, 1.0])
    2
    """
    values = np.array([before, *after])
    outside = np.flatnonzero(np.abs(values - values[-FINAL:].mean()) > BAND)
    last = int(outside[-1]) if len(outside) else -1
    return None if last >= len(values) - FINAL else last + 1


def reversals(values: Sequence[float]) -> int:
    """How many times a sequence that rose falls, or one that fell rises; where it stays, nothing is counted.

    >>> reversals([0.0, 0.5, 0.5, 0.2, 0.3])
    2
    """
    steps = np.diff(np.asarray(values, dtype=float))
    signs = np.sign(steps[np.abs(steps) > 1e-9])
    return int((signs[1:] != signs[:-1]).sum())


def settling(rows: pd.DataFrame, event: int) -> pd.DataFrame:
    """One row per seed, cluster and knob, from rows at estimates (`step_response.run`), one of them in round ``event``.

    Returns:
        settled: see `settled_after`, NaN for None; reversals: after the event; reversals_settled: of these, after it
        has settled; strength, risk and over_limit: their means over the last `FINAL` estimates.
    """
    lines = []
    knobs = [name for name in rows if str(name).startswith("directive.")]
    for (seed, cluster), mine in rows.sort_values("round").groupby(["seed", "cluster"]):
        after, last = mine[mine["round"] > event], mine.tail(FINAL)
        for knob in knobs:
            before = float(mine.loc[mine["round"] == event, knob].iloc[0])
            values = [before, *after[knob]]
            settled = settled_after(before, values[1:])
            lines.append({
                "seed": seed, "cluster": cluster, "knob": str(knob).removeprefix("directive."),
                "settled": np.nan if settled is None else settled, "reversals": reversals(values),
                "reversals_settled": np.nan if settled is None else reversals(values[settled:]),
                "strength": last[knob].mean(), "risk": last["risk"].mean(), "over_limit": last["over_limit"].mean(),
            })  # fmt: skip
    return pd.DataFrame(lines)


def table(lines: pd.DataFrame) -> str:
    """The lines of `settling` as Markdown."""
    heads = [
        "cluster", "knob", "seed", "settled after (estimates)", "reversals after the event",
        "of these, after settling", "final strength", "final risk", "final share over the limit",
    ]  # fmt: skip
    parts = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for each in lines.sort_values(["cluster", "knob", "seed"]).itertuples():
        counts = ["not" if np.isnan(each.settled) else f"{each.settled:.0f}", f"{each.reversals}"]
        counts.append("" if np.isnan(each.reversals_settled) else f"{each.reversals_settled:.0f}")
        figures = [f"{each.strength:.2f}", f"{each.risk:.3f}", f"{each.over_limit:.2f}"]
        parts.append(f"| {' | '.join([each.cluster, each.knob, str(each.seed), *counts, *figures])} |")
    return "\n".join(parts) + "\n"


def conclusion(lines: pd.DataFrame) -> str:
    """The lines of `settling` in a sentence."""
    settled, turned = lines["settled"].dropna(), lines["reversals"]
    when = f", after {settled.median():g} estimates (median) and {settled.max():g} at most" if len(settled) else ""
    return (
        f"{len(settled)} of {len(lines)} strengths settled{when}. After the event a strength turned round "
        f"{turned.median():g} times (median), {turned.max()} at most."
    )
