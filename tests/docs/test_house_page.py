"""docs/house.md: one screen whose floors are those of the import rules and whose files are there."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")


def test_the_floors_are_the_layers_of_the_import_rules():
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [re.sub(r"[()]|shoal\.", "", layer) for layer in rules[0]["layers"]]
    floors = PAGE.split("```\n")[1].splitlines()
    assert [re.split(r" {2,}", floor)[0] for floor in floors] == layers


def test_every_file_and_folder_that_it_names_is_there():
    for path in re.findall(r"`([\w/]+(?:/|\.py|\.toml))`", PAGE):
        assert (ROOT / "src" / "shoal" / path).exists(), path


def test_the_house_page_is_one_screen():
    assert len(PAGE.split()) < 500
