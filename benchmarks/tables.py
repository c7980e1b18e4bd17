"""From what the sides printed to tables and verdicts."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparisons import Goal, Row

DISTURBED = 0.2
"""Cores kept busy by others above which a measurement is not to be trusted: kernels that share their work among
threads then take many times as long, which flatters the sides that do not."""


@dataclass(frozen=True)
class Measured:
    """A side's repeats, pooled.

    Args:
        seconds: wall time of every counted round of every repeat; empty where all repeats failed.
        images: trained a round.
        peak_mib: the highest of the repeats' peaks.
        peak_gpu_mib: the same of GPU memory; 0 without one.
        cpu_seconds: a round, the median of the repeats.
        startup_seconds: the median of the repeats.
        others: cores kept busy by others, the highest of the repeats.
        parts: seconds spent on each part of the rounds, over all repeats.
        failures: a sentence for each repeat that failed.
        left_out: repeats that others disturbed, where there were undisturbed ones to go by.
    """

    seconds: tuple[float, ...] = ()
    images: int = 0
    peak_mib: float = 0.0
    peak_gpu_mib: float = 0.0
    cpu_seconds: float = 0.0
    startup_seconds: float = 0.0
    others: float = 0.0
    parts: Mapping[str, float] | None = None
    failures: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def median(self) -> float:
        """Median seconds a round."""
        return statistics.median(self.seconds)


def pool(outcomes: Sequence[Mapping | str]) -> Measured:
    """One side's repeats: what each printed, or a sentence for each that failed."""
    failures = tuple(each for each in outcomes if isinstance(each, str))
    everything = [each for each in outcomes if not isinstance(each, str)]
    printed = [each for each in everything if each["others_cores"] <= DISTURBED] or everything
    if not printed:
        return Measured(failures=failures)
    parts: dict[str, float] = {}
    for each in printed:
        for part, spent in each.get("parts", {}).items():
            parts[part] = parts.get(part, 0.0) + spent
    return Measured(
        seconds=tuple(second for each in printed for second in each["seconds"]),
        images=printed[0]["images"],
        peak_mib=max(each["peak_mib"] for each in printed),
        peak_gpu_mib=max(each.get("peak_gpu_mib", 0.0) for each in printed),
        cpu_seconds=statistics.median(each["cpu_seconds_per_round"] for each in printed),
        startup_seconds=statistics.median(each["startup_seconds"] for each in printed),
        others=max(each["others_cores"] for each in printed),
        parts=parts,
        failures=failures,
        left_out=len(everything) - len(printed),
    )


def table(row: Row, measured: Mapping[str, Measured]) -> str:
    """A row's sides as a Markdown table; ``measured`` by label, sides that were left out missing.

    "times" is a side's median over the first side's: how many times as fast the first one is.
    """
    first = measured.get(row.sides[0].label, Measured())
    lines = [
        "| side | s a round | min to max | images/s | times | peak MiB | CPU s a round | start-up s | others' cores |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for side in row.sides:
        if side.label not in measured:
            continue
        one = measured[side.label]
        if not one.seconds:
            lines.append(f"| {side.label} | failed: {cell(one.failures[-1])} |" + " |" * 7)
            continue
        peak = f"{one.peak_mib:,.0f}" + (f" + {one.peak_gpu_mib:,.0f} GPU" if one.peak_gpu_mib else "")
        cells = [
            side.label,
            number(one.median),
            f"{number(min(one.seconds))} to {number(max(one.seconds))}",
            f"{one.images / one.median:,.0f}",
            f"{one.median / first.median:.2f}" if first.seconds else "",
            peak,
            number(one.cpu_seconds),
            f"{one.startup_seconds:.1f}",
            f"{one.others:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    notes = []
    for label, one in measured.items():
        if one.seconds and one.failures:
            notes.append(f"{label}: {_repeats(len(one.failures))} failed: {cell(one.failures[-1])}")
        if one.left_out:
            notes.append(f"{label}: {_repeats(one.left_out)} left out, as others used the machine meanwhile")
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


def verdict(goal: Goal, measured: Mapping[str, Measured]) -> str:
    """A goal in words, what was measured, and whether that meets it."""
    sentence = _sentence(goal)
    missing = [label for label in (goal.side, *goal.against) if label not in measured or not measured[label].seconds]
    there = [label for label in goal.against if label not in missing]
    if goal.side in missing or (goal.against and not there):
        return f"{sentence}: not measured, {_reason(missing, measured)}"
    side = measured[goal.side]
    best = min(there, key=lambda label: measured[label].median, default=goal.side)
    found = ratio(goal, side, measured[best])
    met = found >= goal.bound if goal.measure == "speed" else found <= goal.bound
    value = f"{found:.1%}" if goal.measure == "share" else f"{found:.2f}"
    named = f" (against {best})" if len(goal.against) > 1 else ""
    judged = "met" if met else "not met"
    if max(side.others, measured[best].others) > DISTURBED:
        judged = "not judged, others used the machine meanwhile"
    without = f"; {_reason(missing, measured)}" if missing else ""
    return f"{sentence}: {value}{named}, **{judged}**{without}"


def ratio(goal: Goal, side: Measured, against: Measured) -> float:
    """The number that a goal bounds; NaN where there is nothing to divide by."""
    match goal.measure:
        case "speed":
            return against.median / side.median
        case "memory":
            return side.peak_mib / against.peak_mib
        case "image":
            return (side.median / side.images) / (against.median / against.images)
        case "share":
            parts = side.parts or {}
            total = sum(parts.values())
            return parts.get(goal.part, 0.0) / total if total else math.nan


def number(value: float) -> str:
    """Three significant digits, without an exponent.

    >>> number(0.0123456), number(12.3456), number(1234.5)
    ('0.0123', '12.3', '1,234')
    """
    if value <= 0:
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def cell(text: str) -> str:
    """Text as it may stand in a cell of a table: one line, not too long, no bar."""
    words = " ".join(text.split()).replace("|", "/")
    return words if len(words) <= 160 else f"{words[:157]}..."


def _sentence(goal: Goal) -> str:
    if goal.measure == "share":
        return f"{goal.side}: {goal.part.replace('_', ' ')} takes at most {goal.bound:.0%} of the time"
    against = goal.against[0] if len(goal.against) == 1 else f"the fastest of {len(goal.against)}"
    match goal.measure:
        case "speed":
            return f"{goal.side} is at least {goal.bound:g} times as fast as {against}"
        case "memory":
            return f"{goal.side} takes at most {goal.bound:g} times the peak memory of {against}"
        case _:
            return f"{goal.side} takes at most {goal.bound:g} times as long an image as {against}"


def _reason(missing: Sequence[str], measured: Mapping[str, Measured]) -> str:
    reasons = []
    for label in missing:
        failures = measured[label].failures if label in measured else ()
        reasons.append(f"{label} failed ({cell(failures[-1])})" if failures else f"{label} was left out")
    return "; ".join(reasons)


def _repeats(count: int) -> str:
    return "1 repeat" if count == 1 else f"{count} repeats"
