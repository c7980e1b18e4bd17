"""A sweep's figures: what they draw is what numpy says of the runs, and missing runs are never passed over."""

from contextlib import nullcontext
from functools import cache
from itertools import product
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as MplFigure

from shoal.reports.plotting import Figure, cluster_style
from shoal.reports.sweep.report_spec import Axes, FigureSpec, Labels
from shoal.reports.sweep.seed_statistics import SeedStatistics, estimate
from shoal.reports.sweep.sweep_charts import (
    RED,
    Chart,
    FigureData,
    chart_content,
    fill_style,
    in_rows,
    paint,
    sweep_figure,
)
from unrendered import figures_without_pdf

SEEDS = (0, 1, 2, 3, 4)
AXES: Axes = {"algorithm": ["IFCA", "IFCA-MIR"], "share": [0.1, 0.3, 0.5]}
METRICS = ("accuracy.minority", "accuracy.majority", "mia.minority")
CHARTS = ("boxes", "bars", "lines")


def results_of(axes: Axes = AXES) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    rows = []
    for number, settings in enumerate(product(*axes.values())):
        for seed in SEEDS:
            metrics = dict(zip(METRICS, rng.uniform(0.5, 0.9, 3), strict=True))
            rows.append({"run": f"{number}-{seed}", **dict(zip(axes, settings, strict=True)), "seed": seed, **metrics})
    return pd.DataFrame(rows)


def figure_spec(kind: str, **more: Any) -> FigureSpec:
    given: dict[str, Any] = {"kind": kind, "by": "algorithm", "x": "share", "y": ["accuracy.minority"]}
    return FigureSpec(**(given | more))


def data_of(spec: FigureSpec, results: pd.DataFrame | None = None, axes: Axes = AXES) -> FigureData:
    return FigureData(spec, SeedStatistics(results_of(axes) if results is None else results, axes, SEEDS), Labels({}))


def drawn(
    spec: FigureSpec,
    results: pd.DataFrame | None = None,
    labels: dict[str, str] | None = None,
    *,
    pdf: bool = False,
) -> Figure:
    """A figure, whose PDF is empty unless ``pdf`` asks for it."""
    runs = results_of() if results is None else results
    with nullcontext() if pdf else figures_without_pdf():
        data = FigureData(spec, SeedStatistics(runs, AXES, SEEDS), Labels(labels or {}))
        return sweep_figure("figure-2", data)


@cache
def usual(kind: str) -> Figure:
    """The figure of all runs, drawn once for the tests that only read it."""
    return drawn(figure_spec(kind), pdf=True)


def painted(data: FigureData) -> MplFigure:
    content = chart_content(data)
    figure = MplFigure(figsize=(content.columns * content.width, 3.2), layout="constrained")
    paint(figure, content, data)
    return figure


def texts(figure: Figure) -> list[str]:
    return [each.strip() for each in ElementTree.fromstring(figure.svg).itertext() if each.strip()]


def at(results: pd.DataFrame, algorithm: str, share: float, key: str = "accuracy.minority") -> np.ndarray:
    held = (results["algorithm"] == algorithm) & (results["share"] == share)
    return results.loc[held, key].to_numpy()


@pytest.mark.parametrize("kind", CHARTS)
def test_same_input_in_any_order_gives_the_same_bytes(kind: str) -> None:
    shuffled = results_of().sample(frac=1.0, random_state=1)
    assert drawn(figure_spec(kind), shuffled, pdf=True) == usual(kind)


def test_forms_of_a_figure() -> None:
    figure = drawn(figure_spec("bars", title="A & <B>", caption="As in the paper."), pdf=True)
    root = ElementTree.fromstring(figure.svg)
    assert root.tag.endswith("}svg")
    assert root.get("width", "").endswith("pt")
    assert b"<text" in figure.svg
    assert figure.pdf.startswith(b"%PDF")
    assert b"/CreationDate" not in figure.pdf
    assert b"/ModDate" not in figure.pdf
    assert b"/FontType 3" not in figure.pdf
    assert b"/CIDFontType2" in figure.pdf
    inline = ElementTree.fromstring(figure.image)
    assert inline.tag == "svg"
    assert inline.get("aria-label", "").startswith("A & <B>: accuracy")
    assert inline.get("style") == "max-width: 3.2in"
    assert figure.name == "figure-2"
    assert figure.title.startswith("A & <B>: accuracy")
    assert figure.caption.startswith("As in the paper. ")
    assert "5 seeds" in figure.caption


