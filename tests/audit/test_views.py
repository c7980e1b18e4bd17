"""Views are nested: what an outsider finds, a client and the server find too, and each figure says whose it is."""

from dataclasses import replace

import numpy as np
import pytest

from made_up_scores import made_up
from shoal.audit.attacked_records import AuditRecords, attack_records
from shoal.audit.audit import VIEW_METRICS, audit_records
from shoal.audit.record_table import CLIENT, OUTSIDER, SERVER, RecordTable, strongest
from shoal.core.randomness import Stream
from shoal.data.preferences import VIEWS
from shoal.metrics import roc_auc
from shoal.runs.audits.gate import parse_gates

KEYS = ("attack", *(f"{m}{end}" for m in ("accuracy", "auc", "tpr_at_fpr_0.01") for end in ("", ".low", ".high")))


@pytest.fixture(scope="module")
def records():
    scores, number = made_up(2400, 4, seed=1), np.arange(2400)
    names, clients = (each.astype(str).astype(object) for each in (number, number % 12))
    return AuditRecords(scores, names, clients, np.where(number % 3 == 0, "few", "many").astype(object))


def seen(records, view, right, name, exact=0.0):
    """The records with an attack that is right about a share of them, and says of a share that it is exact."""
    draw = np.random.default_rng(2)
    called = records.scores.member ^ (draw.random(len(records)) >= right)
    said = draw.random(len(records)) < exact
    answers = RecordTable.from_columns(1.0 * called, threshold=0.5, view=view, exact=said)
    return replace(records, further={**records.further, name: answers})


def audited(records):
    return audit_records(records, Stream(0))


@pytest.fixture(scope="module")
def plain(records):
    return audited(records)


def test_a_view_of_which_no_attack_was_asked_has_no_keys(plain):
    flat = plain.flat()
    of_views = {key for key in flat if key.startswith("views.")}
    at_least = {f"{metric}.at_least" for metric in VIEW_METRICS}
    assert of_views == {f"views.outsider.{name}.{key}" for name in ("all", "few", "many") for key in {*KEYS} | at_least}
    for name in ("all", "few", "many"):
        attack = flat[f"strongest.{name}"]
        assert flat[f"views.outsider.{name}.attack"] == attack
        for key in KEYS[1:]:
            assert flat[f"views.outsider.{name}.{key}"] == flat[f"attacks.{attack}.{name}.{key}"]


def test_a_larger_view_has_the_attacks_of_the_smaller_ones_too(records, plain):
    """An attack at chance that needs more does not hide what needs less."""
    weak = audited(seen(records, SERVER, 0.5, "weak")).flat()
    before = plain.flat()
    assert {key: value for key, value in weak.items() if key.startswith("views.outsider")} == {
        key: value for key, value in before.items() if key.startswith("views.outsider")
    }
    assert not any(key.startswith("views.client") for key in weak)
    assert all(weak[f"views.server.all.{key}"] == weak[f"views.outsider.all.{key}"] for key in KEYS)
    strong = audited(seen(records, CLIENT, 0.99, "strong")).flat()
    assert strong["views.client.few.attack"] == strong["strongest.few"] == "strong"
    assert strong["views.outsider.few.attack"] != "strong"
    assert strong["views.client.few.accuracy"] > 0.95 > strong["views.outsider.few.accuracy"]


@pytest.mark.parametrize(("view", "name"), [(CLIENT, "span-models"), (SERVER, "span")])
def test_the_span_attack_of_a_view_is_chosen_beforehand_where_it_is_exact(records, plain, view, name):
    """Elsewhere what decides for the narrower view decides for the wider one too; other views are as they were."""
    decides = plain.strongest()
    right = decides["auc"] + 0.01
    for exact, first in ((0.9, name), (0.1, decides["attack"])):
        audit = audited(seen(records, view, right, name, exact))
        assert audit.headline(view)["attack"] == first
        assert audit.headline(OUTSIDER)["attack"] == audit.strongest()["attack"] == decides["attack"]
        chosen = audit.attacks[audit.attacks["chosen"] & (audit.attacks["scope"] == "all")]
        assert set(chosen["attack"]) == {first, decides["attack"]}
        assert audit.flat()[f"attacks.{name}.all.exact"] == pytest.approx(exact, abs=0.03)
    assert audited(seen(records, view, 0.99, name)).headline(view)["attack"] == name, "it is certain to find more"


