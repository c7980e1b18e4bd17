"""Metrics that a user declares, and attacks of a user's own: mistakes are refused in one sentence."""

import pytest

from shoal.core.errors import InputError
from shoal.metrics import METRICS, Metric


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


def test_every_interval_has_two_ends_of_the_same_format_that_have_none_of_their_own():
    for key, metric in [*METRICS.items()]:
        for end in ("low", "high") if metric.interval else ():
            of_end = METRICS[f"{key}.{end}" if "." in key else f"{key}_{end}"]
            assert (of_end.format, of_end.scopes, of_end.interval) == (metric.format, metric.scopes, False)
