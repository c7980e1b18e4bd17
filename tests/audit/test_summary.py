"""The summary as a value and as the flat keys of its file."""

import copy
import json
import pickle
from math import nan

import pytest

from shoal.core.errors import InputError
from shoal.metrics import METRICS, Metric
from shoal.metrics.summary import MetricKey, Summary, flatten, parse_summary, split_key

GROUPS = ["far.north", "north", "a.b.c", "seconds", "0.01", "mia", "x_against_y", "少数", "two words"]
"""Names that look like parts of keys."""


def group_metrics(name: str) -> dict[str, float]:
    metrics = {"accuracy": 0.5, "train_accuracy": 0.75, "gap": 0.625, "mia": 0.5, "mia_auc": 0.25}
    metrics |= {"tpr_at_fpr_0.01": 0.0, "tpr_at_fpr_0.001": 0.125, "tpr_at_fpr_0.01_population": 0.5}
    metrics |= {"mia_by_other_clusters": 0.5, "mia_by_gap": 0.25}
    metrics |= {f"mia_against_{other}": 0.5 for other in GROUPS if other != name}
    return metrics | {"violations": 1}


SUMMARY = Summary(
    run={"algorithm": "ifca", "dataset": "digits", "seed": 3, "rounds": 20},
    overall={
        "accuracy.overall": 0.5,
        "fairness.equalized_odds": 0.0,
        "references": 4,
        "violations.total": 2,
        "main.auc": 0.75,
        "epsilon": 3.5,
        "cosine.mean": -0.5,
        "property.auc": 0.5,
        "property.auc_within": 0.5,
        "canaries.tpr_at_fpr_0.1.low": 0.25,
        "canaries.found": 0.5,
        "seconds.total": 1.5,
    },
    by_group={name: group_metrics(name) for name in GROUPS},
    by_cluster={k: {"mia": 0.5, "risk": 0.5, "clients": 4, "tpr_at_fpr_0.01": 0.0, "cosine": 1.0} for k in range(12)},
)


def test_a_summary_is_parsed_from_its_flat_keys_whatever_the_groups_are_called() -> None:
    flat, parsed = flatten(SUMMARY), parse_summary(flatten(SUMMARY))
    assert parsed == SUMMARY
    assert (list(flatten(parsed)), list(parsed.by_group)) == (list(flat), GROUPS), "in their order"
    assert all(isinstance(flat[key], int) for key in ("seed", "violations.total", "violations.north"))
    new = Summary(overall={"novel": 1}, by_group={"few": {"novel": 2}}, by_cluster={0: {"novel": 3}})
    assert flatten(new) == {"novel": 1, "novel.few": 2, "clusters.0.novel": 3}


def test_it_is_a_dict_with_the_keys_of_the_file():
    assert dict(SUMMARY) == flatten(SUMMARY) == json.loads(json.dumps(SUMMARY))
    merged = before = Summary(overall={"migrated": 1})
    merged |= Summary(overall={"references": 2})
    assert dict(merged) == flatten(merged) == {"migrated": 1, "references": 2}
    assert dict(before) == {"migrated": 1}
    for copied in (pickle.loads(pickle.dumps(SUMMARY)), copy.deepcopy(SUMMARY)):
        assert (copied, dict(copied)) == (SUMMARY, dict(SUMMARY))


def test_the_order_of_the_keys_is_that_of_the_blocks_of_a_run() -> None:
    flat = flatten(
        Summary(
            run={"seed": 0},
            overall={
                "seconds.total": 1.0, "property.auc": 0.5, "migrated": 1, "fairness.equal_opportunity": 0.0,
                "accuracy.overall": 0.5, "epsilon": 1.0,
            },
            by_group={name: {"violations": 0, "mia": 0.5, "accuracy": 0.5} for name in ("few", "many")},
            by_cluster={0: {"property_auc": 0.5, "cosine": 1.0, "clients": 6, "risk": 0.5}},
        )
    )  # fmt: skip
    assert list(flat) == [
        "seed", "accuracy.overall", "accuracy.few", "accuracy.many", "fairness.equal_opportunity", "mia.few",
        "mia.many", "clusters.0.risk", "migrated", "violations.few", "violations.many", "clusters.0.clients", "epsilon",
        "clusters.0.cosine", "property.auc", "clusters.0.property_auc", "seconds.total",
    ]  # fmt: skip


def test_undefined_metrics_are_left_out() -> None:
    summary = Summary(
        overall={"epsilon": nan}, by_group={"few": {"mia": nan, "gap": 0.5}}, by_cluster={0: {"mia": nan}}
    )
    assert (summary.overall, summary.by_group, summary.by_cluster) == ({}, {"few": {"gap": 0.5}}, {0: {}})
    assert flatten(summary) == {"gap.few": 0.5}


def test_merging_adds_and_replaces_metrics_and_changes_neither() -> None:
    first = Summary(overall={"migrated": 1}, by_group={"few": {"mia": 0.5}}, by_cluster={0: {"risk": 0.5}})
    second = Summary(overall={"migrated": 2}, by_group={"few": {"gap": 0.6}}, by_cluster={1: {"risk": 0.6}})
    assert first | second == Summary(
        overall={"migrated": 2},
        by_group={"few": {"mia": 0.5, "gap": 0.6}},
        by_cluster={0: {"risk": 0.5}, 1: {"risk": 0.6}},
    )
    assert first.by_group == {"few": {"mia": 0.5}}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("migrated", MetricKey("migrated")),
        ("accuracy.overall", MetricKey("accuracy.overall")),
        ("seconds.train", MetricKey("seconds.train")),
        ("clusters.10.tpr_at_fpr_0.001", MetricKey("tpr_at_fpr_0.001", cluster=10)),
        ("tpr_at_fpr_0.01_population.a.b", MetricKey("tpr_at_fpr_0.01_population", "a.b")),
        ("mia_against_few.a.b", MetricKey("mia_against_few", "a.b")),
        ("mia_against_few.a.many", MetricKey("mia_against_few.a", "many")),
    ],
)
def test_a_key_is_a_metric_of_the_run_a_group_or_a_cluster(key: str, expected: MetricKey) -> None:
    assert split_key(key, ["a.b", "many"]) == expected


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"key": "worst client"}, "got 'worst client'"),
        ({"key": "worst", "format": "percentage"}, "'format'.*got percentage"),
        ({"key": "worst", "scopes": "group client"}, "'scopes'.*got client"),
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
