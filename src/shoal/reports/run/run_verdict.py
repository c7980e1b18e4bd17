"""A run's summary in sentences: what is said of exposure and accuracy rests on 95 % intervals."""

from collections.abc import Mapping

from shoal.config.kinds import algorithm_title
from shoal.control import COLUMN
from shoal.core.formats import ACCURACY, decimal, metric_format, percent
from shoal.metrics import auc_interval
from shoal.metrics.summary import Summary
from shoal.reports.estimate import Estimate, Outcome
from shoal.reports.run.run_view import reference_federations, strongest_attacks

SAID: Mapping[Outcome, str] = {
    "exposed": "tells members from non-members",
    "chance": "is not shown to be above chance",
    "open": "leaves open how exposed records are",
}
"""What an attack of each outcome does."""


def verdict(summary: Summary, kind: str = "images", metric: str = ACCURACY, audited: str = "") -> str:
    """A run's accuracy, exposure and violations in a few sentences.

    Args:
        summary: of the run.
        kind: what its examples are, in the plural.
        metric: what it reports as accuracy.
        audited: the verdict of the run's audit; it stands first, and what the run's own attack says goes.
    """
    overall, by_group = summary.overall, of_groups(summary, "accuracy")
    if not {"accuracy.overall", "violations.total"} <= set(overall):
        return "The metrics of this run are incomplete."
    form, title = metric_format(metric), algorithm_title(str(summary.run["algorithm"]))
    if metric == ACCURACY:
        accuracy = f"{title} has {form(overall['accuracy.overall'])} test accuracy"
    else:
        accuracy = f"The metric of {title} on held-out {kind}, {metric}, is {form(overall['accuracy.overall'])}"
    if len(by_group) > 1:
        accuracy += f" ({', '.join(f'{form(value)} for {group}' for group, value in by_group.items())})"
    sentences = [
        accuracy,
        *_guessing(summary, kind),
        *([] if audited else _exposure(summary)),
        *_property(summary),
        *([] if audited else [limits(summary)]),
        *_coordinator(summary),
        *_epsilon(summary),
    ]
    return f"{audited} {'. '.join(sentences)}.".lstrip()


def limits(summary: Summary) -> str:
    """How many clients' limits are exceeded: at 95 % confidence, where the run has intervals, and by point estimate."""
    violations = int(summary.overall["violations.total"])
    exceeded = int(summary.overall.get("exceeded.total", violations))
    whose = f"The limits of {exceeded} of {summary.clients} clients are" if exceeded else "No client's limit is"
    drawn = (
        "; limits were drawn at random, since no client has set one" if summary.overall.get("thresholds_drawn") else ""
    )
    if "exceeded.total" not in summary.overall:
        return f"{whose} exceeded by the point estimate{drawn}"
    which = "attack that decides" if reference_federations(summary) else "configured attack"
    return (
        f"{whose} exceeded at 95 % confidence; by the point estimate of the {which}, "
        f"{violations or 'none'} {'are' if violations > 1 else 'is'}{drawn}"
    )


def _coordinator(summary: Summary) -> list[str]:
    """What a coordinator asks for at the end, and of whom in vain; nothing without one."""
    steered = {k: each for k, each in summary.by_cluster.items() if "limit_unmet" in each}
    if not steered:
        return []
    asked = [
        f"{name.removeprefix(COLUMN).replace('_', ' ')} {value:.2f} of cluster {k}"
        for k, each in steered.items()
        for name, value in each.items()
        if name.startswith(COLUMN) and value
    ]
    unmet = [str(k) for k, each in steered.items() if each["limit_unmet"]]
    sentence = f"Its coordinator asks at the end for {', '.join(asked) or 'nothing'}"
    if unmet:
        sentence += (
            f"; it cannot bring cluster {', '.join(unmet)} within the limits of its members at the cost it allows"
        )
    return [sentence]


def of_groups(summary: Summary, metric: str) -> dict[str, float]:
    """A metric by group, where it is defined."""
    return {group: each[metric] for group, each in summary.by_group.items() if metric in each}


