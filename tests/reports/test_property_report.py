"""A property attack on a run's page, and the figures drawn of two runs: their numbers, their words, their failures."""

import importlib.util
import json
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from test_run_report import clients_of, config_of, page_of, roc_of, rounds_of, save_samples, summary_of

from html_page import Page
from shoal.config.schema import Config, PropertyAttackSection
from shoal.config.tables import read
from shoal.core.errors import InputError
from shoal.reports.run.property_curves import drawn_of, early_and_all, of_control, rolling_mean, running_auc
from shoal.reports.run.property_figures import MOST, auc_over_rounds, cosines, maps, paint_map
from shoal.reports.run.property_section import inference
from shoal.reports.run.tables import DASH, overall, seconds
from shoal.reports.summary_text import verdict
from shoal.runs.report import report_of, write_report
from shoal.simulation.property_metrics import figures_of

GROUPS = ["a", "b"]
SCRIPT = Path(__file__).parents[2] / "experiments" / "property" / "figures.py"


def attacked(clusters: int = 2, **attack: object) -> Config:
    config = config_of(GROUPS, clusters)
    data = replace(config.data, task="smiling/sunglasses")
    return replace(config, data=data, property_attack=read(PropertyAttackSection, attack))


def updates_of(clusters: int = 2, rounds: int = 20) -> pd.DataFrame:
    """Of all models in all rounds; the victim always trains the last one, and its property every fifth round."""
    draw = np.random.default_rng(3)
    number, cluster = np.repeat(np.arange(1, rounds + 1), clusters), np.tile(np.arange(clusters), rounds)
    present = (number % 5 == 0) & (cluster == clusters - 1)
    n = len(number)
    frame = pd.DataFrame({"round": number, "cluster": cluster, "clients": 3, "present": present.astype(int)})
    frame["cosine"] = np.where(number == 1, np.nan, draw.uniform(-1, 1, n))
    frame["score"] = (draw.uniform(0, 1, n) + 0.5 * present).astype(np.float32)
    for i in range(3):
        frame[f"control.{i}"] = draw.uniform(0, 1, n).astype(np.float32)
    early = number <= rounds / 5
    for axis in "xy":
        frame[f"all_{axis}"] = draw.normal(size=n)
        frame[f"early_{axis}"] = np.where(early, draw.normal(size=n), np.nan)
    return frame


def figures(clusters: int, updates: pd.DataFrame) -> dict[str, float | int | str]:
    known = {key: value for key, value in figures_of(updates).items() if not np.isnan(value)}
    return summary_of(GROUPS, clusters) | known | {"main.auc": 0.8125, "main.auc_even": 0.4375}


def written(out: Path, clusters: int = 2, updates: pd.DataFrame | None = None, config: Config | None = None) -> Page:
    save_samples(out, GROUPS)
    found = updates_of(clusters) if updates is None else updates
    frames = rounds_of(GROUPS, clusters), clients_of(GROUPS, clusters), roc_of(GROUPS)
    config = attacked(clusters) if config is None else config
    return page_of(write_report(out, config, figures(clusters, found), *frames, updates=found))


def finished(out: Path, clusters: int = 2, updates: pd.DataFrame | None = None, config: Config | None = None) -> Path:
    """A run directory with what a property attack found."""
    out.mkdir(exist_ok=True)
    found = updates_of(clusters) if updates is None else updates
    save_samples(out, GROUPS)
    text = (attacked(clusters) if config is None else config).toml()
    (out / "config.toml").write_text(text, encoding="utf-8")
    frames = {"rounds": rounds_of(GROUPS, clusters), "clients": clients_of(GROUPS, clusters), "roc": roc_of(GROUPS)}
    for name, frame in (frames | {"property": found}).items():
        frame.to_csv(out / f"{name}.csv", index=False)
    (out / "summary.json").write_text(json.dumps(figures(clusters, found)), encoding="utf-8")
    return out


def cells(page_figures: dict, updates: pd.DataFrame | None, clusters: int = 2) -> dict[str, tuple[str, ...]]:
    section = inference(attacked(clusters), page_figures, updates)
    assert section is not None
    return {line.name: line.cells for line in section.table.lines}


