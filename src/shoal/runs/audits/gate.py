"""Gates: limits on the figures of an audit, tested after every second reference federation."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan

from shoal.audit.audit import wrong_sign
from shoal.audit.finding import METRICS
from shoal.core.errors import InputError, describe, require, suggest
from shoal.data.names import EVERYBODY
from shoal.data.preferences import VIEWS
from shoal.metrics import least_non_members
from shoal.metrics.intervals import at_once

LOWER_BOUND = "empirical_epsilon"
"""A figure without an interval: a gate compares the figure itself, which is a lower bound."""

GATE_METRICS = (*METRICS, LOWER_BOUND)
"""The figures that a gate can limit."""

MIN_REFERENCES = 4
"""The number of reference federations that a gate needs to hold; fewer make attacks weaker (docs/audit.md)."""

CONFIDENCE, MAX_REFERENCES = "gates.confidence", "gates.most_references"
"""Keys of audit.json: the gates' confidence level (0.95 if missing) and the maximum of reference federations."""

_FORM = re.compile(r"\s*(?P<key>\S+)\s*(?P<sign><=|<)\s*(?P<limit>\S+)\s*")


def looks(most: int, step: int = 2) -> list[tuple[int, float]]:
    """List the numbers of reference federations at which gates are tested, with each test's confidence.

    All intervals together cover their true values with probability 95 % or more (Bonferroni). The last test has an
    error probability of 2.5 %, and the earlier tests share 2.5 %.

    Args:
        step: the number of reference federations between two tests, which must be even.

    >>> looks(6)
    [(2, 0.9875), (4, 0.9875), (6, 0.975)]
    >>> looks(1)
    [(1, 0.95)]
    """
    before = [*range(step, most, step)]
    share = 0.025 / len(before) if before else nan
    return [*((number, 1 - share) for number in before), (most, 0.975 if before else 0.95)]


@dataclass(frozen=True)
class Gate:
    """A limit on the upper end of a figure's interval, such as ``tpr_at_fpr_0.01 <= 0.05``.

    Args:
        key: one of `GATE_METRICS`, which applies to every attack and group, or a key of audit.json, such as
            ``attacks.lira.minority.auc`` or ``views.client.minority.auc``.
        strict: whether a figure equal to ``limit`` breaks the gate.
    """

    key: str
    limit: float
    strict: bool = False

    @property
    def metric(self) -> str:
        """The limited figure, one of `GATE_METRICS`."""
        return max((name for name in GATE_METRICS if f".{self.key}".endswith(f".{name}")), key=len)

    def broken_by(self, audit: Mapping[str, float | str]) -> dict[str, float]:
        """Return the upper interval ends of figures that break the gate, by key of audit.json.

        If the scores have the wrong sign (`wrong_sign`), all limited figures break the gate. The entry ``at_least`` in
        audit.json can raise a view's upper end.

        Raises:
            InputError: none of the limited figures was measured.
        """
        ends = self._ends(audit)
        require(
            bool(ends),
            f"'{self.key}' was not measured; add non-members (at least 3 / FPR), or name an attack, group and view of "
            "the audit",
        )
        uppers = {key: max(high, float(audit.get(f"{key}.at_least", -inf))) for key, (_, high) in ends.items()}
        if wrong_sign(audit):
            return uppers
        return {key: value for key, value in uppers.items() if self._exceeded(value)}

    def decision(self, audit: Mapping[str, float | str]) -> bool | None:
        """Return True if this gate certainly holds, False if certainly broken, None if not decided."""
        if self.key == LOWER_BOUND or not self._ends(audit):
            return None
        if self._certain(audit):
            return False
        holds = not self.broken_by(audit) and int(audit.get("references", 0)) >= MIN_REFERENCES
        return True if holds else None

    def _certain(self, audit: Mapping[str, float | str]) -> dict[str, float]:
        """Return the lower ends above the limit; the figures' intervals hold jointly (Bonferroni)."""
        if self.key == LOWER_BOUND:
            return self.broken_by(audit)
        count = len(self._ends(audit))
        lows = {key: low for key, (low, _) in self._ends(audit, count).items()}
        return {key: low for key, low in lows.items() if self._exceeded(low)}

    def _ends(self, audit: Mapping[str, float | str], count: int = 1) -> dict[str, tuple[float, float]]:
        """Return the interval of each limited figure, so that ``count`` intervals hold jointly."""
        # Where attacks are listed, a view's figure repeats one of them.
        attacks = any(key.startswith("attacks.") for key in audit)
        explicit = {f"{self.key}.high"} if attacks else {*audit}
        wider = at_once(count, (1 - float(audit.get(CONFIDENCE, 0.95))) / 2)
        ends = dict[str, tuple[float, float]]()
        for key, high in audit.items():
            if isinstance(high, str) or not self._limits(key) or (key not in explicit and key.startswith("views.")):
                continue
            figure = key.removesuffix(".high")
            value, low = (float(audit.get(name, nan)) for name in (figure, f"{figure}.low"))
            if wider == 1 or isnan(value) or figure == key:
                ends[figure] = (low, float(high))
            else:
                ends[figure] = (value - wider * (value - low), min(value + wider * (high - value), 1.0))
        return ends

    def _exceeded(self, value: float) -> bool:
        return value > self.limit or (self.strict and value == self.limit)

    def _limits(self, key: str) -> bool:
        if self.key == LOWER_BOUND:
            return key == self.key
        figure = key.removesuffix(".high")
        return figure != key and (figure == self.key or (self.key in GATE_METRICS and figure.endswith(f".{self.key}")))

    def verdict(self, audit: Mapping[str, float | str]) -> tuple[str, bool]:
        """Return a sentence on this gate, and whether the gate holds. A gate without measured figures does not hold."""
        try:
            broken = self.broken_by(audit)
        except InputError as error:
            return f"Gate {self}: {error}", False
        most = audit.get(MAX_REFERENCES)
        effort = "" if most is None else f", with {audit['references']} of at most {most} reference federations"
        if not broken:
            return f"Gate {self}: holds{effort}", True
        if wrong := [*wrong_sign(audit).values()]:
            return f"Gate {self}: cannot hold, since {wrong[0]}", False
        worst = max(broken, key=lambda key: broken[key])
        others = len(broken) - 1
        more = f", and {others} more figure{'s' * (others > 1)}" if others else ""
        at_least = broken[worst] == audit.get(f"{worst}.at_least")
        end = "where an attack of the view certainly reaches" if at_least else "whose upper end is"
        decision = "broken by" if at_least or self._certain(audit) else "not decided because of"
        return f"Gate {self}: {decision} {worst}, {end} {broken[worst]:.3f}{more}{effort}", False

    def __str__(self) -> str:
        return f"{self.key} {'<' if self.strict else '<='} {self.limit:g}"


