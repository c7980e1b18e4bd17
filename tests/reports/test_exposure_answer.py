"""The first screen: it names who is exposed by what intervals show, and the command that does something about it."""

from math import nan

import pytest

from shoal.reports.audit.exposure_answer import answers
from shoal.reports.estimate import Estimate

OPEN, EXPOSED, CERTAIN = Estimate(0.52, 0.48, 0.56), Estimate(0.67, 0.62, 0.71), Estimate(1.0, 0.98, 1.0)
VIEWS = ("outsider", "client", "server")


def said(exposures, **known):
    return {question: (text, command) for question, text, command in answers(exposures, **known)}


def test_exposed_groups_come_with_the_view_that_shows_most_and_the_command_that_lowers_it():
    page = said({"outsider": {"few": EXPOSED}, "client": {"few": EXPOSED}, "server": {"few": CERTAIN, "many": CERTAIN}})
    who, bad = page["Who is exposed, to whom?"][0], page["Is it bad?"][0]
    assert who == "few to an outsider, a client; few and many to the server."
    assert bad.startswith("yes, nearly every record. Right: an outsider and a client about 67 of 100 records of few")
    assert page["What to do?"][1] == "shoal protect DIR/config.toml --view server --limit 0.55"
    assert "What would settle what is open?" not in page


def test_an_interval_that_holds_chance_is_open_with_the_seeds_that_would_settle_it():
    page = said({view: {"few": OPEN} for view in VIEWS})
    assert page["Who is exposed, to whom?"][0].startswith("nobody is shown to be; open: few to an outsider, a client")
    assert page["Is it bad?"][0].startswith("not shown. ")
    # (1.43 * 0.04 / 0.02)^2 = 8.2 seeds in all.
    assert page["What would settle what is open?"][0].startswith("About 8 more seeds, if the 0.520 of few is true")
    assert page["What to do?"][1] == "shoal card DIR"


@pytest.mark.parametrize("value", [0.5, 0.49, 0.501])
def test_a_figure_at_chance_is_settled_by_no_number_of_seeds(value):
    page = said({"outsider": {"few": Estimate(value, value - 0.05, value + 0.05)}})
    assert page["What would settle what is open?"][0].startswith("At the figures found more seeds would not")


def test_a_run_that_was_not_audited_is_to_be_audited_and_what_was_not_asked_is_named():
    page = said({"outsider": {"few": EXPOSED, "none": Estimate(nan)}}, audited=False)
    assert page["Who is exposed, to whom?"][0] == "few to an outsider; not asked: a client, the server."
    assert page["What to do?"][1] == "shoal audit DIR --references 8"
    assert [*said({}, run=False)] == ["Who is exposed, to whom?"]
    many = said({"server": {f"group {g}": CERTAIN for g in range(9)}})
    assert (
        many["Who is exposed, to whom?"][0]
        == "group 0, group 1 and 7 more to the server; not asked: an outsider, a client."
    )
