"""A gate: a limit on an audit's figures that a release must keep, such as ``tpr_at_fpr_0.01 <= 0.05``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from shoal.core.errors import InputError, described, nearest, require

LOWER_BOUND = "empirical_epsilon"
"""The figure without an upper end: what the mechanism certainly leaks. It breaks a gate itself."""

METRICS = ("auc", "accuracy", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001", LOWER_BOUND)
"""What a gate can limit."""

_FORM = re.compile(r"\s*(?P<key>\S+)\s*(?P<sign><=|<)\s*(?P<limit>\S+)\s*")


@dataclass(frozen=True)
class Gate:
    """A limit on the upper end of a figure's interval.

    Args:
        key: one of `METRICS`, of every attack on every group; or one key of audit.json, such as
            ``attacks.lira.minority.auc``.
        limit: what it must not exceed.
        strict: whether it must stay below ``limit``.
    """

    key: str
    limit: float
    strict: bool = False

    @staticmethod
    def of(expression: str) -> "Gate":
        """The gate that ``expression`` states.

        Raises:
            InputError: it has another form, or names no metric.

        >>> Gate.of("tpr_at_fpr_0.01 <= 0.05")
        Gate(key='tpr_at_fpr_0.01', limit=0.05, strict=False)
        """
        form = "a gate has the form 'METRIC <= NUMBER', such as 'tpr_at_fpr_0.01 <= 0.05'"
        found = _FORM.fullmatch(expression) if isinstance(expression, str) else None
        require(found is not None, f"{form}; got {described(expression)}")
        assert found is not None
        try:
            limit = float(found["limit"])
        except ValueError:
            limit = float("nan")
        require(not isnan(limit), f"{form}; got the number '{found['limit']}'")
        key = found["key"]
        metric = next((name for name in METRICS if key == name or key.endswith(f".{name}")), None)
        require(metric is not None, f"a gate cannot limit '{key}'; {nearest(key, METRICS)}")
        return Gate(key, limit, found["sign"] == "<")

    def broken_by(self, audit: Mapping[str, float | str]) -> dict[str, float]:
        """The upper ends that break this gate, by key of audit.json; empty: it holds.

        Raises:
            InputError: nothing that it limits was measured.
        """
        uppers = {
            key.removesuffix(".high"): float(value)
            for key, value in audit.items()
            if not isinstance(value, str) and self._limits(key)
        }
        require(
            bool(uppers),
            f"'{self.key}' was not measured, so the gate cannot hold: too few non-members for it (3 / FPR are needed), "
            "or no such attack or group",
        )
        return {
            key: value for key, value in uppers.items() if value > self.limit or (self.strict and value == self.limit)
        }

    def _limits(self, key: str) -> bool:
        if self.key == LOWER_BOUND:
            return key == self.key
        figure = key.removesuffix(".high")
        return figure != key and (figure == self.key or (self.key in METRICS and figure.endswith(f".{self.key}")))

    def judged(self, audit: Mapping[str, float | str]) -> tuple[str, bool]:
        """A sentence on whether this gate holds, and whether it does; it does not where nothing was measured."""
        try:
            broken = self.broken_by(audit)
        except InputError as error:
            return f"Gate {self}: {error}", False
        if not broken:
            return f"Gate {self}: holds", True
        worst = max(broken, key=lambda key: broken[key])
        more = f", and by {len(broken) - 1} more" if len(broken) > 1 else ""
        return f"Gate {self}: broken by {worst}, whose upper end is {broken[worst]:.3f}{more}", False

    def __str__(self) -> str:
        return f"{self.key} {'<' if self.strict else '<='} {self.limit:g}"


def gates_of(expressions: Sequence[str]) -> list[Gate]:
    """The gates that ``expressions`` state.

    Raises:
        InputError: no list; or as `Gate.of`.
    """
    listed = isinstance(expressions, Sequence) and not isinstance(expressions, str)
    require(listed, f"'gates' must be a list, such as ['accuracy <= 0.6']; got {described(expressions)}")
    return [Gate.of(each) for each in expressions]
