"""What a figure is about: its wish, the runs, and words for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.reports.sweep.labels import Words
from shoal.reports.sweep.seed_statistics import Outcomes
from shoal.reports.sweep.spec import FigureSection, Value


@dataclass(frozen=True)
class Scene:
    """A figure that is asked for, over the runs there are.

    Args:
        asked: the figure.
        outcomes: the runs.
        words: names of axes, settings and keys.
    """

    asked: FigureSection
    outcomes: Outcomes
    words: Words

    @property
    def seeds(self) -> Sequence[int]:
        """Of the sweep."""
        return self.outcomes.seeds

    def settings(self, axis: str | None) -> Sequence[Value | None]:
        """The settings of an axis in the order of the file; None alone where the figure has no such axis."""
        return [None] if axis is None else self.outcomes.axes[axis]

    def place(self, x: Value | None, by: Value | None) -> Mapping[str, Value]:
        """The axes' settings at a place of the figure, but for those averaged over."""
        shown = ((self.asked.x, x), (self.asked.by, by))
        return self.asked.where | {axis: value for axis, value in shown if axis is not None and value is not None}

    def named(self, setting: str) -> str:
        """A setting of `by` with its axis, where it is a number and says little alone."""
        by = self.asked.by
        plain = by is not None and all(isinstance(each, str) for each in self.outcomes.axes[by])
        # A number alone in its line would be lost.
        return setting if plain or by is None else f"{self.words.axis(by)}\N{NO-BREAK SPACE}{setting}"
