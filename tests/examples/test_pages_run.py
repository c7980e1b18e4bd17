"""The programs and commands of pages run as a reader would copy them, and tables of pages have what there is."""

import re
import runpy
import shlex
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from unittest.mock import MagicMock

import click
import pytest
import torch
import typer

import shoal
from shoal.audit.attacked_records import REFERENCE_ATTACKS
from shoal.audit.audit import METRICS
from shoal.audit.update_audit import UPDATE_ATTACKS
from shoal.cli.app import app
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.engine import Aggregate, Algorithm, LocalSGD, RoundPlan, State
from shoal.sweeps import read_sweep

DOCS = Path(__file__).parents[2] / "docs"
LESSONS = DOCS / "lessons"
COMMANDS = [
    (page.stem, command)
    for page in sorted(LESSONS.glob("*.md"))
    for command in re.findall(r"^    shoal (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def text_of(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def rows(page):
    return [line for line in text_of(page).splitlines() if line.startswith("|")]


def programs(page, word=""):
    """The programs of a page that have a word."""
    return [each for each in re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL) if word in each]


def ran(page, word):
    """What the one program of a page with a word has made."""
    made = {}
    (program,) = programs(page, word)
    exec(program, made)
    return made


@pytest.mark.filterwarnings("ignore")
def test_the_audit_of_one_s_own_model_runs(capsys):
    ran("audit", "")
    attack, auc = capsys.readouterr().out.split()
    assert f"`{attack}`" in text_of("attacks")
    assert float(auc) > 0.55


def test_every_attack_is_in_the_table_with_the_reference_federations_that_it_needs():
    for attack in (*REFERENCE_ATTACKS, *UPDATE_ATTACKS):
        (row,) = [line for line in rows("attacks") if f"`{attack.name}`" in line]
        assert str(getattr(attack, "least", 0)) in row.split("|")[4], attack.name


def test_every_metric_of_an_audit_is_among_its_keys():
    keys = "\n".join(rows("files"))
    assert [metric for metric in METRICS if f".{metric}`" not in keys] == []


def test_the_example_of_a_regression_finds_both_slopes(capsys):
    result = ran("own-data", "regression")["result"]
    assert result.clients.groupby("group")["cluster"].nunique().tolist() == [1, 1]
    assert result.clients["cluster"].nunique() == 2
    assert result.clients["accuracy"].between(-0.05, 0).all()
    assert "accuracy" in capsys.readouterr().out


def test_the_example_of_an_adapter_trains_and_is_merged():
    made = ran("own-data", "peft")
    assert made["model"].parameters == 2 * (4 + 16) + 16 * 2 + 2
    assert made["result"].summary.overall["accuracy.overall"] > 0.75
    assert {*made["plain"].state_dict()} == {*made["body"].state_dict()}


def test_the_example_of_mapped_files_trains_on_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = ran("own-data", "ClientArrays")
    assert made["federation"].clients.memory_mapped
    assert made["result"].summary.overall["accuracy.overall"] > 0.75


def test_the_example_of_a_sweep_has_as_many_runs_as_the_page_says(tmp_path):
    page = text_of("sweeps")
    example = page.partition("## The file\n")[2].partition("    title = ")
    text = textwrap.dedent(re.split(r"\n(?=\S)", "".join(example[1:]))[0])
    said = re.search(r"example has (\d+) runs", page)
    # Beside the README, as far as its base can tell.
    (tmp_path / "experiments").symlink_to(DOCS.parent / "experiments")
    (tmp_path / "sweep.toml").write_text(text)
    assert len(read_sweep(tmp_path / "sweep.toml").runs) == int(said[1]) == 50


@pytest.mark.filterwarnings("ignore")
def test_the_programs_of_the_page_run_in_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mlflow, made = MagicMock(), {}
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for program in programs("use"):
        # The second names a run that the third makes, and eight reference federations that take long.
        exec(program.replace('"runs/long"])', '"runs/mine"])').replace("references=8", "references=1"), made)
    assert made["result"].clients.groupby("group")["cluster"].nunique().tolist() == [1, 1]
    assert (tmp_path / "runs" / "long" / "summary.json").exists()
    assert "Clients by cluster: 8, 4." in capsys.readouterr().out
    logged = shoal.Run(made["simulation"], "runs/logged", watch=[made["MLflow"]()]).train()
    summary, steps = logged.summary, [*logged.rounds["round"].unique()]
    assert [call.kwargs["step"] for call in mlflow.log_metrics.mock_calls] == [*steps, steps[-1]]
    assert mlflow.log_metrics.mock_calls[-1].args[0].items() <= summary.items()
    mlflow.end_run.assert_called_once_with("FINISHED")


def test_the_table_and_its_configuration_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(LESSONS / "patients.py"))
    (tmp_path / "patients.toml").write_text((LESSONS / "patients.toml").read_text(encoding="utf-8"))
    _, simulation = build(read_config(tmp_path / "patients.toml"))
    federation = simulation.federation
    groups = [federation.groups[g] for g in federation.group.tolist()]
    assert (groups.count("north"), groups.count("south")) == (12, 28)
    assert len(federation.shadow) == 480
    assert federation.clients.x.shape == (40 * 30, 20)


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_commands_of_a_page_have_these_options(page, command):
    name, *words = shlex.split(command)
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    group.commands[name].make_context(name, words, resilient_parsing=False)


