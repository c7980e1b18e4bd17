"""The sentence about bad input."""

from collections.abc import Callable

import pytest

from shoal.core.errors import InputError


def refused(call: Callable[..., object], *given: object, **named: object) -> str:
    """The sentence of the `InputError` that a call raises, one line."""
    with pytest.raises(InputError) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)
