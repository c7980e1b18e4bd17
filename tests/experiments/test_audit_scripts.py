"""The scripts of experiments/audit on small results."""

import sys

import numpy as np
import pandas as pd
import pytest

from experiment_scripts import experiment_script
from shoal.config.schema import parse_config
from shoal.runs.audits.audit_run import audit_run
from shoal.sweeps import Workers, read_sweep, run_sweep
from unrendered import unrendered_figures

pytestmark = pytest.mark.usefixtures("_rendered_figures")


def script(name):
    return experiment_script(f"audit/{name}")


@pytest.fixture(scope="module")
def sweep(toy_sweep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audits")
    path = toy_sweep(
        folder,
        'base = "base.toml"\nseeds = [0, 1]\n[grid.algorithm]\n'
        '"IFCA" = { "algorithm.name" = "ifca" }\n"IFCA-MIR" = { "algorithm.name" = "ifca-mir" }\n',
        algorithm__rounds=2,
        red_team__attack="shadow",
    )
    with unrendered_figures():
        run_sweep(read_sweep(path), folder / "out", workers=Workers(1))
    return folder / "out"


@pytest.fixture(scope="module")
def compared(sweep, tmp_path_factory):
    """The folder that attacks.py writes, with three reference federations for each run."""
    out = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["attacks.py", str(sweep), str(out), "--references", "3"])
        patched.setattr("shoal.reports.audit.audit_page.audit_page", lambda *_, **__: "")
        script("attacks").main()
    return out


def test_the_runs_of_a_sweep_are_audited_and_compared(compared):
    attacks = pd.read_csv(compared / "attacks.csv")
    assert set(attacks["references"]) == {1, 3}
    assert set(attacks["name"]) == {"all", "minority", "majority"}
    assert "lira" not in set(attacks.loc[attacks["references"] == 1, "attack"])
    violations = pd.read_csv(compared / "violations.csv")
    assert len(violations) == 4
    # On each model one of them decides.
    names = [name for name in violations if name not in {"algorithm", "seed", "strongest"}]
    assert (violations["strongest"] <= violations[names].sum(axis=1)).all()
    page = (compared / "attacks.md").read_text()
    assert "**Clients whose threshold is exceeded, by the attack that judges**" in page
    assert "IFCA-MIR, minority: 2 seeds" in page


def test_algorithms_are_paired_by_seed(compared):
    attacks = pd.read_csv(compared / "attacks.csv")
    attacks.loc[(attacks["references"] == 3) & (attacks["algorithm"] == "IFCA"), "accuracy"] = 0.6
    told = (attacks["references"] == 3) & (attacks["algorithm"] == "IFCA-MIR")
    attacks.loc[told, "accuracy"] = 0.61 + 0.02 * attacks.loc[told, "seed"]
    attacks.loc[attacks["references"] == 1, "accuracy"] = 0.9
    page = script("attacks").report(attacks, pd.read_csv(compared / "violations.csv"))
    table = page.split("**minority: balanced accuracy under IFCA and under IFCA-MIR, by the attack that judges**")[1]
    assert "| rmia | 0.600 ± 0.000 | 0.620 ± 0.014 | +0.020 | -0.107 to +0.147 | 2 of 2 |" in table


def test_fewer_references_are_the_first_of_many(sweep, compared, tmp_path):
    attacks = pd.read_csv(compared / "attacks.csv")
    (first, *_) = sorted(path for path in (sweep / "runs").iterdir() if path.is_dir())
    alone = audit_run(first, references=1, out=tmp_path / "one").flat["attacks.calibration.all.auc"]
    one = attacks[(attacks["references"] == 1) & (attacks["attack"] == "calibration") & (attacks["name"] == "all")]
    assert alone in set(one["auc"])


