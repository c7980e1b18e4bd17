"""The recommendation of a search in plain words: what to change, what it costs, and what it does not cover."""

from math import isnan

from shoal.data.preferences import View
from shoal.protection.judgement import Demand, Protection
from shoal.protection.ladder import DELTA, UNPROTECTED
from shoal.reports.exposure import limit_sentence

_COVERAGE: dict[View, str] = {
    "outsider": "It does not cover other clients, who see every round, nor the server, which sees each update.",
    "client": "It does not cover the server, which sees each client's updates; where the server sees their sums alone, "
    "by secure aggregation, it has the view of a client that sends nothing.",
    "server": "It covers what outsiders and other clients see too. Secure aggregation was not counted on: with it the "
    "server has a client's view, in which less is enough.",
}


def sentences(best: Protection, demand: Demand) -> list[str]:
    """What to change, how exposed whom that leaves, what it costs, and what it does not cover.

    Example:
        >>> from math import nan
        >>> from shoal.protection import Demand, Protection, sentences
        >>> exposure = {"exposure": 0.52, "exposure_low": 0.5, "exposure_high": 0.54}
        >>> before = {"before": 0.61, "group_before": "north"}
        >>> accuracy = {"accuracy": 0.80, "accuracy_before": 0.79}
        >>> payer = {"payer": "south", "payer_accuracy": 0.7, "payer_accuracy_before": 0.75}
        >>> rest = {"outcome": "met", "group": "north", "alone": nan, "seeds": 4, "more_seeds": 0}
        >>> rest |= {"epsilon": nan, "bound": nan}
        >>> words = {"rung": "a", "words": "5 rounds instead of 15"}
        >>> best = Protection(**words, **exposure, **before, **accuracy, **payer, **rest)
        >>> sentences(best, Demand(limit=0.55))[0]
        'Train the federation with 5 rounds instead of 15.'
    """
    kept = {"met": "is within", "not met": "is above", "open": "may or may not be within"}[best.outcome]
    more = f"; {best.seeds + best.more_seeds} judging seeds may show it" if best.more_seeds else ""
    interval = f"{best.exposure_low:.3f} to {best.exposure_high:.3f} for 95 % of further seeds, by {best.seeds}"
    which = f", which {kept} the limit of {demand.limit:g}{more}"
    stands = f"{best.exposure:.3f} ({interval} that chose nothing){'' if demand.promise else which}"
    if best.rung == UNPROTECTED.name:
        helps = "nothing tried helps at this price"
        if getattr(best, demand.limited) <= demand.limit:
            helps = "the federation is within the limit as it is"
            if best.outcome != "met":
                helps = "the federation is not shown to be above the limit as it is"
        exposed = f"The exposure of {best.group}, the most exposed group, is {stands}."
        cost = f"Accuracy over all clients is {best.accuracy:.3f}."
        return [f"Change nothing: {helps}.", exposed, cost, _without_clients(best), _caveat(best, demand)]
    what = f"Train the federation with {best.words}."
    if best.outcome != "met":
        what = f"Nothing tried is shown to keep the limit. The best that was judged: {best.words}."
    exposed = (
        f"The exposure of {best.group}, the most exposed group, is then {stands}; without it, {best.group_before} had "
        f"{best.before:.3f} while it was chosen."
    )
    return [what, exposed, _cost(best, demand), _without_clients(best), _caveat(best, demand)]


def _cost(best: Protection, demand: Demand) -> str:
    cost = best.accuracy - best.accuracy_before
    price = "more than" if -cost > demand.max_cost else "within"
    paid = "pays most" if best.payer_accuracy < best.payer_accuracy_before else "gains least"
    return (
        f"Accuracy over all clients goes from {best.accuracy_before:.3f} to {best.accuracy:.3f} ({cost:+.3f}), "
        f"{price} the price of {demand.max_cost:g}; {best.payer} {paid}, from {best.payer_accuracy_before:.3f} to "
        f"{best.payer_accuracy:.3f}."
    )


def _without_clients(best: Protection) -> str:
    """What the labelled shadow set gives without any client."""
    if isnan(best.alone):
        return "No shadow set says how accurate a model would be without any client."
    more = "no less, so" if best.alone >= best.accuracy else "less;"
    return (
        f"The shadow set and its labels alone, without any client, give {best.alone:.3f}: {more} where the server has "
        f"such labels, {'it need not ask clients' if best.alone >= best.accuracy else 'clients add to it'}."
    )


def _caveat(best: Protection, demand: Demand) -> str:
    attacks = f"the strongest attack of the {demand.view}'s view with {demand.references} reference federations"
    promise = "a measurement, not a promise"
    if not isnan(best.epsilon):
        promise = f"a measurement beside a promise, an epsilon of {best.epsilon:.2f} at delta {DELTA:g} for a record"
    limit = limit_sentence(demand.view, {f"bound.{demand.view}.accuracy": best.bound}, [best.exposure])
    if limit and demand.promise:
        limit += f", and the limit of {demand.limit:g} is {'kept' if best.outcome == 'met' else 'not kept'}"
    said = f"This is {promise}, by {attacks}; stronger attacks may find more. {_COVERAGE[demand.view]}"
    return f"{said} {limit}." if limit else said
