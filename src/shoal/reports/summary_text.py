"""A run's summary in sentences."""

from collections.abc import Mapping

from shoal.config.kinds import algorithm_title
from shoal.control import COLUMN
from shoal.reports.formats import ACCURACY, decimal, metric_format, percent
from shoal.reports.strongest import accuracies_by_attack, reference_federations, strongest_attacks
from shoal.simulation.summary import Summary

NOTICEABLE = 0.02
"""Smaller differences of accuracy and exposure count as none: about what another seed changes."""


def verdict(summary: Summary, kind: str = "images", metric: str = ACCURACY) -> str:
    """A run's accuracy, exposure and violations in a few sentences.

    Args:
        summary: of the run.
        kind: what its examples are, in the plural.
        metric: what it reports as accuracy.
    """
    overall, by_group = summary.overall, of_groups(summary, "accuracy")
    if not {"accuracy.overall", "violations.total"} <= set(overall):
        return "The metrics of this run are incomplete."
    form, title = metric_format(metric), algorithm_title(str(summary.run["algorithm"]))
    if metric == ACCURACY:
        accuracy = f"{title} is right on {form(overall['accuracy.overall'])} of held-out {kind}"
    else:
        accuracy = f"The metric of {title} on held-out {kind}, {metric}, is {form(overall['accuracy.overall'])}"
    if len(by_group) > 1:
        accuracy += f" ({', '.join(f'{form(value)} for {group}' for group, value in by_group.items())})"
    sentences = [
        accuracy,
        *_worse_than_guessing(summary, kind),
        *_exposure(summary),
        *_property(summary),
        limits(summary),
        *_coordinator(summary),
    ]
    return ". ".join([*sentences, *_epsilon(summary)]) + "."


def limits(summary: Summary) -> str:
    """How many clients' limits are exceeded: for certain, where the run has intervals, and by the point estimate."""
    violations = int(summary.overall["violations.total"])
    exceeded = int(summary.overall.get("exceeded.total", violations))
    whose = f"{exceeded} of {summary.clients} clients'" if exceeded else "No client's"
    sentence = f"{whose} {'limits are' if exceeded > 1 else 'limit is'} exceeded"
    drawn = (
        "; limits were drawn at random, since no client has set one" if summary.overall.get("thresholds_drawn") else ""
    )
    if "exceeded.total" not in summary.overall:
        return sentence + drawn
    which = "strongest" if reference_federations(summary) else "configured"
    return (
        f"{sentence} for certain (the 95 % interval of an attack's accuracy lies above the limit); by the {which} "
        f"attack's point estimate, {violations or 'none'} {'are' if violations > 1 else 'is'}{drawn}"
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


def _worse_than_guessing(summary: Summary, kind: str) -> list[str]:
    """Groups and models whose accuracy is below that of always naming the most frequent class; nothing if unknown."""
    accuracy, guess = of_groups(summary, "accuracy"), of_groups(summary, "most_frequent_class")
    if not guess:
        return []
    worse = [f"{group} ({percent(accuracy[group])})" for group in accuracy if accuracy[group] < guess.get(group, 0.0)]
    # A model may serve several groups; below the least of their shares it is worse for any mix of them.
    least = min(guess.values(), default=0.0)
    clusters = {k: each["accuracy"] for k, each in summary.by_cluster.items() if "accuracy" in each}
    worse += [f"model {k} ({percent(value)})" for k, value in clusters.items() if len(clusters) > 1 and value < least]
    if not worse:
        return []
    shares = sorted({percent(value) for value in guess.values()})
    always = f"always naming the most frequent class of the held-out {kind} is right on {' or '.join(shares)}"
    return [f"That is worse than guessing for {', '.join(worse)}: {always}"]


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
    mia, by_loss = of_groups(summary, "mia"), of_groups(summary, "loss_threshold")
    if not mia:
        return ["No attack was measured"]
    references, names = reference_federations(summary), strongest_attacks(summary)
    better = {group: by_loss[group] for group in mia if by_loss.get(group, 0.0) >= mia[group] + NOTICEABLE}

    def values(by_group: Mapping[str, float]) -> str:
        whose = {name: f" for {name}" if len(mia) > 1 else "" for name in by_group}
        by = {name: f" by {names[name]}" if name in names else "" for name in by_group}
        return "; ".join(f"{decimal(each)}{whose[name]}{by[name]}" for name, each in by_group.items())

    if references:
        count = max(len(accuracies_by_attack(each)) for each in summary.by_group.values())
        guessing = max(mia.values()) < 0.5 + NOTICEABLE
        told = "from others no better than guessing (0.500)" if guessing else "from others (guessing: 0.500)"
        asked = f"{references} reference federation{'s' if references > 1 else ''}"
        return [
            f"The strongest of {count} attacks, with {asked}, tells members {told}: balanced accuracy {values(mia)}"
        ]
    if max(mia.values()) < 0.5 + NOTICEABLE:
        sentences = [f"The attack tells members from others no better than guessing (0.500): {values(mia)}"]
    else:
        sentences = [f"An attacker tells members from others with balanced accuracy {values(mia)} (guessing: 0.500)"]
    return [*sentences, f"A threshold on the loss does better: {values(better)}"] if better else sentences


def _property(summary: Summary) -> list[str]:
    """The outcome of a property attack; nothing without one."""
    auc = summary.overall.get("property.auc")
    if auc is None:
        return []
    beside = {
        "property.auc_control": "learned from shuffled labels",
        "property.auc_counterfactual": "the victim's examples swapped",
    }
    known = (f"; {name}: {decimal(summary.overall[key])}" for key, name in beside.items() if key in summary.overall)
    how = "no better than guessing, with an AUC of" if auc < 0.5 + NOTICEABLE else "from others with an AUC of"
    attack = "The property attack tells updates with the property"
    return [f"{attack} {how} {decimal(auc)} (guessing: 0.500{''.join(known)})"]
