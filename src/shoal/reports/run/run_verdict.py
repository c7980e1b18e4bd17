"""A run's summary in sentences."""

from collections.abc import Sequence
from math import isnan, nan

from shoal.audit.finding import (
    BY,
    PROPERTY,
    Estimate,
    Finding,
    exposure_summary,
    most_exposed,
    run_findings,
    sentence,
)
from shoal.core.formats import ACCURACY, decimal, join_words, metric_format, names_by
from shoal.metrics import auc_interval
from shoal.metrics.summary import Summary
from shoal.reports.exposure import limit_sentence
from shoal.reports.run.run_tables import BASELINE, BASELINES, gain_text, strongest_attacks

INCOMPLETE = "The metrics of this run are incomplete."


def answer(summary: Summary, kind: str = "images", metric: str = ACCURACY, audited: Sequence[Finding] = ()) -> str:
    """Summarise a run, one topic per line.

    The topics are groups without accuracy above chance, the gain from clusters, accuracy, exposure, the strongest
    finding, the property attack, limits and differential privacy. Topics that do not apply are left out.

    Args:
        audited: the findings of the run's audit, which replace the findings of the run's configured attack.
    """
    if not _complete(summary):
        return INCOMPLETE
    found = audited or run_findings(summary)
    sizes = [str(int(metrics["clients"])) for metrics in summary.by_cluster.values() if "clients" in metrics]
    pays = [text for text in (clustering_verdict(summary, metric), cluster_number_text(summary)) if text]
    lines = [
        chance_sentence(summary, kind),
        " ".join(pays),
        accuracy_sentence(summary, kind, metric),
        exposure_summary(found) if found else "No attack was measured.",
        *map(sentence, most_exposed(found)[:1]),
        *(f"{said}." for said in [*property_sentences(summary), *notes(summary, found=not audited)]),
        f"Clients by cluster: {', '.join(sizes)}." if len(sizes) > 1 and not pays else "",
    ]
    return "\n".join(filter(None, lines))


def notes(summary: Summary, *, found: bool = True) -> list[str]:
    """Return sentences about clients' limits and differential privacy, without full stops.

    Args:
        found: whether the page also shows the configured attack's exposure.
    """
    if not _complete(summary):
        return [INCOMPLETE.removesuffix(".")]
    limited = found and int(summary.overall.get("thresholds_drawn", 0)) < summary.clients
    return [*([limits(summary)] if limited else []), *_epsilon(summary, found=found)]


def _complete(summary: Summary) -> bool:
    return {"accuracy.overall", "violations.total"} <= set(summary.overall)


def accuracy_sentence(summary: Summary, kind: str = "images", metric: str = ACCURACY) -> str:
    """Describe a run's accuracy, overall and by group; see `answer` for the arguments."""
    overall, by_group = summary.overall, of_groups(summary, "accuracy")
    form, name = metric_format(metric), "Test accuracy" if metric == ACCURACY else f"Mean {metric} on held-out {kind}"
    groups = f" ({', '.join(f'{form(value)} for {group}' for group, value in by_group.items())})"
    mean, own = form(overall["accuracy.overall"]), own_accuracy(summary)
    if metric == ACCURACY and not isnan(own):
        return f"{name}: {form(own)} on each client's own test {kind}, {mean} on the test {kind} of all clients."
    return f"{name}: {mean}{groups * (len(by_group) > 1)}."


def own_accuracy(summary: Summary) -> float:
    """Return the accuracy on each client's own test examples if it is known and differs from the group's, else NaN.

    Without the clients of test examples, and with several groups, it is not known.
    """
    own = summary.overall.get("baseline.clusters.accuracy", nan) if len(summary.by_group) == 1 else nan
    return own if abs(own - summary.overall.get("accuracy.overall", nan)) > 1e-6 else nan


MOST_GROUPS = 3
"""The largest number of groups in the sentence on clusters, the smallest gain first."""


def clustering_verdict(summary: Summary, metric: str = ACCURACY) -> str:
    """Describe whether clusters improve accuracy over baselines, or return an empty string without baselines.

    >>> figures = {"baseline.fedavg.difference": 0.031, "baseline.fedavg.low": 0.012, "baseline.fedavg.high": 0.05}
    >>> clustering_verdict(Summary(overall=figures))
    'Clusters gain 0.031 in accuracy over one model for all (0.012 to 0.050).'
    """
    if BASELINE not in summary.overall:
        return ""
    by_group = {name: metrics for name, metrics in summary.by_group.items() if BASELINE in metrics}
    least = sorted(by_group, key=lambda name: by_group[name][BASELINE])[:MOST_GROUPS]
    by_gain = names_by((name, gain_text(by_group[name], "fedavg").partition(" (")[0]) for name in least)
    groups = [f"{join_words(names)}: {gain}" for gain, names in by_gain.items()]
    text = gain_text(summary.overall, "fedavg", f" in {metric}", BASELINES["fedavg"])
    said = f"Whether clusters pay is {text}" if text.startswith("not decided") else f"Clusters {text}"
    return f"{said}; {', '.join(groups)}." if groups else f"{said}."


