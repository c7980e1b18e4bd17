"""Every relative link between pages leads to a file that is there, and to a heading that it has."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    path for path in sorted(DOCS.rglob("*.md")) if not any(part[0] == "_" for part in path.relative_to(DOCS).parts)
]
FENCED = re.compile(r"^ *(```+).*?^ *\1 *$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")


def prose(path: Path) -> str:
    """A page without code."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "``", FENCED.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as repository viewers and MyST make them, and its explicit targets."""
    found: dict[str, int] = {}
    names = set()
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        count = found.setdefault(slug, 0)
        found[slug] += 1
        names.add(f"{slug}-{count}" if count else slug)
    return names | set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE))


def broken(path: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        there = target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))
        if not there:
            found.append(link)
    return found


def test_the_documentation_has_pages():
    assert len(PAGES) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_all_relative_links_of_a_page_lead_somewhere(page):
    assert broken(page) == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# One `code` (two)\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n[a](other.md#one-code-two) [b](other.md#twice-1) [c](#title) [d](https://nowhere.invalid/x.md)\n"
        "`[e](missing.md)`\n\n```\n[f](missing.md)\n```\n\n"
        "[g](missing.md) [h](other.md#twice-2) [i](#no) ![j](no.svg)\n"
    )
    assert broken(page) == ["missing.md", "other.md#twice-2", "#no", "no.svg"]
