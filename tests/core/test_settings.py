"""A value's declaration is what checks it."""

import math
import pickle
import pydoc
import traceback
from dataclasses import FrozenInstanceError, field, replace
from typing import Annotated, Literal, Protocol, runtime_checkable

import numpy as np
import pytest
from pydantic import Field

from shoal.core.errors import InputError
from shoal.core.settings import (
    Count,
    Explicit,
    Flag,
    Fraction,
    Inline,
    Internal,
    NonNegativeFloat,
    OpenFraction,
    Positive,
    PositiveFloat,
    Range,
    one_of,
    settings,
)


@runtime_checkable
class Speaks(Protocol):
    def speak(self) -> str: ...


class Dog:
    def __repr__(self) -> str:
        return "Dog()"  # Without its address, which is another one in each process.

    def speak(self) -> str:
        return "wuff"


@settings
class Inner:
    size: Positive = 1


@settings
class Everything:
    positive: Annotated[Positive, Field(alias="other_name")] = 1
    count: Count = 0
    fraction: Fraction = 0.5
    inside: OpenFraction = 0.5
    above: PositiveFloat = 1.0
    least: NonNegativeFloat = 0.0
    flag: Flag = False
    text: str = ""
    range: Range | None = None
    numbers: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (1.0,)
    three: Annotated[tuple[Positive, ...], Field(min_length=3, max_length=3)] | None = None
    either: Positive | Literal["all"] = "all"
    weights: Fraction | Literal["auto"] | tuple[Fraction, ...] = "auto"
    inner: Annotated[Inner, Inline()] = Inner()
    perhaps: Inner | None = None
    speaker: Annotated[Speaks | None, Internal()] = field(default=None, kw_only=True)
    by_name: Annotated[dict[str, Inner], Field(min_length=1)] = field(default_factory=lambda: {"a": Inner()})
    stated: Annotated[NonNegativeFloat, Explicit()] = 0.0
    name: Literal["everything"] = "everything"


ALLOWED = [
    {"positive": 1},
    {"count": 0},
    {"fraction": 0.0},
    {"fraction": 1},
    {"inside": 1e-300},
    {"above": 1e-300},
    {"least": 0},
    {"flag": True},
    {"range": (2.0, 1.0)},
    {"numbers": (0.0, 1.0)},
    {"three": (1, 2, 3)},
    {"either": 3},
    {"weights": 0.25},
    {"weights": (0.25, 1.0)},
    {"inner": Inner(3)},
    {"perhaps": Inner(3)},
    {"speaker": Dog()},
    {"by_name": {"b": Inner(2)}},
]


@pytest.mark.parametrize("given", ALLOWED, ids=str)
def test_what_lies_just_inside_is_taken(given):
    value = Everything(**given)
    assert {key: getattr(value, key) for key in given} == given