def parse_gates(expressions: Sequence[str]) -> list[Gate]:
    """Parse gates.

    Raises:
        InputError: an expression is not a gate, always holds or never holds.

    >>> parse_gates(["tpr_at_fpr_0.01 <= 0.05"])
    [Gate(key='tpr_at_fpr_0.01', limit=0.05, strict=False)]
    """
    listed = isinstance(expressions, Sequence) and not isinstance(expressions, str)
    require(listed, f"'gates' must be a list, such as ['accuracy <= 0.6'] (got {describe(expressions)})")
    return [_parse_gate(expression) for expression in expressions]


def _parse_gate(expression: str) -> Gate:
    form = "a gate has the form 'METRIC <= NUMBER', such as 'tpr_at_fpr_0.01 <= 0.05'"
    parts = _FORM.fullmatch(expression) if isinstance(expression, str) else None
    if parts is None:
        raise InputError(f"{form} (got {describe(expression)})")
    try:
        limit = float(parts["limit"])
    except ValueError:
        limit = nan
    require(not isnan(limit), f"{form} (got the number '{parts['limit']}')")
    key = parts["key"]
    limitable = any(key == name or key.endswith(f".{name}") for name in GATE_METRICS)
    require(limitable, f"a gate cannot limit '{key}'; {suggest(key, GATE_METRICS)}")
    gate = Gate(key, limit, parts["sign"] == "<")
    most = inf if key == LOWER_BOUND else 1.0
    allowed = "give a number of at least 0" if key == LOWER_BOUND else "give a number between 0 and 1"
    always = limit > most or (limit == most and not gate.strict)
    require(not always, f"the gate '{gate}' always holds, since '{gate.metric}' cannot exceed {most:g}; {allowed}")
    never = limit < 0 or (limit == 0 and gate.strict)
    require(not never, f"the gate '{gate}' never holds, since '{gate.metric}' is at least 0; {allowed}")
    return gate


def require_measurable(gates: Sequence[Gate], non_members: Mapping[str, int]) -> None:
    """Check, before training, that an audit can measure the figures of the gates.

    Raises:
        InputError: a gate's key has a wrong form or an unknown view or group, or a true positive rate needs more
            non-members.
    """
    for gate in gates:
        name = gate.key.removesuffix(gate.metric).removesuffix(".")
        kind, who, group = [*name.split(".", 2), "", ""][:3]
        known, largest = [*dict.fromkeys([*non_members, EVERYBODY])], sum(non_members.values())
        if name:
            form = f"'attacks.ATTACK.GROUP.{gate.metric}' or 'views.VIEW.GROUP.{gate.metric}'"
            complete = kind in ("attacks", "views") and bool(group)
            require(complete, f"a gate on one figure has the form {form} (got '{gate.key}')")
            unknown = f"the gate '{gate}' has an unknown view (got '{who}'); {suggest(who, VIEWS)}"
            require(kind != "views" or who in VIEWS, unknown)
            require(group in known, f"the gate '{gate}' has an unknown group (got '{group}'); {suggest(group, known)}")
            largest = non_members.get(group, largest)
        if rate := re.match(r"tpr_at_fpr_(0\.0*1)", gate.metric):
            needed = least_non_members(float(rate[1]))
            few = f"the gate '{gate}' needs {needed:,.0f} non-members (got {largest:,})"
            require(largest >= needed, f"{few}; limit 'accuracy' or 'auc', or audit more records")
