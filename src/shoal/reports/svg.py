"""Drawn figures as SVG: names that appear under the pointer, and colours that follow the page, dark or light."""

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from matplotlib.artist import Artist
from matplotlib.axes import Axes

MOST = 1000
"""Points of one artist that are named; of more, none is, so that a page of many stays small."""

_GID, _NEXT = "hover:", "\N{LINE SEPARATOR}"
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"

# Greys and their kind, and the one colour that is too dark on a dark page, as properties of style.css.
_GREYS = {
    "#eeeeee": "var(--panel)", "#ffffff": "var(--page)", "#000000": "currentColor", "#222222": "currentColor",
    "#dddddd": "var(--line)",
    "#444444": "var(--soft)", "#555555": "var(--soft)", "#666666": "var(--soft)", "#777777": "var(--soft)",
    "#999999": "var(--soft)", "#8a3b00": "var(--over)",
}  # fmt: skip
_COLORS = _GREYS | {"#0072b2": "var(--blue)"}


def name_points(artist: Artist, texts: Sequence[str]) -> None:
    """Let each of the points that ``artist`` draws be named under the pointer, or all of it by a single text."""
    if 0 < len(texts) <= MOST:
        artist.set_gid(_GID + _NEXT.join(" ".join(text.split()) for text in texts))


def add_named_points(axes: Axes, x: Sequence[float], y: Sequence[float], texts: Sequence[str]) -> None:
    """Points that only show under the pointer, with a name each, on curves that have none of their own."""
    if len(texts):
        (points,) = axes.plot(x, y, linestyle="", marker="o", markersize=9, color="#777777", alpha=0.0, zorder=6)
        points.set_in_layout(False)
        name_points(points, texts)


def with_names(svg: bytes) -> bytes:
    """The SVG file ``svg``, as matplotlib writes it, with the names of points as titles."""
    root = _parsed(svg)
    ElementTree.register_namespace("", _SVG[1:-1])
    ElementTree.register_namespace("xlink", _LINK[1:-5])
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def inline(svg: bytes, name: str, alt: str, style: str = "") -> str:
    """The SVG file ``svg`` as an element of a page, on which ``name`` is unique; ``alt`` is its content in words."""
    root = _parsed(svg)
    for parent in root.iter():
        for child in [element for element in parent if element.tag in (f"{_SVG}metadata", f"{_SVG}style")]:
            parent.remove(child)
    for element, inside in _walk(root, ""):
        element.tag = element.tag.removeprefix(_SVG)
        if _LINK in element.attrib:
            element.set("href", f"#{name}-{element.attrib.pop(_LINK)[1:]}")
        if "id" in element.attrib:
            element.set("id", f"{name}-{element.attrib['id']}")
        for key, value in element.attrib.items():
            if "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
        if inside == "pattern" and "fill" in element.attrib:
            # The ground of a hatch, which matplotlib colours by an attribute, where properties of a page are unknown.
            element.set("style", f"fill: {element.attrib.pop('fill')}")
        if "style" in element.attrib:
            element.set("style", _on_a_page(element, inside))
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": alt} | (
        {"style": style} if style else {}
    )
    return ElementTree.tostring(root, encoding="unicode")


def _parsed(svg: bytes) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)  # noqa: S314 - matplotlib wrote it
    for group in list(root.iter(f"{_SVG}g")):
        gid = group.get("id", "")
        if gid.startswith(_GID):
            del group.attrib["id"]
            group.set("class", "named")
            texts = gid.removeprefix(_GID).split(_NEXT)
            points = list(group.iter(f"{_SVG}use"))
            # Points outside the figure are not drawn, and then it is unknown which ones are left.
            for element, text in zip([group] if len(texts) == 1 else points, texts, strict=False):
                if len(texts) in (1, len(points)):
                    title = ElementTree.Element(f"{_SVG}title")
                    title.text = text
                    element.insert(0, title)
    return root


def _walk(element: ElementTree.Element, inside: str) -> Iterator[tuple[ElementTree.Element, str]]:
    """The elements, each with "defs" or "pattern" where it is a part of one."""
    yield element, inside
    tag = element.tag.removeprefix(_SVG)
    for child in element:
        yield from _walk(child, tag if tag in ("defs", "pattern") else inside)


def _on_a_page(element: ElementTree.Element, inside: str) -> str:
    style = dict(part.split(": ", 1) for part in element.attrib["style"].split("; "))
    fill, stroke = style.get("fill", "none"), style.get("stroke", "none")
    filled = fill.startswith("#") and fill not in _GREYS
    # The fill of bars and boxes gives way to the page where it is dark, so that lines on it can be light.
    area = element.tag == "path" and not inside and stroke not in ("none", fill)
    if filled and (area or inside == "pattern") and not {"opacity", "fill-opacity"} & set(style):
        style["fill-opacity"] = "var(--fill)"
    return "; ".join(f"{key}: {_COLORS.get(value, value)}" for key, value in style.items())
