"""The table of attacked records, what is measured of it, and which attack is the strongest."""

from dataclasses import astuple, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

import shoal
from made_up_scores import made_up
from shoal.audit import leave_one_out_scores
from shoal.audit.attacked_records import REFERENCE_ATTACKS, AuditRecords, attack_records
from shoal.audit.audit import audit_records
from shoal.audit.final_attacks import join_attacks
from shoal.audit.record_table import RecordTable, measure, strongest
from shoal.audit.update_audit import all_attacks
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.metrics import empirical_epsilon, roc_auc

NAN = float("nan")


@pytest.fixture(scope="module")
def records():
    """400 records of two groups on two models of three; those of the third model are members alone."""
    scores = made_up(400, 4, models=3, seed=1)
    scores = replace(scores, member=scores.member | (scores.model == 2))
    rows = np.arange(400)
    names = rows.astype(str).astype(object)
    return AuditRecords(scores, names, names, np.where(rows % 3 == 0, "few", "many").astype(object))


@pytest.fixture(scope="module")
def attacked(records):
    return attack_records(records)


def measured(accuracy, width=0.0):
    low = accuracy - width / 2
    return SimpleNamespace(accuracy=accuracy, low=low, auc=accuracy, auc_low=low)


def test_an_audit_counts_its_members_and_non_members(records):
    audit = audit_records(records, Stream(0))
    member = records.scores.member
    assert (audit.members, audit.non_members) == (member.sum(), (~member).sum())
    assert audit.members != audit.non_members


def test_measuring_by_a_column_equals_measuring_its_parts(attacked):
    for name, table in attacked.attacks.items():
        for column in ("group", "model", "client"):
            by_value = measure(table, by=column)
            assert list(by_value) == pd.unique(getattr(table, column)).tolist()
            for value, metrics in by_value.items():
                np.testing.assert_equal(
                    astuple(metrics), astuple(measure(table.take(getattr(table, column) == value))), err_msg=name
                )


def test_joined_tables_keep_rows_and_single_values():
    first = RecordTable.from_columns([2.0, 1.0], [True, False], attack="gap", model=0)
    second = RecordTable.from_columns([3.0], True, attack="gap", model=1)
    both = RecordTable.join([first, second])
    assert (both.score.tolist(), both.model.tolist(), both.member.tolist()) == (
        [2, 1, 3],
        [0, 0, 1],
        [True, False, True],
    )
    assert both.attack.strides == (0,), "a name that all rows share takes no memory"
    assert len(RecordTable.join([])) == 0
    assert both.take(np.array([2, 0])).score.tolist() == [3, 2]


def test_an_audit_measures_as_a_run_does(records, attacked):
    rows = audit_records(records, Stream(0)).attacks
    assert set(attacked.attacks) == set(rows["attack"])
    by = {scope: attacked.measured(scope) for scope in ("group", "model")}
    compared = 0
    for row in rows[rows["scope"].isin(by)].to_dict("records"):
        name = row["name"] if row["scope"] == "group" else int(row["name"])
        metrics = by[row["scope"]][name][row["attack"]]
        np.testing.assert_equal(
            (metrics.accuracy, metrics.low, metrics.auc), (row["accuracy"], row["accuracy.low"], row["auc"])
        )
        compared += 1
    assert compared == 5 * len(attacked.attacks)


def test_the_attack_on_all_examples_counts_where_no_record_is_asked(attacked):
    on_records = attacked.measured("model")
    assert np.isnan(on_records[2]["rmia"].accuracy), "its records are members alone"
    fitted = {"rmia": measured(0.7), "mine": measured(0.8)}
    assert join_attacks(on_records[2], fitted)["rmia"].accuracy == 0.7
    assert np.isnan(join_attacks(on_records[2], {})["rmia"].accuracy)
    assert join_attacks(on_records[0], fitted)["rmia"] is on_records[0]["rmia"], "but not where there are records"
    assert list(join_attacks(on_records[0], fitted)) == [*on_records[0], "mine"]
    assert next(iter(on_records[0])) == attacked.chosen()


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        # The largest is above the first by chance, or for certain; below 0.5 nothing is.
        ([(0.52, 0.1), (0.6, 0.2), (0.55, 0.1)], 0),
        ([(0.52, 0.1), (0.6, 0.05), (0.55, 0.1)], 1),
        ([(0.40, 0.1), (0.49, 0.05)], 0),
        ([(0.52, 0.1), (0.70, 0.20), (0.65, 0.05)], 2),
        # One of two is wider by 2.24 / 1.96: the lower end of 0.55 +- 0.03 is 0.516, of four it is 0.512.
        ([(0.514, 0.1), (0.55, 0.06)], 1),
        ([(0.514, 0.1), (0.55, 0.06), (0.4, 0.1), (0.4, 0.1)], 0),
        ([(NAN, NAN), (0.51, 0.1), (0.52, 0.1)], 1),
        ([(NAN, NAN), (NAN, NAN)], 0),
    ],
)
def test_the_attack_chosen_beforehand_decides_unless_another_is_certain_to_be_stronger(figures, expected):
    attacks = {str(i): measured(*figure) for i, figure in enumerate(figures)}
    name, low = strongest(attacks)
    assert name == str(expected)
    if name == "0":
        np.testing.assert_equal(low, attacks["0"].low)


