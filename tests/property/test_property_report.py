"""A property attack on a run's page, and the figures of two runs: their numbers, their text, their failures."""

import json
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from safetensors.numpy import save_file
from sklearn.metrics import roc_auc_score

from experiment_scripts import experiment_script
from html_page import figures_on, page_of
from run_of_any_shape import (
    clients_of,
    config_of,
    frames_of,
    html_of as usual_html,
    meanings_of,
    report_text,
    roc_of,
    rounds_of,
    samples_of,
    summary_of,
    texts_of,
    view_of,
)
from shoal.config.schema import Config
from shoal.config.toml_files import parse
from shoal.core.errors import InputError
from shoal.core.formats import DASH
from shoal.metrics.summary import Summary, flatten, parse_summary
from shoal.property import PropertyAttackSection
from shoal.property.property_page import (
    CHECKPOINTS,
    MAX_POINTS,
    auc_over_rounds,
    control_auc_over_rounds,
    cosines,
    draw_map,
    draw_points,
    maps,
    rolling_mean,
    running_auc,
    tsne_maps,
)
from shoal.property.update_table import property_summary
from shoal.reports.page import Section
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_page import run_page, seconds
from shoal.reports.run.run_tables import overall
from shoal.reports.run.run_verdict import verdict
from shoal.runs.result import report_of
from unrendered import figures_without_pdf

pytestmark = pytest.mark.usefixtures("_rendered_figures")

GROUPS = ["a", "b"]


def attacked(clusters: int = 2, **attack: object) -> Config:
    config = config_of(GROUPS, clusters)
    data = replace(config.data, task="smiling/sunglasses")
    return replace(config, data=data, property_attack=parse(PropertyAttackSection, attack, "test"))


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


def summary_with(clusters: int, updates: pd.DataFrame) -> Summary:
    main = Summary(overall={"main.auc": 0.8125, "main.auc_even": 0.4375})
    return parse_summary(summary_of(GROUPS, clusters)) | property_summary(updates) | main


@cache
def html_of(clusters: int) -> str:
    """The page of a run with the attack, drawn once."""
    updates, config = updates_of(clusters), attacked(clusters)
    frames = frames_of(GROUPS, clusters) | {"updates": updates}
    return run_page(RunDescription.of(config), summary_with(clusters, updates), samples_of(GROUPS), **frames)


def finished(out: Path, clusters: int = 2, updates: pd.DataFrame | None = None, config: Config | None = None) -> Path:
    """A run directory with the outcome of a property attack."""
    out.mkdir(exist_ok=True)
    updates = updates_of(clusters) if updates is None else updates
    save_file(samples_of(GROUPS), out / "samples.safetensors")
    text = (attacked(clusters) if config is None else config).toml()
    (out / "config.toml").write_text(text, encoding="utf-8")
    frames = {"rounds": rounds_of(GROUPS, clusters), "clients": clients_of(GROUPS, clusters), "roc": roc_of(GROUPS)}
    for name, frame in (frames | {"property": updates}).items():
        frame.to_csv(out / f"{name}.csv", index=False)
    (out / "summary.json").write_text(json.dumps(flatten(summary_with(clusters, updates))), encoding="utf-8")
    return out


def section_of(summary: Summary, updates: pd.DataFrame, clusters: int = 2, **attack: object) -> Section:
    config = attacked(**attack)
    assert config.property_attack is not None
    return config.property_attack.page(config.data.task, summary, updates, clusters)


def cells(summary: Summary, updates: pd.DataFrame, clusters: int = 2) -> dict[str, tuple[str, ...]]:
    return texts_of(section_of(summary, updates, clusters).table)


def script():
    return experiment_script("property/figures")


@pytest.mark.parametrize("clusters", [1, 2])
def test_page_has_the_section_with_its_figures(clusters: int) -> None:
    page = page_of(html_of(clusters))
    assert "Property inference" in page.text
    assert {"property-auc-title", "property-cosine-title", "property-maps-title"} <= set(page.ids)
    assert ("FL, one model" if clusters == 1 else f"CFL, {clusters} models") in page.text
    for word in ("sunglasses", "smiling", "0.812", "0.438"):
        assert word in page.text
    drawn = " ".join(figures_on(page))
    assert "first fifth of the rounds" in drawn
    assert "all rounds" in drawn


