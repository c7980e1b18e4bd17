"""What an audit's verdict says, and what its two epsilons mean together."""

from math import nan
from typing import Any

import pytest

from audit_of_any_shape import attack_row, audit_of
from shoal.reports.audit.audit_epsilon import epsilon_sentences, exceeds_stated, stated_epsilon, violation_warning
from shoal.reports.audit.audit_verdict import verdict
from shoal.reports.audit.findings import findings
from shoal.reports.estimate import Estimate, Outcome


def said(*made: dict[str, Any]) -> str:
    return verdict(findings(audit_of(rows=list(made)), "group"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.51, 0.70, "exposed"),
        (0.5, 0.6, "chance"),
        (0.45, 0.55, "chance"),
        (0.3, 0.45, "chance"),
        (0.4, 0.61, "open"),
        (0.6, 0.9, "open"),
        (nan, nan, "open"),
    ],
)
def test_an_interval_decides_the_outcome(low: float, high: float, expected: Outcome) -> None:
    assert Estimate(0.55, low, high).outcome == expected


def test_the_most_exposed_group_is_named_with_the_attack_that_decides_and_what_weak_ones_say() -> None:
    text = verdict(findings(audit_of(), "group"))
    assert text.startswith(
        "On minority, the most exposed group, the attack chosen beforehand, LiRA by an outsider, tells"
    )
    assert (
        "balanced accuracy 0.720 (95 % interval 0.674 to 0.766, for all groups at once; "
        "chance: 0.500, where 95 % of tests of this size give at most 0.540)" in text
    )
    assert "At a false positive rate of 1 % it names 10.0 % of the members (6.0 to 14.0 %)" in text
    weak = "Weak attacks would have said less: shadow models 0.550 (0.510 to 0.590), gap 0.580"
    assert weak in text
    assert "t chance:" not in text
    assert "open" not in text


def test_an_attack_that_was_not_chosen_beforehand_is_held_against_all_attacks() -> None:
    rows = [attack_row("lira", "group", name, 0.6) for name in ("few", "many")]
    rows += [attack_row("rmia", "group", name, 0.56, chosen=True) for name in ("few", "many")]
    text = said(*rows)
    assert "group, LiRA by an outsider, which is certain to find more than the attack chosen beforehand, tells" in text
    assert "(95 % interval 0.549 to 0.651, for all groups and attacks at once; chance" in text
    narrow = said(*({**row, "chosen": row["attack"] == "lira"} for row in rows))
    assert "the attack chosen beforehand, LiRA by an outsider, tells" in narrow
    assert "(95 % interval 0.554 to 0.646, for all groups at once; chance" in narrow


def test_one_group_is_not_called_the_most_exposed() -> None:
    text = said(attack_row("lira", "group", "all", 0.7))
    assert text.startswith("The only attack, LiRA by an outsider, tells")
    assert "eak attack" not in text


def test_an_interval_that_contains_half_is_at_chance() -> None:
    text = said(attack_row("lira", "group", "all", 0.52, tpr=0.02), attack_row("gap", "group", "all", 0.51))
    assert text.startswith("Not shown to be above chance: the attack chosen beforehand, LiRA by an outsider,")
    assert "A weak attack would have said no clearly other figure: gap 0.510" in text
    assert "some members are exposed" not in text


def test_members_who_are_named_are_exposed_although_the_accuracy_is_at_chance() -> None:
    text = said(attack_row("lira", "group", "all", 0.52, tpr=0.09))
    assert text.startswith("On average not shown to be above chance")
    assert "Yet some members are exposed: at a false positive rate of 1 % it names 9.0 %" in text


