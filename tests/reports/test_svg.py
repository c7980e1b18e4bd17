"""Figures on a page: what the pointer shows, and colours that follow a light or a dark page."""

from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as MplFigure

import shoal.reports
from html_page import figures_on, page_of
from run_of_any_shape import clients_of, rounds_of, usual_page
from shoal.reports.charts import NAMED, Curve
from shoal.reports.plotting import (
    MOST,
    add_named_points,
    cluster_style,
    draw_figure,
    figure_files,
    name_points,
    use_figure_style,
)
from shoal.reports.run.run_charts import cluster_sizes, violations
from shoal.reports.run.run_tables import with_limits

GROUPS = ["a", "b"]
STYLE = (Path(shoal.reports.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")


def titles(svg: str | bytes) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("title")]


def named(texts: list[str]) -> list[str]:
    def draw(figure: MplFigure) -> None:
        (line,) = figure.subplots().plot(range(len(texts)), range(len(texts)), marker="o")
        name_points(line, texts)

    return titles(draw_figure("any", "Any", "", "any", draw).image)


def test_each_point_has_its_own_name_whatever_is_in_it() -> None:
    texts = ["<b> & \"c\" 'd'", "two\nlines", "少数", "a, b; c|d"]
    assert named(texts) == ["<b> & \"c\" 'd'", "two lines", "少数", "a, b; c|d"]
    assert named(texts[:1]) == texts[:1]
    assert named([]) == []
    assert named(["x"] * (MOST + 1)) == []


def test_where_points_are_outside_the_figure_no_point_has_a_wrong_name() -> None:
    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        add_named_points(axes, [0.0, 100.0, 1.0], [0.0, 100.0, 1.0], ["first", "far away", "last"])
        axes.set(xlim=(-1, 2), ylim=(-1, 2))

    assert titles(draw_figure("any", "Any", "", "any", draw).image) == []


def test_a_curve_names_its_values_by_round_and_skips_gaps() -> None:
    def of(values: pd.Series) -> list[str]:
        curve = Curve("cluster 1", values, cluster_style(1))
        return titles(draw_figure("any", "Any", "", "any", lambda figure: curve.draw(figure.subplots())).image)

    assert of(pd.Series({1: 0.25, 2: None, 3: 0.5})) == ["cluster 1, round 1: 0.250", "cluster 1, round 3: 0.500"]
    of_many = of(pd.Series({i: i / 1000 for i in range(1, 501)}))
    assert len(of_many) == NAMED
    assert of_many[-1] == "cluster 1, round 500: 0.500"


def test_every_figure_of_a_run_shows_names_under_the_pointer() -> None:
    figures = figures_on(page_of(usual_page()))
    assert len(figures) == 5
    assert all(titles(each) for each in figures)
    assert "client 1 (b): exposure 0.580 by shadow, limit 0.560" in " ".join(map(" ".join, map(titles, figures)))


def test_files_keep_the_names_and_colours_for_paper() -> None:
    def draw(figure: MplFigure) -> None:
        (line,) = figure.subplots().plot([0, 1], [0, 1], marker="o", color="black")
        name_points(line, ["first", "second"])

    files = figure_files("any", draw, (3, 2))
    assert titles(files.svg)[-2:] == ["first", "second"]
    assert b"#ffffff" in files.svg
    assert b"var(" not in files.svg


def test_cluster_sizes_tell_who_trained_a_model_from_who_chose_it_at_last() -> None:
    """Four clients trained model 1 in the last round; one chose it afterwards."""
    rounds = rounds_of(GROUPS, 2).assign(clients=[2, 4] * 4)
    rounds = rounds.assign(**{"clients.a": [1, 2] * 4, "clients.b": [1, 2] * 4})
    figure = cluster_sizes(rounds, GROUPS, {0: 5, 1: 1})
    words = [each.text for each in ElementTree.fromstring(figure.image).iter() if each.tag in ("text", "title")]
    assert "cluster 1: 1 client" in words
    assert "cluster 1, round 4: 2 of a, 2 of b" in words
    assert "cluster 1: chosen by 1 after round 4" in words
    assert "chose the model after the last round" in words
    assert "Diamond: clients that chose" in figure.caption
    assert not any("ends with" in (each or "") for each in words)


def test_clients_with_rows_of_several_groups_count_once_in_a_cluster() -> None:
    rounds = rounds_of(GROUPS, 2).assign(**{"clients": 3, "clients.a": 2, "clients.b": 2})
    figure = cluster_sizes(rounds, GROUPS, {0: 3, 1: 3})
    words = [each.text for each in ElementTree.fromstring(figure.image).iter() if each.tag == "title"]
    assert "cluster 1, round 4: 3 of all clients" in words
    assert not any("of a," in (each or "") for each in words)


def test_clients_of_one_figure_are_named_up_to_a_number() -> None:
    clients = pd.concat([clients_of(GROUPS, 2)] * 200, ignore_index=True)
    drawn = [violations(with_limits(clients.head(count)), GROUPS) for count in (6, MOST + 1)]
    assert [len(titles(each.image)) if each else None for each in drawn] == [6, 0]


def test_ones_own_figures_have_by_name_the_style_of_the_pages():
    with plt.style.context("shoal.figures"):
        found = dict(mpl.rcParams)
    with use_figure_style():
        assert found == dict(mpl.rcParams)
    assert found != dict(mpl.rcParams)


def test_lines_take_the_colours_of_clusters_in_turn():
    with plt.style.context("shoal.figures"):
        colors = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    assert list(map(to_hex, colors)) == [cluster_style(k).color.lower() for k in range(7)]
