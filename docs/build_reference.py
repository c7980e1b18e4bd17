"""Tables of keys in docs/configuration.md and of metrics in docs/files.md, generated from the declarations.

``python docs/build_reference.py`` rewrites the text between the markers of both pages.
"""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from shoal.config.kinds import KINDS, kind_of, name_of
from shoal.config.schema import Config
from shoal.config.settings_tables import Key, described_by, docstring_as_markdown, item_of, keys_of, meanings, unmarked
from shoal.metrics import METRICS

PAGES = [Path(__file__).with_name(name) for name in ("configuration.md", "files.md")]
BEGIN, END = "<!-- keys: written by python docs/build_reference.py -->", "<!-- end of keys -->"
METRICS_BEGIN, METRICS_END = BEGIN.replace("keys", "metrics", 1), END.replace("keys", "metrics")
_HEAD = "| key | value | default | meaning |\n|---|---|---|---|\n"
_TOP = {described_by(key.hint): key.name for key in keys_of(Config) if is_dataclass(described_by(key.hint))}
"""Top-level tables of a configuration, by settings class."""


def reference() -> str:
    """Return the tables of a configuration and their keys, as Markdown."""
    parts = [_HEAD + "\n".join(_row(Config, key) for key in keys_of(Config) if described_by(key.hint) not in _TOP)]
    parts += [part for cls, name in _TOP.items() for part in _section(cls, name, f"[{name}]")]
    lists = {key.name: item_of(key.hint) for key in keys_of(Config) if item_of(key.hint) is not None}
    parts += [part for name, cls in lists.items() for part in _section(cls, name, f"[[{name}]]")]
    return "\n\n".join(parts)


def metrics() -> str:
    """Return the metrics by their keys in summary.json, as Markdown."""
    rows = []
    for key, metric in METRICS.items():
        total = ".total" if "group" in metric.scopes else ""
        forms = {"run": f"`{key}{total}`", "group": f"`{key}.<group>`", "model": f"`clusters.<k>.{key}`"}
        keys = ", ".join(form for scope, form in forms.items() if scope in metric.scopes.split())
        rows.append(f"| {keys} | {metric.name} | {metric.meaning or metric.of_model} |" if keys else "")
    return "| key | name | meaning |\n|---|---|---|\n" + "\n".join(filter(None, rows))


def update(text: str) -> str:
    """Return the text of a page with regenerated tables between the markers."""
    for begin, end, content in ((BEGIN, END, reference()), (METRICS_BEGIN, METRICS_END, metrics())):
        if begin not in text:
            continue
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"
    return text


def _section(cls: type, table: str, title: str, level: int = 3, *, named: bool = False) -> Iterator[str]:
    """Yield a section for a settings class, then sections for its nested tables and named classes.

    Args:
        cls: the settings class.
        table: dotted key of the table.
        title: title of the section.
        level: level of the heading.
        named: whether the last part of the dotted key is the value of the field ``name``.
    """
    yield f"{'#' * level} `{title}`"
    yield docstring_as_markdown(
        re.split(r"\n\n(?:(?:Args|Raises|Example):\n|Source: |>>> )", inspect.getdoc(cls) or "")[0]
    )
    keys = [(owner, key) for owner, key in _flat(cls) if not (named and key.field == "name")]
    shipped = [key.hint for key in keys_of(cls) if key.inline and _is_shipped(key.hint)]
    if shipped:
        yield f"`{name_of(cls)}` has the keys of {_or([f'`{name_of(base)}`' for base in shipped])}."
    if keys:
        yield _HEAD + "\n".join(_row(owner, key) for owner, key in keys)
    for _, key in keys:
        inside, kind = key.hint, kind_of(key.hint)
        if get_origin(inside) is dict and is_dataclass(get_args(inside)[1]):
            name = f"{table}.{key.name}.NAME"
            yield from _section(get_args(inside)[1], name, f"[{name}]", level + 1, named=True)
        elif isinstance(inside, type) and is_dataclass(inside) and inside not in _TOP:
            yield from _section(inside, f"{table}.{key.name}", f"[{table}.{key.name}]", level + 1)
        elif kind is not None and key.inline:
            for algorithm in kind.shipped.values():
                yield from _section(algorithm, table, f'[{table}] {key.name} = "{name_of(algorithm)}"', level + 1)


