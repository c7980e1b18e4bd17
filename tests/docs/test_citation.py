"""CITATION.cff and the page about citing name the version that the package has."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_cited_version_and_licence_are_the_package_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [project["version"]]
    assert re.findall(r"^license: (.+)$", citation, flags=re.MULTILINE) == [project["license"]]
    assert f"version = {{{project['version']}}}" in page
    assert re.findall(r"^authors:\n  - name: (.+)$", citation, flags=re.MULTILINE) == [project["authors"][0]["name"]]
