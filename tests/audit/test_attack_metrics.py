"""What a named attack finds about models and groups, and which attack is the strongest."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from made_up_scores import made_up
from shoal.audit.attack_metrics import AttackOnRecords, attacks_on_records, strongest
from shoal.audit.audit import audit_records
from shoal.audit.records import REFERENCE_ATTACKS, AttackedRecords, AuditRecords
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
    return AttackedRecords.of(records)


class Measured:
    """An attack of one balanced accuracy, whatever is asked."""

    def __init__(self, accuracy, width=0.0):
        self.accuracy, self.low = accuracy, accuracy - width / 2

    def of_cluster(self, k):
        return self

    def of_group(self, g):
        return self


def test_an_audit_and_a_run_s_figures_are_measured_alike(records, attacked):
    rows = audit_records(records, Stream(0)).attacks
    attacks = attacks_on_records(attacked, ["few", "many"], {})
    assert set(attacks) == set(rows["attack"])
    compared = 0
    for row in rows.to_dict("records"):
        if row["scope"] == "group":
            found = attacks[row["attack"]].of_group(["few", "many"].index(row["name"]))
        elif row["scope"] == "model":
            found = attacks[row["attack"]].of_cluster(int(row["name"]))
        else:
            continue
        np.testing.assert_equal(
            (found.accuracy, found.low, found.auc), (row["accuracy"], row["accuracy.low"], row["auc"])
        )
        compared += 1
    assert compared == 5 * len(attacks)


def test_where_no_record_asks_the_run_s_own_attack_does(attacked):
    alone = AttackOnRecords(attacked, "rmia", ["few", "many", "none"])
    helped = replace(alone, otherwise=Measured(0.7))
    assert np.isnan(alone.of_cluster(2).accuracy), "its records are members alone"
    assert np.isnan(alone.of_group(2).accuracy)
    assert helped.of_cluster(2).accuracy == helped.of_group(2).accuracy == 0.7
    assert helped.of_cluster(0).accuracy == alone.of_cluster(0).accuracy, "but not where there are records"


def test_an_attack_that_was_made_both_ways_counts_once(attacked):
    own = {"loss": Measured(0.9), "mine": Measured(0.8)}
    attacks = attacks_on_records(attacked, ["few", "many"], own)
    assert set(attacks) == {*attacked.found, "mine"}
    assert next(iter(attacks)) == attacked.headline
    assert attacks["loss"].of_cluster(0).accuracy != 0.9
    assert attacks["mine"] is own["mine"]


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
    found = {str(i): Measured(*each) for i, each in enumerate(figures)}
    name, low = strongest(found)
    assert name == str(expected)
    if name == "0":
        np.testing.assert_equal(low, found["0"].low)


def test_the_attacked_model_s_members_do_not_choose_the_headline(records):
    """It is the one that finds most on the reference models, each attacked in turn."""
    attacked = AttackedRecords.of(records)
    swapped = AttackedRecords.of(replace(records, scores=replace(records.scores, member=~records.scores.member)))
    assert attacked.headline == swapped.headline
    known = records.scores.reference_member.ravel()
    areas = {n: roc_auc(f.left_out.ravel(), known) for n, f in attacked.found.items() if f.left_out is not None}
    assert attacked.headline == max(areas, key=areas.get)
    assert set(areas) > {"lira", "rmia", "loss"}
    assert next(iter(attacked.measured(records.scores.model == 0))) == attacked.headline


@pytest.mark.parametrize(("references", "expected"), [(0, "loss"), (1, "rmia-offline"), (2, "rmia")])
def test_with_few_reference_models_the_headline_is_stated_beforehand(references, expected):
    scores = made_up(40, references)
    names = np.arange(40).astype(object)
    assert AttackedRecords.of(AuditRecords(scores, names, names, np.full(40, "all", dtype=object))).headline == expected


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
        own = clients == client
        assert auc == pytest.approx(roc_auc_score(scores.member[own], by_attack[name][own]))
    listed = audit.records.set_index("record").loc[names]
    assert listed["score"].tolist() == by_attack[name].tolist()
    assert listed["member"].tolist() == scores.member.tolist()
    epsilon, of_loss = (
        empirical_epsilon(by_attack[each], scores.member, Stream(0)("epsilon"), delta=1e-5) for each in (name, "loss")
    )
    assert audit.empirical_epsilon == epsilon > of_loss + 0.5
