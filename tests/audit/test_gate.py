"""A gate holds where every upper end that it limits does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from shoal.core.errors import InputError
from shoal.core.processes import Workers
from shoal.metrics.intervals import auc_interval
from shoal.runs.audits.audit_files import AuditRequest
from shoal.runs.audits.audit_members import _attack_until_decided
from shoal.runs.audits.gate import Gate, looks, parse_gates, require_measurable

AUDIT = {
    "attacks.lira.all.auc": 0.7,
    "attacks.lira.all.auc.low": 0.6,
    "attacks.lira.all.auc.high": 0.8,
    "attacks.loss.minority.auc.low": 0.86,
    "attacks.loss.minority.auc.high": 0.9,
    "attacks.lira.all.tpr_at_fpr_0.01.high": 0.04,
    "strongest.all": "lira",
    "references": 4,
    "empirical_epsilon": 1.5,
}


def test_the_upper_end_counts():
    assert parse_gates(["auc <= 0.9"])[0].broken_by(AUDIT) == {}
    assert parse_gates(["auc <= 0.85"])[0].broken_by(AUDIT) == {"attacks.loss.minority.auc": 0.9}
    assert parse_gates(["auc<0.9"])[0].broken_by(AUDIT) == {"attacks.loss.minority.auc": 0.9}
    assert set(parse_gates(["auc <= 0.1"])[0].broken_by(AUDIT)) == {"attacks.lira.all.auc", "attacks.loss.minority.auc"}


@pytest.mark.parametrize(("most", "step"), [(0, 2), (1, 2), (2, 2), (5, 2), (16, 2), (16, 4), (3, 4)])
def test_the_intervals_of_all_looks_hold_at_once_and_the_last_look_has_all_references(most, step):
    numbers, confidences = zip(*looks(most, step), strict=True)
    assert numbers[-1] == most
    assert [*numbers] == sorted({*numbers})
    assert all(number % 2 == 0 for number in numbers[:-1]), "two train on opposite records"
    assert sum(1 - confidence for confidence in confidences) == pytest.approx(0.05)


def test_a_gate_is_decided_by_intervals_that_allow_for_all_looks():
    def decided(expression, references, confidence=0.95, value=0.7):
        key = "attacks.lira.all.auc"
        figures = {key: value, f"{key}.low": value - 0.05, f"{key}.high": value + 0.05}
        about = {"references": references, "gates.confidence": confidence, "gates.most_references": 16}
        gate = parse_gates([expression])[0]
        answer, (said, holds) = gate.decision(figures | about), gate.verdict(figures | about)
        assert answer in (holds, None), "a decision is what is said at the end"
        assert ("not decided" in said) == (not holds and answer is None)
        assert f"with {references} of at most 16" in said
        return answer

    assert decided("auc <= 0.8", 4) is True
    assert decided("auc <= 0.8", 2) is None, "attacks with fewer references find less"
    assert decided("auc <= 0.6", 2) is False
    assert decided("auc <= 0.7", 4) is None
    # 0.05 * 2.91 / 1.96 = 0.074 at the confidence of an early look.
    assert [decided("auc <= 0.76", 4, level) for level in (0.95, looks(16)[1][1])] == [True, None]
    assert [decided("auc <= 0.64", 4, level) for level in (0.95, looks(16)[1][1])] == [False, None]


@dataclass(frozen=True)
class MadeUpAudit:
    """The AUCs of attacks on made-up scores, each with its 95 % interval."""

    aucs: tuple[float, ...]
    references: int
    records: int
    guesses: Mapping[str, float] = field(default_factory=dict)

    def flat(self):
        figures = {"references": self.references, **self.guesses}
        for attack, auc in enumerate(self.aucs):
            low, high = auc_interval(auc, self.records, self.records)
            key = f"attacks.{attack}.all.auc"
            figures |= {key: auc, f"{key}.low": low, f"{key}.high": high}
        return figures


@pytest.mark.parametrize(
    ("truth", "expression", "attacks", "wrong"), [(0.5, "auc <= 0.5", 3, False), (0.6, "auc < 0.6", 1, True)]
)
def test_a_limit_at_the_truth_is_rarely_decided_wrongly_at_any_look(truth, expression, attacks, wrong):
    """In at most 5 % of federations, even where scores of different looks are independent, which is the worst case."""
    federations, records, most = 300, 40, 16
    gate, times = parse_gates([expression])[0], len(looks(most))
    scores = np.random.default_rng(0).normal(size=(federations, times, attacks, 2 * records))
    scores[..., :records] += np.sqrt(2) * norm.ppf(truth)
    ranks = rankdata(scores, axis=-1)[..., :records].sum(-1)
    aucs = (ranks - records * (records + 1) / 2) / records**2

    def decided(federation):
        def attack(count) -> Any:
            return None, MadeUpAudit(tuple(federation[count // 2 - 1]), count, records), 0.0

        return gate.decision(_attack_until_decided(attack, AuditRequest([gate], references=most), Workers())[1].flat())

    errors = np.mean([decided(federation) is wrong for federation in aucs])
    assert errors <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / federations)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("attacks.lira.minor.auc <= 0.6", "did you mean 'minority'?"),
        ("views.clients.minority.auc <= 0.6", "did you mean 'client'?"),
        ("lira.auc <= 0.6", "'attacks.ATTACK.GROUP.auc' or 'views.VIEW.GROUP.auc'"),
        ("tpr_at_fpr_0.001 <= 0.6", "needs 3,000 non-members"),
        ("views.client.minority.tpr_at_fpr_0.01 <= 0.6", "needs 300 non-members"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_work(expression, sentence):
    sizes = {"minority": 100, "major.ity": 400}
    with pytest.raises(InputError) as error:
        require_measurable(parse_gates([expression]), sizes)
    assert sentence in str(error.value)
    measurable = ["auc <= 0.6", "attacks.loss.major.ity.tpr_at_fpr_0.01 <= 0.6", "views.server.all.accuracy <= 0.6"]
    require_measurable(parse_gates([*measurable, "empirical_epsilon <= 2"]), sizes)


def test_one_key_is_limited_alone():
    assert parse_gates(["attacks.lira.all.auc <= 0.8"])[0].broken_by(AUDIT) == {}
    assert parse_gates(["attacks.lira.all.auc < 0.8"])[0].broken_by(AUDIT) == {"attacks.lira.all.auc": 0.8}


def test_the_lower_bound_on_epsilon_breaks_a_gate_itself():
    assert parse_gates(["empirical_epsilon <= 1.5"])[0].broken_by(AUDIT) == {}
    assert parse_gates(["empirical_epsilon <= 1"])[0].broken_by(AUDIT) == {"empirical_epsilon": 1.5}


def test_a_judgement_names_the_worst_key_and_counts_the_others():
    sentences = [
        parse_gates([expression])[0].verdict(AUDIT) for expression in ("auc <= 0.9", "auc <= 0.85", "auc < 0.1")
    ]
    assert sentences == [
        ("Gate auc <= 0.9: holds", True),
        ("Gate auc <= 0.85: broken by attacks.loss.minority.auc, whose upper end is 0.900", False),
        ("Gate auc < 0.1: broken by attacks.loss.minority.auc, whose upper end is 0.900, and 1 more figure", False),
    ]


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("tpr_at_fpr_0.01", "has the form 'METRIC <= NUMBER'"),
        ("auc >= 0.5", "has the form 'METRIC <= NUMBER'"),
        ("auc <= high", "got the number 'high'"),
        ("auc <= nan", "got the number 'nan'"),
        ("aucc <= 0.5", "did you mean 'auc'?"),
        ("references <= 4", "a gate cannot limit 'references'"),
        ("auc <= 1", "always holds, since 'auc' cannot exceed 1; give a number between 0 and 1"),
        ("views.client.a.tpr_at_fpr_0.01 <= 5", "always holds"),
        ("empirical_epsilon <= inf", "always holds, since 'empirical_epsilon' cannot exceed inf"),
        ("accuracy < 0", "never holds, since 'accuracy' is at least 0"),
        (0.6, "such as 'tpr_at_fpr_0.01 <= 0.05' (got 0.6)"),
    ],
)
def test_an_expression_that_is_none_is_one_sentence(expression, sentence):
    with pytest.raises(InputError) as error:
        parse_gates([expression])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_gates_are_a_list():
    assert parse_gates(["auc <= 0.9"]) == [Gate("auc", 0.9)]
    with pytest.raises(InputError, match=r"'gates' must be a list, such as \['accuracy <= 0\.6'\]"):
        parse_gates("auc <= 0.9")


def test_no_gate_holds_where_an_attack_is_certainly_below_chance():
    gate = parse_gates(["attacks.lira.all.auc <= 0.9"])[0]

    def judged(attack, high):
        key = f"attacks.{attack}.all.auc"
        return gate.verdict(AUDIT | {key: 0.4, f"{key}.low": 0.3, f"{key}.high": high})

    sentence, holds = judged("loss", 0.47)
    assert not holds
    assert "loss on all has an AUC of 0.400 (0.300 to 0.470)" in sentence
    assert gate.broken_by(AUDIT | {"attacks.loss.all.auc": 0.4, "attacks.loss.all.auc.high": 0.47})
    # In the interval, of two distributions, or against the clients' own records it does not count.
    assert all(judged(*case)[1] for case in (("loss", 0.51), ("bavaria", 0.47), ("fedmia-i-others", 0.47)))
    # The upper end of one of three is 0.40 + 0.09 * 2.39 / 1.96.
    others = {f"attacks.{name}.all.auc": 0.5 for name in ("rmia", "gap")}
    found = AUDIT | {"attacks.loss.all.auc": 0.4, "attacks.loss.all.auc.high": 0.49}
    assert gate.broken_by(found)
    assert not gate.broken_by(found | others)


def test_a_gate_on_what_was_not_measured_does_not_hold_silently():
    with pytest.raises(InputError, match=r"'tpr_at_fpr_0\.001' was not measured"):
        parse_gates(["tpr_at_fpr_0.001 <= 0.5"])[0].broken_by(AUDIT)
    with pytest.raises(InputError, match="was not measured"):
        parse_gates(["attacks.lira.elsewhere.auc <= 0.5"])[0].broken_by(AUDIT)
