"""Settings, which are frozen dataclasses whose fields pydantic checks against their annotations.

Algorithms, attacks and defences declare their hyper-parameters as annotated fields. The same declaration checks Python
values and TOML files, and docs/configuration.md is generated from it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails, core_schema
from typing_extensions import TypedDict

from shoal.core.errors import InputError
from shoal.core.formats import one_line, shorten

Count = Annotated[int, Field(ge=0, strict=True)]
"""An integer of at least 0."""

Positive = Annotated[int, Field(ge=1, strict=True)]
"""An integer of at least 1."""

MAX_CLASSES = 1_000_000
"""The maximum number of classes, checked before outputs are allocated."""

Number = Annotated[float, Field(strict=True)]
"""A number, converted to float."""

Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
"""A number in [0, 1]."""

OpenFraction = Annotated[float, Field(gt=0, lt=1, strict=True)]
"""A number above 0 and below 1."""

PositiveFloat = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
"""A finite number above 0."""

NonNegativeFloat = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
"""A finite number of at least 0."""

Flag = Annotated[bool, Field(strict=True)]
"""True or false."""

Range = tuple[Number, Number]
"""Two numbers, [low, high], converted from a list to a tuple."""


@dataclass(frozen=True)
class Inline:
    """Marks a field whose keys are in the parent's table, as in ``ifca: Annotated[IFCA, Inline()] = IFCA()``.

    Args:
        key: the key whose value selects the field's class; ``None`` uses the field's name.
    """

    key: str | None = None


@dataclass(frozen=True)
class Internal:
    """Marks a field that only Python code sets."""


@dataclass(frozen=True)
class Explicit:
    """Marks a field that files must set, although Python has a default."""


_Settings = TypeVar("_Settings")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings(cls: type[_Settings]) -> type[_Settings]:
    """Return a frozen dataclass whose fields pydantic checks before the class's ``__post_init__`` runs.

    Values are converted to their annotated types: integers to floats, lists to tuples, and NumPy numbers to Python
    numbers.

    Raises:
        InputError: a field of a new value is outside its range; the message names the field.

    >>> @settings
    ... class Example:
    ...     clusters: Positive = 2
    >>> Example(clusters=0)
    Traceback (most recent call last):
    ...
    shoal.core.settings.FieldError: 'clusters' must be at least 1 (got 0)
    """
    relations: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)

    def check(self: Any) -> None:  # noqa: ANN401
        try:
            values = _validator(type(self)).validate_python({name: plain(value) for name, value in vars(self).items()})
        except ValidationError as error:
            # The chain would show pydantic's error above the sentence that says the same.
            raise FieldError(error.errors()) from None
        for name, value in values.items():
            if isinstance(value, type):  # A class has the methods of its protocol too.
                raise InputError(f"'{name}' must be an instance, such as {value.__name__}(...) (got {value})")
            object.__setattr__(self, name, value)
        if relations is not None:
            relations(self)

    if "__repr__" not in vars(cls):
        setattr(cls, "__repr__", one_line)  # noqa: B010
    setattr(cls, "__post_init__", check)  # noqa: B010 (the type has no such attribute)
    setattr(cls, "__get_pydantic_core_schema__", lambda *_: core_schema.is_instance_schema(cls))  # noqa: B010
    checking = dataclass(frozen=True)(cls)
    checking.__init__.__annotations__ = get_type_hints(checking.__init__)
    return checking


@cache
def _validator(cls: type) -> TypeAdapter[Any]:
    """The validator, created with the first value, because pydantic's dataclasses take 7 ms per class at import."""
    hints = get_type_hints(cls, include_extras=True)
    table = TypedDict(cls.__name__, {declared.name: hints[declared.name] for declared in fields(cls)})  # pyright: ignore
    config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, validate_by_alias=False)
    return TypeAdapter(with_config(config)(table))


class FieldError(InputError):
    """A settings field with a value outside its range.

    Args:
        errors: the errors from pydantic.
        names: the names of fields in the message, such as keys in a file; ``None`` uses the fields' own names.
    """

    def __init__(self, errors: Sequence[ErrorDetails], names: Mapping[str, str] | None = None) -> None:
        first, *_ = self.errors = errors
        name = str(first["loc"][0])
        allowed = _allowed([error for error in errors if error["loc"][0] == name])
        super().__init__(f"'{(names or {}).get(name, name)}' must be {allowed} (got {spell_value(first['input'])})")


def plain(value: object) -> object:
    """Return NumPy numbers as Python numbers, also in lists and tuples; return other values unchanged.

    >>> plain(np.int64(3)), plain([np.float64(0.5), 1]), plain("a")
    (3, [0.5, 1], 'a')
    """
    if type(value) is list:
        return [*map(plain, value)]
    if type(value) is tuple:
        return (*map(plain, value),)
    return value.item() if isinstance(value, np.generic) else value


def spell_value(value: object) -> str:
    """Return a value as text for an error message.

    >>> spell_value({"a": 1}), spell_value(0.5), spell_value("x")
    ('a table', '0.5', "'x'")
    """
    return "a table" if isinstance(value, dict) else shorten(repr(value))


def one_of(words: Sequence[str]) -> str:
    """Return words for an error message, joined by commas and "or".

    >>> one_of(["a", "b", "c"])
    "'a', 'b' or 'c'"
    """
    *rest, last = map(repr, words)
    return f"{', '.join(rest)} or {last}" if rest else last


def _allowed(errors: Sequence[ErrorDetails]) -> str:
    """Describe the allowed values, to follow "must be" in an error message."""
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
"""Descriptions of allowed values by pydantic's error type."""


def _expected(error: ErrorDetails) -> str:
    context, value = error.get("ctx", {}), error["input"]
    if isinstance(value, float) and math.isnan(value):
        # NaN breaks the first bound that it meets, whatever the bound.
        return "a finite number"
    if error["type"] in ("too_short", "too_long"):
        length = int(context.get("max_length", context.get("min_length", 1)))
        return {1: "not empty", 2: "two numbers, [low, high]"}.get(length, f"a list of {length}")
    template = _EXPECTED.get(error["type"])
    return error["msg"].removeprefix("Input should be ") if template is None else template.format(**context)
