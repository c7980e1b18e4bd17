"""Privacy cards: they claim what was measured or computed, and say of the rest that it is not covered."""

import json
from pathlib import Path

import pytest

from audit_of_any_shape import audit_of
from html_page import Page
from run_of_any_shape import ROUNDS, finished
from shoal.cli.app import main
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.runs.audits.audit_files import AboutAudited, AuditRequest, write_audit
from shoal.runs.audits.card import write_card
from shoal.runs.files import stored_examples, stored_files
from shoal.runs.run import run as run_config

pytestmark = pytest.mark.usefixtures("_unrendered_figures")
PRIVATE = Path(__file__).parents[2] / "experiments" / "demo" / "protected.toml"
NIST = {"Unit of privacy", "Adjacency", "Trust model", "Composition over releases", "Exposure at data collection"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    finished(tmp_path, ["a", "b"])
    return tmp_path


def answers(document) -> dict[str, str]:
    assert {question["question"] for question in document["questions"]} >= NIST
    for question in document["questions"]:
        assert question["covered"] is not question["answer"].startswith("not covered: ")
    return {question["question"]: question["answer"] for question in document["questions"]}


def test_a_run_that_nobody_attacked_claims_nothing_and_names_the_command(run: Path, capsys) -> None:
    assert main(["card", str(run)]) == 0
    assert "Not covered: Unit of privacy; Adjacency" in capsys.readouterr().out
    document = json.loads((run / "card.json").read_text())
    assert list(document) == ["schema", "shoal", "run", "exposure", "promise", "questions"]
    assert document["promise"] is None
    assert document["exposure"] == {"asked": False, "command": f"shoal audit {run} --references 4"}
    said = answers(document)
    assert said["Attacks asked"] == f"not covered: nothing was measured; run shoal audit {run} --references 4"
    assert said["Epsilon and delta"].startswith("not covered: no epsilon is stated")
    page = " ".join(Page((run / "card.html").read_text()).words)
    assert "was not measured" in page
    assert "No guarantee" in page


def test_the_card_says_who_is_exposed_to_whom(run: Path) -> None:
    audit = audit_of({"lira": 0.57, "gap": 0.52})
    write_audit(run, audit, AboutAudited("title", run=run, rounds=ROUNDS), AuditRequest())
    document = write_card(run, run / "elsewhere").document
    assert document["exposure"]["references"] == audit.references
    page = " ".join(Page((run / "elsewhere" / "card.html").read_text()).words)
    said = "Exposed: minority to an outsider. At chance: majority to an outsider."
    assert f"{said} Not attacked: another client and the server." in page


def test_an_audit_of_other_rounds_is_none(run: Path) -> None:
    write_audit(run, audit_of(), AboutAudited("title", run=run, rounds=ROUNDS - 1), AuditRequest())
    assert not write_card(run).document["exposure"]["asked"]


def test_a_promise_is_by_view_with_what_computed_it(tmp_path: Path) -> None:
    small = ["data.clients=20", "data.test_examples=60", "algorithm.rounds=1", "defenses.dp_sgd.min_clients=4"]
    run_config(read_config(PRIVATE, small), tmp_path / "run")
    flat = json.loads((tmp_path / "run" / "summary.json").read_text())
    document = write_card(tmp_path / "run").document
    promise = document["promise"]
    assert promise["epsilon"] == {view: flat[f"epsilon.{view}"] for view in ("outsider", "client", "server")}
    assert promise["epsilon"]["server"] > promise["epsilon"]["client"] > promise["epsilon"]["outsider"]
    assert promise["bound"]["client"] == {name: flat[f"bound.client.{name}"] for name in ("accuracy", "auc")}
    page = " ".join(Page((tmp_path / "run" / "card.html").read_text()).words)
    assert f"For an outsider no attack on one record can exceed {flat['bound.outsider.accuracy']:.3f}" in page
    assert (promise["noise"], promise["noise_multiplier"], promise["min_clients"]) == ("sum", 5.0, 4)
    assert promise["choice_of_model_covered"]
    said = answers(document)
    assert said["Choice of a client's model"] == "clients choose by noisy statistics, which epsilon covers"
    assert said["Empirical lower bound"].startswith("not covered: run shoal run CONFIG --set canaries.per_client=4")
    assert "each of at least 4 clients adds its share of the noise" in said["Trust model"]
    hashes = document["run"]["sha256"]
    assert hashes["examples"] == stored_examples(tmp_path / "run")
    assert hashes["models"] == stored_files(tmp_path / "run")["models.safetensors"]


def test_what_is_no_finished_run_has_no_card(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a finished run"):
        write_card(tmp_path)