def test_table_shows_the_metrics_of_all_models_and_of_each() -> None:
    updates = updates_of()
    made = summary_with(2, updates)
    shown = cells(made, updates)
    assert shown["Updates"] == ("40", "20", "20")
    assert shown["Updates with the property"] == ("4", "0", "4")
    assert shown["AUC"] == (f"{made.overall['property.auc']:.3f}", DASH, f"{made.by_cluster[1]['property_auc']:.3f}")
    last = updates[updates["cluster"] == 1]
    control = np.mean([roc_auc_score(last["present"], last[f"control.{i}"]) for i in range(3)])
    assert shown["AUC, control"] == (f"{made.overall['property.auc_control']:.3f}", DASH, f"{control:.3f}")
    assert shown["AUC within models"] == (f"{made.overall['property.auc_within']:.3f}", "", "")
    assert shown["AUC over rounds"] == (f"{made.overall['property.auc_rounds']:.3f}", "", "")
    mean, sd = last["cosine"].mean(), last["cosine"].std()
    assert shown["Cosine of consecutive updates"][2] == f"{mean:.3f} ± {sd:.3f}"


def test_standard_deviation_at_chance_is_that_of_all_orders() -> None:
    updates = updates_of(1, rounds=5).assign(present=[1, 0, 0, 1, 0])
    aucs = [roc_auc_score(np.isin(np.arange(5), held), np.arange(5.0)) for held in combinations(range(5), 2)]
    assert cells(Summary(), updates, 1)["Standard deviation at chance"] == (f"{np.std(aucs):.3f}",)


def test_metrics_that_are_missing_are_dashes() -> None:
    shown = cells(Summary(), updates_of().head(0))
    assert shown.pop("Updates") == shown.pop("Updates with the property") == ("0",) * 3
    assert shown.pop("Cosine of consecutive updates") == (f"{DASH} ± {DASH}",) * 3
    assert {cell for line in shown.values() for cell in line} == {DASH, ""}


