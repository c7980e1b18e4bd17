"""A sweep's tables against references, their formats read back, and the page that shows them."""

import csv
import io
import re
from collections.abc import Callable
from itertools import product
from math import nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from html_page import Page
from shoal.core.errors import InputError
from shoal.core.formats import DASH
from shoal.metrics.metric_table import METRICS
from shoal.reports.plotting import Figure
from shoal.reports.sweep import sweep_page as sweep_report
from shoal.reports.sweep.report_spec import Axes, Labels, TableSpec, format_estimate, read_report_spec
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.sweep_charts import FigureData, sweep_figure
from shoal.reports.sweep.sweep_page import sweep_page
from shoal.reports.sweep.sweep_tables import sweep_table
from shoal.reports.table import Cell, ReportTable, markdown, table_csv

SHARE = "data.groups.minority.share"
AXES: Axes = {"algorithm": ["IFCA", "IFCA-MIR"], SHARE: [0.1, 0.3, 0.5]}
SEEDS = [3, 5, 8, 13]
LABELS = Labels({SHARE: "share"})
NASTY = r"50 % of <a_b> & {c} ~^ #1 $x$ \frac | [0] *±" + DASH


def metric(algorithm: str, share: float, seed: int) -> float:
    """Some number that differs by all three."""
    return 0.6 + 0.1 * (algorithm == "IFCA-MIR") + 0.2 * share + sqrt(seed) / 97 + share * seed / 131


def results_of(axes: Axes = AXES, seeds: list[int] = SEEDS) -> pd.DataFrame:
    rows = [
        {"run": f"r{i}{seed}", "algorithm": a, SHARE: s, "seed": seed, "accuracy.overall": metric(str(a), s, seed)}
        | {
            "violations.total": 10.0 * s * seed,
            "violations.minority": 0.0,
            "mia.minority": nan if s == 0.5 else 0.5 + s * seed / 100,
        }
        for i, (a, s) in enumerate((a, float(s)) for a in axes["algorithm"] for s in axes[SHARE])
        for seed in seeds
    ]
    return pd.DataFrame(rows)


def table_of(results: pd.DataFrame | None = None, seeds: list[int] = SEEDS, **given: Any) -> ReportTable:
    spec = TableSpec(**({"y": ["accuracy.overall"], "rows": ["algorithm"], "columns": [SHARE]} | given))
    return sweep_table("t", spec, SeedStatistics(results_of() if results is None else results, AXES, seeds), LABELS)


def stubs_of(table: ReportTable) -> pd.DataFrame:
    return table.frame().iloc[:, : table.stubs]


def body_of(table: ReportTable, value: Callable[[Cell], Any] = lambda cell: cell.text) -> pd.DataFrame:
    return table.frame(value).iloc[:, table.stubs :]


def cells_of(table: ReportTable) -> list[dict[str, Any]]:
    """Each cell's settings, ``key``, ``mean``, ``spread``, ``n`` and ``text``, in reading order."""
    cells = pd.DataFrame(table.values).rename(columns={"sd": "spread"})
    return cells.assign(text=body_of(table).to_numpy().ravel()).to_dict("records")


def estimates_of(table: ReportTable) -> list[tuple[float, ...]]:
    return [(cell["mean"], cell["spread"], cell["n"]) for cell in cells_of(table)]


def without(results: pd.DataFrame, algorithm: str, share: float, *seeds: int) -> pd.DataFrame:
    gone = (results["algorithm"] == algorithm) & (results[SHARE] == share) & results["seed"].isin(seeds)
    return results[~gone].reset_index(drop=True)


def test_mean_and_spread_over_seeds() -> None:
    for cell in cells_of(table_of()):
        values = [metric(cell["algorithm"], cell[SHARE], seed) for seed in SEEDS]
        mean = sum(values) / 4
        assert cell["mean"] == pytest.approx(mean, rel=1e-12)
        assert cell["spread"] == pytest.approx(sqrt(sum((value - mean) ** 2 for value in values) / 3), rel=1e-9)
        assert cell["n"] == 4


def test_axes_are_averaged_within_a_seed_first() -> None:
    (cell,) = cells_of(table_of(rows=[], columns=[], average=["algorithm", SHARE]))
    by_seed = [
        np.mean([metric(str(a), float(s), seed) for a in AXES["algorithm"] for s in AXES[SHARE]]) for seed in SEEDS
    ]
    assert cell["mean"] == pytest.approx(np.mean(by_seed), rel=1e-12)
    assert cell["spread"] == pytest.approx(np.std(by_seed, ddof=1), rel=1e-12)
    assert cell["spread"] < 0.5 * float(results_of()["accuracy.overall"].std())


