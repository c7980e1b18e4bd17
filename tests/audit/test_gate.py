"""A gate holds where every upper end that it limits does."""

import pytest

from shoal.audit.audit import Gate, parse_gates
from shoal.core.errors import InputError

AUDIT = {
    "attacks.lira.all.auc": 0.7,
    "attacks.lira.all.auc.low": 0.6,
    "attacks.lira.all.auc.high": 0.8,
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


def test_one_key_is_limited_alone():
    assert parse_gates(["attacks.lira.all.auc <= 0.8"])[0].broken_by(AUDIT) == {}
    assert parse_gates(["attacks.lira.all.auc < 0.8"])[0].broken_by(AUDIT) == {"attacks.lira.all.auc": 0.8}


def test_the_lower_bound_on_epsilon_breaks_a_gate_itself():
    assert parse_gates(["empirical_epsilon <= 1.5"])[0].broken_by(AUDIT) == {}
    assert parse_gates(["empirical_epsilon <= 1"])[0].broken_by(AUDIT) == {"empirical_epsilon": 1.5}


def test_a_judgement_names_the_worst_key_and_counts_the_others():
    sentences = [
        parse_gates([expression])[0].judged(AUDIT) for expression in ("auc <= 0.9", "auc <= 0.85", "auc < 0.1")
    ]
    assert sentences == [
        ("Gate auc <= 0.9: holds", True),
        ("Gate auc <= 0.85: broken by attacks.loss.minority.auc, whose upper end is 0.900", False),
        ("Gate auc < 0.1: broken by attacks.loss.minority.auc, whose upper end is 0.900, and by 1 more", False),
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
        (0.6, "such as 'tpr_at_fpr_0.01 <= 0.05'; got 0.6"),
    ],
)
def test_an_expression_that_is_none_is_one_sentence(expression, sentence):
    with pytest.raises(InputError) as error:
        parse_gates([expression])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_gates_are_a_list():
    assert parse_gates(["auc <= 0.9"]) == [Gate("auc", 0.9)]
    with pytest.raises(InputError, match=r"'gates' must be a list, such as \['accuracy <= 0\.6'\]; got 'auc <= 0\.9'"):
        parse_gates("auc <= 0.9")


def test_no_gate_holds_where_an_attack_is_certainly_below_chance():
    gate = parse_gates(["attacks.lira.all.auc <= 0.9"])[0]

    def judged(attack, high):
        key = f"attacks.{attack}.all.auc"
        return gate.judged(AUDIT | {key: 0.4, f"{key}.low": 0.3, f"{key}.high": high})

    sentence, holds = judged("loss", 0.47)
    assert not holds
    assert "loss on all has an AUC of 0.400 (0.300 to 0.470)" in sentence
    assert gate.broken_by(AUDIT | {"attacks.loss.all.auc": 0.4, "attacks.loss.all.auc.high": 0.47})
    # In the interval, of two distributions, or against the clients' own records it is no sign.
    assert all(judged(*case)[1] for case in (("loss", 0.51), ("bavaria", 0.47), ("fedmia-i-others", 0.47)))
    # The upper end of one of three is 0.40 + 0.09 * 2.39 / 1.96.
    others = {f"attacks.{name}.all.auc": 0.5 for name in ("rmia", "gap")}
    found = AUDIT | {"attacks.loss.all.auc": 0.4, "attacks.loss.all.auc.high": 0.49}
    assert gate.broken_by(found)
    assert not gate.broken_by(found | others)


def test_a_gate_on_what_was_not_measured_does_not_hold_silently():
    with pytest.raises(InputError, match=r"'tpr_at_fpr_0\.001' was not measured"):
        parse_gates(["tpr_at_fpr_0.001 <= 0.5"])[0].broken_by(AUDIT)
    with pytest.raises(InputError, match="no such attack, group or view"):
        parse_gates(["attacks.lira.elsewhere.auc <= 0.5"])[0].broken_by(AUDIT)
