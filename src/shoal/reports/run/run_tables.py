"""The tables of a run's page."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isnan, nan

import pandas as pd

from shoal.audit.finding import BY, attack_title, run_findings
from shoal.core.formats import (
    ACCURACY,
    DASH,
    capitalize,
    count,
    decimal,
    join_words,
    metric_format,
    name_examples,
)
from shoal.metrics import least_non_members
from shoal.metrics.membership import FALSE_POSITIVES
from shoal.metrics.metric_table import METRICS, Metric, is_declared, metric_of
from shoal.metrics.summary import Metrics, Summary, accuracy_key
from shoal.reports.run.description import RunDescription
from shoal.reports.table import Cell, Column, ReportTable, TableRow, heads, metric_table, row

BY_GROUP = (
    "accuracy", "train_accuracy", "gap", "mia", "mia_null_high", "mia_auc", "tpr_at_fpr_0.01",
    "tpr_at_fpr_0.001", "loss_threshold", "exceeded", "violations",
)  # fmt: skip
BY_CLUSTER = (
    "examples", "accuracy", "train_accuracy", "risk", "mia", "mia_auc", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001",
)  # fmt: skip
FAIRNESS = ("fairness.demographic_parity", "fairness.equal_opportunity", "fairness.equalized_odds")
GROUPING = ("adjusted_rand_index",)
RATES = {"tpr_at_fpr_0.01": 0.01, "tpr_at_fpr_0.001": 0.001}
"""The false positive rate of each true positive rate."""

BASELINES = {"fedavg": "one model for all", "local": "local training", "by-group": "one model per group"}
"""Alternatives to clusters, by metric; a comparison with the first shows whether clusters pay."""

BASELINE = "baseline.fedavg.difference"
"""The metric that shows whether clusters pay."""

LIMITS = ("exceeded", "violations")
"""Metrics that are shown only if a client set a limit."""

EXCEEDED, UNCERTAIN, WITHIN_LIMIT, UNKNOWN = "exceeded", "uncertain", "within", "not measured"
"""States of a client's limit, in the column ``limit``."""


@dataclass(frozen=True, eq=False)
class RunView:
    """A finished run with its tables.

    Args:
        clients: the table of `with_limits`, with one row per client.
    """

    run: RunDescription
    summary: Summary
    rounds: pd.DataFrame
    clients: pd.DataFrame

    @staticmethod
    def of(run: RunDescription, summary: Summary, rounds: pd.DataFrame, clients: pd.DataFrame) -> "RunView":
        """Create the view of a run from the rows of rounds.csv and clients.csv."""
        if strongest_attacks(summary):
            clients = clients.assign(attack=clients["attack"].map(attack_title))
        return RunView(run, summary, rounds, with_limits(clients))

    @cached_property
    def groups(self) -> list[str]:
        """The names of the groups with clients."""
        present = {*self.clients["group"], *(name for name, own in self.summary.by_group.items() if "exposure" in own)}
        return [name for name in self.run.groups if name in present]

    @property
    def clusters(self) -> int:
        """The number K of models."""
        return int(self.rounds["cluster"].max()) + 1

    @property
    def at_end(self) -> dict[int, int]:
        """The number of clients of each cluster after the last round."""
        return {k: int((self.clients["cluster"] == k).sum()) for k in range(self.clusters)}

    @property
    def estimated(self) -> bool:
        """Whether the red team estimated a risk in any round."""
        return bool((self.rounds["risk"].fillna(0.5) != 0.5).any())

    @property
    def limited(self) -> bool:
        """Whether any client set a limit; otherwise limits were drawn at random."""
        return int(self.summary.overall.get("thresholds_drawn", 0)) < len(self.clients)

    @property
    def references(self) -> int:
        """The number of reference federations, or 0 if the run trained none."""
        return int(self.summary.overall.get("references", 0))

    @property
    def non_members(self) -> Metrics:
        """The number of non-members of each group."""
        by_group = self.summary.by_group
        return {name: by_group.get(name, {}).get("non_members", nan) for name in self.groups}

    def metric(self, key: str) -> Metric:
        """Return a key's metric, with the run's names for accuracy and attacks."""
        declared = {metric.key: metric for metric in self.run.metrics}
        return metric_of(key, measured=self.run.metric, declared=declared, attack_title=attack_title)


