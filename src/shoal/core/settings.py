"""Settings: frozen dataclasses whose fields are checked against their annotations.

The hyper-parameters of an algorithm, attack or defence are declared once, as the fields of its dataclass: type, range
and default in the annotation, meaning in the docstring. Python code that makes such a value and a TOML file that
describes one are checked by the same declaration, and the tables of docs/configuration.md are generated from it.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import chain
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable as checkable,
)

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, core_schema

from shoal.core.errors import InputError
from shoal.core.representation import one_line, shortened

Count = Annotated[int, Field(ge=0, strict=True)]
"""An integer, at least 0."""

Positive = Annotated[int, Field(ge=1, strict=True)]
"""An integer, at least 1."""

MAX_CLASSES = 1_000_000
"""The most classes; more would be a mistake, and are refused before their outputs are allocated."""

Number = Annotated[float, Field(strict=True)]
"""A number; whole ones become floats."""

Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
"""A number in [0, 1]."""

OpenFraction = Annotated[float, Field(gt=0, lt=1, strict=True)]
"""A number above 0 and below 1."""

PositiveFloat = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
"""A finite number above 0."""

NonNegativeFloat = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
"""A finite number, at least 0."""

Flag = Annotated[bool, Field(strict=True)]
"""True or false."""

Range = tuple[Number, Number]
"""Two numbers, [low, high]; a list becomes a tuple."""


@dataclass(frozen=True)
class Inline:
    """Marks a field whose own keys stand in its parent's table: ``ifca: Annotated[IFCA, Inline()] = IFCA()``.

    Args:
        key: where values of several kinds fit the field, the key that names the kind; None: the field's own.
    """

    key: str | None = None


@dataclass(frozen=True)
class Internal:
    """Marks a field that only Python code sets; it is no key of a file."""


@dataclass(frozen=True)
class Explicit:
    """Marks a field that a file must state although Python has a default for it."""


_Settings = TypeVar("_Settings")
_HINTS = "_hints"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings(cls: type[_Settings]) -> type[_Settings]:
    """A frozen dataclass that checks its fields; its own ``__post_init__``, if any, runs after that.

    Values take the form that their annotation says: integers become floats and lists tuples where it says so, and
    NumPy's numbers become Python's. What `help` shows are the annotations without their ranges; `hints_of` has both.

    Raises:
        InputError: when a value is made with a field outside its range; the sentence names the argument.

    >>> @settings
    ... class Example:
    ...     clusters: Positive = 2
    >>> Example(clusters=0)
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'clusters' must be at least 1; got 0
    """
    relations: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)

    def check(self: Any) -> None:  # noqa: ANN401
        for name in (declared.name for declared in fields(self)):
            object.__setattr__(self, name, checked(type(self), name, getattr(self, name)))
        if relations is not None:
            relations(self)

    if "__repr__" not in vars(cls):
        setattr(cls, "__repr__", one_line)  # noqa: B010
    setattr(cls, "__post_init__", check)  # noqa: B010 (the type has no such attribute)
    annotations, hints = inspect.get_annotations(cls), get_type_hints(cls, include_extras=True)
    setattr(
        cls, _HINTS, hints | {name: hint for name, hint in getattr(cls, _HINTS, {}).items() if name not in annotations}
    )
    checking = dataclass(frozen=True)(cls)
    plain_hints = get_type_hints(checking.__init__)
    checking.__init__.__annotations__ = plain_hints
    checking.__annotations__ = {name: plain_hints.get(name, hint) for name, hint in annotations.items()}
    return checking


def hints_of(cls: type) -> Mapping[str, Any]:
    """The annotations of settings by field, with their ranges and marks."""
    return getattr(cls, _HINTS)


def is_settings(kind: object) -> bool:
    """Return whether ``kind`` is a class made by `settings`."""
    return isinstance(kind, type) and is_dataclass(kind) and hasattr(kind, _HINTS)


def checked(cls: type, name: str, value: object, called: str | None = None) -> Any:  # noqa: ANN401
    """A value for the field ``name`` of the settings ``cls``, in the form that its annotation says.

    Raises:
        InputError: the value does not fit; the sentence calls the field ``called``, or by its name.
    """
    value = plain(value)
    try:
        return _adapters(cls)[name].validate_python(value)
    except ValidationError as error:
        errors = error.errors()
        value = spelled(errors[0]["input"])
        # The chain would show pydantic's error above the sentence that says the same.
        raise InputError(f"'{called or name}' must be {_allowed(errors)}; got {value}") from None


def plain(value: object) -> object:
    """NumPy's numbers as Python's, also in lists; other values as they are.

    >>> plain(np.int64(3)), plain([np.float64(0.5), 1]), plain("a")
    (3, [0.5, 1], 'a')
    """
    if type(value) is list:
        return [*map(plain, value)]
    if type(value) is tuple:
        return (*map(plain, value),)
    return value.item() if isinstance(value, np.generic) else value


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    config = ConfigDict(arbitrary_types_allowed=True)
    hints = hints_of(cls)
    names = [declared.name for declared in fields(cls)]
    return {name: TypeAdapter(_checkable(hints[name]), config=config) for name in names}


def _no_class(value: object) -> object:
    """``value`` unless it is a class, which has all methods of a protocol too."""
    if isinstance(value, type):
        raise ValueError(f"a value such as {value.__name__}(...)")
    return value


def _checkable(hint: Any) -> Any:  # noqa: ANN401
    """An annotation that pydantic can check: without aliases, which are of files, and with dataclasses and protocols
    as classes of objects.
    """
    if isinstance(hint, type) and (is_dataclass(hint) or getattr(hint, "_is_protocol", False)):
        kind = core_schema.is_instance_schema(hint if is_dataclass(hint) else checkable(hint))
        return Annotated[Any, GetPydanticSchema(lambda *_: kind), AfterValidator(_no_class)]
    inside = get_args(hint)
    match get_origin(hint):
        case origin if origin is Annotated:
            marks = [mark.metadata if isinstance(mark, FieldInfo) else [mark] for mark in inside[1:]]
            return Annotated[(_checkable(inside[0]), *chain.from_iterable(marks), None)]
        case origin if origin in (Union, UnionType):
            return Union[tuple(map(_checkable, inside))]  # noqa: UP007 (of a tuple)
        case origin if origin in (dict, list, tuple):
            return origin[tuple(map(_checkable, inside))]  # pyright: ignore[reportInvalidTypeArguments]
        case _:
            return hint


def spelled(value: object) -> str:
    """A value in an error sentence.

    >>> spelled({"a": 1}), spelled(0.5), spelled("x")
    ('a table', '0.5', "'x'")
    """
    return "a table" if isinstance(value, dict) else shortened(repr(value))


def one_of(words: Sequence[str]) -> str:
    """Words in an error sentence.

    >>> one_of(["a", "b", "c"])
    "'a', 'b' or 'c'"
    """
    *rest, last = map(repr, words)
    return f"{', '.join(rest)} or {last}" if rest else last


def _allowed(errors: Sequence[ErrorDetails]) -> str:
    """The expectation of one value, as the rest of a sentence after "must be"."""
    # Where an element of a list does not fit, pydantic also misses it in the list's length.
    of_elements = [error for error in errors if error["type"] not in ("too_short", "too_long")]
    return " or ".join(dict.fromkeys(map(_expected, of_elements or errors)))


_EXPECTED = {
    "literal_error": "{expected}",
    "greater_than": "above {gt:.12g}",
    "greater_than_equal": "at least {ge:.12g}",
    "less_than": "below {lt:.12g}",
    "less_than_equal": "at most {le:.12g}",
    "value_error": "{error}",
    "is_instance_of": "an instance of {class}",
    "missing": "two numbers, [low, high]",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "bool_type": "true or false",
    "finite_number": "a finite number",
}
"""The meaning of pydantic's errors, by their type."""


def _expected(error: ErrorDetails) -> str:
    context, value = error.get("ctx", {}), error["input"]
    if isinstance(value, float) and math.isnan(value):
        # Not a question of bounds, of which NaN breaks the first that it meets.
        return "a finite number"
    if error["type"] in ("too_short", "too_long"):
        length = int(context.get("max_length", context.get("min_length", 1)))
        return {1: "not empty", 2: "two numbers, [low, high]"}.get(length, f"a list of {length}")
    template = _EXPECTED.get(error["type"])
    return error["msg"].removeprefix("Input should be ") if template is None else template.format(**context)