def test_every_command_of_the_course_is_on_a_page():
    assert {command.split()[0] for _, command in COMMANDS} == {
        "data", "run", "compare", "preflight", "audit", "protect", "card",
    }  # fmt: skip


PAGE = text_of("tutorial")


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "examples"))


def test_the_methods_on_the_page_are_those_of_the_file():
    (methods,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    inside_a_class = indent(methods.replace("\n\n\n", "\n\n"), "    ")
    assert inside_a_class in (DOCS / "examples" / "trimmed_ifca.py").read_text(encoding="utf-8")


def test_every_file_and_run_of_the_page_is_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (content,) = re.findall(r"```toml\n(seed = .*?)```", PAGE, re.DOTALL)
    (tmp_path / "digits.toml").write_text(content)
    commands = re.findall(r"^\$ shoal run ((?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    asked = {}
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        changes = [value for key, value in pairwise(words) if key == "--set"]
        asked[words[words.index("--out") + 1]] = read_config(words[0], changes)
    assert {out: config.algorithm.value.title for out, config in asked.items()} == {
        "runs/ifca": "IFCA",
        "runs/trimmed": "Trimmed IFCA",
        "runs/defended": "Trimmed IFCA",
    }
    assert asked["runs/defended"].algorithm.rounds == 90
    (sweep,) = re.findall(r"```toml\n(title = .*?)```", PAGE, re.DOTALL)
    (tmp_path / "defended.toml").write_text(sweep)
    assert len(read_sweep(tmp_path / "defended.toml").runs) == 4 * 5


def test_the_largest_and_smallest_updates_of_a_cluster_move_nothing():
    from trimmed_ifca import TrimmedIFCA  # noqa: PLC0415

    assert isinstance(TrimmedIFCA(), Algorithm)
    updates = torch.tensor([[-1e6, 3.0], [1.0, 1e6], [2.0, 1.0], [3.0, 2.0], [1e6, -1e6], [7.0, 8.0]])
    plan = RoundPlan(torch.tensor([0, 0, 0, 0, 0, 2]), ())
    before = State.initial(torch.ones(3, 2), clients=6)
    after = TrimmedIFCA(3, trim=0.2).server_update(before, None, plan, Aggregate(before.models, (updates,)))
    # Of five one goes at each end, of one none; the model that nobody trained stays.
    assert after.models.tolist() == [[3.0, 3.0], [1.0, 1.0], [8.0, 9.0]]
    with pytest.raises(shoal.InputError):
        TrimmedIFCA(trim=0.5)


def test_without_trimming_it_is_ifca(build, mlp):
    from trimmed_ifca import TrimmedIFCA  # noqa: PLC0415

    models = [
        shoal.simulate(build(), mlp, algorithm, LocalSGD(), rounds=3).state.models
        for algorithm in (TrimmedIFCA(2, trim=0.0), shoal.IFCA(2), TrimmedIFCA(2, trim=0.4))
    ]
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=1e-5)
    assert not torch.allclose(models[2], models[1], rtol=0, atol=1e-3)