def accuracies_by_attack(metrics: Metrics) -> dict[str, float]:
    """Return each attack's balanced accuracy on a group by the attack's title, the strongest first.

    >>> accuracies_by_attack({"mia": 0.6, "mia_by_gap": 0.55, "mia_by_rmia_offline": 0.6})
    {'offline RMIA': 0.6, 'gap': 0.55}
    """
    prefix = accuracy_key("")
    accuracies = {attack_title(key.removeprefix(prefix).replace("_", "-")): value
             for key, value in metrics.items() if key.startswith(prefix)}  # fmt: skip
    return dict(sorted(accuracies.items(), key=lambda pair: -pair[1]))


def strongest_attacks(summary: Summary) -> dict[str, str]:
    """Return the deciding attack's title by group, except groups where the configured attack decides."""
    return {one.group: one.title for one in run_findings(summary) if one.attack}


def with_limits(clients: pd.DataFrame) -> pd.DataFrame:
    """Add columns about limits to the rows of clients.csv.

    - ``over``: whether the exposure is above the limit at 95 % confidence.
    - ``margin``: the lower end of the exposure's interval minus the limit.
    - ``limit``: `EXCEEDED`, `UNCERTAIN` (only the point estimate is above the limit), `WITHIN_LIMIT` or `UNKNOWN`.
    """
    threshold, exposure, over = clients["threshold"], clients["exposure"], clients["exceeded"].fillna(0) > 0
    above = (exposure > threshold) | (clients["violated"].fillna(0) > 0)
    limit = pd.Series(WITHIN_LIMIT, clients.index).mask(above, UNCERTAIN)
    limit = limit.mask(exposure.isna() | threshold.isna(), UNKNOWN).mask(over, EXCEEDED)
    return clients.assign(over=over, margin=clients["exposure_low"].fillna(exposure) - threshold, limit=limit)


def gain_text(metrics: Metrics, baseline: str, unit: str = "", than: str = "") -> str:
    """Describe how much clusters change accuracy against a baseline, or return an empty string without a baseline.

    >>> ends = {"baseline.local.low": -0.03, "baseline.local.high": -0.01}
    >>> gain_text({"baseline.local.difference": -0.02, **ends}, "local", " in accuracy", "local training")
    'cost 0.020 in accuracy against local training (0.010 to 0.030)'
    """
    mean, low, high = (metrics.get(f"baseline.{baseline}.{end}", nan) for end in ("difference", "low", "high"))
    if isnan(mean):
        return ""
    if low > 0:
        return f"gain {mean:.3f}{unit}{f' over {than}' if than else ''} ({low:.3f} to {high:.3f})"
    against = f" against {than}" if than else ""
    if high < 0:
        return f"cost {-mean:.3f}{unit}{against} ({-high:.3f} to {-low:.3f})"
    if low == high == 0:
        return f"make no difference{against}"
    return "not decided" + ("" if isnan(low) else f" ({low:+.3f} to {high:+.3f}{unit}{against})")


def baseline_table(summary: Summary, metric: str = ACCURACY) -> ReportTable | None:
    """Create the table that compares clusters with baselines, or return ``None`` without baselines."""
    form = metric_format(metric)
    overall = {**summary.overall, "accuracy": summary.overall.get("baseline.clusters.accuracy", nan)}
    rows = {"all clients": overall} | {name: of for name, of in summary.by_group.items() if BASELINE in of}
    known = {name: title for name, title in BASELINES.items() if f"baseline.{name}.accuracy" in overall}
    if not known:
        return None
    lines = [
        row(
            whose,
            Cell(form(of.get("accuracy", nan)), strong=True),
            *(Cell(form(of.get(f"baseline.{name}.accuracy", nan)), gain_text(of, name)) for name in known),
        )
        for whose, of in rows.items()
    ]
    note = (
        f"{capitalize(metric)} of each client on its own test examples if known, otherwise on its group's. "
        "Small print: the gain of clusters with its 95 % interval."
    )
    columns = (*heads([metric], ["these clusters"]), *heads((), known.values()))
    return ReportTable(columns, tuple(lines), "Does clustering pay?", note=note)


