"""The documentation site, without building it: `make docs` does, and ends with the first warning."""

import importlib
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import shoal

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = [
    "algorithms", "attacks", "audit", "control", "data", "defenses",
    "engine", "forgetting", "metrics", "models", "property", "sweeps",
]  # fmt: skip
TOCTREE = re.compile(r"^```\{toctree\}\n(?P<options>(?::.*\n)*)\n?(?P<entries>[^`]*)^```$", re.MULTILINE)


def extension(monkeypatch, name):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(name)


@pytest.fixture
def links(monkeypatch):
    return extension(monkeypatch, "repository_links")


def pages():
    """The names of all pages, as Sphinx has them: paths below docs/ without their endings."""
    written = (page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md"))
    return {page.as_posix() for page in written if page.parts[0] not in {"_build", "auto_gallery", "gallery"}}


def children(page):
    """The pages that a page's toctrees list."""
    found = set()
    for tree in TOCTREE.finditer((DOCS / f"{page}.md").read_text()):
        for entry in tree["entries"].split("\n"):
            target = re.sub(r"^.*<(.*)>$", r"\1", entry.strip())
            if not target:
                continue
            name = (DOCS / page).parent.joinpath(target).resolve().relative_to(DOCS).as_posix()
            if ":glob:" in tree["options"] and "*" in name:
                pattern = (
                    re.escape(name)
                    .replace(r"\*\*", ".*")
                    .replace(r"\*", "[^/]*")
                    .replace(r"\[", "[")
                    .replace(r"\]", "]")
                )
                matched = {each for each in pages() - {page} if re.fullmatch(pattern, each)}
                assert matched, f"{page}: {entry} matches no page"
                found |= matched
            else:
                found.add(name)
    return found


def test_every_page_is_reached_from_the_first_and_every_entry_is_a_page():
    reached, waiting = set(), {"index"}
    while waiting:
        page = waiting.pop()
        reached.add(page)
        if page.startswith(("auto_gallery/", "api/generated/")):
            continue
        assert page in pages(), f"a toctree lists {page}, which is not a page"
        waiting |= children(page) - reached
    assert pages() - reached == set()


def listed(page):
    """The names that a page of the reference has, in tables and as types and constants."""
    text = (DOCS / "api" / f"{page}.md").read_text()
    tables = re.findall(r"^   (shoal\.[\w.]+)$", text, re.MULTILINE)
    return tables + re.findall(r"^\.\. py:data:: (shoal\.[\w.]+)$", text, re.MULTILINE)


def test_the_reference_has_every_public_name_once():
    assert sorted(listed("shoal")) == sorted(f"shoal.{name}" for name in shoal.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_name_of_a_package_where_it_is_shortest(package):
    module = importlib.import_module(f"shoal.{package}")
    shortest = [
        f"shoal.{name}"
        if name in shoal.__all__ and getattr(shoal, name) is getattr(module, name)
        else f"shoal.{package}.{name}"
        for name in module.__all__
    ]
    assert sorted(listed(package)) == sorted(shortest)


@pytest.mark.parametrize("page", ["configuration", "files"])
def test_the_reference_says_what_is_declared(page, monkeypatch):
    script, hooks = extension(monkeypatch, "build_reference"), []
    script.setup(SimpleNamespace(connect=lambda *hook: hooks.append(hook)))
    [(event, on_read)] = hooks
    source = [text := (DOCS / f"{page}.md").read_text(encoding="utf-8")]
    on_read(None, page, source)
    assert (event, source) == ("source-read", [text]), "run python docs/build_reference.py"


def test_the_build_forgives_nothing(links):
    settings = runpy.run_path(str(DOCS / "conf.py"))
    assert settings["nitpicky"]
    assert "suppress_warnings" not in settings
    gallery = settings["sphinx_gallery_conf"]
    assert gallery["abort_on_example_error"]
    assert not gallery["only_warn_on_example_error"]
    command = re.search(r"^\t.*-m sphinx .*$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    assert {"--fail-on-warning", "--keep-going", "--fresh-env"} <= set(command.split())
    ignored = (ROOT / ".gitignore").read_text().split()
    for made in ("docs/_build/", f"docs/{gallery['gallery_dirs']}/", "docs/api/generated/"):
        assert f"/{made}" in ignored


@pytest.mark.parametrize(
    ("page", "link", "address", "expected"),
    [
        ("sweeps.md", "[audit](audit.md#your-own-model)", "", "[audit](audit.md#your-own-model)"),
        ("sweeps.md", "[changes](../CHANGELOG.md)", "", "[changes](/about/changelog.md)"),
        ("algorithms/cfl.md", "[start](../../README.md#use-it)", "", "[start](/index.md#use-it)"),
        ("adding.md", "[a file](examples/own.toml)", "https://e.org/b", "[a file](examples/own.toml)"),
        ("adding.md", "[code](../pyproject.toml)", "", "[code](../pyproject.toml)"),
        ("adding.md", "[code](../pyproject.toml)", "https://e.org/b", "[code](https://e.org/b/pyproject.toml)"),
        ("algorithms/cfl.md", "[code](../../experiments)", "", "code"),
        ("algorithms/cfl.md", "[code](../../experiments)", "https://e.org/b", "[code](https://e.org/b/experiments)"),
        ("algorithms/cfl.md", "[api](../api)", "", "[api](/api/index.md)"),
        ("start.md", "[one](gallery/plot_x.py)", "", "[one](/auto_gallery/plot_x.rst)"),
        ("start.md", "[two\nlines](gallery)", "", "[two\nlines](/auto_gallery/index.rst)"),
        ("start.md", "[gone](../nowhere.py)", "https://e.org/b", "[gone](../nowhere.py)"),
        ("start.md", "![picture](../README.md)", "", "![picture](../README.md)"),
        ("start.md", "[elsewhere](https://e.org/README.md)", "", "[elsewhere](https://e.org/README.md)"),
    ],
)
def test_links_that_work_in_the_repository_work_in_the_site(links, page, link, address, expected):
    folder = (DOCS / page).parent
    assert links.LINK.sub(lambda each: links.site_link(each, folder, DOCS, address), link) == expected