def test_a_power_law_is_recovered(tmp_path, monkeypatch):
    rows = [
        {"algorithm": name, "seed": seed, "attack": attack, "references": 4, "name": "all", "members": members,
         "accuracy": 0.5 + 0.5 * 1.5 * (members / 10) ** -0.5}
        for name, members in (("Alone, 100", 100), ("Alone, 400", 400), ("FedAvg", 900))
        for seed in (0, 1)
        for attack in ("rmia", "calibration", "loss", "posterior")
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    for folder, inside in (("alone", frame["algorithm"] != "FedAvg"), ("mlp", frame["algorithm"] == "FedAvg")):
        (tmp_path / folder).mkdir()
        frame[inside].to_csv(tmp_path / folder / "attacks.csv", index=False)
    sizes = script("sizes")
    assert np.allclose(sizes.law(sizes.advantages(frame[frame["attack"] == "rmia"])), (1.5, 0.5))
    monkeypatch.setattr(sys, "argv", ["sizes.py", *(str(tmp_path / each) for each in ("alone", "mlp", "out"))])
    sizes.main()
    table = (tmp_path / "out" / "sizes.md").read_text()
    predicted = 0.5 + 0.75 * 90**-0.5
    assert f"| rmia | 1.50 | 0.50 | 90 | {predicted:.3f} | {predicted:.3f} ± 0.000 |" in table
    assert (tmp_path / "out" / "sizes.svg").stat().st_size > 1000


def test_null_runs_call_a_verdict_silent_just_if_it_says_nothing_of_exposure(tmp_path, monkeypatch):
    null = script("null_runs")
    small = {"clients": 4, "shadow_examples": 50, "test_examples": 100}

    def configuration(algorithm, seed):
        table = null_configuration(algorithm, seed)
        algorithm, local = table["algorithm"] | {"rounds": 1}, table["local"] | {"epochs": 1}
        return table | {"data": table["data"] | small, "algorithm": algorithm, "local": local}

    null_configuration = null.configuration
    monkeypatch.setattr(null, "configuration", configuration)
    monkeypatch.setattr(null, "ALGORITHMS", ({"name": "ifca", "clusters": 2},))
    null.main([str(tmp_path), "--seeds", "0", "--references", "2", "--draws", "3"])
    audits = pd.read_csv(tmp_path / "runs" / "ifca-0-2-3.csv").groupby(["kind", "draw"]).first()
    exposed = audits["verdict"].str.contains("tells members|What is certain|Yet some members")
    assert (audits["said"] == exposed).all()
    assert set(pd.read_csv(tmp_path / "null.csv")["null"]) == {"swapped", "noise"}
    assert "**Audits**" in (tmp_path / "null.md").read_text()


def test_the_rule_of_preflight_is_judged_by_the_attack(tmp_path, monkeypatch):
    rule = script("preflight_rule")
    # A sum of few clients, much noise, and a sum of many examples, of which nothing is said.
    cells = [
        rule.Cell("digits", "mlp", 5, 2, hidden=32),
        rule.Cell("digits", "logistic", 100, 2, defense=rule.noisy(30.0)),
        rule.Cell("digits", "logistic", 200, 2),
    ]
    monkeypatch.setattr(rule, "CELLS", cells)
    monkeypatch.setattr(sys, "argv", ["preflight_rule.py", str(tmp_path), "--seeds", "0", "1"])
    rule.main()
    table = pd.read_csv(tmp_path / "preflight-rule.csv", keep_default_na=False)
    assert table["predicted"].tolist() == ["recognised", "hidden", "between"]
    assert table["right"].tolist() == ["yes", "yes", ""]
    assert "2 of 2 predictions are right" in (tmp_path / "preflight-rule.md").read_text()
    monkeypatch.setattr(rule, "measured_row", None)
    rule.main()
    assert table.equals(pd.read_csv(tmp_path / "preflight-rule.csv", keep_default_na=False)), "measured but once"
    assert [rule.judged("recognised", 0.9, 1.0), rule.judged("hidden", 0.4, 0.6)] == ["NO", "NO"]


def test_every_defence_of_the_views_is_a_configuration_and_a_view_has_the_attacks_of_those_within(tmp_path):
    views = script("views")
    for setting in views.SETTINGS:
        assert parse_config(views.configuration(setting, 3), setting).seed == 3
    found = {"outsider": 0.6, "client": 0.9, "server": 0.5}
    rows = pd.DataFrame(
        {
            "setting": "none", "seed": 0, "view": view, "group": group, "attack": "loss", "auc": auc,
            "accuracy": 0.5, "tpr_at_fpr_0.01": 0.0, "test accuracy": 0.7, "of the group": 0.7, "epsilon": np.nan,
        }
        for view, auc in found.items()
        for group in views.GROUPS
    )  # fmt: skip
    summary = views.summary_of(rows)
    within = summary[summary["group"] == "minority"].set_index("view")["auc.within"]
    assert within.to_dict() == {"outsider": 0.6, "client": 0.9, "server": 0.9}
    assert b"</svg>" in views.views_figure(summary)


def test_null_views_ask_of_pairs_that_nobody_trained_on(tmp_path, monkeypatch):
    null = script("null_views")
    small = {"source": "digits", "clients": 4, "shadow_examples": 50, "test_examples": 300}
    whole, asked = null.configuration, []

    def configuration(seed, noise):
        table = whole(seed, noise)
        return table | {"data": table["data"] | small, "algorithm": table["algorithm"] | {"rounds": 1}}

    def unseen(attacked, random):
        other = null_unseen(attacked, random)
        trained = attacked.records.federation.clients.indices
        asked.append(not np.isin(other.records.rows.numpy(), trained.numpy()).any())
        assert len(set(other.records.rows.tolist())) == 2 * len(other.records)
        return other

    null_unseen = null.unseen
    monkeypatch.setattr(null, "configuration", configuration)
    monkeypatch.setattr(null, "unseen", unseen)
    null.main([str(tmp_path), "--seeds", "1"])
    table = pd.read_csv(tmp_path / "null-views.csv").set_index(["kind", "view"])
    assert asked == [True]
    assert table.loc[("members", "server"), "mean auc"] > 0.9
    assert table.loc[("unseen", "server"), "mean auc"] < 0.7