def test_averaging_over_one_setting_is_holding_it() -> None:
    axes: Axes = AXES | {SHARE: [0.3]}
    results = results_of(axes)
    given = {"y": ["accuracy.overall"], "rows": ["algorithm"]}
    tables = [
        sweep_table("t", TableSpec(**(given | more)), SeedStatistics(results, axes, SEEDS), LABELS)
        for more in ({"average": [SHARE]}, {"where": {SHARE: 0.3}}, {})
    ]
    assert len({tuple(estimates_of(table)) for table in tables}) == 1


def test_seed_that_lacks_a_run_is_left_out_of_the_average() -> None:
    whole = table_of(without(results_of(), "IFCA", 0.3, 5), seeds=[3, 8, 13], columns=[], average=[SHARE])
    table = table_of(without(results_of(), "IFCA", 0.3, 5), columns=[], average=[SHARE])
    first, other = cells_of(table)
    assert estimates_of(table)[0] == estimates_of(whole)[0]
    assert (first["n"], other["n"]) == (3, 4)
    assert first["text"].endswith(" (n = 3)")
    assert "n =" not in other["text"]


def test_where_holds_an_axis() -> None:
    table = table_of(columns=[], where={SHARE: 0.5})
    wide = {(cell["algorithm"], cell[SHARE]): cell["mean"] for cell in cells_of(table_of())}
    assert [cell["mean"] for cell in cells_of(table)] == [wide[each, 0.5] for each in AXES["algorithm"]]
    assert "Held: share = 0.5." in table.note


def test_fewer_seeds_say_how_many() -> None:
    table = table_of(without(without(results_of(), "IFCA", 0.1, 3, 5, 8), "IFCA", 0.3, *SEEDS))
    one, none, full = cells_of(table)[:3]
    assert one["text"] == f"{metric('IFCA', 0.1, 13):.3f} (n = 1)"
    assert none["text"] == DASH
    assert none["n"] == 0
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", full["text"])


def test_one_seed_stands_alone() -> None:
    table = table_of(seeds=[5])
    assert body_of(table).iloc[0].tolist() == [f"{metric('IFCA', float(s), 5):.3f}" for s in AXES[SHARE]]
    assert "±" not in table.note


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("accuracy.overall", "1,234.568 ± 0.500"),
        ("violations.minority", "1,234.6 ± 0.5"),
        ("clusters.1.clients", "1,234.6 ± 0.5"),
        ("larger.clients", "1,234.6 ± 0.5"),
        ("migrated", "1,234.6 ± 0.5"),
        ("references", "1,234.6 ± 0.5"),
        ("seconds.red_team", "1,234.6 ± 0.5"),
        ("tpr_at_fpr_0.001.a.b", "1,234.5678 ± 0.5000"),
    ],
)
def test_estimates_have_the_decimals_of_their_metric(key: str, text: str) -> None:
    assert format_estimate(1234.5678, 0.5, 2, key, seeds=2) == text


def test_negative_estimates_have_a_minus_sign_and_zero_has_none() -> None:
    assert format_estimate(-0.25, nan, 1, "adjusted_rand_index", seeds=1) == "\N{MINUS SIGN}0.250"
    assert format_estimate(-0.0001, nan, 1, "adjusted_rand_index", seeds=1) == "0.000"


def test_heads_say_what_stands_where() -> None:
    y = ["accuracy.overall", "mia.minority"]
    table = table_of(rows=[], columns=["algorithm", SHARE], y=y, y_in="columns")
    assert stubs_of(table).shape == (1, 0)
    assert body_of(table).columns[:3].tolist() == [
        "IFCA, 0.1: accuracy, all clients",
        "IFCA, 0.1: MIA accuracy, minority",
        "IFCA, 0.3: accuracy, all clients",
    ]
    assert table.over == "algorithm, share"
    table = table_of(rows=["algorithm", SHARE], columns=[], y=y)
    assert stubs_of(table).columns.tolist() == ["algorithm", "share", "metric"]
    assert body_of(table).columns.tolist() == ["value"]
    assert stubs_of(table).iloc[1].tolist() == ["IFCA", "0.1", "MIA accuracy, minority"]
    assert body_of(table_of(columns=[], average=[SHARE])).columns.tolist() == ["accuracy, all clients"]