def test_figures_bring_only_ids_of_their_own_into_a_page() -> None:
    image = ElementTree.fromstring(usual("bars").image)
    ids = [each.get("id", "") for each in image.iter() if "id" in each.attrib]
    assert len(ids) == len(set(ids)) > 0
    assert all(each.startswith("figure-figure-2-drawn-") for each in ids)


def test_places_have_the_seeds_of_their_setting() -> None:
    results = results_of()
    values = Chart.of(data_of(figure_spec("boxes", y=list(METRICS)), results)).values
    for (p, key), (b, algorithm), (i, share) in product(*(
        list(enumerate(each)) for each in (METRICS, AXES["algorithm"], AXES["share"])
    )):  # fmt: skip
        np.testing.assert_array_equal(values[p, b, i], at(results, str(algorithm), float(share), key))


def test_boxes_show_median_mean_quartiles_and_seeds() -> None:
    results = results_of()
    (panel,) = painted(data_of(figure_spec("boxes"), results)).axes
    cells = [at(results, str(a), float(s)) for a in AXES["algorithm"] for s in AXES["share"]]
    medians = [line.get_ydata()[0] for line in panel.lines if line.get_color() == RED]
    means = [line.get_ydata()[0] for line in panel.lines if line.get_marker() == "D"]
    dots = [line.get_ydata() for line in panel.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(medians, [np.median(cell) for cell in cells])
    np.testing.assert_allclose(means, [np.mean(cell) for cell in cells])
    np.testing.assert_array_equal(dots, cells)
    heights = [patch.get_path().get_extents() for patch in panel.patches]
    np.testing.assert_allclose([box.y0 for box in heights], [np.quantile(cell, 0.25) for cell in cells])
    np.testing.assert_allclose([box.y1 for box in heights], [np.quantile(cell, 0.75) for cell in cells])


def test_whiskers_stop_within_one_and_a_half_boxes() -> None:
    results = results_of()
    held = (results["algorithm"] == "IFCA") & (results["share"] == 0.1)
    results.loc[held, "accuracy.minority"] = [0.5, 0.51, 0.52, 0.53, 0.9]
    (panel,) = painted(data_of(figure_spec("boxes"), results)).axes
    whiskers = [line.get_ydata().tolist() for line in panel.lines if line.get_marker() in {"None", "", None}]
    assert [0.53, 0.53] in whiskers
    assert [0.9, 0.9] not in whiskers


def test_bars_stand_on_zero_and_are_means() -> None:
    results = results_of()
    (panel,) = painted(data_of(figure_spec("bars"), results)).axes
    means = [at(results, str(a), float(s)).mean() for a in AXES["algorithm"] for s in AXES["share"]]
    bars = [patch for patch in panel.patches if patch.get_height() > 0]
    np.testing.assert_allclose([bar.get_height() for bar in bars], means)
    assert panel.get_ylim()[0] == 0
    assert {bar.get_y() for bar in bars} == {0}


def test_lines_are_means_and_break_at_gaps() -> None:
    results = results_of()
    results = results[~((results["algorithm"] == "IFCA") & (results["share"] == 0.3))].reset_index(drop=True)
    (panel,) = painted(data_of(figure_spec("lines"), results)).axes
    line = next(
        line for line in panel.lines if line.get_color() == cluster_style(0).color and len(line.get_xdata()) > 2
    )
    means = [at(results, "IFCA", share).mean() if share != 0.3 else np.nan for share in (0.1, 0.3, 0.5)]
    np.testing.assert_allclose(line.get_ydata(), means)


def test_wide_ranges_get_a_log_scale_and_words_none() -> None:
    for settings, scale in (
        ([1, 2, 50], "log"),
        ([1, 2, 5], "linear"),
        ([0, 20, 50], "linear"),
        (["a", "b"], "linear"),
    ):
        axes: Axes = {"algorithm": ["IFCA"], "share": settings}
        figure = painted(data_of(figure_spec("lines"), axes=axes))
        assert figure.axes[0].get_xscale() == scale
        assert ("(log scale)" in figure.axes[0].get_xlabel()) == (scale == "log")
        assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [str(each) for each in settings]


def test_spread_leaves_out_what_is_missing() -> None:
    values = np.array([[1.0, 1.0, np.nan], [3.0, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    result = estimate(values)
    np.testing.assert_allclose(result.mean, [2.0, 1.0, np.nan])
    np.testing.assert_allclose(result.spread, [np.sqrt(2.0), np.nan, np.nan])
    assert result.n.tolist() == [2, 1, 0]


@pytest.mark.parametrize("kind", CHARTS)
def test_fewer_seeds_are_marked(kind: str) -> None:
    results = results_of()
    whole = usual(kind)
    assert not [text for text in texts(whole) if text.startswith("n =")]
    assert "Labels n: only n seeds have a value" not in whole.caption
    results = results[~((results["share"] == 0.1) & (results["seed"] > 2))].reset_index(drop=True)
    results.loc[(results["share"] == 0.3) & (results["seed"] == 0), "accuracy.minority"] = np.nan
    part = drawn(figure_spec(kind), results)
    each = 1 if kind == "lines" else 2
    assert sorted(text for text in texts(part) if text.startswith("n =")) == ["n = 3"] * each + ["n = 4"] * each
    assert "Labels n: only n seeds have a value" in part.caption


@pytest.mark.parametrize("kind", CHARTS)
def test_n_stands_inside_the_panel(kind: str) -> None:
    results = results_of()
    few = results[(results["share"] != 0.1) | (results["seed"] < 3)].reset_index(drop=True)
    for share in (0.1, 0.5):
        few.loc[few["share"] == share, "accuracy.minority"] = 0.95
        figure = painted(data_of(figure_spec(kind), few))
        figure.draw_without_rendering()
        (panel,) = figure.axes
        frame = panel.get_window_extent()
        assert [text.get_text() for text in panel.texts] == ["n = 3"] * (1 if kind == "lines" else 2)
        for text in panel.texts:
            box = text.get_window_extent()
            assert frame.y0 - 2 <= box.y0 <= box.y1 <= frame.y1 + 2


@pytest.mark.parametrize("kind", CHARTS)
def test_settings_without_runs_leave_a_labelled_gap(kind: str) -> None:
    results = results_of()
    results = results[results["share"] != 0.5].reset_index(drop=True)
    results.loc[(results["share"] == 0.3) & (results["algorithm"] == "IFCA"), "accuracy.minority"] = np.nan
    figure = drawn(figure_spec(kind), results)
    words = texts(figure)
    assert "0.5" in words
    assert "no run" in words
    assert ("n = 0, 5" if kind == "lines" else "no value") in words
    assert "labelled gap" in figure.caption
    label = ElementTree.fromstring(figure.image).get("aria-label", "")
    assert "no run at 0.5" in label
    assert "no value at 0.3" in label


@pytest.mark.parametrize("kind", CHARTS)
def test_sweep_without_a_finished_run(kind: str) -> None:
    assert "no run" in texts(drawn(figure_spec(kind), results_of().head(0)))


@pytest.mark.parametrize("kind", CHARTS)
def test_one_seed_has_no_spread(kind: str) -> None:
    spec, results = figure_spec(kind), results_of()
    only = results[results["seed"] == 0].reset_index(drop=True)
    with figures_without_pdf():
        figure = sweep_figure("one", FigureData(spec, SeedStatistics(only, AXES, [0]), Labels({})))
    assert "1 seed," in figure.caption or "1 seed;" in figure.caption
    assert "nan" not in figure.svg.decode().lower()


@pytest.mark.parametrize("kind", CHARTS)
def test_a_metric_without_a_value_in_any_run_says_why(kind: str) -> None:
    """TPR has no column at all, MIA one without values; neither stops the figure of the accuracy beside them."""
    results = results_of().assign(**{"mia.majority": np.nan})
    keys = ["accuracy.minority", "tpr_at_fpr_0.01.minority", "mia.majority"]
    figure = drawn(figure_spec(kind, y=keys), results)
    places = 3 if kind == "lines" else 6
    assert [texts(figure).count(each) for each in ("too few non-members", "no value", "no run")] == [places, places, 0]
    label = ElementTree.fromstring(figure.image).get("aria-label", "")
    assert "TPR at 1 % FPR, minority: IFCA too few non-members at 0.1," in label
    assert "labelled gap" in figure.caption


def test_missing_n_of_lines_stand_in_the_order_of_the_legend() -> None:
    results = results_of()
    few = results[(results["algorithm"] == "IFCA") | (results["share"] != 0.3) | (results["seed"] < 2)]
    figure = painted(data_of(figure_spec("lines"), few.reset_index(drop=True)))
    assert [text.get_text() for text in figure.axes[0].texts] == ["n = 5, 2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["IFCA", "IFCA-MIR"]


def test_settings_differ_in_hatch_and_grey() -> None:
    def grey(i: int) -> float:
        return float(np.dot(fill_style(i)["facecolor"], [0.299, 0.587, 0.114]))

    assert len({fill_style(i)["hatch"] for i in range(7)}) == 7
    assert len({(to_hex(fill_style(i)["facecolor"]), fill_style(i)["hatch"]) for i in range(50)}) == 50
    assert min(abs(grey(i) - grey(i + 1)) for i in range(6)) > 0.1
    red = float(np.dot(to_rgb(RED), [0.299, 0.587, 0.114]))
    assert min(grey(i) for i in range(7)) > red + 0.1
    looks = [cluster_style(i) for i in range(7)]
    assert len({look.marker for look in looks}) == 7
    assert len({look.dashes for look in looks[:4]}) == 4


@pytest.mark.parametrize("kind", CHARTS)
def test_panels_under_one_label_have_one_scale(kind: str) -> None:
    results = results_of()
    results["mia.minority"] *= 10
    spec = figure_spec(kind, y=list(METRICS), y_label="a figure")
    one = {panel.get_ylim() for panel in painted(data_of(spec, results)).axes}
    own = {panel.get_ylim() for panel in painted(data_of(figure_spec(kind, y=list(METRICS)), results)).axes}
    assert len(one) == 1
    assert len(own) > 1
    (low, high), widest = one.pop(), max(high for _, high in own)
    assert low <= min(low for low, _ in own) + 1e-9
    assert high == pytest.approx(widest, rel=0.1)


def test_a_line_and_the_label_of_the_file() -> None:
    spec = figure_spec("boxes", y=list(METRICS), y_label="balanced accuracy", level=0.65)
    figure = painted(data_of(spec))
    assert [panel.get_ylabel() for panel in figure.axes] == ["balanced accuracy", "", ""]
    assert [panel.get_title() for panel in figure.axes] == [Labels({}).key(key) for key in METRICS]
    assert all(any(line.get_linestyle() == ":" for line in panel.lines) for panel in figure.axes)
    assert "0.65" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_words_and_numbers_for_those_who_listen() -> None:
    results = results_of()
    figure = drawn(figure_spec("boxes"), results, {"share": "part", "0.1": "a tenth"})
    label = ElementTree.fromstring(figure.image).get("aria-label", "")
    assert f"IFCA {at(results, 'IFCA', 0.1).mean():.3f} at a tenth" in label
    assert "by part" in label
    assert {"part", "a tenth"} <= set(texts(figure))


def test_panels_are_spread_evenly_over_rows_of_at_most_three() -> None:
    for count in range(1, 8):
        rows = in_rows(range(count), 3)
        assert [panel for row in rows for panel in row] == list(range(count))
        assert len(rows) == -(-count // 3)
        assert max(map(len, rows)) == -(-count // len(rows))
    figure = painted(data_of(figure_spec("boxes", y=list(METRICS)), results_of().query("seed < 3")))
    assert figure.get_figwidth() == pytest.approx(9.6)
    for panel in figure.axes:
        written = [*panel.texts, *panel.get_xticklabels(), *panel.get_yticklabels(), panel.title, panel.xaxis.label]
        assert all(text.get_fontsize() >= 8 for text in written)


def test_strange_and_long_names() -> None:
    labels = {
        "0.5": " ",
        "IFCA": "<b>& $x$ a very long name that no legend can hold in one line",
        "share": "少数 " * 12,
    }
    figure = drawn(figure_spec("lines"), labels=labels)
    ElementTree.fromstring(figure.svg)
    assert any("<b>& $x$" in text for text in texts(figure))
