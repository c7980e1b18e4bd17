"""The comparison of sensors: its formulas on cases whose answer is known, and a small run that is taken up again."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_1samp

import shoal
from experiment_scripts import EXPERIMENTS, experiment_script
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.runs.files import read_summary

FOLDER = EXPERIMENTS / "sensors"
SMALL = [
    'data.source="digits"', "data.clients=6", "data.examples_per_client=10", "data.holdout_examples=6",
    "data.shadow_examples=60", "data.test_examples=60", "model.hidden=8", "algorithm.rounds=2", "red_team.every=1",
    'red_team.attack="loss-threshold"', "red_team.shadow_models=2", "local.batch_size=5", "local.epochs=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def script():
    return experiment_script("sensors/compare")


def rows_of(**sensors):
    """Two seeds, two rounds, two models, whose true risks are 0.5 to 0.57."""
    rows = []
    for i in range(8):
        place = {"run": "a", "seed": i // 4, "round": 5 + i // 2 % 2, "cluster": i % 2}
        for name, risk in sensors.items():
            rows.append(place | {"sensor": name, "risk": risk(0.5 + 0.01 * i, i), "seconds": 2.0 + i % 2})
    return pd.DataFrame(rows)


def test_a_sensor_is_judged_by_error_by_rank_and_by_which_model_is_safer(script):
    rows = rows_of(
        audit=lambda truth, _: truth, high=lambda truth, _: truth + 0.1, mirrored=lambda truth, _: 1 - truth,
        constant=lambda *_: 0.5, some=lambda truth, i: truth if i < 6 else np.nan,
    )  # fmt: skip
    lines = script.judged(rows, "audit").set_index("sensor")
    assert lines.loc["audit", ["error", "bias", "rank_correlation", "safer_right"]].tolist() == [0, 0, 1, 1]
    assert lines.loc["high", ["error", "bias"]].tolist() == pytest.approx([0.1, 0.1])
    assert lines.loc["high", ["rank_correlation", "safer_right"]].tolist() == [1, 1]
    assert lines.loc["mirrored", ["rank_correlation", "safer_right"]].tolist() == [-1, 0]
    assert np.isnan(lines.loc["constant", "rank_correlation"])
    assert lines.loc["constant", "safer_right"] == 0.5, "a tie is a guess"
    assert lines["models"].to_dict() == {"audit": 8, "high": 8, "mirrored": 8, "constant": 8, "some": 6}
    assert lines.loc["some", "error"] == 0
    assert lines.loc["high", "seconds"] == 2.5


def test_ranks_are_within_a_round(script):
    """A sensor that knows the round alone, by which all risks rise, knows nothing of the models."""
    rows = rows_of(audit=lambda truth, i: truth + i // 2 % 2, late=lambda _, i: i // 2 % 2 + 0.001 * (-1) ** i)
    late = script.judged(rows, "audit").set_index("sensor").loc["late"]
    assert late["rank_correlation"] < 0
    assert late["safer_right"] == 0


def test_the_strongest_audit_is_another_truth(script):
    rows = rows_of(**{"audit": lambda truth, _: truth, "audit, other": lambda truth, _: truth + 0.02})
    lines = script.judged(rows, "strongest").set_index("sensor")
    assert lines["bias"].to_dict() == pytest.approx({"audit": -0.02, "audit, other": 0.0})


def test_reference_federations_judge_the_last_estimates_alone(script):
    def references(truth, i):
        return truth + 0.1 if i // 2 % 2 else np.nan

    rows = rows_of(audit=lambda truth, _: truth, **{script.REFERENCES: references}).dropna()
    lines = script.judged(rows, script.REFERENCES).set_index("sensor")
    assert lines["models"].to_dict() == {"audit": 4}, "what judges is no sensor itself"
    assert lines.loc["audit", ["error", "bias"]].tolist() == pytest.approx([0.1, -0.1])


def test_a_factor_is_a_ratio_of_mean_advantages(script):
    """A sensor that sees a tenth in every model has the factor 10, after which it is right; of chance none is known."""
    rows, deviation = [], [3, 1, -2, -4]
    for i in range(8):
        truth = 0.62 + 0.01 * i
        risks = {
            script.REFERENCES: truth, "tenth": 0.5 + (truth - 0.5) / 10, "chance": 0.51 + 0.01 * deviation[i // 2],
            "one seed": truth if i < 2 else np.nan,
        }  # fmt: skip
        place = {"run": "a", "seed": i // 2, "round": 5, "cluster": i % 2, "seconds": 1.0}
        rows += [place | {"sensor": name, "risk": risk} for name, risk in risks.items()]
    lines = script.factors(pd.DataFrame(rows)).set_index("sensor")
    assert lines.loc["tenth", ["factor", "low", "high", "error"]].tolist() == pytest.approx([10, 10, 10, 0])
    assert lines.loc["chance", "factor"] == pytest.approx(0.155 / 0.005)
    assert np.isnan(lines.loc["chance", ["low", "high"]].astype(float)).all(), "no factor is excluded"
    assert lines["seeds"].to_dict() == {"tenth": 4, "chance": 4, "one seed": 1}
    assert np.isnan(lines.loc["one seed", ["low", "high", "error"]].astype(float)).all()
    assert "| chance | 31.0 | unbounded |" in script.table_of_factors(lines.reset_index())


def test_the_interval_of_a_ratio_is_fiellers(script):
    """By its definition, the ends are the ratios at which a paired t test of above - f below is at its level."""
    above, below = np.array([0.11, 0.16, 0.13, 0.15]), np.array([0.03, 0.05, 0.05, 0.04])
    low, high = script.fieller(above, below)
    assert low < above.mean() / below.mean() < high
    for end in (low, high):
        assert ttest_1samp(above - end * below, 0).pvalue == pytest.approx(0.05)
    known = script.fieller(above, np.full(4, 0.04))
    assert known == pytest.approx(ttest_1samp(above / 0.04, 0).confidence_interval()), "a constant is no estimate"


def test_clients_give_their_first_hold_outs_only(script, build):
    federation = build()
    few = script.with_holdouts(federation, 1)
    assert few.holdout.sizes.tolist() == [1] * 6
    assert few.holdout.indices.tolist() == [int(federation.holdout.owned(i)[0]) for i in range(6)]
    assert torch.equal(script.with_holdouts(federation, 25).holdout.indices, federation.holdout.indices)


def test_a_comparison_is_taken_up_where_it_stopped(script, tmp_path, monkeypatch):
    ran, run = [], script.run
    monkeypatch.setattr(script, "run", lambda config: (ran.append(config.seed), run(config))[1])
    script.compare(tmp_path, [0], SMALL)
    lines = script.compare(tmp_path, [0, 1], SMALL)
    assert ran == [0, 1]
    rows = pd.read_csv(tmp_path / "estimates.csv")
    assert set(rows["round"]) == {1, 2}
    assert rows["seed"].nunique() == 2
    per_model = rows.groupby(["seed", "round", "cluster"])["sensor"].nunique()
    assert (per_model == 11).all(), "every sensor judges every model"
    assert rows["risk"].between(0, 1).all()
    assert set(lines["truth"]) == {"audit", "strongest"}
    assert (lines.loc[(lines["truth"] == "audit") & (lines["sensor"] == "audit"), "error"] == 0).all()
    # With another setting beside them, no run is taken for another.
    script.compare(tmp_path, [0], [*SMALL, "local.learning_rate=0.05"])
    assert ran == [0, 1, 0]
    assert len(list((tmp_path / "runs").glob("*.csv"))) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "estimates.csv", "sensors.csv", "sensors.md"}


def test_reference_federations_attack_the_last_models(script, tmp_path, monkeypatch):
    """As a run with as many of them does: the same accuracy of the strongest attack on the same models."""
    changes = [*SMALL, "evaluation.reference_federations=2"]
    # A seed with which no sensor tells 0.5 on average, of which no factor can be stated.
    lines = script.compare(tmp_path / "sensors", [1], changes)
    rows = pd.read_csv(tmp_path / "sensors" / "estimates.csv")
    judge = rows[rows["sensor"] == script.REFERENCES].set_index("cluster")
    assert set(judge["round"]) == {2}
    assert set(lines["truth"]) == set(script.TRUTHS)
    assert (tmp_path / "sensors" / "factors.md").read_text().startswith("| sensor | factor |")

    summary = read_summary(shoal.run(read_config(FOLDER / "base.toml", [*changes, "seed=1"]), tmp_path / "run"))
    assert judge["risk"].to_dict() == pytest.approx({k: each["mia"] for k, each in summary.by_cluster.items()})


def test_a_wrong_setting_is_one_sentence_and_nothing_is_left(script, tmp_path):
    with pytest.raises(InputError, match="did you mean 'hidden'"):
        script.compare(tmp_path, [0], ["model.hiden=3"])
    assert not list((tmp_path / "runs").iterdir())


def test_lines_are_judged_on_other_settings_than_those_they_are_fitted_on():
    script = experiment_script("sensors/calibrated")
    told = np.linspace(0.5, 0.7, 12)
    models = pd.DataFrame({
        "setting": np.repeat(["base", "other", "third"], 4), "seed": 0, "cluster": 0,
        "truth": 0.55 + 0.5 * (told - 0.5), "histogram": told,
    })  # fmt: skip
    # A line holds everywhere; a constant knows nothing of the setting that is judged.
    lines = script.lines_of(models).set_index("sensor")
    assert lines["line.error"]["histogram"] < 1e-12
    assert lines["error"]["histogram"] == pytest.approx((models["truth"] - told).abs().mean())
    assert (lines["slope"]["histogram"], lines["level"]["histogram"]) == pytest.approx((0.5, 0.55))
    others = models["truth"][models["setting"] != "base"].mean()
    assert lines["base.line.error"]["none"] == pytest.approx((models["truth"][:4] - others).abs().mean())


def test_record_features_are_ranked_by_what_references_say():
    script, draw = experiment_script("sensors/calibrated"), np.random.default_rng(0)
    exposure, inside = draw.exponential(size=200), np.tile([True, False, True, False], (400, 1))
    # The loss fell by as much as training on a record moves its scores.
    trace = draw.random((200, 1)) + exposure[:, None] * np.linspace(1, 0, 10)[:, None, None]
    arrays = {
        "entry": np.arange(200), "assignment": np.zeros(4, dtype=int), "owner": np.arange(200) % 4, "members": trace,
        "reference": inside * np.tile(exposure, 2)[:, None], "reference_member": inside,
    }  # fmt: skip
    found = script.by_record(arrays)
    assert found["trace range"] == pytest.approx((1.0, 1.0))
    assert found["fall"] == pytest.approx((1.0, 1.0))
