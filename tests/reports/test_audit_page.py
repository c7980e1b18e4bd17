"""The page of an audit: what is on it, in which order, for audits of any shape."""

from dataclasses import replace
from functools import cache
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from audit_of_any_shape import ACCURACY, attack_row, audit_of, records_frame
from html_page import PNG, Page, figures_on, page_of
from shoal.audit.audit import Audit
from shoal.audit.finding import Estimate, Finding, every_attack, findings
from shoal.cli.displays import format_audit
from shoal.core.formats import DASH
from shoal.reports.audit.audit_charts import chance_exposure, chance_share, drawn_groups, exposure_of_records
from shoal.reports.audit.audit_page import audit_page, exceeds_stated
from shoal.reports.exposure import exposure_headlines
from shoal.reports.plotting import group_style
from unrendered import unrendered_figures

RUN = Path("my runs/a")
ORDER = ["findings", "by-group", "by-model", "by-client", "records", "epsilon", "not-tested"]


def html_of(
    audit: Audit,
    stated: dict[str, float] | None = None,
    pictures: dict[str, NDArray] | None = None,
    kind: str = "images",
) -> str:
    return audit_page(audit, title="An audit", stated=stated or {}, pictures=pictures or {}, kind_of_data=kind)


def shown(audit: Audit, stated: dict[str, float] | None = None) -> Page:
    """The page of an audit, whose figures are empty."""
    with unrendered_figures():
        return page_of(html_of(audit, stated))


@cache
def usual_page() -> Page:
    """The page of `audit_of()`, with its figures; the tests only read it."""
    return page_of(html_of(audit_of()))


def part(page: Page, section: str) -> str:
    """The HTML of a section."""
    return page.source.partition(f'<section aria-labelledby="{section}">')[2].partition("</section>")[0]


def rows(page: Page, section: str) -> list[str]:
    """The rows of a section's table."""
    return part(page, section).split("<tbody>", 1)[1].split("<tr")[1:]


def picture(channels: int = 1) -> NDArray[np.uint8]:
    return np.arange(channels * 16, dtype=np.uint8).reshape(channels, 4, 4)


def test_the_page_has_its_sections_in_order_and_needs_no_script() -> None:
    page = usual_page()
    assert [each for each in page.ids if each in ORDER] == ORDER
    assert "script" not in page.tags
    assert page.text.index("Exposed: majority and minority to") < page.text.index("Deciding attack LiRA")
    assert "view: outsider; on minority" in page.text
    assert "400 members, 400 non-members" in page.text


def test_an_attack_below_chance_is_said_to_have_the_wrong_sign_on_the_page_and_the_terminal() -> None:
    reversed_scores = audit_of({"lira": 0.55, "gap": 0.2})
    said = "gap on majority has an AUC of 0.190 (0.150 to 0.230), below chance: its scores may have the wrong sign"
    assert said in shown(reversed_scores).text
    assert said in format_audit(reversed_scores)
    assert "wrong sign" not in usual_page().text + format_audit(audit_of())


def test_two_pages_are_identical_and_leave_the_audit_as_it_is() -> None:
    audit = audit_of()
    attacks, records = audit.attacks.copy(), audit.records.copy()
    pictures = {"client-0": picture()}
    assert html_of(audit, pictures=pictures) == html_of(audit_of(), pictures={"client-0": picture()})
    pd.testing.assert_frame_equal(audit.attacks, attacks)
    pd.testing.assert_frame_equal(audit.records, records)