def _flat(cls: type) -> Iterator[tuple[type, Key]]:
    """Yield the keys of a settings class with their declaring class, and expand inline fields."""
    for key in keys_of(cls):
        if not key.inline or kind_of(key.hint) is not None:
            yield cls, key
        elif not _is_shipped(key.hint):
            # A key of an optional inline field is not required.
            yield from (
                (owner, replace(inner, default=None) if key.optional and inner.default is MISSING else inner)
                for owner, inner in _flat(key.hint)
            )


def _is_shipped(cls: object) -> bool:
    """Return whether a configuration can name the settings class, so that it has a separate section."""
    return any(cls in kind.shipped.values() for kind in KINDS.values())


def _row(cls: type, key: Key) -> str:
    cells = (f"`{key.name}`", _value(cls, key), _default(key), meanings(cls)[key.field])
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _value(cls: type, key: Key) -> str:
    kind = kind_of(key.hint)
    if kind is None:
        return _spelled(get_type_hints(cls, include_extras=True)[key.field])
    if not key.inline:
        return f"table with the `name` and keys of {kind.title}"
    return _or([f"`{name}`" for name in (*kind.shipped, "module:Name")])


def _spelled(hint: Any) -> str:  # noqa: ANN401
    """An annotation in words."""
    hint, marks = unmarked(hint)
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _or(_words(hint))
    if origin in (Union, UnionType):
        words = [word for member in inside for word in _words(member)]
        for member in inside:
            if member is not NoneType and not _words(member):
                spelled = "`module:Name`" if words and unmarked(member)[0] is str else _spelled(member)
                words.append("list of these" if words and spelled == f"list of {_or(words)}" else spelled)
        return _or(words)
    if origin is tuple:
        members = re.sub(r"\b(integer|number|string|table)\b", r"\1s", _spelled(inside[0]))
        return f"list of {members}" if Ellipsis in inside else "[low, high]"
    if origin is dict or is_dataclass(hint):
        return f"table with the keys of `[{_TOP[hint]}]`" if hint in _TOP else "table"
    return {int: "integer", float: "number", bool: "true or false", str: "string"}[hint] + _range(marks)


def _words(hint: Any) -> list[str]:  # noqa: ANN401
    return [f"`{word}`" for word in get_args(unmarked(hint)[0])] if get_origin(unmarked(hint)[0]) is Literal else []


def _range(marks: Sequence[Any]) -> str:
    bounds = [bound for mark in marks if isinstance(mark, FieldInfo) for bound in mark.metadata]
    limits = {
        name: getattr(bound, name) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)
    }
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if low is None or high is None:
        return "" if low is None else f" {'≥' if 'ge' in limits else '>'} {low}"
    return f" in {'[' if 'ge' in limits else '('}{low}, {high}{']' if 'le' in limits else ')'}"


def _default(key: Key) -> str:
    if key.default is MISSING:
        return "required"
    if kind_of(key.hint) is not None and key.default is not None:
        name = json.dumps(name_of(type(key.default)))
        return f"`{name}`" if key.inline else f"`name = {name}`"
    is_written = key.default is not None and not is_dataclass(key.hint) and not isinstance(key.default, dict)
    return f"`{json.dumps(key.default)}`" if is_written else ""


def _or(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def setup(app) -> None:  # noqa: ANN001 (Sphinx's hook)
    """Make Sphinx read the generated tables.

    The tables are generated before Sphinx reads any page, because `drop_checks` of conf.py changes the annotations.
    """
    filled = {page.stem: update(page.read_text(encoding="utf-8")) for page in PAGES}

    def on_read(_, docname, source) -> None:  # noqa: ANN001 (Sphinx's hook)
        if docname in filled:
            source[0] = filled[docname]

    app.connect("source-read", on_read)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(update(page.read_text(encoding="utf-8")), encoding="utf-8")
