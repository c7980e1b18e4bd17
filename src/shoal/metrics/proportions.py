"""Intervals of proportions."""


def exact_interval(count: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934, Biometrika 26:404-413) for ``count`` successes ``of`` trials.

    It covers the true proportion at least as often as it says, whatever the proportion. (0, 1) without trials.

    >>> [round(limit, 4) for limit in exact_interval(8, 10)], exact_interval(0, 0)
    ([0.4439, 0.9748], (0.0, 1.0))
    """
    from scipy.special import betaincinv  # noqa: PLC0415 - scipy takes a while to import

    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, of - count + 1, tail))
    high = 1.0 if count == of else float(betaincinv(count + 1, of - count, 1 - tail))
    return low, high