@pytest.mark.parametrize(
    ("attack", "words", "without"),
    [
        ({"mode": "passive"}, ["only observes", "all models"], ["times as large", "0.9"]),
        ({"mode": "active", "alpha": 0.75}, ["0.75 times", "0.25 times", "active"], ["times as large"]),
        ({"mode": "scaled", "gamma": 10.0, "alpha": 0.7}, ["10 times as large", "0.3 times"], ["only observes"]),
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
    # Without updates there are no figures to draw.
    text = " ".join(section_of(Summary(), updates_of().head(0), **attack).paragraphs)
    for word in words:
        assert word in text
    for word in without:
        assert word not in text


@pytest.mark.usefixtures("_unrendered_figures")
def test_page_of_a_run_without_the_attack_has_no_section(tmp_path: Path) -> None:
    config = config_of(GROUPS, 2)
    finished(tmp_path, config=config)
    (tmp_path / "property.csv").write_text("damaged", encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(summary_of(GROUPS, 2)), encoding="utf-8")
    text = report_text(tmp_path)
    page = page_of(text)
    assert text == usual_html(GROUPS, 2)
    assert not [name for name in page.ids if name.startswith("property")]
    assert "roperty" not in page.text
    assert "Epsilon" not in page.text


def test_run_read_back_gives_the_same_page(tmp_path: Path) -> None:
    assert report_text(finished(tmp_path)) == html_of(2)


@pytest.mark.usefixtures("_unrendered_figures")
def test_columns_that_are_missing_leave_figures_out(tmp_path: Path) -> None:
    updates = updates_of()
    kept = ["round", "cluster", "clients", "present", "cosine"]
    assert page_of(report_text(finished(tmp_path, updates=updates[kept]))).ids.count("property-cosine-title") == 1
    assert auc_over_rounds(updates[kept]) is None
    assert maps(updates[kept], 2) is None
    assert cosines(updates.assign(cosine=np.nan)) is None
    assert auc_over_rounds(updates.assign(present=0)) is None


@pytest.mark.usefixtures("_unrendered_figures")
def test_run_that_saw_nothing_has_a_section_without_figures(tmp_path: Path) -> None:
    page = page_of(report_text(finished(tmp_path, updates=updates_of().head(0))))
    assert "Property inference" in page.text
    assert "property-auc-title" not in page.ids


@pytest.mark.usefixtures("_unrendered_figures")
def test_property_inference_is_shown_by_the_interval_of_its_area() -> None:
    updates = updates_of(1)
    certain, none = (auc_over_rounds(updates.assign(score=score)) for score in (updates["present"], 0.5))
    assert certain is not None
    assert none is not None
    assert certain.title.startswith("Over all updates the AUC ends at 1.000 (")
    assert none.title.startswith("Over all updates the AUC ends at 0.500 (")


def test_first_map_is_left_out_where_there_were_too_few() -> None:
    updates = updates_of().assign(early_x=np.nan, early_y=np.nan)
    drawn = maps(updates, 2)
    assert drawn is not None
    assert "too few updates" in drawn.caption
    assert "first fifth" not in drawn.image
    assert list(tsne_maps(updates)) == ["all rounds"]


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
    rounds = draw.integers(1, 30, 90)
    present = (draw.uniform(size=90) < 0.3) & (rounds > 4)
    scores = draw.integers(0, 6, 90).astype(float)
    scores[draw.uniform(size=90) < 0.1] = np.nan
    aucs = running_auc(pd.DataFrame({"round": rounds, "cluster": 0, "present": present, "score": scores}))
    expected = {}
    for number in np.unique(rounds):
        past = (rounds <= number) & ~np.isnan(scores)
        if len(np.unique(present[past])) == 2 and (past & (rounds == number)).any():
            expected[number] = roc_auc_score(present[past], scores[past])
    assert aucs.index.tolist() == list(expected)
    assert aucs.index.min() > 4
    assert aucs.tolist() == pytest.approx(list(expected.values()))


def test_running_auc_of_many_rounds_has_the_first_and_the_last() -> None:
    updates = updates_of(1, rounds=20 * CHECKPOINTS)
    aucs = running_auc(updates)
    assert len(aucs) == CHECKPOINTS
    assert (aucs.index[0], aucs.index[-1]) == (5, 20 * CHECKPOINTS)
    assert aucs.iloc[-1] == pytest.approx(roc_auc_score(updates["present"], updates["score"]))


def test_curves_end_at_the_metrics_of_the_summary() -> None:
    updates = updates_of()
    made = property_summary(updates)
    assert control_auc_over_rounds(updates).iloc[-1] == pytest.approx(made.overall["property.auc_control"])
    drawn = auc_over_rounds(updates)
    assert drawn is not None
    ends = f"all models {made.overall['property.auc']:.3f}, cluster 1 {made.by_cluster[1]['property_auc']:.3f}"
    assert ends in drawn.image
    assert "The updates of cluster 0 are of one kind alone" in drawn.caption


def test_rolling_mean_is_that_of_the_rounds_around() -> None:
    draw = np.random.default_rng(1)
    rounds = np.sort(draw.choice(40, 25, replace=False))
    values = draw.normal(size=25)
    values[draw.uniform(size=25) < 0.3] = np.nan
    near = np.abs(rounds[:, None] - rounds) <= 3
    expected = [np.nanmean(values[row]) if (~np.isnan(values[row])).any() else np.nan for row in near]
    assert rolling_mean(pd.Series(values, rounds), 3).tolist() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("period", [2, 3, 5, 15])
def test_points_that_are_drawn_do_not_favour_any_part_of_a_period(period: int) -> None:
    axes = Figure().subplots()
    rounds = np.arange(15_000)
    draw_points(axes, pd.DataFrame({"round": rounds, "cosine": 0.0, "present": 0}), "round", "cosine")
    kept = np.asarray(axes.lines[0].get_xdata(), dtype=int)
    assert len(kept) == pytest.approx(MAX_POINTS, rel=0.01)
    # Five standard deviations of a uniform sample.
    share = 1 / period
    assert np.bincount(kept % period) / len(kept) == pytest.approx(share, abs=5 * np.sqrt(share / len(kept)))


def test_maps_tell_the_kinds_apart_by_shape_and_colour() -> None:
    axes = Figure().subplots()
    draw = np.random.default_rng(2)
    held = np.arange(5 * MAX_POINTS) % 5 == 0
    draw_map(axes, pd.DataFrame({"x": draw.normal(size=5 * MAX_POINTS), "y": 0.0, "present": held.astype(int)}))
    without, with_it = axes.lines
    assert without.get_marker() != with_it.get_marker()
    assert without.get_color() != with_it.get_color()
    counts = [len(np.asarray(line.get_xdata())) for line in (without, with_it)]
    assert counts == pytest.approx([0.8 * MAX_POINTS, 0.2 * MAX_POINTS], rel=0.02)


@pytest.mark.usefixtures("_unrendered_figures")
@pytest.mark.parametrize(
    ("auc", "right", "first"),
    [
        (0.9, 0.8, "The property is exposed to another client: attack accuracy 0.800 (0.716 to 0.868), chance 0.5, by"),
        (0.9, 0.5, "The property attack only tells models apart. Attacks by another client on the property are at"),
        (0.9, 0.55, "The property attack is not shown to do more than tell models apart. Whether the property is exp"),
        (0.5, 0.5, "Attacks by another client on the property are at chance: attack accuracy 0.500 (0.407 to 0.593)"),
        (0.5, None, "Whether the property is exposed to another client is not decided: attack"),
    ],
)
def test_run_and_section_lead_with_the_counterfactual_pairs(auc: float, right: float | None, first: str) -> None:
    metrics = {"property.updates": 60, "property.positives": 20, "property.auc": auc, "property.auc_control": 0.4}
    pairs = {} if right is None else {"property.auc_counterfactual": right, "property.pairs": 118}
    summary = parse_summary(summary_of(GROUPS, 2) | metrics | pairs)
    said, *_ = section_of(summary, updates_of().head(0)).paragraphs
    assert said.startswith(first)
    assert f"its AUC is {auc:.3f} (" in said
    assert said.endswith("where it learned from shuffled labels, 0.400.")
    assert said in verdict(summary)
    assert "roperty" not in verdict(parse_summary(summary_of(GROUPS, 2)))


def test_epsilon_is_shown_with_its_delta_and_what_it_is_of() -> None:
    name = "Epsilon, largest of the clients"
    private, without_noise, plain = (
        overall(view_of(GROUPS, 2, more)) for more in ({"epsilon": 9.23, "delta": 1e-5}, {"delta": 1e-5}, {})
    )
    assert texts_of(private)[name] == ("9.230",)
    assert "delta = 1e-05" in meanings_of(private)[name]
    assert "of which model they choose only with" in meanings_of(private)[name]
    assert texts_of(without_noise)[name] == (DASH,)
    assert "nothing is guaranteed" in meanings_of(without_noise)[name]
    assert name not in texts_of(plain)


def test_time_of_the_attack_is_shown_where_there_is_one() -> None:
    assert "Property attack" not in texts_of(seconds({}))
    assert texts_of(seconds({"seconds.property_attack": 2.0}))["Property attack"][0] == "2.0 s"


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
    cosine_drawn = (tmp_path / "a" / "cosine.svg").read_text(encoding="utf-8")
    assert f"FL: {one.mean():.3f} ± {one.std():.3f}" in cosine_drawn


def test_map_of_few_rounds_is_said_to_be_missing(both: tuple[Path, Path], tmp_path: Path) -> None:
    updates_of(1).assign(early_x=np.nan, early_y=np.nan).to_csv(both[0] / "property.csv", index=False)
    with figures_without_pdf():
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
    ("spoil", "sentence"),
    [
        (swap, "must be a run of FL, with one model"),
        (unfinished, "is not a finished run"),
        (unattacked, "has no property attack"),
        (other_task, "another task than"),
        (no_maps, "property_attack.tsne = true"),
        (damaged, "property.csv: is damaged"),
    ],
)
def test_runs_that_cannot_be_drawn_are_one_sentence(both, tmp_path, capsys, spoil, sentence) -> None:
    assert drawn(spoil(*both), tmp_path / "out") == 2
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_unrendered_figures")
def test_place_that_cannot_be_written_is_one_sentence(both, tmp_path, capsys) -> None:
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    assert drawn(both, tmp_path / "out") == 2
    assert "cannot be written" in capsys.readouterr().err