def _guessing(summary: Summary, kind: str) -> list[str]:
    """Groups and models that are not shown to be better than always naming the most frequent class, or are worse."""
    shares, clusters = of_groups(summary, "most_frequent_class"), {}
    examples, accuracies = of_groups(summary, "test_examples"), of_groups(summary, "accuracy")
    if not shares:
        return []
    if len(summary.by_cluster) > 1:
        clusters = {f"model {k}": each["accuracy"] for k, each in summary.by_cluster.items() if "accuracy" in each}
    # A model may serve several groups; below the least of their shares it is worse for any mix of them.
    fewest, least = min(examples.values(), default=0), min(shares.values())
    # The exact interval of a share of a group's test examples, as if one model served the group.
    compared = {g: (accuracies[g], share, examples.get(g, 0)) for g, share in shares.items()}
    compared |= {model: (value, least, fewest) for model, value in clusters.items()}
    below, near, whose = list[str](), list[str](), list[str]()
    for name, (value, share, size) in compared.items():
        accuracy = Estimate.of_rate(value, size)
        if accuracy.among(len(compared)).low <= share:
            # The share is of the same few examples.
            worse = accuracy.minus(Estimate.of_rate(share, size)).among(len(compared)).high < 0
            (below if worse else near).append(f"{name} ({accuracy.percent})")
            whose.append(f"{percent(share)} of the test {kind} of {name if name in shares else 'a group at the least'}")
    said = [f"below guessing for {', '.join(below)}"] if below else []
    said += [f"not shown to be better than guessing for {', '.join(near)}"] if near else []
    if not said:
        return []
    always = ", ".join(dict.fromkeys(whose))
    return [f"At 95 % confidence, test accuracy is {' and '.join(said)}: the most frequent class is {always}"]


def _epsilon(summary: Summary) -> list[str]:
    """What differential privacy guarantees and what it does not; nothing where no step is private."""
    delta, epsilon = summary.overall.get("delta"), summary.overall.get("epsilon")
    if delta is None and epsilon is None:
        return []
    if epsilon is None:
        return ["Differential privacy guarantees nothing, since no noise was added (epsilon is infinite)"]
    at = "" if delta is None else f" at delta {delta:g}"
    not_covered = ["all examples of a client together"]
    if len(summary.by_cluster) > 1:
        not_covered.insert(0, "the choice of a model, which is sent to the server without noise")
    bound = f"epsilon {epsilon:.2f}{at} for the client with the largest"
    limits = f"it does not cover {' nor '.join(not_covered)}"
    return [f"Differential privacy bounds what updates and models give away of one example: {bound}; {limits}"]


def _exposure(summary: Summary) -> list[str]:
    """Which groups the attack is shown to tell members of, with intervals that hold for all groups at once."""
    groups = summary.by_group
    mia = {name: Estimate.of(each, "mia") for name, each in groups.items() if "mia" in each}
    if not mia:
        return ["No attack was measured"]
    references, names = reference_federations(summary), strongest_attacks(summary)
    attack = "The configured attack"
    if references:
        federations = f"{references} reference federation{'s' * (references > 1)}"
        attack = f"The attack chosen beforehand with {federations}, or one that is certain to find more,"
    wide = {name: each.among(len(mia)) for name, each in mia.items()}
    parts = []
    for outcome, words in SAID.items():
        values = [
            f"{each.text}{_in_brackets(each, groups[name])}"
            + (f" for {name}" if len(mia) > 1 else "")
            + (f" by {names[name]}" if name in names else "")
            for name, each in wide.items()
            if each.outcome == outcome
        ]
        parts += [f"{words} with balanced accuracy {'; '.join(values)}"] if values else []
    whole = "95 % intervals that hold for all groups at once" if len(mia) > 1 else "95 % interval"
    sentences = [f"{attack} {', and '.join(parts)} (chance: 0.500; {whole})"]
    by_loss = {name: Estimate.of(groups[name], "loss_threshold") for name in mia}
    better = [
        f"{each.text}{f' for {name}' if len(mia) > 1 else ''}"
        for name, each in by_loss.items()
        if not references and each.minus(mia[name]).among(len(mia)).low > 0
    ]
    return [*sentences, f"A threshold on the loss finds more: {', '.join(better)}"] if better else sentences


def _in_brackets(accuracy: Estimate, metrics: Mapping[str, float]) -> str:
    """The interval of a group's balanced accuracy, and how large it is by chance."""
    size = f"95 % of tests at chance: at most {decimal(metrics['mia_null_high'])}" if "mia_null_high" in metrics else ""
    known = "; ".join(filter(None, (accuracy.interval, size)))
    return f" ({known})" if known else ""


def _property(summary: Summary) -> list[str]:
    """The outcome of a property attack; nothing without one."""
    overall = summary.overall
    auc, positives = overall.get("property.auc"), overall.get("property.positives", 0)
    if auc is None:
        return []
    others = overall.get("property.updates", 0) - positives
    low, high = auc_interval(auc, positives, others) if positives and others else (0.0, 1.0)
    beside = {
        "property.auc_control": "learned from shuffled labels",
        "property.auc_counterfactual": "the victim's examples swapped",
    }
    known = (f"; {name}: {decimal(overall[key])}" for key, name in beside.items() if key in overall)
    how = "tells updates with the property from others" if low > 0.5 else "is at chance"
    interval = f"95 % interval {decimal(low)} to {decimal(high)} as if updates were independent; chance: 0.500"
    return [f"The property attack {how} (AUC {decimal(auc)}, {interval}{''.join(known)})"]
