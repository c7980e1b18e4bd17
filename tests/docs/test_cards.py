"""The cards of algorithms, attacks and defences: one for each, of one shape, true of names, keys and files."""

import re
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest

import shoal
import shoal.attacks
from shoal.algorithms import Algorithms
from shoal.attacks import MembershipAttacks
from shoal.config.schema import DefensesSection
from shoal.config.settings_tables import names_of
from shoal.reports.attack_titles import TITLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HEADINGS = [
    "What it is", "Formula", "Threat model", "Our choices", "Known failures", "Command", "Outcome", "Keys",
]  # fmt: skip
NO_CARDS = {"index", "starts"}
CARDS = {
    folder: {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((DOCS / folder).glob("*.md"))
        if path.stem not in NO_CARDS
    }
    for folder in ("algorithms", "attacks", "defenses")
}
ALL = [pytest.param(folder, name, id=f"{folder}/{name}") for folder, cards in CARDS.items() for name in cards]


def section(card: str, heading: str) -> str:
    return card.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


def titled(folder: str) -> list[str]:
    """The names in the titles of a folder's cards."""
    return [name for card in CARDS[folder].values() for name in re.findall(r"`([^`]+)`", card.splitlines()[0])]


@pytest.mark.parametrize("algorithm", get_args(Algorithms), ids=lambda cls: cls.name)
def test_each_algorithm_has_a_card_under_its_name_with_its_keys(algorithm):
    card = CARDS["algorithms"][algorithm.name]
    assert card.startswith(f"# {algorithm.title} (`{algorithm.name}`)\n")
    assert f"configuration.md#algorithm-name--{algorithm.name})" in section(card, "Keys")
    assert f"`shoal.{algorithm.__name__}`" in section(card, "Keys")


def test_there_is_no_card_of_an_algorithm_that_is_not_there():
    assert set(CARDS["algorithms"]) == {cls.name for cls in get_args(Algorithms)}


def test_each_attack_of_an_audit_and_of_the_red_team_is_in_the_title_of_one_card():
    names = titled("attacks")
    for attack in {*TITLES, *(cls.name for cls in get_args(MembershipAttacks)), "passive", "active", "scaled"}:
        assert names.count(attack) == 1, attack


def test_each_defence_of_a_configuration_is_the_title_of_one_card():
    assert sorted(titled("defenses")) == sorted({*names_of(DefensesSection)} - {"custom"})


@pytest.mark.parametrize(("folder", "name"), ALL)
def test_a_card_has_all_headings_in_order_and_something_below_each(folder, name):
    card = CARDS[folder][name]
    found = re.findall(r"^## (.+)$", card, flags=re.MULTILINE)
    assert found[: len(HEADINGS)] == HEADINGS
    assert all(section(card, heading).strip() for heading in HEADINGS)


@pytest.mark.parametrize(("folder", "name"), ALL)
def test_a_card_is_in_the_table_of_its_folder(folder, name):
    index = (DOCS / folder / "index.md").read_text(encoding="utf-8")
    assert f"]({name}.md)" in index


@pytest.mark.parametrize(("folder", "name"), ALL)
def test_the_files_that_a_card_s_commands_name_are_shipped(folder, name):
    card = CARDS[folder][name]
    named = re.findall(r"\b(?:experiments|benchmarks|tests)/[\w./-]+\.(?:toml|py)", card)
    assert all((ROOT / each).is_file() for each in named)
    if folder == "algorithms":
        assert any(each.endswith(".toml") for each in named)


@pytest.mark.parametrize(("folder", "name"), ALL)
def test_what_a_card_calls_by_its_name_in_python_is_there(folder, name):
    called = re.findall(r"`shoal\.([\w.]+)`", section(CARDS[folder][name], "Keys"))
    assert called
    for each in called:
        attrgetter(each)(shoal)


def test_labels_alone_have_the_auc_that_the_card_of_fedmia_says(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", CARDS["attacks"]["fedmia"], flags=re.DOTALL)
    exec(compile(code, "docs/attacks/fedmia.md", "exec"), {})
    assert f"# AUC: {capsys.readouterr().out.strip()}\n" in code


def test_labels_alone_tell_whose_a_record_is_as_often_as_the_card_of_source_inference_says(capsys, monkeypatch):
    card = CARDS["attacks"]["source-inference"]
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(code, "docs/attacks/source-inference.md", "exec"), {})
    printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert f"prints {printed['labels']} for labels and {printed['labels and group']} for labels and group" in card