def group_table(view: RunView) -> ReportTable:
    """Create the table of metrics with one column per group."""
    groups, clients = view.groups, view.clients
    values = [view.summary.by_group.get(group, {}) for group in groups]
    non_members = [view.non_members.get(group, nan) for group in groups]
    counts = [(clients["group"] == group).sum() for group in groups]
    rows = [row("Clients", *map(str, counts))] if any(counts) else []  # none where groups are of examples
    rows += [_row(metric, metric.meaning, values, view, non_members) for metric in _shown(BY_GROUP, values, view)]
    return metric_table("Metrics by group", groups, rows)


def by_attack(view: RunView) -> ReportTable | None:
    """Create the table of attacks with one column per group, or return ``None`` without reference federations."""
    by_group = {group: accuracies_by_attack(view.summary.by_group.get(group, {})) for group in view.groups}
    titles = dict.fromkeys(title for accuracies in by_group.values() for title in accuracies)
    if not titles:
        return None
    decides = strongest_attacks(view.summary)
    meaning = "Chosen in advance, without the members, or certainly stronger than the attack chosen in advance."
    names = (capitalize(decides.get(group, DASH)) for group in view.groups)
    rows = [row(Cell("Deciding attack", meaning), *names)]
    for title in sorted(titles, key=lambda title: -max(accuracies.get(title, 0.0) for accuracies in by_group.values())):
        cells = (decimal(accuracies[title]) if title in accuracies else DASH for accuracies in by_group.values())
        rows.append(row(capitalize(title), *cells))
    asked = f"Attacks by {BY.get(view.summary.view, view.summary.view)}"
    asked += f", with {view.references} reference federation{'s' * (view.references > 1)}." if view.references else "."
    largest = (
        " The largest figure is biased upwards, so an attack chosen in advance on reference models decides, unless "
        "another attack is certainly stronger. Whether limits are exceeded is decided by the interval."
    )
    note = (
        f" The configured attack and the gap attack use the {view.run.kind} that reference federations exchange, so "
        "the gap may differ from the gap above."
    )
    return metric_table("Balanced accuracy by attack", view.groups, rows, asked + largest * (len(rows) > 2) + note)


def cluster_table(view: RunView) -> ReportTable:
    """Create the table of metrics with one column per cluster."""
    clients, clusters = view.clients, range(view.clusters)

    def counts(frame: pd.DataFrame) -> list[str]:
        return [str((frame["cluster"] == k).sum()) for k in clusters]

    rows = [row(Cell("Clients", METRICS["clients"].of_model), *counts(clients))]
    if len(view.groups) > 1 and clients["group"].isin(view.groups).any():
        rows += [row(f"… of {group}", *counts(clients[clients["group"] == group])) for group in view.groups]
    values = [view.summary.by_cluster.get(k, {}) for k in clusters]
    non_members = [_effective_non_members(clients[clients["cluster"] == k], view.non_members) for k in clusters]
    for metric in _shown(BY_CLUSTER, values, view):
        measured = values if metric.key != "risk" or view.estimated else [{}] * len(values)
        rows.append(_row(metric, metric.of_model or metric.meaning, measured, view, non_members))
    for key, over in zip(LIMITS, (clients["over"], clients["violated"] > 0), strict=True) if view.limited else ():
        rows.append(row(Cell(capitalize(METRICS[key].name), METRICS[key].of_model), *counts(clients[over])))
    return metric_table("Metrics by cluster", [f"cluster {k}" for k in clusters], rows)


