"""Conversion between the tables of a configuration file and settings classes.

The keys are the fields of a class. For a field annotated with a protocol of `KINDS`, the key ``name`` chooses one of
several classes.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from shoal.config.kinds import Kind, kind_of, name_of
from shoal.core.errors import InputError, require, suggest
from shoal.core.settings import Explicit, FieldError, Inline, Internal, spell_value

_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class Key:
    """A field of a settings class as a key of a configuration file."""

    field: str  # its name in Python
    name: str  # in the file; of an inline field of several classes, the key that names the class
    hint: Any  # its annotation, without None and the marks of the field
    inline: bool  # whether the keys of its own fields are in the same table
    optional: bool  # whether it may be None
    default: Any  # without the key; MISSING: the key is required


@cache
def keys_of(cls: type) -> tuple[Key, ...]:
    """List the keys of a settings class in the order of its fields."""
    hints, keys = get_type_hints(cls, include_extras=True), []
    for field in fields(cls):
        info = FieldInfo.from_annotation(hints[field.name])
        marks = {type(mark): mark for mark in info.metadata}
        members = [member for member in get_args(info.annotation) if member is not NoneType]
        optional = NoneType in get_args(info.annotation)
        hint = unmarked(members[0])[0] if optional and len(members) == 1 else info.annotation
        # The name of a class is not a key of the class.
        word = field.name == "name" and get_origin(hint) is Literal and len(members) == 1
        if Internal in marks or word:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        keys.append(
            Key(
                field=field.name,
                name=info.alias or getattr(marks.get(Inline), "key", None) or field.name,
                hint=hint,
                inline=Inline in marks,
                optional=optional,
                default=MISSING if Explicit in marks else default,
            )
        )
    return tuple(keys)


def meanings(cls: type) -> dict[str, str]:
    """Return the Args entries of a class and its bases, by field."""
    texts = {}
    for base in reversed(cls.__mro__):
        block = re.search(r"^Args:\n((?: +.*\n?|\n(?= ))+)", inspect.cleandoc(base.__doc__ or ""), flags=re.MULTILINE)
        entries = re.split(r"^ {4}(?! )", block[1] if block else "", flags=re.MULTILINE)[1:]
        texts |= {
            name: docstring_as_markdown(" ".join(text.split()))
            for name, _, text in (entry.partition(": ") for entry in entries)
        }
    return texts


def docstring_as_markdown(docstring: str) -> str:
    """Convert a docstring's text to Markdown, and write "left out" for None, which files cannot have."""
    text = re.sub(r"``(.+?)``", r"`\1`", docstring, flags=re.DOTALL)
    return text.replace(". None: ", ". Left out: ").replace("None: ", "left out: ")


def unmarked(hint: Any) -> tuple[Any, list[Any]]:  # noqa: ANN401
    """Split an annotation into the type and the `Annotated` metadata."""
    return (get_args(hint)[0], list(get_args(hint)[1:])) if get_origin(hint) is Annotated else (hint, [])


def names_of(cls: type, table: Mapping[str, Any] | None = None, where: str = "") -> list[str]:
    """List the allowed keys of a settings class.

    A table that chooses a class allows the keys of all classes of the same kind.
    """
    names = []
    for key in keys_of(cls):
        kind = kind_of(key.hint)
        if not key.inline or kind is not None:
            names.append(key.name)
        if key.inline:
            inside = [key.hint] if kind is None else list(kind.shipped.values())
            if kind is not None and table is not None and key.name in table:
                inside.append(kind.named(table[key.name], dotted(where, key.name)))
            names += [name for choice in inside for name in names_of(choice, table, where)]
    return list(dict.fromkeys(names))


def read(cls: type[_Settings], value: object, where: str = "", *, name: str | None = None) -> _Settings:
    """Convert a table to settings.

    Args:
        cls: the settings class.
        value: the table.
        where: the table's dotted key, or "" for the whole file.
        name: the value of the field ``name``, if the table's own key is the name.

    Raises:
        InputError: a key is unknown or missing, or a value is not allowed.
    """
    table = getattr(cls, "complete_keys", lambda table: table)(_table(value, where))
    _refuse_unknown(table, [key for key in names_of(cls, table, where) if name is None or key != "name"], where)
    # Contradicting keys are reported before missing ones.
    getattr(cls, "check_keys", lambda _: None)(table)
    return _create(cls, table if name is None else table | {"name": name}, where)


def _create(cls: type[_Settings], table: Mapping[str, Any], where: str) -> _Settings:
    """Create ``cls`` from its keys in ``table``, and ignore other keys."""
    values, paths = {}, {}
    for key in keys_of(cls):
        paths[key.field] = path = dotted(where, key.name)
        if key.inline:
            kind = kind_of(key.hint)
            if kind is not None or not key.optional or set(names_of(key.hint)) & set(table):
                inside = key.hint if kind is None else _choose(kind, key.name, table, where, key.default)
                values[key.field] = _create(inside, table, where)
        elif key.name in table:
            values[key.field] = _value(key.hint, table[key.name], path, key.default)
        else:
            require(key.default is not MISSING, f"'{path}' is missing; this key is required")
    try:
        return cls(**values)
    except FieldError as error:
        raise FieldError(error.errors, paths) from None
    except InputError as error:
        raise InputError(f"[{where}]: {error}" if where else str(error)) from None