def test_every_attack_has_a_row_by_group_and_the_strongest_of_each_is_bold() -> None:
    audit = audit_of()
    change = (audit.attacks["name"] == "majority") & (audit.attacks["attack"] == "rmia")
    audit.attacks.loc[change, "accuracy"] = 0.71
    audit.attacks.loc[audit.attacks["name"] == "majority", "strongest"] = change
    found = rows(shown(audit), "by-group")
    # Two headings, the most exposed group first, and a row for each attack.
    assert len(found) == 2 * (1 + len(ACCURACY))
    assert "minority: 400 members" in found[0]
    assert "majority: 400 members" in found[1 + len(ACCURACY)]
    strong = [each for each in found if 'class="strong"' in each]
    assert [('"row">LiRA <' in each, '"row">RMIA <' in each) for each in strong] == [(True, False), (False, True)]
    assert '<td class="number">0.720 <small>0.674 to 0.766</small></td>' in strong[0]
    assert '<td class="number">0.750 <small>0.704 to 0.796</small></td>' in strong[0]
    assert '<td class="number">0.100 <small>0.054 to 0.146</small></td>' in strong[0]
    assert any('"row">my-attack <' in each for each in found)
    assert any('"row">Other clusters&#39; models <small>outsider</small></th>' in each for each in found)


def test_a_rate_that_the_non_members_cannot_carry_is_a_dash_with_the_reason() -> None:
    made = [attack_row("lira", scope, "all", 0.7, records=120) for scope in ("all", "group")]
    page = shown(audit_of(rows=made))
    assert "too few non-members: 120, 300 are needed" in page.text
    assert "too few non-members: 120, 3,000 are needed" in page.text
    assert "at 1 % FPR</th>" not in part(page, "by-group"), "a column without any figure is left out"
    enough = shown(audit_of(rows=[attack_row("lira", "all", "all", 0.7, records=3000)]))
    assert "too few" not in enough.text


def test_groups_and_models_that_are_too_many_are_left_out_and_that_is_said() -> None:
    groups = tuple(f"group {g:02d}" for g in range(30))
    page = shown(audit_of({"lira": 0.9}, groups=groups, models=30))
    assert "The table has the 20 most exposed of 30 groups" in page.text
    assert "The table has 20 of 30 models;" in page.text
    assert "group 29: 400" in page.text
    assert "group 00" not in part(page, "by-group") + part(page, "by-model")
    assert "The 6 most exposed of 30 groups are shown" in page.text


def test_groups_without_both_kinds_are_left_out_and_all_records_stand_for_them_where_none_has() -> None:
    made = [attack_row("lira", "all", "all", 0.7), attack_row("lira", "group", "minority", nan)]
    page = shown(audit_of(rows=[*made, attack_row("lira", "group", "majority", 0.6)]))
    assert "minority: 400" not in page.text
    assert "Groups left out, because they lack members or non-members: 1." in page.text
    assert "left out" not in usual_page().text
    alone = page_of(html_of(audit_of(rows=made)))
    assert "Exposed: all records to an outsider." in alone.text
    assert "all: 400 members" in alone.text
    assert "Groups left out, because they lack members or non-members: 1." in alone.text
    assert len(figures_on(alone)) == 2


def test_a_group_has_the_same_style_in_both_figures() -> None:
    """Seven groups; the first is the least exposed and is not drawn; the second has no members."""
    names = tuple(f"group {g}" for g in range(7))
    audit = audit_of({"lira": 0.9}, groups=names)
    audit.records["group"] = [names[2 + i % 5] for i in range(len(audit.records))]
    found = every_attack(audit.attacks, "group")
    assert drawn_groups(found) == list(names[1:])
    figure = exposure_of_records(audit.records, drawn_groups(found), 16)
    assert figure is not None
    colours = [group_style(g).color.lower() for g in (0, 1)]
    assert [each in figure.image.lower() for each in colours] == [False, True]
    assert "Other groups are not shown" not in figure.caption
    one = exposure_of_records(audit.records, list(names[2:3]), 16)
    assert one is not None
    assert "Other groups are not shown" in one.caption


def test_figures_name_their_values_and_mark_the_mean() -> None:
    page = usual_page()
    figures = figures_on(page)
    assert len(figures) == page.tags.count("figure") == 2
    assert "<title>LiRA, outsider, on minority: 0.720 (0.674 to 0.766), exposed</title>" in figures[0]
    assert figures[0].count("not measured</text>") == 2
    members = audit_of().records.query("member and group == 'minority'")["exposure"]
    assert f"<title>minority: mean {members.mean():.3f}</title>" in figures[1]
    assert f"minority: mean {members.mean():.3f}, largest {members.max():.3f}" in page.text


