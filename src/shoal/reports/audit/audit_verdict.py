"""What an audit finds, in a few sentences."""

from collections.abc import Mapping, Sequence

from shoal.core.formats import capitalized, decimal
from shoal.reports.attack_titles import WEAK
from shoal.reports.audit.findings import Finding, measured
from shoal.reports.estimate import Estimate, at_chance


def verdict(groups: Mapping[str, Sequence[Finding]], everything: Sequence[Finding] = ()) -> str:
    """How exposed the most exposed group is, by the attack that decides, and what weaker attacks would have said.

    The most exposed of several groups has too large a figure, so what is said of it rests on the interval that all
    groups keep at once; and all attacks, where another than the one chosen beforehand decides.

    Args:
        groups: the findings on each group.
        everything: those on all records, which may be enough for what those of a group are too few for.
    """
    strongest = measured(groups.values())
    if not strongest:
        return "No attack could be measured, so it is open how exposed the records are."
    # How many figures were looked at: the groups', each by all attacks unless the one chosen beforehand decides.
    looked = {
        finding.name: len(groups) * (1 if finding.chosen else max(1, _tried(groups[finding.name])))
        for finding in strongest
    }
    worst = strongest[0]
    accuracy, named = worst.accuracy.among(looked[worst.name]), worst.tpr[0.01].among(looked[worst.name]).low > 0.01
    sentences = [
        _exposure(worst, groups, accuracy, looked[worst.name], named=named),
        _rate(worst, everything, accuracy, named=named),
    ]
    weaker = ((finding, finding.accuracy.among(looked[finding.name])) for finding in strongest[1:])
    certain = next((pair for pair in weaker if pair[1].outcome == "exposed"), None)
    if accuracy.outcome == "open" and certain is not None:
        on, wide = certain
        value = f"balanced accuracy {wide.with_interval(at_chance(on.null_high))}"
        sentences.append(f"What is certain: on {on.name}, {on.by} has {value}")
    sentences.append(_weaker(worst, groups[worst.name], len(groups)))
    return ". ".join(filter(None, sentences)) + "."


def _tried(attempts: Sequence[Finding]) -> int:
    return sum(finding.accuracy.known for finding in attempts)


def _exposure(
    worst: Finding, groups: Mapping[str, Sequence[Finding]], accuracy: Estimate, looked: int, *, named: bool
) -> str:
    where = f"on {worst.name}, the most exposed group, " if len(groups) > 1 else ""
    if _tried(groups[worst.name]) == 1:
        attack = f"the only attack, {worst.by},"
    elif worst.chosen:
        attack = f"the attack chosen beforehand, {worst.by},"
    else:
        attack = f"{worst.by}, which is certain to find more than the attack chosen beforehand,"
    interval = f"95 % interval {accuracy.interval}" if accuracy.interval else "no interval"
    at_once = " and ".join(["groups"] * (len(groups) > 1) + ["attacks"] * (looked > len(groups)))
    if accuracy.interval and at_once:
        interval += f", for all {at_once} at once"
    value = f"balanced accuracy {accuracy.text} ({interval}; {at_chance(worst.null_high)})"
    match accuracy.outcome:
        case "open":
            wide = f", which is {decimal(accuracy.high - accuracy.low)} wide" if accuracy.interval else ""
            than = " and is above chance" if accuracy.low > 0.5 else ""
            return (
                f"How exposed the records are is open: {where}{attack} has {value}{wide}{than}; more records would say"
            )
        case "chance":
            average = "On average not" if named else "Not"
            return f"{average} shown to be above chance: {where}{attack} has {value}"
        case _:
            return capitalized(f"{where}{attack} tells members from non-members with {value}")


def _rate(worst: Finding, everything: Sequence[Finding], accuracy: Estimate, *, named: bool) -> str:
    """The true positive rate at 1 % false positives, which may be high where the accuracy is at chance."""
    tpr = worst.tpr[0.01]
    if not tpr.known:
        unknown = f"Its true positive rate at 1 % false positives is not known: {worst.why_no_tpr(0.01)}"
        over_all = [
            finding.tpr[0.01] for finding in everything if finding.attack == worst.attack and finding.tpr[0.01].known
        ]
        return unknown + "".join(f"; over all records it is {rate.percent}{_in_brackets(rate)}" for rate in over_all)
    sentence = f"t a false positive rate of 1 % it names {tpr.percent} of the members{_in_brackets(tpr)}"
    if accuracy.outcome == "chance" and named:
        return f"Yet some members are exposed: a{sentence}, more than the 1.0 % of chance"
    return f"A{sentence}"


def _in_brackets(rate: Estimate) -> str:
    return f" ({rate.percent_interval})" if rate.percent_interval else ""


def _weaker(worst: Finding, attempts: Sequence[Finding], groups: int) -> str:
    """What attacks that need no reference models find on the records of the attack that decides."""
    by_key = {finding.attack: finding for finding in attempts if finding.accuracy.known}
    weak = [by_key[key] for key in WEAK if key in by_key and key != worst.attack]
    if not weak:
        return ""
    values = (f"{finding.title} {finding.accuracy.with_interval()}" for finding in weak)
    less = all(worst.accuracy.minus(finding.accuracy).among(groups).low > 0 for finding in weak)
    attacks = "A weak attack" if len(weak) == 1 else "Weak attacks"
    return f"{attacks} would have said {'less' if less else 'no clearly other figure'}: {', '.join(values)}"
