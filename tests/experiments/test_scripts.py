"""The scripts that judge sweeps: their formulas on cases whose answer is known."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from experiment_scripts import experiment_script

differences = experiment_script("paired_differences").differences


def script(name, paper="ifca-mir"):
    return experiment_script(f"{paper}/{name}")


@pytest.fixture
def risks():
    """Two models over four rounds of two seeds; one estimator is the truth less 0.1, the other its mirror image."""
    rows = []
    for seed in (0, 1):
        for number in (5, 10, 15, 20):
            for cluster in (0, 1):
                truth = 0.5 + 0.01 * number + 0.1 * cluster * (-1) ** (number // 5) + 0.003 * seed
                rows.append({
                    "round": number, "cluster": cluster, "data.examples_per_client": 25, "seed": seed, "audit": truth,
                    "shadow": truth - 0.1, "federated": 1.2 - truth,
                })  # fmt: skip
    return pd.DataFrame(rows)


def test_an_estimate_is_judged_by_error_by_rank_and_by_which_model_is_safer(risks):
    seconds = pd.DataFrame([
        {"data.examples_per_client": 25, "seed": seed, "red_team.estimator": kind, "seconds": 2.0}
        for seed in (0, 1) for kind in ("shadow", "federated", "audit")
    ])  # fmt: skip
    judged = script("estimators").judged(risks, seconds).set_index(["estimator", "seed"])
    for seed in (0, 1):
        shadow, federated, audit = (judged.loc[kind, seed] for kind in ("shadow", "federated", "audit"))
        assert shadow[["bias", "error"]].tolist() == pytest.approx([-0.1, 0.1])
        assert shadow[["rank correlation", "safer model right"]].tolist() == pytest.approx([1, 1])
        assert federated[["rank correlation", "safer model right"]].tolist() == pytest.approx([-1, 0])
        assert audit[["bias", "error", "rank correlation", "safer model right"]].tolist() == pytest.approx([0, 0, 1, 1])
        assert (shadow["estimates"], shadow["pairs"]) == (8, 4)


def test_differences_have_student_s_interval():
    values = pd.Series([0.1, -0.02, 0.05, 0.3, 0.02])
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    assert differences(values) == [f"{values.mean():+.3f}", f"{low:+.3f} to {high:+.3f}", "4 of 5"]


def test_the_population_s_non_members_are_a_mixture(capsys):
    claims = script("claims")
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
    assert lines[0][-1] == "0.000"
    (population,) = [line for line in lines if line[:3] == ["mia", "5", "population"]]
    expected = [share * 0.6 + (1 - share) * 0.8 for share in shares.values()]
    assert [float(cell) for cell in population[3:7]] == pytest.approx(expected, abs=5e-4)
    assert float(population[-1]) == pytest.approx(np.sqrt(((expected - claims.PAPER) ** 2).mean()), abs=5e-4)


def test_angles_are_compared_within_an_algorithm_and_algorithms_within_an_angle(capsys):
    claims = script("claims")
    others = ("loss_threshold.minority", "loss_threshold.majority", "gap.minority", "gap.majority")
    effect = {("IFCA", "per image"): 0.5, ("IFCA", "per client"): 0.6, ("IFCA-MIR", "per image"): 0.4,
              ("IFCA-MIR", "per client"): 0.45}  # fmt: skip
    rows = [
        {"algorithm": algorithm, "angle": angle, "seed": seed, "share": share}
        | dict.fromkeys((*claims.FIGURES, *others), value + 0.1 * seed * (1 + seed) + share)
        for (algorithm, angle), value in effect.items() for seed in (0, 1) for share in (0.1, 0.3)
    ]  # fmt: skip
    claims.angles(pd.DataFrame(rows))
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "mia.minority " in line]
    per_image, per_client, ifca, mir = [line for line in lines if "mia.minority" in line]
    assert per_image[3:] == ["-0.100", "-0.100 to -0.100", "0 of 2"]
    assert per_client[3:] == ["-0.150", "-0.150 to -0.150", "0 of 2"]
    assert (ifca[0], mir[0]) == ("IFCA", "IFCA-MIR")
    assert ifca[2:] == ["0.900 ± 0.141", "0.800 ± 0.141", "+0.100", "+0.100 to +0.100", "2 of 2"]
    assert mir[4:] == ["+0.050", "+0.050 to +0.050", "2 of 2"]


def test_algorithms_are_compared_by_the_strongest_attack_over_all_shifts_and_in_each(capsys):
    claims = script("claims")
    effect = {("IFCA", "near"): 0.5, ("IFCA", "far"): 0.6, ("IFCA-MIR", "near"): 0.4, ("IFCA-MIR", "far"): 0.6}
    rows = [
        {"algorithm": algorithm, "shift": shift, "seed": seed} | dict.fromkeys(claims.STRONGEST, value + 0.1 * seed)
        | {"clusters.0.mia": 0.8, "clusters.1.mia": 0.6, "clusters.0.gap": 0.5, "clusters.1.gap": 0.6}
        | {"clusters.0.risk": 0.52, "clusters.1.risk": 0.48 + 0.04 * seed}
        for (algorithm, shift), value in effect.items() for seed in (0, 1)
    ]  # fmt: skip
    claims.strongest(pd.DataFrame(rows), "sweep", "shift")
    out = capsys.readouterr().out
    lines = [line.strip("| ").split(" | ") for line in out.splitlines() if "mia_by_rmia.minority" in line]
    assert [line[3] for line in lines] == ["-0.050", "-0.100", "+0.000"], "over both, near, far"
    assert lines[0][1:3] == ["0.600 ± 0.071", "0.550 ± 0.071"]
    assert "| risk | 20.0 | unbounded | inf, 10.0 |" in out, "of the means over seeds, not the mean of the ratios"
    assert "| gap | 4.0 | 4.0 to 4.0 | 4.0, 4.0 |" in out
    (ifca, mir) = [line.strip("| ").split(" | ") for line in out.splitlines() if "model.minority.mia | 0" in line][-2:]
    assert (ifca[4], mir[4]) == ("-0.100", "-0.200"), "near minus far"


def test_property_claims_are_paired_by_seed(capsys):
    rows = [
        {"task": "A", "algorithm": name, "seed": seed, "property.auc": auc + 0.01 * seed, "main.auc": 0.9}
        for name, auc in (("FL", 0.5), ("CFL", 0.7)) for seed in range(3)
    ]  # fmt: skip
    script("claims", "property").compared(pd.DataFrame(rows), "passive")
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "against" in line]
    assert lines[0][:4] == ["property.auc", "CFL against FL", "0.710 ± 0.010", "0.510 ± 0.010"]
    assert lines[0][4:] == ["+0.200", "+0.200 to +0.200", "3 of 3"]
    assert lines[1][-1] == "0 of 3"
