"""The pages of a run and of its audit: each leads to the other, and the stronger attack has the first word."""

import json
from pathlib import Path

import pytest

import shoal
from audit_of_any_shape import audit_of
from run_of_any_shape import ROUNDS, finished, report_text
from shoal.config.schema import parse_config
from shoal.reports.run.description import RunDescription
from shoal.runs.audits.audit_files import AboutAudited, AuditRequest, write_audit
from shoal.runs.audits.gate import parse_gates
from shoal.runs.result import report_of

WARNING = "cluster 1: the server has too few examples"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    finished(tmp_path, ["a", "b"])
    (tmp_path / "run.log").write_text(
        "2026-01-02 03:04:05,678 99 INFO begin: ifca\n"
        f"2026-01-02 03:04:06,678 99 WARNING {WARNING}\nWARNING {WARNING}\n"
    )
    return tmp_path


def audited(run: Path, out: Path, rounds: int = ROUNDS, *gates: str) -> str:
    about = AboutAudited("title", run=run, rounds=rounds)
    return write_audit(out, audit_of(), about, AuditRequest(parse_gates(gates))).page.read_text()


def test_the_findings_of_an_audit_replace_those_of_the_run_s_own_attack(run: Path) -> None:
    before = report_text(run)
    assert "audit.html" not in before
    audited(run, run)
    after = report_text(run)
    assert "Exposed: majority and minority to an outsider" in after
    assert "by the configured attack" not in after
    assert '<a href="audit.html">' in after
    assert "LiRA, view: outsider, on minority" in after


def test_an_audit_of_other_rounds_or_a_damaged_one_has_none(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = report_text(run)
    audited(run, run, ROUNDS - 1)
    assert report_text(run) == before
    assert f"the audit of round {ROUNDS - 1} is not shown" in caplog.text
    caplog.clear()
    (run / "audit.json").write_text('{"rounds": "\\u001b[2J"}')
    assert report_text(run) == before
    assert caplog.text == "", "a foreign file writes no text of its own to a terminal"
    audited(run, run)
    (run / "audit.csv").write_text("attack\nlira\n")
    assert report_text(run) == before
    (run / "audit.json").write_text("[]")
    assert report_text(run) == before


def test_the_page_of_an_audit_leads_to_that_of_its_run_wherever_it_is(run: Path) -> None:
    assert "href" not in audited(run, run), "no page, no link"
    report_of(run)
    assert '<a href="report.html">' in audited(run, run)
    assert '<a href="../../report.html">' in audited(run, run / "audits" / "first")


def test_the_page_of_an_audit_says_which_gates_hold(run: Path) -> None:
    text = audited(run, run, ROUNDS, "accuracy <= 0.99", "accuracy < 0.6", "attacks.lira.minority.auc <= 0.1")
    assert "Gate accuracy &lt;= 0.99: holds" in text
    assert (
        '<p class="verdict loud">Gate accuracy &lt; 0.6: broken by attacks.lira.minority.accuracy, whose upper' in text
    )


def test_what_was_warned_of_stands_on_the_page_once(run: Path) -> None:
    assert report_text(run).count(WARNING[1:]) == 1
    (run / "run.log").unlink()
    assert "too few examples" not in report_text(run)


def test_a_simulation_in_memory_keeps_its_warnings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    examples = ([[-1.0], [1.0]] * 20, [0, 1] * 20)
    federation = shoal.Federation.from_tensors([examples] * 2, test=examples, shadow=([[-1.0], [1.0]] * 4, [0, 1] * 4))
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
    result = shoal.simulate(
        federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1, red_team=shoal.RedTeam(every=0)
    )
    assert any("too few examples for shadow models" in each for each in result.warnings)
    assert capfd.readouterr().err.count("too few examples for shadow models") <= 1
    assert shoal.load(result.save(tmp_path / "saved")).warnings == result.warnings
    assert "too few examples for shadow models" in result.report(tmp_path / "page.html").read_text()


def test_a_lower_bound_of_0_is_never_shown_without_what_it_proves(run: Path) -> None:
    about = AboutAudited("title"), AuditRequest()
    text = write_audit(run / "none", audit_of(empirical_epsilon=0.0), *about).page.read_text()
    assert '<dd class="value">0.00</dd><dd class="remark">the attacks prove no lower bound above 0; ' in text
    assert "no lower bound" not in write_audit(run / "some", audit_of(empirical_epsilon=1.0), *about).page.read_text()


def test_a_page_has_the_data_s_own_name(tmp_path: Path) -> None:
    table = {"data": {"source": "table", "path": "/data/patients.csv", "client": "who", "label": "ill"},
             "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}  # fmt: skip
    assert RunDescription.of(parse_config(table, "test")).title == "FedAvg on patients.csv, seed 0"
    finished(tmp_path, ["a"])
    assert json.loads((tmp_path / "summary.json").read_text())["dataset"] == "digits"
    assert "<h1>IFCA-MIR on digits, seed 0</h1>" in report_text(tmp_path)