def _value(hint: Any, value: object, where: str, default: Any, name: str | None = None) -> Any:  # noqa: ANN401
    """Convert the value of a key according to the annotation."""
    kind = kind_of(hint)
    if kind is not None:
        table = _table(value, where)
        cls = _choose(kind, "name", table, where, default)
        choices = (*kind.shipped.values(), cls)
        _refuse_unknown(table, ["name", *(key for choice in choices for key in names_of(choice))], where)
        return _create(cls, table, where)
    if is_dataclass(hint):
        has_name = any(field.name == "name" for field in fields(hint))
        return read(hint, value, where, name=name if has_name else None)  # pyright: ignore[reportArgumentType]
    if (inside := item_of(hint)) is not None and isinstance(value, list):
        return tuple(read(inside, item, f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(hint) is dict:
        inside, table = get_args(hint)[1], _table(value, where)
        return {key: _value(inside, member, dotted(where, key), None, key) for key, member in table.items()}
    return value


def item_of(hint: Any) -> Any:  # noqa: ANN401
    """Return the settings class in an annotation of a list of tables, ``[[NAME]]``, or None for other annotations."""
    several = get_origin(hint) is tuple and Ellipsis in get_args(hint) and is_dataclass(get_args(hint)[0])
    return get_args(hint)[0] if several else None


def _choose(kind: Kind, key: str, table: Mapping[str, Any], where: str, default: object) -> type:
    """Return the class that ``key`` names in the table, or the default's class."""
    if key in table:
        return kind.named(table[key], dotted(where, key))
    return kind.unnamed(dotted(where, key)) if default is MISSING or default is None else type(default)


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"'{where}' must be a table (got {spell_value(value)})")
    return value


def _refuse_unknown(table: Mapping[str, Any], allowed: list[str], where: str) -> None:
    for name in table:
        if name not in allowed:
            raise UnknownKeyError(name, dotted(where, name), suggest(name, allowed))


class UnknownKeyError(InputError):
    """An error about an unknown key.

    Attributes:
        name: the last part of the dotted key.
        path: the whole dotted key.
    """

    def __init__(self, name: str, path: str, hint: str) -> None:
        super().__init__(f"unknown key '{path}'; {hint}")
        self.name, self.path = name, path


def described_by(hint: Any) -> Any:  # noqa: ANN401
    """Return the default settings class of a table without a name; other annotations are returned unchanged."""
    kind = kind_of(hint)
    return hint if kind is None or not kind.default else kind.unnamed("")


def tables_with(cls: type, name: str, where: str = "") -> list[str]:
    """List the tables below the settings class ``cls`` that have a key ``name``."""
    tables = [where] if name in names_of(cls) else []
    for key in keys_of(cls):
        path, several = dotted(where, key.name), get_origin(key.hint) is dict
        inside = get_args(key.hint)[1] if several else item_of(key.hint) or described_by(key.hint)
        path = path if item_of(key.hint) is None else f"[{path}]"
        if isinstance(inside, type) and is_dataclass(inside) and not key.inline:
            tables += tables_with(inside, name, f"{path}.NAME" if several else path)
    return tables


def dotted(where: str, name: str) -> str:
    """Append the key ``name`` to a table's dotted key."""
    return f"{where}.{name}" if where else name


def table_of(value: object) -> dict[str, Any]:
    """Convert settings to a table with every key that has a value, for `read`."""
    table: dict[str, Any] = {}
    for key in keys_of(type(value)):
        part = getattr(value, key.field)
        if part is not None and key.inline:
            table |= ({} if kind_of(key.hint) is None else {key.name: name_of(type(part))}) | table_of(part)
        elif part is not None:
            table[key.name] = _file_value(key.hint, part)
    return table


def _file_value(hint: Any, value: Any) -> Any:  # noqa: ANN401
    """Convert a value to its form in a file, according to the annotation."""
    if (kind := kind_of(hint)) is not None:
        name = name_of(type(value))
        return ({} if name == kind.default else {"name": name}) | table_of(value)
    if is_dataclass(hint):
        return table_of(value)
    if get_origin(hint) is dict:
        inside = get_args(hint)[1]
        tables = {name: _file_value(inside, member) for name, member in value.items()}
        if is_dataclass(inside):
            for table in tables.values():
                table.pop("name", None)
        return tables
    if item_of(hint) is not None:
        return [table_of(item) for item in value]
    return list(value) if isinstance(value, tuple) else value