def overall(view: RunView) -> ReportTable | None:
    """Create the table of run-wide metrics, such as fairness and differential privacy, or return ``None`` without
    metrics.
    """
    metrics = view.summary.overall
    fair = any(key in metrics for key in FAIRNESS)
    shown = _shown([*FAIRNESS, *GROUPING], [metrics], view)
    rows = [_row(metric, metric.meaning, [metrics], view) for metric in shown]
    private = bool({"epsilon", "delta"} & set(metrics))
    if private:
        meaning = f"{METRICS['epsilon'].meaning} At delta = {metrics.get('delta', nan):g}."
        if "epsilon" not in metrics:
            meaning += " Without noise, there is no guarantee."
        rows.append(_row(METRICS["epsilon"], meaning, [metrics], view))
    about = ["Fairness"] * fair + ["grouping"] + ["differential privacy"] * private
    title = capitalize(join_words(about))
    note = (
        "The three differences compare the groups, with the models that clients chose: 0 is fair, 1 is as unfair as "
        "possible."
    )
    return metric_table(title, ["value"], rows, note * fair) if rows else None


def _shown(keys: Iterable[str], values: Sequence[Metrics], view: RunView) -> list[Metric]:
    """Return the metrics of ``keys`` that have a value, and the user's own metrics."""
    further = [key for metrics in values for key in metrics if not is_declared(key)]
    left_out = {*(() if view.limited else LIMITS), *(() if view.run.metric == ACCURACY else ("gap",))}
    shown = [key for key in dict.fromkeys([*keys, *further]) if key not in left_out]
    return [view.metric(key) for key in shown if any(key in metrics for metrics in values)]


def _row(
    metric: Metric, meaning: str, values: Sequence[Metrics], view: RunView, non_members: Sequence[float] = ()
) -> TableRow:
    """Create a metric's row; true positive rates need each column's ``non_members``, NaN if unknown."""
    name, texts = metric.name, [metric.text(metrics.get(metric.key)) for metrics in values]
    if is_declared(metric.key):
        name, meaning = (name_examples(text, view.run.kind) for text in (capitalize(name), meaning))
    if metric.key in RATES:
        return _at_fpr(RATES[metric.key], name, meaning, texts, non_members)
    return row(Cell(name, meaning), *texts)


def _at_fpr(rate: float, name: str, meaning: str, texts: Sequence[str], non_members: Sequence[float]) -> TableRow:
    """Create the row of a true positive rate; a rate from too few non-members is a dash, with the reason."""
    needed = least_non_members(rate)
    too_few = [number < needed * (1 - 1e-9) for number in non_members]
    if not all(too_few):
        meaning += f" Chance: {100 * rate:g} %."
    if any(too_few):
        least = min(number for number, few in zip(non_members, too_few, strict=True) if few)
        meaning += (
            f" A dash means too few non-members: {FALSE_POSITIVES} false positives at {100 * rate:g} % need at least "
            f"{count(needed)} (got {count(least)})."
        )
    return row(Cell(name, meaning), *(DASH if few else text for text, few in zip(texts, too_few, strict=True)))


def _effective_non_members(clients: pd.DataFrame, non_members: Metrics) -> float:
    """Return the effective number of a cluster's weighted non-members (Kish 1965), or NaN without clients.

    Weights match the mix of groups among the ``clients``' training examples.

    >>> clients = pd.DataFrame({"group": ["a", "b"], "examples": [30, 10]})
    >>> round(_effective_non_members(clients, {"a": 100, "b": 100}), 6)
    160.0
    """
    mix = clients.groupby("group")["examples"].sum()
    mix = mix[[group for group in mix.index if non_members.get(str(group), 0) > 0]]
    spread = sum(share**2 / non_members[str(group)] for group, share in (mix / mix.sum()).items())
    return 1 / spread if spread else nan


ALL_ROWS = 200
"""The largest number of clients in a full table; larger runs' tables show only clients over their limit."""