def script():
    spec = importlib.util.spec_from_file_location("property_figures_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_page_has_the_section_with_its_figures(tmp_path: Path, clusters: int) -> None:
    page = written(tmp_path, clusters)
    assert "Property inference" in page.text
    assert {"property-auc-title", "property-cosine-title", "property-maps-title"} <= set(page.ids)
    assert ("FL, one model" if clusters == 1 else f"CFL, {clusters} models") in page.text
    for word in ("sunglasses", "smiling", "first fifth of the rounds", "all rounds", "0.812", "0.438"):
        assert word in page.text


def test_table_shows_the_figures_of_all_models_and_of_each() -> None:
    found = updates_of()
    made = figures(2, found)
    shown = cells(made, found)
    assert shown["Updates"] == ("40", "20", "20")
    assert shown["… with the property"] == ("4", "0", "4")
    assert shown["AUC"] == (f"{made['property.auc']:.3f}", DASH, f"{made['clusters.1.property_auc']:.3f}")
    own = found[found["cluster"] == 1]
    control = np.mean([roc_auc_score(own["present"], own[f"control.{i}"]) for i in range(3)])
    assert shown["AUC, control"] == (f"{made['property.auc_control']:.3f}", DASH, f"{control:.3f}")
    assert shown["AUC within models"] == (f"{made['property.auc_within']:.3f}", "", "")
    assert shown["AUC over rounds"] == (f"{made['property.auc_rounds']:.3f}", "", "")
    mean, sd = own["cosine"].mean(), own["cosine"].std()
    assert shown["Cosine of consecutive updates"][2] == f"{mean:.3f} ± {sd:.3f}"


def test_a_guesser_s_spread_is_that_of_all_orders() -> None:
    found = updates_of(1, rounds=5).assign(present=[1, 0, 0, 1, 0])
    aucs = [roc_auc_score(np.isin(np.arange(5), held), np.arange(5.0)) for held in combinations(range(5), 2)]
    assert cells({}, found, 1)["Spread of a coin's AUC"] == (f"{np.std(aucs):.3f}",)


def test_figures_that_are_missing_are_dashes() -> None:
    shown = cells({}, None)
    assert shown.pop("Cosine of consecutive updates") == (f"{DASH} ± {DASH}",) * 3
    assert {cell for line in shown.values() for cell in line} == {DASH, ""}


@pytest.mark.parametrize(
    ("attack", "words", "without"),
    [
        ({"mode": "passive"}, ["only watches", "all models"], ["times as large", "0.9"]),
        ({"mode": "active", "alpha": 0.75}, ["0.75 times", "0.25 times", "active"], ["times as large"]),
        ({"mode": "scaled", "gamma": 10.0, "alpha": 0.7}, ["10 times as large", "0.3 times"], ["only watches"]),
        (
            {"visible_models": "own", "period": 4},
            ["only the model that it trains", "multiple of 4"],
            ["all models before"],
        ),
        ({"auxiliary": "attacker+test", "forests": "per-cluster"}, ["test examples", "for each model"], []),
        ({"warm_up": 7}, ["from round 8 on"], []),
    ],
)
def test_words_say_who_looks_for_what(attack: dict, words: list[str], without: list[str]) -> None:
    section = inference(attacked(**attack), {}, updates_of())
    assert section is not None
    told = " ".join(section.words)
    for word in words:
        assert word in told
    for word in without:
        assert word not in told


def test_page_of_a_run_without_the_attack_has_no_section(tmp_path: Path) -> None:
    config = config_of(GROUPS, 2)
    finished(tmp_path, config=config)
    (tmp_path / "property.csv").write_text("damaged", encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(summary_of(GROUPS, 2)), encoding="utf-8")
    page = page_of(report_of(tmp_path))
    before = (tmp_path / "report.html").read_bytes()
    frames = rounds_of(GROUPS, 2), clients_of(GROUPS, 2), roc_of(GROUPS)
    write_report(tmp_path, config, summary_of(GROUPS, 2), *frames)
    assert (tmp_path / "report.html").read_bytes() == before
    assert not [name for name in page.ids if name.startswith("property")]
    assert "roperty" not in page.text
    assert "Epsilon" not in page.text


def test_run_read_back_gives_the_same_page(tmp_path: Path) -> None:
    written(tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    written(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first
    finished(tmp_path)
    report_of(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first


def test_columns_that_are_missing_leave_figures_out(tmp_path: Path) -> None:
    found = updates_of()
    kept = ["round", "cluster", "clients", "present", "cosine"]
    assert page_of(report_of(finished(tmp_path, updates=found[kept]))).ids.count("property-cosine-title") == 1
    assert auc_over_rounds(found[kept]) is None
    assert maps(found[kept], 2) is None
    assert cosines(found.assign(cosine=np.nan)) is None
    assert auc_over_rounds(found.assign(present=0)) is None


def test_run_that_saw_nothing_has_a_section_without_figures(tmp_path: Path) -> None:
    page = page_of(report_of(finished(tmp_path, updates=updates_of().head(0))))
    assert "Property inference" in page.text
    assert "property-auc-title" not in page.ids


def test_first_map_is_left_out_where_there_were_too_few() -> None:
    found = updates_of().assign(early_x=np.nan, early_y=np.nan)
    drawn = maps(found, 2)
    assert drawn is not None
    assert "too few updates" in drawn.caption
    assert "first fifth" not in drawn.svg
    assert [title for title, _ in early_and_all(found)] == ["all rounds"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"round,cluster\n1,0\n",
        b"round,cluster,clients,present,cosine\n1,0,3,,0.5\n",
        b"round,cluster,clients,present,cosine\n1,0,3,1,high\n",
        b"\xff\xfe\x00",
    ],
)
def test_damaged_or_missing_updates_are_an_error(tmp_path: Path, content: bytes | None) -> None:
    finished(tmp_path)
    (tmp_path / "property.csv").unlink()
    if content is not None:
        (tmp_path / "property.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"property\.csv") as caught:
        report_of(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_running_auc_is_that_of_the_updates_so_far() -> None:
    draw = np.random.default_rng(0)
    rounds = draw.integers(1, 30, 90).astype(float)
    present = (draw.uniform(size=90) < 0.3) & (rounds > 4)
    scores = draw.integers(0, 6, 90).astype(float)
    scores[draw.uniform(size=90) < 0.1] = np.nan
    over, aucs = running_auc(rounds, present, scores)
    expected = {}
    for number in np.unique(rounds):
        past = (rounds <= number) & ~np.isnan(scores)
        if len(np.unique(present[past])) == 2 and (past & (rounds == number)).any():
            expected[number] = roc_auc_score(present[past], scores[past])
    assert over.tolist() == list(expected)
    assert over.min() > 4
    assert aucs == pytest.approx(list(expected.values()))


def test_courses_end_at_the_figures_of_the_summary() -> None:
    found = updates_of()
    made = figures_of(found)
    assert of_control(found)[1][-1] == pytest.approx(made["property.auc_control"])
    drawn = auc_over_rounds(found)
    assert drawn is not None
    assert f"all models {made['property.auc']:.3f}, cluster 1 {made['clusters.1.property_auc']:.3f}" in drawn.svg
    assert "The updates of cluster 0 are of one kind alone" in drawn.caption


def test_rolling_mean_is_that_of_the_rounds_around() -> None:
    draw = np.random.default_rng(1)
    rounds = draw.choice(40, 25, replace=False).astype(float)
    values = draw.normal(size=25)
    values[draw.uniform(size=25) < 0.3] = np.nan
    near = np.abs(rounds[:, None] - rounds) <= 3
    expected = [np.nanmean(values[row]) if (~np.isnan(values[row])).any() else np.nan for row in near]
    assert rolling_mean(rounds, values, 3) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("period", [2, 3, 5, 15])
def test_points_that_are_drawn_keep_no_time_with_a_period(period: int) -> None:
    kept = drawn_of(15_000, 0.08)
    assert np.bincount(kept % period) / len(kept) == pytest.approx(1 / period, rel=0.1)


def test_maps_tell_the_kinds_apart_by_shape_and_colour() -> None:
    axes = Figure().subplots()
    draw = np.random.default_rng(2)
    held = np.arange(5 * MOST) % 5 == 0
    paint_map(axes, pd.DataFrame({"x": draw.normal(size=5 * MOST), "y": 0.0, "present": held}))
    without, with_it = axes.lines
    assert (without.get_marker(), without.get_color()) != (with_it.get_marker(), with_it.get_color())
    assert without.get_marker() != with_it.get_marker()
    assert without.get_color() != with_it.get_color()
    counts = [len(np.asarray(line.get_xdata())) for line in (without, with_it)]
    assert counts == pytest.approx([0.8 * MOST, 0.2 * MOST], rel=0.02)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, None),
        ({"property.auc": 0.9}, "from others with an AUC of 0.900 (a coin: 0.500)."),
        ({"property.auc": 0.51, "property.auc_control": 0.5}, "no better than a coin (AUC 0.510;"),
        ({"property.auc": 0.9, "property.auc_control": 0.4, "property.auc_rounds": 0.6}, "labels: 0.400; over rounds"),
    ],
)
def test_verdict_gains_a_sentence(found: dict, told: str | None) -> None:
    plain = verdict(summary_of(GROUPS, 2))
    said = verdict(summary_of(GROUPS, 2) | found)
    if told is None:
        assert said == plain
    else:
        assert told in said
        assert said.count(". ") == plain.count(". ") + 1


def test_epsilon_is_shown_with_its_delta_and_what_it_is_of() -> None:
    line = overall({"epsilon": 9.23, "delta": 1e-5}).lines[-1]
    assert line.cells == ("9.230",)
    for word in ("delta = 1e-05", "largest of all clients", "not of which model they choose"):
        assert word in line.meaning
    without_noise = overall({"delta": 1e-5}).lines[-1]
    assert without_noise.cells == (DASH,)
    assert "nothing is guaranteed" in without_noise.meaning
    assert "Epsilon" not in [each.name for each in overall({}).lines]


def test_time_of_the_attack_is_shown_where_there_is_one() -> None:
    assert "Property attack" not in [line.name for line in seconds({}).lines]
    assert ("2.0 s",) in [line.cells for line in seconds({"seconds.property_attack": 2.0}).lines]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """A run of FL and one of CFL."""
    return finished(tmp_path / "fl", 1), finished(tmp_path / "cfl", 3)


def drawn(both: tuple[Path, Path], out: Path, *more: str) -> int:
    return script().main([*map(str, both), "--out", str(out), *more])


def test_paper_s_figures_of_two_runs(both: tuple[Path, Path], tmp_path: Path) -> None:
    assert drawn(both, tmp_path / "a", "--title", "T < U") == 0
    assert drawn(both, tmp_path / "b", "--title", "T < U") == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["cosine.md", "cosine.pdf", "cosine.svg", "maps.pdf", "maps.svg"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    maps_drawn = (tmp_path / "a" / "maps.svg").read_text(encoding="utf-8")
    for word in ("T &lt; U", "FL, first fifth", "FL, all rounds", "CFL, first fifth", "CFL, all rounds"):
        assert word in maps_drawn
    one = updates_of(1)["cosine"]
    first = updates_of(3).query("cluster == 0")["cosine"]
    lines = (tmp_path / "a" / "cosine.md").read_text(encoding="utf-8").splitlines()[2:]
    assert lines[0] == f"| FL | {one.mean():.4f} ± {one.std():.4f} | 0.3074 ± 0.2752 |"
    assert lines[1] == f"| CFL, cluster 0 | {first.mean():.4f} ± {first.std():.4f} | 0.9234 ± 0.1725 |"
    assert lines[3].endswith(f"| {DASH} |")
    told = (tmp_path / "a" / "cosine.svg").read_text(encoding="utf-8")
    assert f"FL: {one.mean():.3f} ± {one.std():.3f}" in told


def test_map_of_few_rounds_is_said_to_be_missing(both: tuple[Path, Path], tmp_path: Path) -> None:
    updates_of(1).assign(early_x=np.nan, early_y=np.nan).to_csv(both[0] / "property.csv", index=False)
    assert drawn(both, tmp_path / "a") == 0
    assert (tmp_path / "a" / "maps.svg").read_text(encoding="utf-8").count("too few updates") == 1


def swap(fl: Path, cfl: Path) -> tuple[Path, Path]:
    return cfl, fl


def unfinished(fl: Path, cfl: Path) -> tuple[Path, Path]:
    (cfl / "summary.json").unlink()
    return fl, cfl


def unattacked(fl: Path, cfl: Path) -> tuple[Path, Path]:
    (fl / "config.toml").write_text(config_of(GROUPS, 1).toml(), encoding="utf-8")
    return fl, cfl


def other_task(fl: Path, cfl: Path) -> tuple[Path, Path]:
    text = (cfl / "config.toml").read_text(encoding="utf-8")
    (cfl / "config.toml").write_text(text.replace("smiling/sun", "smiling/eye"), encoding="utf-8")
    return fl, cfl


def no_maps(fl: Path, cfl: Path) -> tuple[Path, Path]:
    updates_of(3).drop(columns=["all_x"]).assign(early_x=np.nan).to_csv(cfl / "property.csv", index=False)
    return fl, cfl


def damaged(fl: Path, cfl: Path) -> tuple[Path, Path]:
    (cfl / "property.csv").write_text("round\n", encoding="utf-8")
    return fl, cfl


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (swap, "must be a run of FL, with one model"),
        (unfinished, "is not a finished run"),
        (unattacked, "has no property attack"),
        (other_task, "another task than"),
        (no_maps, "property_attack.tsne = true"),
        (damaged, "property.csv: is damaged"),
    ],
)
def test_runs_that_cannot_be_drawn_are_one_sentence(both, tmp_path, capsys, spoil, told) -> None:
    assert drawn(spoil(*both), tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_place_that_cannot_be_written_is_one_sentence(both, tmp_path, capsys) -> None:
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    assert drawn(both, tmp_path / "out") == 2
    assert "cannot be written" in capsys.readouterr().err