REFUSED = [
    ({"positive": 0}, "'positive' must be at least 1 (got 0"),
    ({"positive": 1.0}, "'positive' must be an integer (got 1.0"),
    ({"positive": True}, "'positive' must be an integer (got True"),
    ({"positive": "1"}, "'positive' must be an integer (got '1'"),
    ({"positive": None}, "'positive' must be an integer (got None"),
    ({"count": -1}, "'count' must be at least 0 (got -1"),
    ({"fraction": 1.5}, "'fraction' must be at most 1 (got 1.5"),
    ({"fraction": math.nan}, "got nan"),
    ({"fraction": "0.5"}, "'fraction' must be a number (got '0.5'"),
    ({"inside": 0.0}, "'inside' must be above 0 (got 0.0"),
    ({"inside": 1}, "'inside' must be below 1 (got 1"),
    ({"above": 0}, "'above' must be above 0 (got 0"),
    ({"above": math.inf}, "'above' must be a finite number (got inf"),
    ({"least": -0.1}, "'least' must be at least 0 (got -0.1"),
    ({"flag": 1}, "'flag' must be true or false (got 1"),
    ({"text": 1}, "'text' must be a string (got 1"),
    ({"range": (1,)}, "'range' must be two numbers, [low, high] (got (1,)"),
    ({"range": (1, 2, 3)}, "'range' must be two numbers, [low, high] (got (1, 2, 3)"),
    ({"range": 5}, "'range' must be a list (got 5"),
    ({"range": ("a", 5)}, "'range' must be a number (got 'a'"),
    ({"numbers": ()}, "'numbers' must be not empty (got ()"),
    ({"numbers": (0.5, 2.0)}, "'numbers' must be at most 1 (got 2.0"),
    ({"three": (1, 2)}, "'three' must be a list of 3 (got (1, 2)"),
    ({"three": (1, 0, 2)}, "'three' must be at least 1 (got 0"),
    ({"either": "some"}, "'either' must be an integer or 'all' (got 'some'"),
    ({"weights": 2}, "'weights' must be at most 1 or 'auto' or a list (got 2"),
    ({"inner": 5}, "'inner' must be an instance of Inner (got 5"),
    ({"inner": {"size": 2}}, "'inner' must be an instance of Inner (got a table"),
    ({"perhaps": "x"}, "'perhaps' must be an instance of Inner (got 'x'"),
    ({"speaker": 5}, "'speaker' must be an instance of Speaks (got 5"),
    ({"by_name": {}}, "'by_name' must be not empty (got a table"),
    ({"by_name": {"a": 1}}, "'by_name' must be an instance of Inner (got 1"),
    ({"name": "other"}, "'name' must be 'everything' (got 'other'"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_does_not_fit_is_one_sentence_that_names_the_argument(given, sentence):
    with pytest.raises(InputError) as refused:
        Everything(**given)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_values_take_the_form_of_the_declaration():
    """So that a value from Python and the same one from a file are equal, and can be hashed."""
    value = Everything(fraction=1, range=[0, 25], numbers=[1, 0], by_name={"a": Inner()})
    assert (value.fraction, value.range, value.numbers) == (1.0, (0.0, 25.0), (1.0, 0.0))
    assert [type(each) for each in (value.fraction, value.range[0], value.range)] == [float, float, tuple]


def test_settings_are_frozen_values():
    value = Inner(2)
    assert (value, hash(value), repr(value)) == (Inner(2), hash(Inner(2)), "Inner(size=2)")
    assert pickle.loads(pickle.dumps(Everything(perhaps=value))) == Everything(perhaps=value)
    with pytest.raises(FrozenInstanceError):
        value.size = 3
    with pytest.raises(InputError, match=r"'size' must be at least 1 \(got 0"):
        replace(value, size=0)


def test_numpy_s_numbers_become_python_s():
    given = {"positive": np.int32(3), "fraction": np.float32(0.5), "flag": np.bool_(True), "range": (np.int64(1), 2)}
    value = Everything(**given, either=np.int64(2))
    assert [type(each) for each in (value.positive, value.fraction, value.flag, value.either)] == [
        int,
        float,
        bool,
        int,
    ]
    assert value == Everything(positive=3, fraction=0.5, flag=True, range=(1.0, 2.0), either=2)
    with pytest.raises(InputError, match=r"'positive' must be at least 1 \(got 0"):
        Everything(positive=np.int64(0))


def test_an_array_is_refused_in_one_short_line():
    with pytest.raises(InputError) as refused:
        Everything(positive=np.zeros((30, 30)))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_help_shows_plain_types():
    @settings
    class Wider(Everything):
        """Documented."""

        width: Positive | None = None

    text = pydoc.render_doc(Wider, renderer=pydoc.plaintext)
    assert "fraction: float = 0.5" in text
    assert "Annotated" not in text.partition("Data and other attributes")[0]
    with pytest.raises(InputError, match="'width' must be at least 1"):
        Wider(width=0)


def test_the_traceback_shows_no_other_error():
    with pytest.raises(InputError) as refused:
        Inner(size=0)
    assert "ValidationError" not in "".join(traceback.format_exception(refused.value))


def test_a_value_s_own_checks_come_after_those_of_its_fields():
    seen = []

    @settings
    class Ordered:
        low: Positive = 1
        high: Positive = 2

        def __post_init__(self) -> None:
            seen.append((self.low, self.high))
            if self.low > self.high:
                raise InputError("'low' must be at most 'high'")

    with pytest.raises(InputError, match="'low' must be at most 'high'"):
        Ordered(3, 2)
    with pytest.raises(InputError, match=r"'high' must be at least 1 \(got 0"):
        Ordered(3, 0)
    assert seen == [(3, 2)]


def test_settings_of_settings_keep_the_checks_of_both():
    @settings
    class Wider(Inner):
        width: Positive = 1

    assert Wider(2, 3) == Wider(size=2, width=3)
    for given, name in (({"size": 0}, "size"), ({"width": 0}, "width")):
        with pytest.raises(InputError, match=f"'{name}' must be at least 1"):
            Wider(**given)


def test_words_in_sentences():
    assert [one_of(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["'a'", "'a' or 'b'", "'a', 'b' or 'c'"]