def test_cells_stand_under_their_heads() -> None:
    y = ["accuracy.overall", "mia.minority"]
    for given in ({"rows": [SHARE], "columns": ["algorithm"]}, {"rows": [], "columns": [SHARE, "algorithm"]}):
        for y_in in ("columns", "rows"):
            table = table_of(**given, y=y, y_in=y_in)
            places = [
                [*stubs, *re.split("[,:] ", head)] for stubs in stubs_of(table).to_numpy() for head in body_of(table)
            ]
            for place, cell in zip(places, cells_of(table), strict=True):
                assert {cell["algorithm"], str(cell[SHARE])} <= set(place)
                assert LABELS.key(cell["key"]) in ", ".join(place)
            assert bool(table.over) == (SHARE in given["columns"])


@pytest.mark.parametrize("prefix", ["larger", "smaller", "clusters.12"])
def test_every_family_has_words(prefix: str) -> None:
    labels = Labels({"far.off": "far off"})
    for family, name in [(key, each.name) for key, each in METRICS.items() if each.scopes != "run"]:
        whose = {"larger": "larger model", "smaller": "smaller model"}.get(prefix, "model 12")
        assert labels.key(f"{prefix}.{family}") == f"{name}, {whose}"
        assert labels.key(f"{family}.far.off") == f"{name}, far off"
        assert labels.key(f"{family}.total") == labels.key(f"{family}.overall") == f"{name}, all clients"
        assert labels.key(family) == name
    assert labels.key("larger.unheard_of") == "larger.unheard_of"
    assert Labels({"mia.a": "leak"}).key("mia.a") == "leak"


def test_settings_of_several_types_stay_as_the_file_has_them() -> None:
    settings = ["all", 2, 2.5, True]
    axes: Axes = {"x": settings}
    results = pd.DataFrame(
        {"run": list("abcd"), "x": pd.Series(settings, dtype=object), "seed": 3, "gap.a": [0.1, 0.2, 0.3, 0.4]}
    )
    table = sweep_table("t", TableSpec(y=["gap.a"], rows=["x"]), SeedStatistics(results[::-1], axes, [3]), LABELS)
    assert stubs_of(table)["x"].tolist() == ["all", "2", "2.5", "true"]
    assert body_of(table).iloc[:, 0].tolist() == ["0.100", "0.200", "0.300", "0.400"]
    assert [row["x"] for row in csv.DictReader(io.StringIO(table_csv(table)))] == ["all", "2", "2.5", "True"]


def nasty_table() -> ReportTable:
    axes: Axes = {NASTY: ["[1]", "*", "a--b"], "m": [True, False]}
    rows = [
        {"run": f"{i}{seed}", NASTY: a, "m": b, "seed": seed, "mia.x_y": -float(i + seed) / 3}
        for i, (a, b) in enumerate(product(axes[NASTY], axes["m"]))
        for seed in (0, 1)
    ]
    spec = TableSpec(title=NASTY, caption=f"{NASTY}\nand on", rows=[NASTY], columns=["m"], y=["mia.x_y"])
    return sweep_table("t_1", spec, SeedStatistics(pd.DataFrame(rows), axes, [0, 1]), Labels({}))


def test_markdown_has_the_same_columns_in_every_row() -> None:
    table = nasty_table()
    lines = markdown(table).split("\n")
    rows = [line for line in lines if line.startswith("| ")]
    assert re.fullmatch(r"\|:-+\|-+:\|-+:\|", lines[3])
    parts = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    assert {len(each) for each in parts} == {3}
    assert len(parts) == 1 + len(body_of(table))
    assert re.sub(r"\\(.)", r"\1", parts[0][0].strip()) == NASTY
    assert lines[0].startswith("**")
    assert r"\*" in parts[2][0]
    assert "Columns: m." in lines


