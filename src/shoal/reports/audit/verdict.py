"""What an audit finds, in a few sentences."""

from collections.abc import Mapping, Sequence
from typing import Literal

from shoal.reports.audit.attack_titles import WEAK
from shoal.reports.audit.findings import Estimate, Finding, measured
from shoal.reports.formats import decimal
from shoal.reports.summary_text import NOTICEABLE

OPEN_WIDTH = 0.2
"""An interval of the balanced accuracy that is wider leaves open how exposed records are."""

Outcome = Literal["open", "guessing", "exposed"]


def outcome(accuracy: Estimate) -> Outcome:
    """What a balanced accuracy says: "open" where its interval is too wide, "guessing" where 0.5 is not below it."""
    # Written so that an interval of NaN, of which nothing is known, is open.
    if not accuracy.high - accuracy.low <= OPEN_WIDTH:
        return "open"
    return "exposed" if accuracy.low > 0.5 else "guessing"


def verdict(groups: Mapping[str, Sequence[Finding]], everything: Sequence[Finding] = ()) -> str:
    """How exposed the most exposed group is, by the strongest attack, and what weaker attacks would have said.

    Args:
        groups: the findings on each group.
        everything: those on all records, which may be enough for what those of a group are too few for.
    """
    strongest = measured(groups.values())
    if not strongest:
        return "No attack could be measured, so it is open how exposed the records are."
    worst = strongest[0]
    sentences = [_exposure(worst, groups), _names_members(worst, everything)]
    certain = next((each for each in strongest[1:] if outcome(each.accuracy) == "exposed"), None)
    if outcome(worst.accuracy) == "open" and certain is not None:
        value = f"balanced accuracy {certain.accuracy.text} ({certain.accuracy.interval})"
        sentences.append(f"What is certain: on {certain.name}, {certain.title} has {value}")
    sentences.append(_weaker(worst, groups[worst.name]))
    return ". ".join(filter(None, sentences)) + "."


def _exposure(worst: Finding, groups: Mapping[str, Sequence[Finding]]) -> str:
    accuracy, tried = worst.accuracy, sum(each.accuracy.known for each in groups[worst.name])
    where = f"On {worst.name}, the most exposed group, " if len(groups) > 1 else ""
    which = f"the strongest of {tried} attacks, {worst.title}," if tried > 1 else f"the only attack, {worst.title},"
    value = f"tells members from non-members with balanced accuracy {accuracy.text}"
    interval = f"95 % interval {accuracy.interval}" if accuracy.interval else "no interval"
    sentence = f"{where}{which} {value} ({interval}; guessing: 0.500)"
    match outcome(accuracy):
        case "open":
            wide = f", which is {decimal(accuracy.high - accuracy.low)} wide" if accuracy.interval else ""
            than = " and is better than guessing" if accuracy.low > 0.5 else ""
            return f"How exposed the records are is open: {_lower(sentence)}{wide}{than}; more records would say"
        case "guessing":
            average = "On average no" if worst.tpr[0.01].low > 0.01 else "No"
            return f"{average} better than guessing: {_lower(sentence)}"
        case _:
            return _upper(sentence)


def _names_members(worst: Finding, everything: Sequence[Finding]) -> str:
    """The true positive rate at 1 % false positives, which may be high where the accuracy is that of guessing."""
    tpr = worst.tpr[0.01]
    if not tpr.known:
        unknown = f"Its true positive rate at 1 % false positives is not known: {worst.why_no_tpr(0.01)}"
        over_all = [each.tpr[0.01] for each in everything if each.attack == worst.attack and each.tpr[0.01].known]
        return unknown + "".join(f"; over all records it is {each.percent}{_in_brackets(each)}" for each in over_all)
    sentence = f"t a false positive rate of 1 % it names {tpr.percent} of the members{_in_brackets(tpr)}"
    if outcome(worst.accuracy) == "guessing" and tpr.low > 0.01:
        return f"Yet some members are exposed: a{sentence}, more than the 1.0 % of guessing"
    return f"A{sentence}"


def _in_brackets(rate: Estimate) -> str:
    return f" ({rate.percent_interval})" if rate.percent_interval else ""


def _weaker(worst: Finding, found: Sequence[Finding]) -> str:
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
    less = worst.accuracy.value - max(each.accuracy.value for each in weak) >= NOTICEABLE
    one = "a weak attack" if len(weak) == 1 else "weak attacks"
    return _upper(f"{one} would have said {'less' if less else 'about the same'}: {values}")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
