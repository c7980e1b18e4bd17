"""The first screen of a page: who is exposed, to whom, is it bad, and what to do."""

from collections.abc import Collection, Iterable, Mapping
from math import ceil
from statistics import NormalDist
from typing import NamedTuple

from shoal.audit.audit import headline
from shoal.core.formats import listed
from shoal.data.preferences import VIEWS
from shoal.reports.attack_titles import BY
from shoal.reports.audit.findings import Attacked
from shoal.reports.estimate import MOST_SEEDS, Estimate, seeds_needed

MOST_NAMES = 2
"""Groups that are named; the others are counted."""


class Answer(NamedTuple):
    """A question, its answer, and a command that does something about it."""

    question: str
    text: str
    command: str = ""


def exposures_in(audit: Attacked) -> dict[str, dict[str, Estimate]]:
    """The balanced accuracies of the attacks that decide, by view and group; of all records, where no group has any."""
    names = audit.attacks.loc[audit.attacks["scope"] == "group", "name"].unique()
    scopes = [*(("group", str(name)) for name in names), ("all", "all")]
    found: dict[str, dict[str, Estimate]] = {}
    for view in VIEWS:
        rows = {name: headline(audit.attacks, view, scope, name) for scope, name in scopes}
        known = {name: Estimate.of(row, "accuracy") for name, row in rows.items() if row is not None}
        everything = known.pop("all", None)
        found[view] = {name: one for name, one in known.items() if one.known} or (
            {} if everything is None else {"all records": everything}
        )
    return found


def answers(exposures: Mapping[str, Mapping[str, Estimate]], *, audited: bool = True, run: bool = True) -> list[Answer]:
    """The answers by the balanced accuracies of each view on each group.

    Args:
        exposures: by view, then by group; a view without any was not asked.
        audited: whether an audit measured them, or the run's own attack alone.
        run: whether a run's directory has a configuration that can be run again.
    """
    known = {view: {name: one for name, one in exposures.get(view, {}).items() if one.known} for view in VIEWS}
    measured = {view: groups for view, groups in known.items() if groups}
    exposed, unclear = dict[tuple[str, str], Estimate](), dict[tuple[str, str], Estimate]()
    for view, groups in measured.items():
        for name, one in sorted(groups.items(), key=lambda item: -item[1].value):
            (exposed if one.among(len(groups)).outcome == "exposed" else unclear)[view, name] = one
    found = [Answer("Who is exposed, to whom?", who_to_whom(exposed, unclear, measured))]
    if measured:
        found.append(Answer("Is it bad?", _how_bad(exposed or unclear, certain=bool(exposed))))
    if unclear:
        found.append(Answer("What would settle what is open?", _seeds(unclear)))
    if run:
        found.append(_to_do(exposed, audited=audited))
    return found


def who_to_whom(exposed: Iterable[tuple[str, str]], unclear: Iterable[tuple[str, str]], asked: Collection[str]) -> str:
    """Who is exposed to whom, of whom that is open, and who did not ask, in a sentence.

    Args:
        exposed, unclear: views and groups.
        asked: the views that were.

    >>> who_to_whom([("client", "few"), ("server", "few")], [("outsider", "few")], ["outsider", "client", "server"])
    'few to a client, the server; open: few to an outsider.'
    """
    said = [_to_whom(exposed) or "nobody is shown to be"]
    said += [f"open: {whom}"] if (whom := _to_whom(unclear)) else []
    unasked = [BY[view] for view in VIEWS if view not in asked]
    said += [f"not asked: {', '.join(unasked)}"] if unasked else []
    return f"{'; '.join(said)}."


def _to_whom(keys: Iterable[tuple[str, str]]) -> str:
    """Groups to views, where the same groups are exposed to several views in one phrase."""
    by_view: dict[str, list[str]] = {}
    for view, name in keys:
        by_view.setdefault(view, []).append(name)
    by_names: dict[str, list[str]] = {}
    for view, names in by_view.items():
        by_names.setdefault(listed(names, MOST_NAMES), []).append(BY[view])
    return "; ".join(f"{names} to {', '.join(views)}" for names, views in by_names.items())


def _how_bad(figures: Mapping[tuple[str, str], Estimate], *, certain: bool) -> str:
    """Of how many records in 100 the views are right, on the group that each exposes most."""
    worst: dict[str, tuple[str, Estimate]] = {}
    for (view, name), one in figures.items():
        if view not in worst or one.value > worst[view][1].value:
            worst[view] = (name, one)
    said: dict[str, list[str]] = {}
    for view, (name, one) in worst.items():
        said.setdefault(f"about {100 * one.value:.0f} of 100 records of {name}", []).append(BY[view])
    right = ", ".join(f"{' and '.join(views)} {what}" for what, views in said.items())
    most = max(one.value for one in figures.values())
    bad = "yes, nearly every record" if most > 0.9 else "yes" if most > 0.6 else "a little"
    return f"{bad if certain else 'not shown'}. Right: {right}; a coin about 50."


def _seeds(unclear: Mapping[tuple[str, str], Estimate]) -> str:
    """How many further seeds would tell the largest open figure from chance, were it the true one.

    The interval is of one seed, whose standard deviation is half its width over 1.96; see `seeds_needed`.
    """
    (_, name), one = max(unclear.items(), key=lambda item: item[1].value)
    needed = seeds_needed(max(one.value - 0.5, 0.0), (one.value - one.low) / NormalDist().inv_cdf(0.975))
    # Written so that the NaN of a figure without an interval is too many.
    if not needed - 1 <= MOST_SEEDS:
        return f"At the figures found more seeds would not: {name} has {one.with_interval()}."
    return f"About {max(ceil(needed) - 1, 1)} more seeds, if the {one.text} of {name} is true (power 80 %)."


def _to_do(exposed: Mapping[tuple[str, str], Estimate], *, audited: bool) -> Answer:
    question, where = "What to do?", "DIR is this run's directory."
    if not audited:
        return Answer(question, f"Ask the strongest attacks of every view. {where}", "shoal audit DIR --references 8")
    if exposed:
        view = max(exposed, key=lambda key: exposed[key].value)[0]
        command = f"shoal protect DIR/config.toml --view {view} --limit 0.55"
        return Answer(question, f"Find what lowers it, and its price. {where}", command)
    return Answer(question, f"Tell the models' users what was asked. {where}", "shoal card DIR")