MOST_ROWS = 1000
"""The largest number of rows, which keeps pages small."""

WORDS = {EXCEEDED: "exceeded", UNCERTAIN: "above, not certain", WITHIN_LIMIT: "within", UNKNOWN: DASH}
"""Words for the states of a limit."""


COLUMNS: dict[str, tuple[str, Callable[[float], str] | None]] = {
    "client": ("client", "{:.0f}".format),
    "name": ("name", None),
    "group": ("group", None),
    "cluster": ("cluster", "{:.0f}".format),
    "limit": ("limit is", None),
    "margin": ("over by", lambda value: f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")),
    "threshold": ("limit", decimal),
    "exposure": ("exposure", decimal),
    "exposure_low": ("exposure, low end", decimal),
    "attack": ("attack", None),
    "view": ("view", None),
    "examples": ("training images", count),
    "accuracy": ("accuracy", decimal),
    "epsilon": ("epsilon", decimal),
}
"""The head and number format (None for text) of each shown column."""


def client_table(view: RunView) -> ReportTable:
    """Create the table of clients, sorted by the exposure above the limit."""
    clients, metric = view.clients, view.run.metric
    order = ["over", "margin"] if view.limited else ["accuracy"]
    clients = clients.sort_values([*order, "client"], ascending=[*[False] * len(order), True], na_position="last")
    over = clients[clients["limit"].isin([EXCEEDED, UNCERTAIN])] if view.limited else clients
    shown = (clients if len(clients) <= ALL_ROWS else over).head(MOST_ROWS)
    measured = COLUMNS | {"accuracy": (metric, metric_format(metric))}
    columns = {name: column for name, column in measured.items() if name in clients and clients[name].notna().any()}
    columns |= {"margin": COLUMNS["margin"]}
    one = [name for name in ("attack", "view") if name in columns and clients[name].nunique() == 1]
    hidden = {*one, *(() if view.limited else ("limit", "margin", "threshold"))}
    columns = {name: column for name, column in columns.items() if name not in hidden}
    rows = []
    for client in shown.to_dict("records"):
        cells = tuple(_cell(client[name], name, form) for name, (_, form) in columns.items())
        rows.append(TableRow(cells, "over" if view.limited and client["limit"] == EXCEEDED else ""))
    kind, caption = view.run.kind, _note(clients, over, shown) * view.limited
    heads = tuple(Column(name_examples(head, kind), number=form is not None) for head, form in columns.values())
    return ReportTable(
        heads,
        tuple(rows),
        "Clients",
        caption,
        stubs=0,
        sorted_by=[*columns].index("margin" if view.limited else "accuracy"),
    )


def _cell(value: str | float | None, name: str, form: Callable[[float], str] | None) -> Cell:
    if form is None:
        return Cell(DASH if pd.isna(value) else WORDS[str(value)] if name == "limit" else str(value))
    number = nan if value is None else float(value)
    if isnan(number):
        return Cell(DASH)
    # As scripts write numbers: epsilon is infinite without noise.
    return Cell(form(number), sort=repr(number)) if isfinite(number) else Cell("\N{INFINITY}", sort="Infinity")


def _note(clients: pd.DataFrame, over: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Explain the table, and which clients the table leaves out."""
    sentences = []
    if len(shown) < len(clients):
        rest = f"the {len(over):,} over their limit" if len(over) else "none, as no limit is exceeded"
        part = f" (the first {len(shown):,})" if len(shown) < len(over) else ""
        sentences.append(f"Of {len(clients):,} clients, the table has {rest}{part}; clients.csv has all.")
    if "view" in clients:
        sentences.append("View: the attacker that the client's limit and exposure are about.")
    sentences.append(
        "Exposure: the deciding attack's balanced accuracy on the most exposed model that the client trained recently; "
        "low end: of the 95 % interval. A limit is exceeded if the low end is above it, and 'above, not certain' "
        "if only the exposure or the model's MIA accuracy is above the limit. Over by: low end minus limit."
    )
    return " ".join(sentences)