def test_csv_reads_back_to_the_same_numbers() -> None:
    table = table_of(without(results_of(), "IFCA", 0.1, 3, 5, 8), y=["accuracy.overall", "mia.minority"])
    rows = list(csv.DictReader(io.StringIO(table_csv(table))))
    cells = cells_of(table)
    assert list(rows[0]) == ["algorithm", SHARE, "key", "mean", "sd", "n"]
    for row, cell in zip(rows, cells, strict=True):
        assert (row["algorithm"], float(row[SHARE])) == (cell["algorithm"], cell[SHARE])
        assert (row["key"], int(row["n"])) == (cell["key"], cell["n"])
        for name, value in (("mean", cell["mean"]), ("sd", cell["spread"])):
            assert (row[name] == "") == np.isnan(value)
            assert row[name] == "" or float(row[name]) == value
    assert len(rows) == 12
    assert next(csv.reader(io.StringIO(table_csv(nasty_table())))) == [NASTY, "m", "key", "mean", "sd", "n"]


class SweepPage(Page):
    """A sweep's page, which stands for itself and points to nothing that it has not."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        assert source.startswith("<!DOCTYPE html>")
        assert len(self.ids) == len(set(self.ids))
        assert set(self.pointers) <= set(self.ids)
        assert not {"script", "link", "iframe"} & set(self.tags)


def figure_of(name: str, data: FigureData, *_: object) -> Figure:
    """A figure that takes no time to draw."""
    inline = f'<svg role="img" aria-label="{name}"><g id="{name}-g"></g></svg>'
    return Figure(name, data.spec.title or name, data.spec.caption, inline, svg=b"<svg/>", pdf=b"%PDF")


TABLES: dict[str, Any] = {"one": {"y": ["accuracy.overall"], "rows": ["algorithm"], "average": [SHARE], "title": NASTY}}
FIGURES: dict[str, Any] = {"two": {"kind": "lines", "x": SHARE, "by": "algorithm", "y": ["mia.minority"]}}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SweepPage]:
    """Writes the report of a sweep in ``tmp_path``, and reads its page."""
    monkeypatch.setattr(sweep_report, "sweep_figure", figure_of)

    def write_and_read(**given: Any) -> SweepPage:
        wanted = {"tables": given.pop("tables", TABLES), "figures": given.pop("figures", FIGURES)}
        usual: dict[str, Any] = {
            "title": NASTY, "axes": AXES, "seeds": SEEDS, "results": results_of(), "missing": [],
            "source": f"# {NASTY}",
        }  # fmt: skip
        path = sweep_report.write_sweep_report(tmp_path, spec=read_report_spec(wanted, AXES, "x"), **(usual | given))
        assert path == tmp_path / "report.html"
        return SweepPage(path.read_text(encoding="utf-8"))

    return write_and_read


def files_in(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


WHOLE = {"report.html", "tables/one.md", "tables/one.csv", "figures/two.svg", "figures/two.pdf"}


def test_page_has_everything(report: Callable[..., SweepPage], tmp_path: Path) -> None:
    page = report()
    assert files_in(tmp_path) == WHOLE
    assert WHOLE - {"report.html"} <= set(page.addresses)
    runs = results_of()["run"]
    assert {f"runs/{run}/report.html" for run in runs} <= set(page.addresses)
    assert "All 24 runs are finished." in page.text
    assert "4 seeds (3, 5, 8, 13)" in page.text
    assert page.text.count(NASTY) == 4
    assert "are missing" not in page.text
    assert page.tags.count("svg") == 1
    for cell in cells_of(table_of(columns=[], average=[SHARE])):
        assert cell["text"] in page.text
    assert "nan" not in page.text


def test_page_lists_the_runs_that_are_missing(report: Callable[..., SweepPage]) -> None:
    results = without(results_of(), "IFCA", 0.3, 5, 8)
    gone = [({"algorithm": "IFCA", SHARE: 0.3, "seed": seed}, f"failed <{seed}>") for seed in (5, 8)]
    page = report(results=results, missing=gone)
    assert "22 of 24 runs are finished." in page.text
    assert "IFCA 0.3 5 failed <5>" in page.text
    assert "IFCA 0.3 8 failed <8>" in page.text
    assert "(n = 2)" in page.text


def test_same_sweep_gives_the_same_bytes(report: Callable[..., SweepPage], tmp_path: Path) -> None:
    report()
    first = {name: (tmp_path / name).read_bytes() for name in WHOLE}
    report()
    assert {name: (tmp_path / name).read_bytes() for name in WHOLE} == first


def test_files_of_former_tables_and_figures_are_removed(report: Callable[..., SweepPage], tmp_path: Path) -> None:
    for folder in ("tables", "figures"):
        (tmp_path / folder).mkdir()
        for ending in ("md", "csv", "svg", "pdf", "txt"):
            (tmp_path / folder / f"old.{ending}").touch()
    report()
    theirs = {"figures/old.md", "figures/old.csv", "tables/old.svg", "tables/old.pdf"}
    assert files_in(tmp_path) == WHOLE | theirs | {"tables/old.txt", "figures/old.txt"}


def test_sweep_without_a_finished_run(report: Callable[..., SweepPage], tmp_path: Path) -> None:
    report()
    page = report(results=pd.DataFrame(), missing=[({"algorithm": "IFCA", SHARE: 0.1, "seed": 3}, "not begun")])
    assert "No run is finished" in page.text
    assert "0 of 1 runs are finished." in page.text
    assert not {"svg", "figure"} & set(page.tags)
    assert files_in(tmp_path) == {"report.html"}


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        ("tables", {"one": TABLES["one"] | {"y": ["acuracy.overall"]}},
         "'tables.one': no run has the metric 'acuracy.overall'; did you mean 'accuracy.overall'?"),
        ("figures", {"two": FIGURES["two"] | {"y": ["mia.minorty"]}},
         "no run has the group 'minorty'; did you mean 'minority'?"),
        ("tables", {"one": TABLES["one"] | {"y": ["tpr_at_fpr_0.1.minority"]}},
         "'tables.one': no run has the metric 'tpr_at_fpr_0.1.minority'; did you mean 'tpr_at_fpr_0.01'?"),
        ("tables", {"one": TABLES["one"] | {"y": ["run"]}},
         "'tables.one': no run has the metric 'run'; docs/files.md"),
    ],
)  # fmt: skip
def test_unknown_figure_is_an_error(
    report: Callable[..., SweepPage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    given: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.setattr(sweep_report, "sweep_figure", sweep_figure)
    with pytest.raises(InputError) as caught:
        report(**{kind: given})
    assert sentence in str(caught.value)
    assert files_in(tmp_path) == set()


def test_a_metric_that_no_run_has_stops_no_sweep(
    report: Callable[..., SweepPage], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sweep_report, "sweep_figure", sweep_figure)
    spec = {"rows": ["algorithm"], "columns": [SHARE], "y": ["accuracy.overall", "tpr_at_fpr_0.01.minority"]}
    page = report(results=results_of().assign(**{"mia.minority": nan}), tables={"one": spec})
    assert "TPR at 1 % FPR, minority: too few non-members in all runs." in page.text
    assert files_in(tmp_path) >= {"tables/one.md", "tables/one.csv", "figures/two.svg", "report.html"}


def test_a_table_says_how_many_runs_have_no_value() -> None:
    """At the share 0.5 no seed of either algorithm has the MIA accuracy; no run has the TPR."""
    table = table_of(y=["accuracy.overall", "mia.minority", "tpr_at_fpr_0.01.minority"])
    assert body_of(table).iloc[-1].tolist() == [DASH] * 3
    assert table.note.endswith(
        "MIA accuracy, minority: no value in 8 of its runs. TPR at 1 % FPR, minority: too few non-members in all runs."
    )
    assert table_csv(table).splitlines()[-1] == "IFCA-MIR,0.5,tpr_at_fpr_0.01.minority,,,0"
    # A run that is not finished is missing, not undefined.
    part = table_of(without(results_of(), "IFCA", 0.5, *SEEDS), y=["mia.minority"])
    assert part.note.endswith("MIA accuracy, minority: no value in 4 of its runs.")


def test_page_of_one_run_without_axes() -> None:
    results = pd.DataFrame({"run": ["abc"], "seed": [7], "violations.total": [3.0]})
    statistics = SeedStatistics(results, {}, [7])
    table = sweep_table("t", TableSpec(y=["violations.total"]), statistics, LABELS)
    assert body_of(table).to_numpy().tolist() == [["3.0"]]
    assert table_csv(table) == "key,mean,sd,n\nviolations.total,3.0,,1\n"
    assert "| 3.0 |" in re.sub(" +", " ", markdown(table))
    spec = read_report_spec({"tables": {"t": {"y": ["violations.total"]}}}, {}, "x")
    page = SweepPage(sweep_page("", spec, statistics, [table], [], missing=[], source=""))
    assert "Seed 7. The one run is finished." in page.text
    assert "abc 7 3" in page.text
