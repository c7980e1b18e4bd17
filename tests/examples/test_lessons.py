"""The course: its files work, and its commands have the options that the pages give them."""

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest
import typer

from shoal.cli.app import app
from shoal.config.build import build
from shoal.config.schema import read_config

LESSONS = Path(__file__).parents[2] / "docs" / "lessons"
COMMANDS = [
    (page.stem, command)
    for page in sorted(LESSONS.glob("*.md"))
    for command in re.findall(r"^    shoal (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


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