def test_the_area_decides_and_the_lower_end_is_of_the_accuracy():
    """A threshold that was set without members may miss, so the attack of largest area may have the lower accuracy."""
    first = SimpleNamespace(accuracy=0.54, low=0.51, auc=0.544, auc_low=0.51)
    other = SimpleNamespace(accuracy=0.52, low=0.49, auc=0.645, auc_low=0.608)
    name, low = strongest({"first": first, "other": other})
    assert (name, low) == ("other", pytest.approx(0.52 - 0.03 * norm.ppf(1 - 0.0125) / norm.ppf(0.975)))
    assert strongest({"other": other, "first": first}) == ("other", 0.49)


def test_the_attacked_model_s_members_do_not_choose_the_attack_beforehand(records):
    """It is the one that finds most on the reference models, each attacked in turn."""
    attacked = attack_records(records)
    swapped = attack_records(replace(records, scores=replace(records.scores, member=~records.scores.member)))
    assert attacked.chosen() == swapped.chosen()
    trained = records.scores.reference_member.ravel()
    left_out = {attack.name: leave_one_out_scores(attack, records.scores) for attack in REFERENCE_ATTACKS}
    areas = {name: roc_auc(scores.ravel(), trained) for name, scores in left_out.items() if scores is not None}
    assert attacked.chosen() == max(areas, key=areas.get)
    assert set(areas) > {"lira", "rmia", "loss"}


@pytest.mark.parametrize(("references", "expected"), [(0, "loss"), (1, "rmia-offline"), (2, "rmia")])
def test_with_few_reference_models_the_chosen_attack_is_stated_beforehand(references, expected):
    scores = made_up(40, references)
    names = np.arange(40).astype(object)
    assert attack_records(AuditRecords(scores, names, names, np.full(40, "all", dtype=object))).chosen() == expected


def test_all_of_an_audit_is_of_the_attack_that_it_calls_the_strongest():
    """Records differ so much in difficulty that attacks with references find 0.88 to 0.93, and the loss 0.82."""
    scores = made_up(1500, 8, seed=2, shift=3.0)
    rows = np.arange(len(scores))
    names, clients = rows.astype(str).astype(object), (rows % 3).astype(str).astype(object)
    audit = audit_records(AuditRecords(scores, names, clients, np.full(len(scores), "all", dtype=object)), Stream(0))
    by_attack = {attack.name: attack.scores(scores) for attack in REFERENCE_ATTACKS}
    name, accuracy = audit.strongest()["attack"], audit.strongest()["accuracy"]
    overall = audit.attacks[audit.attacks["scope"] == "all"].set_index("attack")["accuracy"]
    assert accuracy == overall[name] > overall["loss"] + 0.05
    of_clients = audit.attacks[audit.attacks["scope"] == "client"].set_index("name")
    assert of_clients["attack"].tolist() == [name] * 3
    for client, auc in of_clients["auc"].items():
        rows = clients == client
        assert auc == pytest.approx(roc_auc_score(scores.member[rows], by_attack[name][rows]))
    listed = audit.records.set_index("record").loc[names]
    assert listed["score"].tolist() == by_attack[name].tolist()
    assert listed["member"].tolist() == scores.member.tolist()
    epsilon, of_loss = (
        empirical_epsilon(by_attack[key], scores.member, Stream(0)("epsilon"), delta=1e-5) for key in (name, "loss")
    )
    assert audit.empirical_epsilon == epsilon > of_loss + 0.5


class Rank:
    name, title, view, least = "rank", "Rank", "outsider", 0

    def __init__(self, **attributes: object):
        vars(self).update(attributes)

    def scores(self, scores):
        return scores.score


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"name": "my attack.v2"}, "'name'.*got 'my attack.v2'"),
        ({"name": "lira"}, r"'lira' twice\)"),
        ({"view": "bystander"}, "'rank': 'view'.*got 'bystander'"),
    ],
)
def test_an_attack_without_a_usable_name_or_view_is_refused(attributes, sentence):
    with pytest.raises(InputError, match=sentence):
        all_attacks([Rank(**attributes)])


@pytest.mark.parametrize("scores", [np.zeros(3), np.full(40, np.nan)])
def test_scores_that_are_not_one_finite_number_per_record_are_refused(scores):
    member, none = np.arange(40) < 20, np.zeros((40, 0))
    reference_scores = shoal.ReferenceScores(2.0 * member, member, none, none > 0, np.zeros(40, dtype=np.int64))
    records = shoal.AuditRecords(reference_scores, *(np.arange(40).astype(str) for _ in range(3)))
    with pytest.raises(InputError, match="attack 'rank': 'scores' must return one finite number per record"):
        shoal.audit_records(records, shoal.Stream(0), attacks=[Rank(scores=lambda _: scores)])
