"""The page's section on time: its parts add up to the total, in the bar and in the table."""

import re

import pytest

from run_of_any_shape import texts_of
from shoal.core.formats import DASH
from shoal.reports.run import time_section as section
from shoal.reports.run.time_section import seconds, time_section

PARTS = {"choose": 6.0, "local_training": 60.0, "defenses": 1.0, "aggregation": 2.0, "evaluation": 20.0, "other": 11.0}
NEW = {f"seconds.{part}": spent for part, spent in {**PARTS, "train": 63.0, "total": 100.0}.items()}
OLD = {"seconds.choose": 20.0, "seconds.train": 70.0, "seconds.total": 100.0}


def test_the_parts_of_the_bar_add_up_to_the_total():
    # Training is a sum of three parts; small parts, and what no part has, are the last.
    new = {"local training": 0.6, "evaluation": 0.2, "choosing": 0.06, "aggregation": 0.02, "everything else": 0.12}
    assert section._shares(NEW) == pytest.approx(new)
    assert section._shares(OLD) == pytest.approx({"training": 0.7, "choosing": 0.2, "everything else": 0.1})


def test_more_parts_than_the_bar_has_colours_are_one_part():
    many = {f"seconds.{part}": 10.0 for part in (*PARTS, "red_team", "files", "measurement", "references")}
    shares = section._shares(many | {"seconds.total": 100.0})
    assert list(shares.values()) == pytest.approx([0.1] * 6 + [0.4])
    assert [*shares][-1] == "everything else"


def test_the_table_has_each_part_once_with_share_and_median_where_there_is_one():
    shown = texts_of(seconds(NEW | {"seconds.share.choose": 0.06, "seconds.round.choose": 0.5}))
    assert shown["Choosing"] == ("6.0 s", "6.0 %", "500 ms")
    assert shown["Local training"] == ("1 min 00 s", DASH, DASH)
    assert "Training" not in shown
    assert "Training" in texts_of(seconds(OLD))


def test_the_bar_says_its_shares_in_words_and_is_left_out_without_parts():
    (bar,) = time_section(NEW).figures
    label = re.search(r'aria-label="([^"]*)"', bar.image)
    assert label is not None
    assert label[1].startswith("One bar, 1 min 40 s in all: local training, 60.0 %; evaluation, 20.0 %")
    assert not time_section({}).figures
    assert not time_section({"seconds.total": 3.0}).figures
