"""Findings: the exposure of each group's records to each view, with intervals and a verdict.

One attack decides the finding of a view and a group (`headline`). The intervals of the balanced accuracy are
simultaneous for all groups and views. The verdict compares the interval with chance or with a limit.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import pandas as pd

import shoal.attacks
from shoal.attacks import ShadowModelAttack, SourceInference, Stack
from shoal.audit.record_table import AGAINST_CLIENTS, CHOSEN_OF_VIEW, rank_attacks_for_view, strongest, views_within
from shoal.core.formats import capitalize, count, decimal, join_words, names_by
from shoal.data.preferences import VIEWS, View
from shoal.metrics import MembershipMetrics, least_non_members
from shoal.metrics.intervals import Estimate, Verdict
from shoal.metrics.summary import Summary, accuracy_key

METRICS = {
    "auc": "auc",
    "accuracy": "accuracy",
    "tpr_at_fpr_0.01": "tpr_at_1_percent_fpr",
    "tpr_at_fpr_0.01_per_record": "tpr_at_1_percent_fpr_per_record",
    "tpr_at_fpr_0.001": "tpr_at_01_percent_fpr",
}
"""The metrics of an audit, with the fields of `MembershipMetrics` that hold their values."""

FIELDS = {
    f"{metric}{end}": f"{field}{end.replace('.', '_')}".removeprefix("accuracy_")
    for metric, field in METRICS.items()
    for end in ("", ".low", ".high")
} | {"members": "members", "non_members": "non_members", "exact": "exact", "accuracy.null_high": "null_high"}
"""The fields of `MembershipMetrics`, by their column in `Audit.attacks`."""

FALSE_POSITIVE_RATES = (0.01, 0.001)
"""The false positive rates at which true positive rates are reported."""

_NOT_MEASURED = Estimate()

PROPERTY = "property"
"""The attack's name in a finding of property inference."""

MOST_NAMES = 2
"""The number of groups that a phrase names; further groups are counted."""

VERDICTS: tuple[Verdict, ...] = ("exposed", "above the limit", "not decided", "within the limit", "at chance")
"""The verdicts, from the most exposed to the least exposed."""

CERTAIN: tuple[Verdict, ...] = ("exposed", "above the limit")

OTHERS = "non-members may belong to other clients"
"""The reason why a finding above chance is not decided."""

BY: Mapping[str, str] = {"outsider": "an outsider", "client": "another client", "server": "the server"}
"""Names of attackers within a sentence, by view."""

_DECLARED = [attack for attack in vars(shoal.attacks).values() if isinstance(attack, type) and hasattr(attack, "title")]

TITLES: Mapping[str, str] = {getattr(attack, "name"): getattr(attack, "title") for attack in _DECLARED} | {  # noqa: B009
    "posterior": ShadowModelAttack.title,
    "label-only": "label only",
    "boundary-distance": "boundary distance",
    "stack-client": f"{Stack.title}, a client's too",
    "stack-server": f"{Stack.title}, the server's too",
    "source-inference-in-cluster": f"{SourceInference.title} in the cluster",
    "client-membership": "membership of clients",
}
"""Titles of attacks, by name in audit.json."""


def attack_title(name: str) -> str:
    """Return an attack's title for use within a sentence, or the attack's name if there is no title.

    >>> attack_title("lira-offline"), attack_title("fedmia-i-others"), attack_title("my-attack")
    ('offline LiRA', 'FedMIA-I, other clients', 'my-attack')
    """
    attack = name.removesuffix(AGAINST_CLIENTS)
    return TITLES.get(name) or (f"{TITLES[attack]}, other clients" if attack in TITLES else name)


def attack_head(name: str) -> str:
    """Return an attack's title with a capital letter, or the attack's unchanged name if there is no title."""
    title = attack_title(name)
    return capitalize(title) if name.removesuffix(AGAINST_CLIENTS) in TITLES else title