def test_the_curve_of_many_records_keeps_the_most_exposed_and_few_points() -> None:
    records = records_frame(20_000)
    figure = exposure_of_records(records, ["majority", "minority"], 16)
    assert figure is not None
    assert len(figure.image) < 120_000
    largest = records.query("member and group == 'majority'")["exposure"].max()
    assert f"have {largest:.3f} or more" in figure.image


@pytest.mark.parametrize("references", [3, 16])
@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_chance_gives_at_most_what_the_formula_says_where_no_record_is_exposed(references: int, spread: float) -> None:
    """Scores that do not depend on membership, of records that differ in their deviation; each in half the models."""
    from shoal.attacks import ReferenceScores  # noqa: PLC0415 - of this test alone
    from shoal.audit import record_exposure  # noqa: PLC0415 - of this test alone
    from shoal.core.randomness import Stream  # noqa: PLC0415

    generator, count = np.random.default_rng(0), 4_000
    member = np.argsort(generator.random((count, references + 1)), axis=1) < (references + 1) // 2
    score = generator.standard_normal((count, references + 1)) * np.exp(generator.normal(0, spread, (count, 1)))
    exposure, _ = record_exposure(ReferenceScores(
        score[:, 0], member[:, 0], score[:, 1:], member[:, 1:], np.zeros(count, dtype=np.int64), None
    ), Stream(0))  # fmt: skip
    # Four standard errors of a share of 5 % among so many.
    assert 0.01 < (exposure >= chance_exposure(references)).mean() < 0.064
    assert chance_share(np.array([0.5]), references) == pytest.approx((exposure >= 0.5).mean(), abs=0.03)
    at = np.array([0.6, 0.7, 0.8, 0.9])
    assert (chance_share(at, references) > [(exposure >= each).mean() - 0.014 for each in at]).all()


def test_models_are_listed_by_exposure_and_only_where_there_are_several() -> None:
    found = rows(shown(audit_of(models=3)), "by-model")
    assert [f'"row">{k}<' in each for k, each in enumerate(found)] == [True] * 3
    assert "0.720" in found[0]
    assert "by-model" not in shown(audit_of(models=1)).ids


def test_clients_are_sorted_by_the_lower_end_so_that_few_records_do_not_come_first() -> None:
    """Client 5 has the highest accuracy and the widest interval."""
    page = usual_page()
    found = rows(page, "by-client")
    assert [each.partition('"row">')[2][0] for each in found] == ["4", "3", "2", "1", "0", "5"]
    assert "above 0.5 for 2 of 6" in page.text
    many = shown(audit_of(clients=50))
    assert len(rows(many, "by-client")) == 20
    assert "The table has 20 of 50 clients;" in many.text


def test_clients_without_both_kinds_are_left_out() -> None:
    made = [attack_row("lira", "all", "all", 0.7), attack_row("lira", "client", "alone", nan)]
    page = shown(audit_of(rows=made))
    assert "by-client" not in page.ids
    assert "alone" not in page.text


@pytest.mark.usefixtures("_unrendered_figures")
def test_records_with_a_picture_are_shown_and_the_others_listed() -> None:
    audit = audit_of()
    members = audit.records[audit.records["member"]]["record"].tolist()
    first, last = members[0], members[-1]
    page = page_of(html_of(audit, pictures={first: picture(3), last: picture()}))
    assert sum(each.startswith(PNG) for each in page.addresses) == 1
    assert f"Picture of {first}" in page.labels
    listed = rows(page, "records")
    assert len(listed) == 19
    assert not any(f'"row">{name}<' in each for name in {*audit.records["record"]} - {*members} for each in listed)
    assert not any(f'"row">{first}<' in each for each in listed)
    assert f"<strong>{audit.records['exposure'][0]:.3f}</strong> <small>at least" in page.source
    all_pictured = page_of(html_of(audit, pictures={name: picture() for name in members[:20]}))
    assert "<table>" not in part(all_pictured, "records")


