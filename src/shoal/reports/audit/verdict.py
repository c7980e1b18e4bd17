"""What an audit finds, in a few sentences."""

from collections.abc import Mapping, Sequence

from shoal.reports.audit.attack_titles import WEAK
from shoal.reports.audit.findings import Finding, measured
from shoal.reports.estimate import Estimate
from shoal.reports.formats import decimal


def verdict(groups: Mapping[str, Sequence[Finding]], everything: Sequence[Finding] = ()) -> str:
    """How exposed the most exposed group is, by the strongest attack, and what weaker attacks would have said.

    Of many figures the largest is too large, so what is said of it rests on the interval that all keep at once.

    Args:
        groups: the findings on each group.
        everything: those on all records, which may be enough for what those of a group are too few for.
    """
    strongest = measured(groups.values())
    if not strongest:
        return "No attack could be measured, so it is open how exposed the records are."
    worst, figures = strongest[0], sum(each.accuracy.known for found in groups.values() for each in found)
    accuracy, named = worst.accuracy.among(figures), _names_members(worst, figures)
    sentences = [
        _exposure(worst, groups, accuracy, figures, named=named),
        _rate(worst, everything, accuracy, named=named),
    ]
    certain = next((each for each in strongest[1:] if each.accuracy.among(figures).outcome == "exposed"), None)
    if accuracy.outcome == "open" and certain is not None:
        value = f"balanced accuracy {certain.accuracy.text} ({certain.accuracy.among(figures).interval})"
        sentences.append(f"What is certain: on {certain.name}, {certain.title} has {value}")
    sentences.append(_weaker(worst, groups[worst.name], figures))
    return ". ".join(filter(None, sentences)) + "."


def _names_members(worst: Finding, figures: int) -> bool:
    """Whether more members than non-members are above the threshold of 1 % false positives, beyond chance."""
    false_positives = Estimate.of_rate(0.01, worst.non_members)
    return worst.tpr[0.01].minus(false_positives).among(figures).low > 0


def _exposure(
    worst: Finding, groups: Mapping[str, Sequence[Finding]], accuracy: Estimate, figures: int, *, named: bool
) -> str:
    tried = sum(each.accuracy.known for each in groups[worst.name])
    where = f"On {worst.name}, the most exposed group, " if len(groups) > 1 else ""
    which = f"the strongest of {tried} attacks, {worst.title}," if tried > 1 else f"the only attack, {worst.title},"
    interval = f"95 % interval {accuracy.interval}" if accuracy.interval else "no interval"
    if accuracy.interval and figures > 1:
        interval += f", which all {figures} figures keep at once"
    value = f"balanced accuracy {accuracy.text} ({interval}; {worst.chance})"
    match accuracy.outcome:
        case "open":
            wide = f", which is {decimal(accuracy.high - accuracy.low)} wide" if accuracy.interval else ""
            than = " and is above chance" if accuracy.low > 0.5 else ""
            sentence = _lower(f"{where}{which} has {value}")
            return f"How exposed the records are is open: {sentence}{wide}{than}; more records would say"
        case "chance":
            return f"{'On average at' if named else 'At'} chance: {_lower(f'{where}{which} has {value}')}"
        case _:
            return _upper(f"{where}{which} tells members from non-members with {value}")


def _rate(worst: Finding, everything: Sequence[Finding], accuracy: Estimate, *, named: bool) -> str:
    """The true positive rate at 1 % false positives, which may be high where the accuracy is at chance."""
    tpr = worst.tpr[0.01]
    if not tpr.known:
        unknown = f"Its true positive rate at 1 % false positives is not known: {worst.why_no_tpr(0.01)}"
        over_all = [each.tpr[0.01] for each in everything if each.attack == worst.attack and each.tpr[0.01].known]
        return unknown + "".join(f"; over all records it is {each.percent}{_in_brackets(each)}" for each in over_all)
    sentence = f"t a false positive rate of 1 % it names {tpr.percent} of the members{_in_brackets(tpr)}"
    if accuracy.outcome == "chance" and named:
        return f"Yet some members are exposed: a{sentence}, more than the 1.0 % of chance"
    return f"A{sentence}"


def _in_brackets(rate: Estimate) -> str:
    return f" ({rate.percent_interval})" if rate.percent_interval else ""


def _weaker(worst: Finding, found: Sequence[Finding], figures: int) -> str:
    """What attacks that need no reference models find where the strongest one was asked."""
    by_key = {each.attack: each for each in found if each.accuracy.known}
    weak = [by_key[key] for key in WEAK if key in by_key and key != worst.attack]
    if not weak:
        return ""
    values = ", ".join(
        f"the {_lower(each.title)} {each.accuracy.text}"
        + (f" ({each.accuracy.interval})" if each.accuracy.interval else "")
        for each in weak
    )
    less = all(worst.accuracy.minus(each.accuracy).among(figures).low > 0 for each in weak)
    one = "a weak attack" if len(weak) == 1 else "weak attacks"
    return _upper(f"{one} would have said {'less' if less else 'no clearly other figure'}: {values}")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
