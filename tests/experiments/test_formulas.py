"""The formulas of scripts, on cases whose answer is known."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_1samp
from torch import Tensor

from experiment_scripts import EXPERIMENTS, experiment_script
from shoal.config.build import load_source
from shoal.core.errors import InputError
from shoal.data import ImageDataset, LabelledDataset, TextDataset
from shoal.defenses import accounting

# --- control ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def front():
    return experiment_script("control/front")


def test_the_area_is_that_of_a_grid_of_dominated_points(front):
    random = np.random.default_rng(0)
    accuracy, exposure = random.uniform(0.5, 0.8, 12), random.uniform(0.5, 0.75, 12)
    low, high = front.WORST
    a, e = np.meshgrid(np.arange(low, 0.8, 0.0005) + 0.00025, np.arange(0.5, high, 0.0005) + 0.00025)
    dominated = ((a[..., None] <= accuracy) & (e[..., None] >= exposure)).any(axis=2)
    assert front.dominated_area(accuracy, exposure) == pytest.approx(dominated.sum() * 0.0005**2, rel=0.02)
    means = pd.DataFrame({"accuracy": [0.7, 0.6, 0.65], "exposure": [0.6, 0.5, 0.61]}, index=["a", "b", "dominated"])
    assert front.front(means) == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, "taken"),
        ({"violations.total": 6}, "violations"),
        ({"accuracy.overall": 0.689}, "accuracy"),
        ({"accuracy.minority": 0.5, "smallest": 2}, "accuracy, minority, smallest model"),
    ],
)
def test_the_bar_says_what_was_missed(changes, missed):
    before = {"algorithm": "IFCA-MIR", "seed": 0, "violations.total": 10, "accuracy.overall": 0.7, "smallest": 10}
    before["accuracy.minority"] = 0.7
    after = {**before, "algorithm": "coordinator", "violations.total": 5, "accuracy.overall": 0.691, **changes}
    assert experiment_script("control/bar").taken(pd.DataFrame([before, after]))[0][-1] == missed


@pytest.mark.parametrize(
    ("before", "after", "settled", "reversals"),
    [
        (0.0, [0.4, 0.8, 1.0, 1.0, 1.0, 1.0], 3, 0),
        (0.0, [0.0] * 6, 0, 0),
        (1.0, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0], 2, 0),
        (0.0, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 4, 0),
        (0.0, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], None, 0),
        (0.0, [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], None, 7),
        # Within 0.1 of the mean, which is not the last value.
        (0.0, [0.5, 0.45, 0.55, 0.45, 0.55], 1, 3),
    ],
)
def test_a_strength_has_settled_once_it_stays_near_its_final_mean(before, after, settled, reversals):
    settling = experiment_script("control/settling")
    assert settling.settled_after(before, after) == settled
    assert settling.reversals(after) == reversals


# --- differential privacy --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def epsilons():
    return experiment_script("property/epsilon")


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_its_exact_epsilon_is_what_prv_comes_near_from_above(epsilons, rate, sigma):
    exact = epsilons.exact(epsilons.Setting("", rate, 1, 1e-5), sigma)
    assert exact <= accounting.composed_epsilon([(sigma, rate, 1)], 1e-5, "prv") <= exact + 0.03


def test_one_step_of_173_examples_by_the_moments_accountant_gives_both_of_the_paper_s(epsilons):
    setting, moments = epsilons.Setting("", 32 / 173, 1, 1e-5), epsilons.ACCOUNTANTS["moments to 32"]
    assert epsilons.matching({sigma: moments(setting, sigma) for sigma in epsilons.PAPER})
    for other in (replace(setting, steps=2), replace(setting, delta=1e-4), replace(setting, rate=32 / 160)):
        assert not epsilons.matching({sigma: moments(other, sigma) for sigma in epsilons.PAPER})


# --- sensors of risk -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sensors():
    return experiment_script("sensors/compare")


def rows_of(**risks):
    """Two seeds, two rounds, two models, whose true risks are 0.5 to 0.57."""
    places = [{"run": "a", "seed": i // 4, "round": 5 + i // 2 % 2, "cluster": i % 2} for i in range(8)]
    return pd.DataFrame([
        place | {"sensor": name, "risk": risk(0.5 + 0.01 * i, i), "seconds": 2.0 + i % 2}
        for i, place in enumerate(places) for name, risk in risks.items()
    ])  # fmt: skip


def test_a_sensor_is_judged_by_error_by_rank_and_by_which_model_is_safer(sensors):
    """``late`` knows only the round, with which all risks rise, and nothing of the models."""
    rows = rows_of(
        audit=lambda truth, i: truth + i // 2 % 2, high=lambda truth, i: truth + i // 2 % 2 + 0.1,
        mirrored=lambda truth, i: 1 - truth + i // 2 % 2, constant=lambda *_: 0.5,
        late=lambda _, i: i // 2 % 2 + 0.001 * (-1) ** i,
    )  # fmt: skip
    lines = sensors.judged(rows, "audit").set_index("sensor")
    assert lines.loc["audit", ["error", "bias", "rank_correlation", "safer_right"]].tolist() == [0, 0, 1, 1]
    assert lines.loc["high", ["error", "bias"]].tolist() == pytest.approx([0.1, 0.1])
    assert lines.loc["high", ["rank_correlation", "safer_right"]].tolist() == [1, 1]
    assert lines.loc["mirrored", ["rank_correlation", "safer_right"]].tolist() == [-1, 0]
    assert lines.loc["constant", "safer_right"] == 0.5, "a tie is a guess"
    assert lines.loc["late", "rank_correlation"] < 0
    assert lines.loc["late", "safer_right"] == 0


def test_the_interval_of_a_ratio_is_fiellers(sensors):
    """By its definition, the ends are the ratios at which a paired t test of above - f below is at its level."""
    above, below = np.array([0.11, 0.16, 0.13, 0.15]), np.array([0.03, 0.05, 0.05, 0.04])
    low, high = sensors.fieller(above, below)
    assert low < above.mean() / below.mean() < high
    for end in (low, high):
        assert ttest_1samp(above - end * below, 0).pvalue == pytest.approx(0.05)
    known = sensors.fieller(above, np.full(4, 0.04))
    assert known == pytest.approx(ttest_1samp(above / 0.04, 0).confidence_interval()), "a constant is not an estimate"


def test_lines_are_judged_on_other_settings_than_those_they_are_fitted_on():
    told = np.linspace(0.5, 0.7, 12)
    models = pd.DataFrame({
        "setting": np.repeat(["base", "other", "third"], 4), "seed": 0, "cluster": 0,
        "truth": 0.55 + 0.5 * (told - 0.5), "histogram": told,
    })  # fmt: skip
    # A line holds everywhere; a constant knows nothing of the setting that is judged.
    lines = experiment_script("sensors/calibrated").lines_of(models).set_index("sensor")
    assert lines["line.error"]["histogram"] < 1e-12
    assert lines["error"]["histogram"] == pytest.approx((models["truth"] - told).abs().mean())
    assert (lines["slope"]["histogram"], lines["level"]["histogram"]) == pytest.approx((0.5, 0.55))
    others = models["truth"][models["setting"] != "base"].mean()
    assert lines["base.line.error"]["none"] == pytest.approx((models["truth"][:4] - others).abs().mean())


# --- tables ----------------------------------------------------------------------------------------------------------


def test_differences_have_student_s_interval_and_are_bold_where_it_leaves_out_zero():
    values = pd.Series([0.1, -0.02, 0.05, 0.3, 0.02])
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    differences = experiment_script("paired_differences").differences
    assert differences(values) == [f"{values.mean():+.3f}", f"{low:+.3f} to {high:+.3f}", "4 of 5"]
    matrix = experiment_script("matrix/figure")
    # Another order of seeds, and a spread between seeds that is ten times the difference.
    base = pd.DataFrame({"setting": "IFCA", "seed": [0, 1, 2], **{key: [0.1, 0.5, 0.9] for key in matrix.COMPARED}})
    above = base.iloc[::-1].assign(setting="above")
    above[list(matrix.COMPARED)] = above[list(matrix.COMPARED)].add([0.04, 0.05, 0.06], axis=0)
    unclear = base.assign(setting="unclear", accuracy=[0.2, 0.4, 0.9])
    rows = matrix.compared(pd.concat([base, above, unclear]), "IFCA")
    assert all(cell.startswith("**+0.050**") for cell in rows[0][1:])
    assert rows[1][1].startswith("+0.000 (")


def test_an_estimate_is_judged_within_a_seed():
    """Two models over four rounds of two seeds; one estimator is the truth less 0.1, the other its mirror image."""
    places = [(seed, number, cluster) for seed in (0, 1) for number in (5, 10, 15, 20) for cluster in (0, 1)]
    risks = pd.DataFrame(places, columns=["seed", "round", "cluster"]).assign(**{"data.examples_per_client": 25})
    turn = (-1) ** (risks["round"] // 5)
    risks["audit"] = 0.5 + 0.01 * risks["round"] + 0.1 * risks["cluster"] * turn + 0.003 * risks["seed"]
    risks = risks.assign(shadow=risks["audit"] - 0.1, federated=1.2 - risks["audit"])
    seconds = pd.DataFrame([
        {"data.examples_per_client": 25, "seed": seed, "red_team.estimator": kind, "seconds": 2.0}
        for seed in (0, 1) for kind in ("shadow", "federated", "audit")
    ])  # fmt: skip
    judged = experiment_script("ifca-mir/estimators").judged(risks, seconds).set_index(["estimator", "seed"])
    ranks = ["rank correlation", "safer model right"]
    for seed in (0, 1):
        assert judged.loc[("shadow", seed), ["bias", "error", *ranks]].tolist() == pytest.approx([-0.1, 0.1, 1, 1])
        assert judged.loc[("federated", seed), ranks].tolist() == pytest.approx([-1, 0])
        assert judged.loc[("audit", seed), ["bias", "error", *ranks]].tolist() == pytest.approx([0, 0, 1, 1])


def test_the_population_s_non_members_are_a_mixture(capsys):
    claims = experiment_script("ifca-mir/claims")
    shares = {"minority 10 %": 0.1, "minority 30 %": 0.3, "minority 50 %": 0.5, "majority 90 %": 0.9}
    rows = [
        {
            "images": 5, "trained": who, "seed": seed, "mia.trained": 0.6, "mia_against_other.trained": 0.8,
            "mia_against_unrotated.trained": 0.7, "loss_threshold.trained": paper,
            "loss_threshold_against_other.trained": 0.9, "loss_threshold_against_unrotated.trained": 0.5,
        }
        for who, paper in zip(shares, claims.PAPER, strict=True) for seed in (0, 1)
    ]  # fmt: skip
    claims.readings(pd.DataFrame(rows), "images", "title")
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "5 |" in line]
    assert lines[0][:3] == ["loss_threshold", "5", "same group"], "the nearest stands first"
    (population,) = [line for line in lines if line[:3] == ["mia", "5", "population"]]
    expected = [share * 0.6 + (1 - share) * 0.8 for share in shares.values()]
    assert [float(cell) for cell in population[3:7]] == pytest.approx(expected, abs=5e-4)
    assert float(population[-1]) == pytest.approx(np.sqrt(((expected - claims.PAPER) ** 2).mean()), abs=5e-4)


def test_a_power_law_is_recovered():
    sizes = experiment_script("audit/sizes")
    rows = pd.DataFrame([
        {"algorithm": f"Alone, {members}", "seed": seed, "attack": "rmia", "references": 4, "name": "all",
         "members": members, "accuracy": 0.5 + 0.5 * 1.5 * (members / 10) ** -0.5}
        for members in (100, 400) for seed in (0, 1)
    ])  # fmt: skip
    assert np.allclose(sizes.law(sizes.advantages(rows)), (1.5, 0.5))


def test_tables_of_a_page_become_one_file(tmp_path):
    (page := tmp_path / "bar.md").write_text(
        "**Five seeds**\n\n| setting | accuracy | of the minority |\n|---|---|---|\n"
        "| **IFCA** | 0.91 ± 0.01 | 0.89 ± 0.03 |\n\n## Seeds\n\n| seed | bar |\n|---|---|\n| 0 | taken |\n"
    )
    assert experiment_script("tables_to_csv").convert(page).read_text().splitlines()[1:] == [
        "Five seeds,IFCA,0.91,0.01,0.89,0.03,,",
        "Seeds,,,,,,0,taken",
    ]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(EXPERIMENTS / "property")


def generated(kind: str, task: str) -> LabelledDataset:
    data = load_source(f"synthetic_{kind}:generate_{kind}", task=task)
    assert isinstance(data, LabelledDataset)
    return data


def holds(kind: str, task: str) -> Tensor:
    """The mask of the examples with a task's property."""
    mask = generated(kind, task).has_property
    assert mask is not None
    return mask


