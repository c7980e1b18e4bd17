"""The level of the test that judges protections, by simulation, and its intervals by hand."""

import numpy as np
import pytest

from shoal.protection.seed_test import SeedTest

LIMIT = 0.55


def verdicts(test, draws, within=0.0):
    """The first verdict of each of many federations; ``draws`` are (federations, groups, seeds) exposures."""

    def first(figures):
        for seeds in test.looks:
            values = {str(group): row[:seeds].tolist() for group, row in enumerate(figures)}
            found = [one.against(LIMIT) for one in test.estimates(values, dict.fromkeys(values, within)).values()]
            if "above the limit" in found:
                return "above"
            if {*found} == {"within the limit"}:
                return "within"
        return "not decided"

    found = [first(figures) for figures in draws]
    return {verdict: found.count(verdict) / len(found) for verdict in ("within", "above", "not decided")}


def exposures(kind, means, federations=600, seeds=16):
    draw, shape = np.random.default_rng(0), (federations, len(means), seeds)
    mean = np.array(means)[:, None]
    if kind == "records":
        return draw.binomial(200, np.broadcast_to(mean, shape)) / 200
    if kind == "skewed":
        return mean + 0.03 * (draw.exponential(size=shape) - 1) * 0.5 + 0.02 * draw.normal(size=shape)
    return mean + 0.03 * draw.normal(size=shape)


@pytest.mark.parametrize("kind", ["normal", "records", "skewed"])
@pytest.mark.parametrize("most", [2, 8, 16])
def test_a_federation_at_the_limit_is_decided_wrongly_in_one_case_of_twenty_whenever_the_test_stops(kind, most):
    test = SeedTest(most)
    # Three standard errors of a simulated rate of 0.05.
    most_often = 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5
    both = verdicts(test, exposures(kind, [LIMIT, LIMIT]))
    assert max(both["within"], both["above"]) <= most_often
    # Groups at chance cannot hide one that is not.
    assert verdicts(test, exposures(kind, [LIMIT, 0.3, 0.3]))["within"] <= most_often


def test_federations_at_chance_are_within_the_limit_and_exposed_ones_above():
    test = SeedTest(16, level=0.025)
    assert verdicts(test, exposures("records", [0.5, 0.5]))["within"] >= 0.95
    assert verdicts(test, exposures("records", [0.7, 0.5]))["above"] >= 0.99


def test_ends_are_those_of_student_with_the_level_divided_over_looks_and_the_lower_one_over_groups():
    found = SeedTest(3).estimates({"a": [0.5, 0.51, 0.52], "b": [0.5, 0.5, 0.5]}, {"a": 0.0, "b": 0.02})
    # The only look, and two groups: t(2) at 1 - 0.05 and 1 - 0.025 (tables: 2.9200, 4.3027).
    assert found["a"].low == pytest.approx(0.51 - 4.3027 * 0.01 / 3**0.5, abs=1e-5)
    assert found["a"].high == pytest.approx(0.51 + 2.9200 * 0.01 / 3**0.5, abs=1e-5)
    assert found["b"].high == pytest.approx(0.5 + 2.9200 * 0.02 / 3**0.5, abs=1e-5), "records within a run count"
    # The first look of two, at 3 of 3 + 5 seeds, has three eighths of the level.
    early = SeedTest(5, level=0.05 * 8 / 3).estimates({"a": [0.5, 0.51, 0.52]}, {"a": 0.0})["a"]
    assert early.high == pytest.approx(found["a"].high, abs=1e-5)


def test_looks_grow_and_end_at_the_most_seeds():
    assert [SeedTest(most).looks for most in (2, 3, 8, 16)] == [(2,), (3,), (3, 5, 8), (3, 5, 8, 12, 16)]


@pytest.mark.parametrize("may", [True, False])
def test_all_seeds_may_decide_where_their_interval_would_be_within_the_limit(may):
    test, spread = SeedTest(8), np.resize([1.0, -1.0], 8)
    gap = 0.02 * test._quantile(8) / 8**0.5 * (1.01 if may else 0.99)
    values = LIMIT - gap + 0.02 * spread / spread.std(ddof=1)
    assert test.may_decide(gap, 0.02) == may
    assert (test.estimates({"a": values.tolist()}, {"a": 0.0})["a"].against(LIMIT) == "within the limit") == may