def test_the_noise_of_single_records_is_said_with_the_number_of_reference_models() -> None:
    text = usual_page().text
    assert "With 16 reference models and the attacked model, up to 5 % of unexposed records have 0.663" in text
    members = audit_of().records.query("member").reset_index()
    certain = (members["exposure.low"] > 0.5).sum()
    assert f"above 0.5 for {certain} members." in text
    largest = members["exposure"][0]
    assert f"{largest:.3f} <small>at least {largest - 0.3:.3f}</small>" in rows(usual_page(), "records")[0]


def test_without_reference_models_records_are_listed_by_score_and_no_exposure_is_claimed() -> None:
    page = page_of(html_of(audit_of(references=0)))
    assert "a record's exposure is unknown" in page.text
    assert len(figures_on(page)) == 1
    assert "noisy" not in page.text
    assert rows(page, "records")[0].count(f">{DASH}</td>") == 1


def test_what_was_not_tested_names_omitted_attacks_and_attackers_that_nobody_asked() -> None:
    text = part(usual_page(), "not-tested")
    assert "BaVarIA: needs 64 reference models; there are 16." in text
    assert "The server: not measured; an audit retrains a run" in text
    assert "Another client: not measured" in text
    assert "Active attackers" in text
    with_server = audit_of(rows=[attack_row(key, "all", "all", 0.6) for key in ("fedmia-i", "trajectory")])
    assert "Another client:" not in part(shown(with_server), "not-tested")
    assert "The server:" not in part(shown(with_server), "not-tested")


def test_an_attack_with_other_clients_examples_as_non_members_has_its_name_and_says_so() -> None:
    keys = ("fedmia-i", "fedmia-ii", "grad-cosine", "grad-diff")
    page = shown(audit_of(rows=[attack_row(f"{key}-others", "all", "all", 0.6) for key in keys]))
    table = part(page, "by-group")
    for title in ("FedMIA-I", "FedMIA-II", "Grad-cosine", "Grad-diff"):
        assert f'"row">{title}, other clients <' in table
    assert "-others" not in page.text
    assert "Attacks named 'other clients' use other clients' examples as non-members" in page.text
    assert "Attacks named 'other clients'" not in usual_page().text


def test_where_weights_leave_too_few_non_members_for_a_rate_the_page_says_so() -> None:
    row = attack_row("fedmia-i", "all", "all", 0.6, records=310) | {"tpr_at_fpr_0.01": float("nan")}
    table = part(shown(audit_of(rows=[row])), "by-group")
    assert "No TPR at 1 % FPR: too few non-members: 310, unequally weighted; 300 of equal weight are needed." in table


def test_what_the_server_guesses_stands_with_its_interval_and_beside_guessing_blindly() -> None:
    guesses = {"group-inference.accuracy": 0.75, "group-inference.accuracy.low": 0.6}
    guesses |= {"group-inference.accuracy.high": 0.85, "group-inference.chance": 0.7}
    page = shown(audit_of(guesses=guesses))
    (row,) = rows(page, "guesses")
    assert '"row">Group inference</th>' in row
    assert "0.750 <small>0.600 to 0.850</small>" in row
    assert ">0.700<" in row
    assert "last recorded round" not in page.text
    identity = {f"cluster-identity.{key}": value for key, value in (("accuracy", 0.9), ("last_round", 0.65))}
    both = shown(audit_of(guesses=guesses | identity))
    assert [each.partition('"row">')[2].partition("<")[0] for each in rows(both, "guesses")] == [
        "Group inference", "Cluster identity",
    ]  # fmt: skip
    assert "from the last recorded round alone: 0.650." in both.text
    assert "guesses" not in usual_page().ids


def test_names_are_escaped_and_may_be_in_other_scripts() -> None:
    names = ("<b>&", "$x$ frac", "少数")
    audit = audit_of(groups=names)
    audit.records["group"] = [names[i % 3] for i in range(len(audit.records))]
    audit.records.loc[0, "record"] = "<i>record</i>"
    page = shown(audit)
    assert not {"b", "i"} & set(page.tags)
    assert "<i>record</i>" in page.text
    for figure in figures_on(page):
        assert "少数" in figure
        assert "$x$ frac" in figure


