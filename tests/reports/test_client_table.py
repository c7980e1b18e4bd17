"""The table of clients, and what a page says of limits, by intervals or else by the point estimate."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from html_page import page_of
from run_of_any_shape import clients_of, config_of, finished, frames_of, report_text, summary_of, view_of
from shoal.core.formats import DASH
from shoal.metrics.summary import flatten, parse_summary
from shoal.reports.run.client_table import client_table
from shoal.reports.run.description import RunDescription
from shoal.reports.run.privacy_figures import violations
from shoal.reports.run.run_page import run_page
from shoal.reports.run.run_verdict import limits
from shoal.reports.run.run_view import with_limits
from shoal.reports.table import Table

GROUPS = ["a", "b"]


def with_intervals() -> pd.DataFrame:
    """Limits 0.5, 0.56, ... 0.8: client 0 is over for certain by LiRA, 1 by the point estimate alone, 5 unmeasured."""
    exposure = np.array([0.70, 0.60, 0.55, 0.52, 0.52, np.nan])
    frame = clients_of(GROUPS, 2).assign(
        violated=[True, True, False, False, False, False], exposure=exposure, exposure_low=exposure - 0.05,
        attack=["lira", "loss", "loss", "shadow", "shadow", None],
    )  # fmt: skip
    return frame.assign(exceeded=frame["exposure_low"] > frame["threshold"])


def many(count: int, over: int) -> pd.DataFrame:
    ids = np.arange(count)
    frame = pd.concat([clients_of(GROUPS, 1)] * (count // 6 + 1), ignore_index=True).head(count)
    mia = np.where(ids < over, 0.61 + ids / 1e4, 0.5)
    return frame.assign(
        client=ids, threshold=0.6, exposure=mia, exposure_low=mia, violated=ids < over, exceeded=ids < over
    )


def table_of(clients: pd.DataFrame) -> Table:
    return client_table(view_of(GROUPS, 2, clients=clients))


def column(table: Table, head: str) -> list[str]:
    return table.frame()[head].tolist()


def test_rows_are_sorted_by_how_far_the_limit_is_exceeded_and_name_the_attack() -> None:
    table = table_of(with_intervals())
    assert column(table, "client") == ["0", "1", "2", "3", "4", "5"]
    assert column(table, "limit is") == ["exceeded", "above, not certain", "within", "within", "within", DASH]
    assert column(table, "over by") == [
        "+0.150",
        "\N{MINUS SIGN}0.010",
        "\N{MINUS SIGN}0.120",
        "\N{MINUS SIGN}0.210",
        "\N{MINUS SIGN}0.270",
        DASH,
    ]
    assert column(table, "attack") == ["lira", "loss", "loss", "shadow", "shadow", DASH]
    assert column(table, "exposure, low end")[0] == "0.650"
    assert table.sorted_by is not None
    assert table.columns[table.sorted_by].head == "over by"
    assert [row.style for row in table.rows] == ["over", *[""] * 5]


def test_numbers_sort_as_numbers_also_where_they_are_undefined_or_infinite() -> None:
    table = table_of(with_intervals().assign(epsilon=[np.inf, 2.5, 2.5, 2.5, 2.5, np.nan]))
    texts, numbers = column(table, "epsilon"), table.frame(lambda cell: cell.sort)["epsilon"].tolist()
    assert [texts[i] for i in (0, 1, 5)] == ["\N{INFINITY}", "2.500", DASH]
    assert [numbers[i] for i in (0, 1, 5)] == ["Infinity", "2.5", ""]


@pytest.mark.parametrize(("count", "over", "rows"), [(200, 3, 200), (201, 3, 3), (201, 0, 0), (3000, 1500, 1000)])
def test_of_many_clients_only_those_over_their_limit_have_a_row(count: int, over: int, rows: int) -> None:
    table = table_of(many(count, over))
    assert len(table.rows) == rows
    assert column(table, "client")[:2] == [str(over - 1), str(over - 2)][:rows]
    assert ("in clients.csv" in table.caption) == (rows < count)
    assert ("no limit is exceeded" in table.caption) == (over == 0)
    assert ("of them the first 1,000" in table.caption) == (rows < over)


@pytest.mark.usefixtures("_unrendered_figures")
def test_the_page_has_the_table_from_the_file(tmp_path: Path) -> None:
    finished(tmp_path, GROUPS)
    with_intervals().to_csv(tmp_path / "clients.csv", index=False)
    new = report_text(tmp_path)
    text = page_of(new).text
    assert "0 a 0 exceeded +0.150 0.500 0.700 0.650 0.550 lira" in text
    assert 'aria-sort="descending">over by<' in new
    assert new.count('<tr class="over">') == 1
    assert page_of(new).tags.count("script") == 1


@pytest.mark.usefixtures("_unrendered_figures")
def test_names_in_the_table_are_escaped() -> None:
    config, summary = config_of(GROUPS, 2), parse_summary(summary_of(GROUPS, 2))
    frames = frames_of(GROUPS, 2)
    frames["clients"] = with_intervals().assign(attack="<script>alert(1)</script>")
    page = page_of(run_page(RunDescription.of(config), summary, {}, **frames))
    assert page.tags.count("script") == 1
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.usefixtures("_unrendered_figures")
def test_verdict_and_headline_say_both_numbers() -> None:
    flat = summary_of(GROUPS, 2) | {"violations.total": 3, "exceeded.total": 1, "exceeded.a": 1, "exceeded.b": 0}
    summary = parse_summary(flat)
    assert summary.overall["exceeded.total"] == 1
    assert summary.by_group["a"]["exceeded"] == 1
    assert flatten(summary) == flat
    said = limits(summary)
    assert said.startswith("1 of 6 clients exceeds its limit at 95 % confidence")
    assert said.endswith("by the point estimate of the configured attack, 3 do")
    page = page_of(run_page(RunDescription.of(config_of(GROUPS, 2)), summary, {}, **frames_of(GROUPS, 2)))
    assert "Limits exceeded 1 of 6 clients, at 95 % confidence; 3 by the point estimate" in page.text


def test_the_figure_tells_those_who_are_certainly_over_from_those_who_may_be() -> None:
    figure = violations(with_limits(with_intervals()), GROUPS)
    assert figure is not None
    assert "5 clients; 1 are over their limit. 1 more are above it by the point estimate alone." in figure.image
