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
from sklearn.metrics import roc_auc_score

from experiment_scripts import experiment_script
from html_page import figures_on, page_of
from run_of_any_shape import (
    config_of,
    finished as usual_run,
    frames_of,
    html_of as usual_html,
    meanings_of,
    report_text,
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
    draw_points,
    maps,
    rolling_mean,
    running_auc,
    tsne_maps,
)
from shoal.property.update_table import property_summary
from shoal.reports.page import Section
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_page import run_page
from shoal.reports.run.run_tables import overall
from shoal.reports.run.run_verdict import answer
from shoal.runs.result import report_of

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
    usual_run(out, GROUPS, clusters)
    updates = updates_of(clusters) if updates is None else updates
    updates.to_csv(out / "property.csv", index=False)
    (out / "config.toml").write_text((attacked(clusters) if config is None else config).toml(), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(flatten(summary_with(clusters, updates))), encoding="utf-8")
    return out


def sections_of(summary: Summary, updates: pd.DataFrame, clusters: int = 2, **attack: object) -> tuple[Section, ...]:
    config = attacked(**attack)
    assert config.property_attack is not None
    return config.property_attack.page(config.data.task, summary, updates, clusters)


def cells(summary: Summary, updates: pd.DataFrame, clusters: int = 2) -> dict[str, tuple[str, ...]]:
    return texts_of(sections_of(summary, updates, clusters)[1].table)


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


def test_metrics_that_are_missing_are_left_out_or_dashes() -> None:
    shown = cells(Summary(), updates_of().head(0))
    assert shown.pop("Updates") == shown.pop("Updates with the property") == ("0",) * 3
    assert shown.pop("Cosine of consecutive updates") == (f"{DASH} ± {DASH}",) * 3
    assert {cell for line in shown.values() for cell in line} <= {DASH, ""}


@pytest.mark.usefixtures("_unrendered_figures")
def test_page_of_a_run_without_the_attack_has_no_section(tmp_path: Path) -> None:
    config = config_of(GROUPS, 2)
    finished(tmp_path, config=config)
    (tmp_path / "property.csv").write_text("damaged", encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(summary_of(GROUPS, 2)), encoding="utf-8")
    text = report_text(tmp_path)
    page = page_of(text)
    assert text.replace(str(tmp_path), "RUN") == usual_html(GROUPS, 2, directory=Path("RUN"))
    assert not [name for name in page.ids if name.startswith("property")]
    assert "roperty" not in page.text
    assert "Epsilon" not in page.text


def test_run_read_back_gives_the_same_page(tmp_path: Path) -> None:
    assert report_text(finished(tmp_path)).count("property-auc-title") == html_of(2).count("property-auc-title")


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
    assert "updates of cluster 0 are of one kind" in drawn.caption


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
    (said,) = sections_of(summary, updates_of().head(0))[0].paragraphs
    assert f"The AUC over all updates, assumed independent, is {auc:.3f} (" in said
    assert said.endswith("; with shuffled labels, 0.400.")
    answered = answer(summary).replace("\n", " ")
    assert answered.index(first) < answered.index(said)
    page = page_of(run_page(RunDescription.of(attacked(2)), summary, {}, **frames_of(GROUPS, 2))).text
    assert page.index("Does the property leak?") < page.index(first) < page.index("Who is exposed, to whom?")
    assert "roperty" not in answer(parse_summary(summary_of(GROUPS, 2)))


def test_epsilon_is_shown_with_its_delta() -> None:
    name = "Epsilon, largest of the clients"
    private = overall(view_of(GROUPS, 2, {"epsilon": 9.23, "delta": 1e-5}))
    assert texts_of(private)[name] == ("9.230",)
    assert "delta = 1e-05" in meanings_of(private)[name]
    assert texts_of(overall(view_of(GROUPS, 2, {"delta": 1e-5})))[name] == (DASH,)
    assert overall(view_of(GROUPS, 2, {})) is None


def test_paper_s_figures_of_two_runs(tmp_path: Path) -> None:
    """Of a run of FL and one of CFL; the same bytes each time."""
    runs = [str(finished(tmp_path / name, clusters)) for name, clusters in (("fl", 1), ("cfl", 3))]
    for out in ("a", "b"):
        assert (
            experiment_script("property/figures").main([*runs, "--out", str(tmp_path / out), "--title", "T < U"]) == 0
        )
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