@dataclass(frozen=True)
class Finding:
    """The metrics of one attack on one group's records.

    The intervals are simultaneous for all groups and views.

    Args:
        group: the name of a group, a model or a client, or "all" for all records.
        attack: the attack's key in audit.json, or an empty string for the run's configured attack.
        accuracy: the balanced accuracy; chance is 0.5.
        auc: the area under the ROC curve; chance is 0.5.
        tpr: the true positive rate at each false positive rate.
        members, non_members: the numbers of members and of non-members, or 0 if unknown.
        chance_high: the 95 % quantile of the balanced accuracy if nothing is leaked.
        chosen: whether the attack was chosen without knowledge of the attacked model's members.
        decides: whether the attack decides the exposure of the group's records; see `Audit.strongest`.
        exact: the fraction of predicted members for which the attack claims certainty, or ``None`` without such claims.
        limit: the limit on the accuracy, or ``None`` if the verdict compares the accuracy with chance.
        other_clients: whether non-members may belong to other clients. If so, only an attack that claims certainty can
            show exposure.
    """

    view: str
    group: str
    attack: str
    accuracy: Estimate
    auc: Estimate = _NOT_MEASURED
    tpr: Mapping[float, Estimate] = field(default_factory=lambda: dict.fromkeys(FALSE_POSITIVE_RATES, _NOT_MEASURED))
    members: int = 0
    non_members: int = 0
    chance_high: float = nan
    chosen: bool = True
    decides: bool = True
    exact: float | None = None
    title: str = "the configured attack"
    limit: float | None = None
    other_clients: bool = False

    @staticmethod
    def of(row: Mapping[Any, Any], looked: int, view: str = "") -> "Finding":
        """Create a finding from a row of `Audit.attacks`; its intervals are simultaneous for ``looked`` rows."""
        declared = row.get("title")
        return Finding(
            view=view or str(row["view"]),
            group=str(row["name"]),
            attack=str(row["attack"]),
            accuracy=Estimate.of(row, "accuracy").among(looked),
            auc=Estimate.of(row, "auc").among(looked),
            tpr={rate: Estimate.of(row, f"tpr_at_fpr_{rate:g}").among(looked) for rate in FALSE_POSITIVE_RATES},
            members=int(row["members"]),
            non_members=int(row["non_members"]),
            chance_high=float(row["accuracy.null_high"]),
            chosen=bool(row["chosen"]),
            decides=bool(row["strongest"]),
            exact=float(row["exact"]) if row["attack"] in CHOSEN_OF_VIEW.values() else None,
            other_clients=row.get("other_clients") == 1,
            title=declared if declared and isinstance(declared, str) else attack_title(str(row["attack"])),
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict of `Estimate.verdict`, or of `Estimate.against` if there is a limit."""
        verdict = self.accuracy.verdict if self.limit is None else self.accuracy.against(self.limit)
        return "not decided" if self.confounded and verdict in CERTAIN else verdict

    @property
    def confounded(self) -> bool:
        """Whether the attack may recognise clients rather than members."""
        return self.other_clients and not self.exact

    @property
    def records(self) -> str:
        """A phrase for the attacked records, or for the property that was inferred."""
        if self.attack == PROPERTY:
            return "the property"
        return "the records" if self.group == "all" else f"records of {self.group}"

    @property
    def head(self) -> str:
        """The attack's title with a capital letter."""
        return attack_head(self.attack) if self.title == attack_title(self.attack) else capitalize(self.title)

    @property
    def json(self) -> dict[str, Any]:
        """The finding's entry in the list "findings" of a JSON file, without unmeasured values."""
        limit = nan if self.limit is None else self.limit
        figures = {
            "accuracy": self.accuracy.value,
            "low": self.accuracy.low,
            "high": self.accuracy.high,
            "limit": limit,
        }
        known = {key: value for key, value in figures.items() if not isnan(value)}
        why = {"reason": OTHERS} if self.confounded and self.verdict == "not decided" else {}
        return {"view": self.view, "group": self.group, "attack": self.attack, **known, "verdict": self.verdict, **why}

    def why_no_tpr(self, rate: float) -> str:
        """Explain why there is no true positive rate at the given false positive rate."""
        needed, few = least_non_members(rate), f"too few non-members: {self.non_members:,}, "
        if self.non_members >= needed:
            return f"{few}unequally weighted; {count(needed)} of equal weight are needed"
        return f"{few}{count(needed)} are needed"


def rows_of(table: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """List the rows of a table as dictionaries; faster than pandas' ``to_dict("records")``."""
    return [dict(zip(table.columns, values, strict=True)) for values in table.to_numpy(dtype=object)]


def headline(attacks: pd.DataFrame, view: View, scope: str = "all", name: str = "all") -> Mapping[Hashable, Any] | None:
    """Return the row of the attack that decides a scope's exposure to a view, or ``None`` if no attack was measured.

    `rank_attacks_for_view` chooses an attack without knowledge of the attacked model's members. `strongest` then
    decides whether a different attack of the view replaces the chosen attack.
    """
    rows = rows_of_view(attacks, view, scope, name)
    needed: dict[str, View] = {attack: row["view"] for attack, row in rows.items()}
    if view not in needed.values():
        return None
    chosen = sorted((attack for attack, row in rows.items() if row["chosen"]), key=lambda a: VIEWS.index(needed[a]))
    judged = {
        attack: MembershipMetrics(**{field: row[key] for key, field in FIELDS.items()}) for attack, row in rows.items()
    }
    return rows[strongest({name: judged[name] for name in rank_attacks_for_view(view, needed, chosen, judged)})[0]]


def rows_of_view(attacks: pd.DataFrame, view: View, scope: str, name: str) -> dict[str, Mapping[Hashable, Any]]:
    """Return the measured rows of `Audit.attacks` for one scope and the attacks of a view, by the attack's key."""
    here = (attacks["scope"] == scope) & (attacks["name"] == name) & attacks["accuracy"].notna()
    here &= attacks["view"].isin(views_within(view)) & ~attacks["attack"].str.endswith(AGAINST_CLIENTS)
    return {str(row["attack"]): row for row in rows_of(attacks[here])}


def findings(attacks: pd.DataFrame) -> list[Finding]:
    """Return one finding per view and group, for the deciding attack (`headline`); an outsider's findings come first.

    A view that was not measured on any group has one finding on all records.
    """
    pairs, tried = _pairs(attacks), _tried(attacks)
    rows = ((view, headline(attacks, view, scope, name)) for view, scope, name in pairs)
    return [Finding.of(row, _looked(row, len(pairs), tried), view) for view, row in rows if row is not None]


def every_attack(attacks: pd.DataFrame, scope: str) -> dict[str, list[Finding]]:
    """Return the findings of all attacks, by the name of the group, model or client.

    The deciding attack comes first, followed by the remaining attacks in descending order of balanced accuracy.
    Intervals are simultaneous for all groups or for all models, but not for several clients.
    """
    rows = attacks[attacks["scope"] == scope]
    alone = {"model": rows["name"].nunique(), "client": 1}.get(scope)
    pairs, tried = len(_pairs(attacks)), _tried(attacks)
    by_name: dict[str, list[Finding]] = {}
    for row in rows_of(rows):
        looked = alone or _looked(row, pairs, tried)
        by_name.setdefault(str(row["name"]), []).append(Finding.of(row, looked))
    return {name: sorted(found, key=lambda one: (not one.decides, _weakness(one))) for name, found in by_name.items()}


def _pairs(attacks: pd.DataFrame) -> list[tuple[View, str, str]]:
    """Return (view, scope, name) per group with a `headline`, or for all records if no group has one."""
    own = attacks[attacks["accuracy"].notna() & ~attacks["attack"].str.endswith(AGAINST_CLIENTS)]
    measured = {*zip(own["view"], own["scope"], own["name"].astype(str), strict=True)}
    names = attacks.loc[attacks["scope"] == "group", "name"].astype(str).unique().tolist()
    pairs = list[tuple[View, str, str]]()
    for view in VIEWS:
        asked = [name for name in names if (view, "group", name) in measured]
        for name in asked:
            pairs.append((view, "group", name))
        if not asked and (view, "all", "all") in measured:
            pairs.append((view, "all", "all"))
    return pairs


def _tried(attacks: pd.DataFrame) -> Counter[tuple[str, str]]:
    """Count the measured attacks by scope and name."""
    measured = attacks[attacks["accuracy"].notna()]
    return Counter(zip(measured["scope"], measured["name"].astype(str), strict=True))


def _looked(row: Mapping[Any, Any], pairs: int, tried: Mapping[tuple[str, str], int]) -> int:
    """Count the simultaneous intervals: pairs (view, group), times the attacks if this one was chosen afterwards."""
    return pairs * (1 if row["chosen"] else max(1, tried[row["scope"], str(row["name"])]))


def run_findings(summary: Summary) -> list[Finding]:
    """Return one finding per group of a run without an audit, for the run's view and the deciding attack."""
    measured = {name: metrics for name, metrics in summary.by_group.items() if "mia" in metrics}
    found = []
    for name, metrics in measured.items():
        attack = _attack_of(metrics)
        found.append(
            Finding(
                view=summary.view,
                group=name,
                attack=attack,
                accuracy=Estimate.of(metrics, "mia").among(len(measured)),
                chance_high=metrics.get("mia_null_high", nan),
                title=attack_title(attack) if attack else "the configured attack",
            )
        )
    return found


def _attack_of(metrics: Mapping[str, float]) -> str:
    """Return the deciding attack of a run's group, or "" if only the configured attack was measured."""
    prefix = accuracy_key("")
    by_attack = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
    # A group's `mia` is the deciding attack's accuracy, which need not be the highest.
    same = [attack for attack, value in by_attack.items() if value == metrics["mia"]]
    return (same or sorted(by_attack, key=lambda attack: -by_attack[attack]) or [""])[0].replace("_", "-")


def most_exposed(found: Iterable[Finding]) -> list[Finding]:
    """Return the measured findings by descending accuracy; certainly exposed groups come first."""
    return sorted(
        (one for one in found if one.accuracy.known), key=lambda one: (one.verdict not in CERTAIN, _weakness(one))
    )


def _weakness(finding: Finding) -> float:
    return -finding.accuracy.value if finding.accuracy.known else 1.0


def sentence(finding: Finding) -> str:
    """Describe a finding in one or two sentences.

    >>> few = Finding("server", "few", "lira", Estimate(0.87, 0.8, 0.92), title="LiRA")
    >>> sentence(few)
    'Records of few are exposed to the server: attack accuracy 0.870 (0.800 to 0.920), chance 0.5, by LiRA.'
    """
    by, accuracy = BY.get(finding.view, finding.view), f"attack accuracy {finding.accuracy.figure}"
    limit = "" if finding.limit is None else f" the limit of {finding.limit:g}"
    verb = "is" if finding.attack == PROPERTY else "are"
    exposed = f"{finding.records} {verb} exposed to {by}" + f" above{limit}" * bool(limit)
    said = {
        "exposed": capitalize(exposed),
        "above the limit": capitalize(exposed),
        "not decided": f"Whether {exposed} is not decided" + f", since {OTHERS}" * finding.confounded,
        "within the limit": f"The exposure of {finding.records} to {by} is within{limit}",
        "at chance": f"Attacks by {by} on {finding.records} are at chance",
    }[finding.verdict]
    exact = "" if not finding.exact else f", certain of {decimal(finding.exact)} of its predicted members"
    text = f"{said}: {accuracy}, chance 0.5, by {finding.title}{exact}."
    tpr = finding.tpr[0.01]
    if not tpr.known:
        return text
    few = "Some members are exposed: at" if finding.verdict != "exposed" and tpr.low > 0.01 else "At"
    return f"{text} {few} a false positive rate of 1 % the attack finds {tpr.text} of the members ({tpr.interval})."


def findings_table(found: Sequence[Finding]) -> list[str]:
    """Return the lines of a text table with one line per finding, or an empty list without findings.

    >>> few = Finding("server", "few", "lira", Estimate(0.87, 0.8, 0.92), Estimate(0.9, 0.85, 0.94), title="LiRA")
    >>> print(findings_table([few])[1])
    server  few    LiRA    0.900 (0.850 to 0.940)  0.870 (0.800 to 0.920)  exposed
    """
    rows = [("view", "group", "attack", "AUC (95 %)", "attack accuracy (95 %)", "verdict")]
    rows += [(one.view, one.group, one.title, one.auc.figure, one.accuracy.figure, one.verdict) for one in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines if found else []


def exposure_summary(found: Sequence[Finding], *, unasked: bool = True) -> str:
    """Summarise which groups are exposed to which views, in one phrase per verdict.

    Args:
        unasked: whether to list the views without a finding.

    >>> ends = {"few": Estimate(0.7, 0.6, 0.8), "many": Estimate(0.51, 0.49, 0.53)}
    >>> exposure_summary([Finding("client", name, "", accuracy) for name, accuracy in ends.items()])
    'Exposed: few to another client. At chance: many to another client. Not attacked: an outsider and the server.'
    """
    said = [
        f"{capitalize(verdict)}: {_to_whom([one for one in found if one.verdict == verdict])}."
        for verdict in VERDICTS
        if any(one.verdict == verdict for one in found)
    ]
    missing = [BY[view] for view in VIEWS if view not in {one.view for one in found}] if unasked else []
    return " ".join([*said, *([f"Not attacked: {join_words(missing)}."] if missing else [])])


def _to_whom(found: Iterable[Finding]) -> str:
    """List the groups with their views; views with the same groups share a phrase."""
    by_view = names_by(("all records" if one.group == "all" else one.group, one.view) for one in found)
    by_names = names_by((BY.get(view, view), join_words(names, MOST_NAMES)) for view, names in by_view.items())
    return "; ".join(f"{names} to {join_words(views)}" for names, views in by_names.items())
