"""Attacks of a user's own that an audit cannot ask are refused, each in one sentence that names the attack."""

import numpy as np
import pytest

import shoal
from shoal.audit.update_audit import all_attacks
from shoal.core.errors import InputError


class Rank:
    name, title, view, least = "rank", "Rank", "outsider", 0

    def __init__(self, **attributes: object):
        vars(self).update(attributes)

    def scores(self, scores):
        return scores.score


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"name": "my attack.v2"}, "'name' must be of letters, digits, '-' and '_'.*; got 'my attack.v2'"),
        ({"name": "lira"}, "'lira' is another attack's"),
        ({"view": "bystander"}, "'rank': 'view' must be one of outsider, client, server; got 'bystander'"),
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