@pytest.mark.parametrize("exact", [0.0, 1.0])
@pytest.mark.parametrize("right", [(0.5, 0.5), (0.52, 0.6), (0.66, 0.5), (0.66, 0.64), (0.7, 0.68), (0.95, 0.9)])
def test_a_wider_view_never_has_the_lower_figure(records, right, exact):
    records = seen(seen(records, CLIENT, right[0], "span-models", exact), SERVER, right[1], "span", exact)
    audit, attacked = audited(records), attack_records(records)
    for scope, name in (("all", "all"), ("group", "few"), ("group", "many")):
        figures = [audit.headline(view, scope, name)["auc"] for view in VIEWS]
        assert figures == sorted(figures)
        if scope == "group":
            found = [attacked.measured("group", view)[name] for view in VIEWS]
            assert [attacks[strongest(attacks)[0]].auc for attacks in found] == figures


def test_the_attacks_of_a_view_are_those_that_an_audit_judges_it_by(records):
    records = seen(seen(records, CLIENT, 0.9, "span-models", 1.0), SERVER, 0.8, "mine")
    attacked = attack_records(records)
    by_view = {view: attacked.measured("group", view)["few"] for view in VIEWS}
    assert by_view[OUTSIDER].keys() == attack_records(replace(records, further={})).attacks.keys()
    assert attacked.chosen() == attacked.order[0]
    assert attacked.chosen(CLIENT) == attacked.chosen(SERVER) == "span-models"
    assert by_view[SERVER].keys() == attacked.attacks.keys()


def test_a_view_s_attack_of_larger_area_decides_though_its_threshold_misses(records, plain):
    """Nothing is above the threshold, so its balanced accuracy is 0.5. A gate on that still sees the others'."""
    draw, few = np.random.default_rng(2), records.group == "few"
    score = draw.normal(2.0 * records.scores.member)
    further = {"missed": RecordTable.from_columns(score, threshold=9.0, view=CLIENT)}
    audit = audited(replace(records, further=further))
    assert audit.headline(CLIENT, "group", "few")["attack"] == "missed"
    flat, before = audit.flat(), plain.flat()
    assert flat["views.client.few.auc"] == pytest.approx(roc_auc(score[few], records.scores.member[few]))
    assert flat["views.client.few.accuracy"] == 0.5
    limit = before["views.outsider.few.accuracy.low"] - 0.03
    assert flat["views.client.few.accuracy.high"] < limit < flat["views.client.few.accuracy.at_least"]
    sentence, holds = parse_gates([f"views.client.few.accuracy <= {limit}"])[0].verdict(flat)
    assert not holds
    assert f"certainly reaches {flat['views.client.few.accuracy.at_least']:.3f}" in sentence
    assert parse_gates(["views.client.few.accuracy <= 0.99"])[0].verdict(flat)[1]


def test_a_gate_can_name_a_view_and_does_not_count_it_twice(records):
    flat = audited(seen(records, CLIENT, 0.99, "strong")).flat()
    assert parse_gates(["views.client.few.auc <= 0.6"])[0].broken_by(flat).keys() == {"views.client.few.auc"}
    assert parse_gates(["views.outsider.few.auc <= 0.999"])[0].broken_by(flat) == {}
    broken = parse_gates(["auc <= 0.1"])[0].broken_by(flat)
    assert any(key.startswith("attacks.") for key in broken)
    assert not any(key.startswith("views.") for key in broken)
    sentence, holds = parse_gates(["views.server.few.auc <= 0.9"])[0].verdict(flat)
    assert not holds
    assert "'views.server.few.auc' was not measured" in sentence
