"""What a verdict says beside numbers: worse than chance, and what epsilon does not cover."""

import numpy as np
import pytest

from run_of_any_shape import summary_of
from shoal.metrics.summary import parse_summary
from shoal.reports.run.run_verdict import verdict

GROUPS = ["a", "b"]


def said(clusters: int = 2, /, **more: float) -> str:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return verdict(parse_summary(summary_of(GROUPS, clusters) | named))


def test_an_accuracy_below_the_most_frequent_class_is_below_chance() -> None:
    text = said(accuracy__a=0.1, most_frequent_class__a=0.2, most_frequent_class__b=0.25, clusters__1__accuracy=0.11)
    assert "At 95 % confidence, test accuracy is below chance for a (10.0 %), model 1 (11.0 %): the class" in text
    assert "that is most frequent in training makes up 20.0 % of the test images of a, 20.0 % of" in text


def test_an_accuracy_that_is_the_share_of_the_most_frequent_class_is_not_below_it() -> None:
    share = 361 / 400
    single = float(np.float32(share))
    assert single != share
    text = said(accuracy__a=share, most_frequent_class__a=single, most_frequent_class__b=0.5)
    assert "test accuracy is not shown to be above chance for a (90.2 %)" in text
    assert "below" not in text


@pytest.mark.parametrize("share", [{}, {"most_frequent_class__a": 0.7, "most_frequent_class__b": 0.5}])
def test_an_accuracy_above_it_or_compared_with_nothing_is_not(share: dict[str, float]) -> None:
    assert "most frequent in training" not in said(**share)


@pytest.mark.parametrize(("clusters", "chosen"), [(1, False), (2, True)])
def test_epsilon_is_said_with_what_it_does_not_cover(clusters: int, chosen: bool) -> None:
    text = said(clusters, epsilon=3.5, delta=1e-5)
    assert "epsilon 3.50 at delta 1e-05" in text
    assert "all examples of a client together" in text
    assert ("the choice of a model" in text) == chosen


def test_the_limit_on_every_attack_stands_beside_what_was_found_in_its_view() -> None:
    bounds = {"bound__outsider__accuracy": 0.85, "bound__outsider__auc": 0.9, "bound__server__accuracy": 0.95}
    text = said(epsilon=9.5, delta=1e-5, mia__a=0.61, mia__b=0.55, **bounds)
    assert "by an outsider has accuracy 61.0 %; no attack on one record can exceed 85.0 % (AUC 0.900)" in text
    assert "95.0 %" not in text
    assert "no attack noticeably" in said(epsilon=90.0, **bounds | {"bound__outsider__accuracy": 0.999})
    assert "no attack" not in said(epsilon=9.5, delta=1e-5)


def test_without_noise_nothing_is_guaranteed_and_without_private_steps_nothing_is_said() -> None:
    assert "guarantees nothing" in said(delta=1e-5)
    assert "ifferential privacy" not in said()


def test_the_share_of_the_most_frequent_class_is_found_on_few_examples_too() -> None:
    assert "not shown to be above chance for a (46.0 %)" in said(accuracy__a=0.46, most_frequent_class__a=0.53)