@pytest.mark.parametrize(
    ("kind", "task", "count", "classes"),
    [("faces", "tone/sunglasses", 6000, 3), ("faces", "smiling", 6000, 2), ("reviews", "score/author-4", 8000, 5)],
)
def test_the_set_is_what_its_docstring_says(kind, task, count, classes):
    data = generated(kind, task)
    assert (data.name, len(data.labels), data.train_count, data.classes) == (kind, count, count, classes)
    assert len(data.labels.bincount()) == classes
    assert (data.has_property is None) == ("/" not in task)
    if isinstance(data, ImageDataset):
        assert (data.pixels.shape, data.pixels.dtype) == ((count, 3, 62, 47), torch.uint8)
    else:
        assert isinstance(data, TextDataset)
        assert data.words.shape == (count, 40)
        assert data.words.unique().tolist() == list(range(data.vocabulary + 1)), "every number is some word's"
    with pytest.raises(InputError, match=f"'task' .*{kind}.* did you mean"):
        generated(kind, f"{task}x" if kind == "reviews" else f"s{task}")


def test_attributes_of_faces_have_their_shares_are_independent_and_can_be_seen():
    # A share of 6,000 draws is within 0.013 of its probability in 95 of 100 cases, a correlation within 0.026.
    tasks = {"long-hair/sunglasses": 0.2, "tone/hat": 0.2, "hat/dark-tone": 1 / 3, "hat/smiling": 0.5}
    masks = [holds("faces", task).double() for task in [*tasks, "hat/bright-background"]]
    assert [float(mask.mean()) for mask in masks] == pytest.approx([*tasks.values(), 0.5], abs=0.02)
    for pair in combinations([*masks, generated("faces", "long-hair").labels.double()], 2):
        assert abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) < 0.04
    faces, sunglasses = generated("faces", "smiling"), masks[0].bool()
    assert isinstance(faces, ImageDataset)
    eyes = faces.pixels[:, :, 26:34, 13:34].double().mean((1, 2, 3))
    assert float(eyes[sunglasses].mean()) < 0.75 * float(eyes[~sunglasses].mean())