def test_a_wide_interval_leaves_open_and_says_what_is_certain() -> None:
    small = attack_row("lira", "group", "few", 0.8, width=0.5, records=8)
    text = said(small, attack_row("rmia", "group", "many", 0.66))
    assert text.startswith("How exposed the records are is open: on few, the most exposed group,")
    assert "which is 0.572 wide" in text
    assert "too few non-members: 8, 300 are needed" in text
    assert "What is certain: on many, RMIA by an outsider has balanced accuracy 0.660 (0.614 to 0.706; chance" in text
    assert "What is certain" not in said(small, attack_row("rmia", "group", "many", 0.51))
    assert "and is above chance" in said(attack_row("lira", "group", "all", 0.8, width=0.3))


def test_an_attack_that_was_not_measured_somewhere_is_never_the_strongest_there() -> None:
    made = [attack_row("rmia", "group", "all", nan), attack_row("lira", "group", "all", 0.6)]
    assert "the only attack, LiRA" in said(*made).lower().replace("lira", "LiRA")
    assert said(made[0]) == "No attack could be measured, so it is open how exposed the records are."
    assert said() == said(made[0])


def test_a_strongest_attack_that_is_weak_is_not_compared_with_itself() -> None:
    text = said(attack_row("posterior", "group", "all", 0.7), attack_row("gap", "group", "all", 0.6))
    assert "A weak attack would have said less: gap 0.600" in text
    assert "the posterior attack 0.700" not in text


@pytest.mark.parametrize(
    ("stated", "loud"),
    [
        ({"epsilon": 1.0, "delta": 1e-5}, True),
        ({"epsilon": 1.0, "delta": 1e-6}, True),
        ({"epsilon": 1.0}, True),
        ({"epsilon": 1.0, "delta": 1e-4}, False),
        ({"epsilon": 1.25, "delta": 1e-5}, False),
        ({"delta": 1e-5}, False),
        ({}, False),
    ],
)
def test_an_empirical_epsilon_above_a_stated_one_that_it_can_be_compared_with_is_loud(
    stated: dict[str, float], loud: bool
) -> None:
    audit = audit_of()
    assert exceeds_stated(audit, stated) == loud
    assert bool(violation_warning(audit, stated)) == loud
    text = " ".join(epsilon_sentences(audit, stated))
    assert ("cannot be compared" in text) == (stated.get("delta", 0) > audit.delta)
    assert ("The stated epsilon is" in text) == ("epsilon" in stated)
    assert ("No epsilon is stated" in text) == ("epsilon" not in stated)


def test_an_epsilon_that_was_not_measured_contradicts_nothing() -> None:
    audit = audit_of(empirical_epsilon=nan)
    assert not exceeds_stated(audit, {"epsilon": 0.0, "delta": 1e-5})
    assert epsilon_sentences(audit, {})[0] == "The empirical epsilon was not measured."


def test_the_stated_epsilon_is_said_with_its_delta() -> None:
    assert stated_epsilon({"epsilon": 8.0, "delta": 1e-5}) == "stated: 8.00 at delta 1e-05"
    assert stated_epsilon({"delta": 1e-5}) == "none stated"


def test_the_empirical_epsilon_is_said_with_what_so_many_records_can_show() -> None:
    """No attack on n records of a kind shows more than about log(n / 3.7): see `empirical_epsilon`."""
    assert "With 200 records of a kind to judge it on, it could not be above about 4.0" in " ".join(
        epsilon_sentences(audit_of(members=500), {})
    )
    assert "above about 0.0" in " ".join(epsilon_sentences(audit_of(members=6), {}))


def test_a_rate_that_a_group_is_too_small_for_is_said_over_all_records() -> None:
    made = [attack_row("lira", "all", "all", 0.7, tpr=0.04), attack_row("lira", "group", "few", 0.7, records=120)]
    audit = audit_of(rows=made)
    text = verdict(findings(audit, "group"), findings(audit, "all")["all"])
    assert "too few non-members: 120, 300 are needed; over all records it is 4.0 % (0.0 to 8.0 %)" in text
    assert "over all records" not in verdict(findings(audit, "group"))