def cluster_number_text(summary: Summary) -> str:
    """Describe how the number of clusters was chosen, or return an empty string if the user chose the number.

    >>> cluster_number_text(Summary(overall={"auto.clusters": 2, "auto.loss.1": 0.9, "auto.loss.2": 0.5}))
    "The number of clusters was chosen by clients' held-out losses: 2 (0.9 with 1, 0.5 with 2)."
    """
    chosen = summary.overall.get("auto.clusters")
    if chosen is None:
        return ""
    losses = {key.removeprefix("auto.loss."): value for key, value in summary.overall.items() if "auto.loss" in key}
    listed = ", ".join(f"{value:.3g} with {clusters}" for clusters, value in losses.items())
    return f"The number of clusters was chosen by clients' held-out losses: {chosen:.0f} ({listed})."


def limits(summary: Summary) -> str:
    """Describe how many clients have an exceeded limit, at 95 % confidence and by point estimate."""
    overall, violations = summary.overall, int(summary.overall["violations.total"])
    exceeded = int(overall.get("exceeded.total", 0))
    several = "clients exceed their limits" if exceeded > 1 else "clients exceeds its limit"
    subject = f"{exceeded} of {summary.clients} {several}" if exceeded else "No client exceeds its limit"
    others = int(overall.get("limits_of_other_views", 0))
    finder = f"by attacks of {BY.get(summary.view, summary.view)}"
    finder += f" ({others} limits by the attacker that they name)" if others else ""
    attack = "deciding attack" if strongest_attacks(summary) else "configured attack"
    point = f"{violations or 'none'} {'do' if violations > 1 else 'does'}"
    return f"{subject} at 95 % confidence, {finder}; by the point estimate of the {attack}, {point}"


def of_groups(summary: Summary, metric: str) -> dict[str, float]:
    """Return a metric's defined values by group."""
    return {group: metrics[metric] for group, metrics in summary.by_group.items() if metric in metrics}


def chance_sentence(summary: Summary, kind: str = "images") -> str:
    """Name the groups whose models are not significantly better than predicting the most frequent training class.

    The result is "" if there is no such group.
    """
    if not _complete(summary):
        return ""
    shares, accuracies, examples = (
        of_groups(summary, name) for name in ("most_frequent_class", "accuracy", "test_examples")
    )
    if not isnan(own := own_accuracy(summary)):
        accuracies = dict.fromkeys(accuracies, own)
    # The exact interval of a share of a group's test examples, as if one model served the group.
    measured = {name: Estimate.of_rate(accuracies[name], examples.get(name, 0)).among(len(shares)) for name in shares}
    near = {name: one for name, one in measured.items() if one.low <= shares[name]}
    listed = ", ".join(f"{name} {one.text} against {decimal(shares[name])}" for name, one in near.items())
    said = "The models are not shown to beat guessing, at 95 % confidence"
    return f"{said}: accuracy on test {kind} against guessing the most frequent class, {listed}." if near else ""


def _epsilon(summary: Summary, *, found: bool) -> list[str]:
    """Describe what differential privacy guarantees and does not guarantee, if training was private.

    ``found`` is whether the page also shows the configured attack's exposure.
    """
    delta, epsilon = summary.overall.get("delta"), summary.overall.get("epsilon")
    if delta is None and epsilon is None:
        return []
    if epsilon is None:
        return ["Differential privacy guarantees nothing, since no noise was added (epsilon is infinite)"]
    at = "" if delta is None else f" at delta {delta:g}"
    choice = "the choice of a model, which is sent to the server without noise, nor "
    sent = len(summary.by_cluster) > 1 and "epsilon.choice" not in summary.overall
    not_covered = choice * sent + "all examples of a client together"
    bound = f"epsilon {epsilon:.2f}{at} for the client with the largest epsilon; epsilon does not cover {not_covered}"
    limit = limit_sentence(summary.view, summary.overall, of_groups(summary, "mia").values() if found else ())
    said = f"Differential privacy bounds what updates and models reveal about one example: {bound}"
    return [said, limit] if limit else [said]


def property_sentences(summary: Summary) -> list[str]:
    """Describe the outcome of a property attack in sentences without full stops, if there was an attack.

    The counterfactual pairs decide the outcome; see `property_summary`.
    """
    overall = summary.overall
    if "property.auc" not in overall:
        return []
    pairs, positives = (int(overall.get(f"property.{name}", 0)) for name in ("pairs", "positives"))
    negatives = int(overall.get("property.updates", 0)) - positives
    right = Estimate.of_rate(overall["property.auc_counterfactual"], pairs) if pairs else Estimate(nan)
    found = Finding("client", "all", PROPERTY, right, title=f"property inference on {pairs} counterfactual pairs")
    auc = overall["property.auc"]
    every = Estimate(auc, *(auc_interval(auc, positives, negatives) if positives and negatives else (0.0, 1.0)))
    apart = "models" if len(summary.by_cluster) > 1 else "rounds"
    more = "only tells" if found.verdict == "at chance" else "is not shown to do more than tell"
    first = [f"The property attack {more} {apart} apart"] * (every.verdict == "exposed" != found.verdict)
    control = overall.get("property.auc_control")
    beside = "" if control is None else f"; with shuffled labels, {decimal(control)}"
    rest = f"The AUC over all updates, assumed independent, is {every.figure}{beside}"
    return [*first, sentence(found).removesuffix("."), rest]