def test_an_audit_in_which_nothing_was_measured_is_a_page_all_the_same() -> None:
    page = shown(audit_of(rows=[attack_row("lira", "all", "all", nan)], references=0, empirical_epsilon=nan))
    assert "Nothing was measured." in page.text
    assert "no attack could be measured" in page.text
    assert rows(page, "epsilon")[0].count(DASH) == 1
    assert figures_on(page) == []


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
    page = shown(audit, stated)
    assert ("either the stated guarantee is broken" in page.text) == loud
    assert ("cannot be compared" in page.text) == (stated.get("delta", 0) > audit.delta)
    found = [*rows(page, "epsilon"), ""]
    assert f"{stated.get('epsilon', 0):.2f}" in found[2] or "epsilon" not in stated


def test_an_epsilon_that_was_not_measured_contradicts_nothing() -> None:
    assert not exceeds_stated(audit_of(empirical_epsilon=nan), {"epsilon": 0.0, "delta": 1e-5})


@pytest.mark.parametrize(("members", "most"), [(500, "4.0"), (6, "0.0")])
def test_the_empirical_epsilon_stands_beside_what_so_many_records_can_show(members: int, most: str) -> None:
    """No attack on n records of a kind shows more than about log(n / 3.7): see `empirical_epsilon`."""
    assert f">{most}<" in rows(shown(audit_of(members=members)), "epsilon")[1]


def test_each_view_has_its_findings_and_the_limit_on_every_attack_or_the_way_to_measure_it() -> None:
    bounds = {"bound.outsider.accuracy": 0.8, "bound.outsider.auc": 0.9, "bound.server.accuracy": 0.999}
    omitted = {"span-models": "needs a dense layer"}
    page = shown(replace(audit_of(), omitted=omitted), bounds).text
    limit = "has accuracy 0.720; no attack on one record can exceed 0.800 (AUC 0.900)."
    assert limit in page
    assert "Another client: not measured, since the span attack needs a dense layer." in page
    assert "For the server differential privacy limits no attack noticeably." in page
    terminal = format_audit(audit_of(), bounds)
    assert limit in terminal
    assert "Not attacked: another client and the server." in terminal


def test_the_first_screen_ends_with_the_command_that_does_something() -> None:
    exposed, certain, undecided = Estimate(0.67, 0.62, 0.71), Estimate(1.0, 0.98, 1.0), Estimate(0.57, 0.49, 0.65)
    found = [Finding("outsider", "few", "", exposed), Finding("server", "few", "", certain)]
    assert (
        exposure_headlines(found, RUN)[-1].command == "shoal protect 'my runs/a/config.toml' --view server --limit 0.55"
    )
    assert exposure_headlines(found, RUN, audited=False)[-1].command == "shoal audit 'my runs/a' --references 4"
    assert exposure_headlines(found)[-1].command == ""
    said = exposure_headlines([Finding("outsider", "few", "", undecided)], RUN)
    assert said[-1].command == "shoal card 'my runs/a'"


def test_an_attack_chosen_afterwards_is_held_against_all_attacks_and_never_beats_one_that_is_nan() -> None:
    made = [attack_row("lira", "group", name, 0.6) for name in ("few", "many")]
    made += [attack_row("rmia", "group", name, 0.56, chosen=True) for name in ("few", "many")]
    afterwards, beforehand = every_attack(audit_of(rows=made).attacks, "group")["few"]
    # Two groups, and two attacks for the one that was not chosen.
    assert afterwards.accuracy.interval == Estimate(0.6, 0.56, 0.64).among(4).interval
    assert beforehand.accuracy.interval == Estimate(0.56, 0.52, 0.6).among(2).interval
    made = [attack_row("rmia", "group", "all", nan), attack_row("lira", "group", "all", 0.6)]
    assert [finding.attack for finding in findings(audit_of(rows=made).attacks)] == ["lira"]
