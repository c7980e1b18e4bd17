"""Metrics that a user declares, and attacks of a user's own: mistakes are refused in one sentence."""

import pytest

from shoal.core.errors import InputError
from shoal.metrics import Metric


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"key": "worst client"}, "a metric's key has no spaces; got 'worst client'"),
        ({"key": "worst", "format": "percentage"}, "'format' must be 'percent', .* or 'number'; got percentage"),
        ({"key": "worst", "scopes": "group client"}, "'scopes' must be 'run', 'group', 'model' or 'round'; got client"),
    ],
)
def test_a_metric_that_no_page_could_show_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Metric(**settings, name="worst client")
