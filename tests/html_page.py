"""Pages taken apart, for the tests of what stands on them."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

PNG = "data:image/png;base64,"
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Reads a page, and fails on tags that do not pair."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.pointers: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.words: list[str] = []
        self.source = text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for key, value in attrs:
            text = value or ""
            if key == "id":
                self.ids.append(text)
            elif key == "aria-label" or (key == "alt" and text):
                self.labels.append(text)
            elif key == "aria-labelledby":
                self.pointers.append(text)
            elif key in {"src", "href", "xlink:href"}:
                self.addresses.append(text)
            if "url(#" in text:
                self.pointers.append(text.partition("url(#")[2].partition(")")[0])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(text: str) -> Page:
    """The page, after the checks that every page must pass."""
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(page.ids) == len(set(page.ids))
    assert set(page.pointers) <= set(page.ids)
    assert {each[1:] for each in page.addresses if each.startswith("#")} <= set(page.ids)
    assert all(each.startswith(("#", PNG)) for each in page.addresses)
    assert "://" not in text
    assert not {"link", "iframe"} & set(page.tags)
    assert "nan" not in page.text.split()
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    return page


def figures_on(page: Page) -> list[str]:
    """The figures of a page as SVG, each well-formed."""
    figures = re.findall(r"<svg .*?</svg>", page.source, re.DOTALL)
    assert all(ElementTree.fromstring(each).tag == "svg" for each in figures)
    return figures
