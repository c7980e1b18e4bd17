"""What pages state about the package: its version, its floors, and one row for each algorithm, attack and defence."""

import re
import tomllib
from pathlib import Path

import shoal.attacks
from experiment_scripts import experiment_script
from shoal.algorithms import ALGORITHMS
from shoal.audit.finding import TITLES
from shoal.config.schema import DefensesSection
from shoal.config.settings_tables import names_of
from shoal.core.formats import capitalize

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WITHOUT_A_TITLE = {"canaries", "passive", "active", "scaled"}
"""Attacks that no audit asks, by their names in the table."""


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def test_the_cited_version_and_licence_are_the_package_s():
    project = PYPROJECT["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [project["version"]]
    assert re.findall(r"^license: (.+)$", citation, flags=re.MULTILINE) == [project["license"]]
    assert f"version = {{{project['version']}}}" in text_of("citing")
    assert re.findall(r"^authors:\n  - name: (.+)$", citation, flags=re.MULTILINE) == [project["authors"][0]["name"]]


def test_the_house_page_has_the_floors_of_the_import_rules_and_names_files_that_are_there():
    layers = [re.sub(r"[()]|shoal\.", "", each) for each in PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]]
    page = text_of("house")
    assert [re.split(r" {2,}", floor)[0] for floor in page.split("```\n")[1].splitlines()] == layers
    for path in re.findall(r"`([\w/]+(?:/|\.py|\.toml))`", page):
        assert (ROOT / "src" / "shoal" / path).exists(), path


def rows(page: str) -> list[list[str]]:
    """The cells of each row that names something in its first cell."""
    lines = text_of(page).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| .*?\(`", line)]


def names(page: str) -> list[str]:
    """The names in the first cells of a page's tables."""
    return [name for first, *_ in rows(page) for name in re.findall(r"`([\w-]+)`", first)]


def test_each_algorithm_has_one_row_with_its_title_and_name():
    first = [row[0] for row in rows("algorithms")]
    assert sorted(first) == sorted(f"{cls.title} (`{cls.name}`)" for cls in ALGORITHMS.values())


def test_each_attack_has_one_row_with_its_title_and_its_attacker():
    assert sorted(names("attacks")) == sorted({*TITLES, *WITHOUT_A_TITLE})
    cells = {name: row for row in rows("attacks") for name in re.findall(r"`([\w-]+)`", row[0])}
    for name, title in TITLES.items():
        assert f"{capitalize(title)} (`{name}`)" in cells[name][0]
    for attack in vars(shoal.attacks).values():
        if isinstance(attack, type) and hasattr(attack, "title"):
            assert str(getattr(attack, "view", "")) in cells[attack.name][2]


def test_each_defence_of_a_configuration_has_one_row():
    assert sorted(names("defenses")) == sorted({*names_of(DefensesSection)} - {"custom"})


def test_every_folder_of_measured_files_is_linked_from_a_page():
    results = DOCS / "results"
    linked = {
        (page.parent / link).resolve()
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:\s]+)\)", page.read_text(encoding="utf-8"))
    }
    folders = {folder for path in linked for folder in path.parents if folder.is_relative_to(results)}
    for path in results.rglob("*.csv"):
        assert {path.parent, path.parent.parent} & folders - {results}, path


def test_labels_alone_find_what_the_pages_say(capsys):
    experiment_script("attacks/labels_alone").main()
    auc, labels, grouped = (line.split(": ")[1] for line in capsys.readouterr().out.splitlines())
    assert f"an AUC of {auc}" in text_of("attacks")
    assert f"{labels} by labels, {grouped} with the group" in text_of("results/evidence")
