"""Settings: frozen dataclasses whose fields are checked against their annotations.

The hyper-parameters of an algorithm, attack or defence are declared once, as the fields of its dataclass: type, range
and default in the annotation, meaning in the docstring. Python code that makes such a value and a TOML file that
describes one are checked by the same declaration.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.warnings import UnsupportedFieldAttributeWarning
from pydantic_core import ErrorDetails

from shoal.core.errors import InputError

Count = Annotated[int, Field(ge=0, strict=True)]
"""A whole number, at least 0."""

Positive = Annotated[int, Field(ge=1, strict=True)]
"""A whole number, at least 1."""

Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
"""A number in [0, 1]."""

PositiveFloat = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
"""A finite number above 0."""

NonNegativeFloat = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
"""A finite number, at least 0."""

Flag = Annotated[bool, Field(strict=True)]
"""True or false."""

Range = Annotated[tuple[float, float], Field(strict=False)]
"""Two numbers, [low, high]."""

_Settings = TypeVar("_Settings")

_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True)
def settings(cls: type[_Settings]) -> type[_Settings]:
    """A frozen dataclass that checks its fields; its own ``__post_init__``, if any, runs after that.

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
    relations: Callable[[Any], None] | None = cls.__dict__.get("__post_init__")

    def check(self: Any) -> None:  # noqa: ANN401
        for name, adapter in _adapters(type(self)).items():
            value = getattr(self, name)
            try:
                adapter.validate_python(value)
            except ValidationError as error:
                raise InputError(f"'{name}' must be {allowed(error.errors())}; got {spelled(value)}") from error
        if relations is not None:
            relations(self)

    cls.__post_init__ = check  # pyright: ignore[reportAttributeAccessIssue]
    cls.__pydantic_config__ = _CONFIG  # pyright: ignore[reportAttributeAccessIssue]
    return dataclass(frozen=True)(cls)


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    with warnings.catch_warnings():
        # An alias is the field's name in a TOML file; it says nothing of its values.
        warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
        return {each.name: TypeAdapter(hints[each.name], config=_config_of(hints[each.name])) for each in fields(cls)}


def _config_of(hint: object) -> ConfigDict | None:
    # pydantic takes no configuration for a type that has its own.
    return None if hasattr(hint, "__pydantic_config__") else ConfigDict(arbitrary_types_allowed=True)


def spelled(value: object) -> str:
    """A value in an error sentence.

    >>> spelled({"a": 1}), spelled(0.5), spelled("x")
    ('a table', '0.5', "'x'")
    """
    return "a table" if isinstance(value, dict) else repr(value)


def allowed(errors: Sequence[ErrorDetails]) -> str:
    """What pydantic expected of one value, as the rest of a sentence after "must be"."""
    return " or ".join(dict.fromkeys(map(_allowed, errors)))


def _allowed(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "too_short" | "too_long":
            length = int(context.get("max_length", context.get("min_length", 1)))
            return {1: "not empty", 2: "two numbers, [low, high]"}.get(length, f"a list of {length}")
        case "string_pattern_mismatch":
            return "'cpu' or 'cuda'"
        case "literal_error":
            return context["expected"]
        case "greater_than":
            return f"above {context['gt']}"
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "less_than":
            return f"below {context['lt']}"
        case "less_than_equal":
            return f"at most {context['le']}"
        case "model_type" | "dict_type" | "dataclass_type":
            return "a table"
        case _:
            kinds = {
                "int_type": "a whole number",
                "float_type": "a number",
                "string_type": "a string",
                "list_type": "a list",
                "bool_type": "true or false",
                "finite_number": "a finite number",
            }
            return kinds.get(error["type"], error["msg"].removeprefix("Input should be "))
