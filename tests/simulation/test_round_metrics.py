"""The rows of rounds.csv against numbers by hand."""

from dataclasses import replace
from math import isnan

import pytest
import torch

from shoal.core.randomness import Stream
from shoal.engine import Engine, RoundPlan, RoundReport, State
from shoal.simulation.round_metrics import directive_columns, round_metrics

LOSSES = torch.tensor([[0.1, 9.0, 9.0], [8.0, 0.2, 9.0], [8.0, 0.4, 9.0], [8.0, 0.9, 9.0]])
"""Of clients 2, 0, 1 and 5 on three models: the first chose model 0, the others model 1, nobody the last."""


@pytest.fixture
def rows(mlp, build):
    federation, chosen = build(), torch.tensor([0, 1, 1, 1])
    models = torch.stack([mlp.init(Stream(3)(k)) for k in range(3)])
    report = RoundReport(torch.tensor([2, 0, 1, 5]), RoundPlan(chosen, (), LOSSES), False, {})
    with Engine(mlp) as engine:
        found = round_metrics(State.initial(models, 6), report, federation, engine, evaluated=True)
        right = [engine.outputs(model, federation.test.x).argmax(1) == federation.test.y for model in models]
    groups = [federation.groups[int(federation.group[i])] for i in (0, 5)]
    of_group = [
        [float(each[federation.test.group == federation.group[i]].double().mean()) for i in (0, 5)] for each in right
    ]
    return found, groups, of_group


def test_a_row_is_of_the_clients_that_chose_the_model_in_this_round(rows):
    found, (first, second), _ = rows
    assert [row["clients"] for row in found] == [1, 3, 0]
    assert [row["examples"] for row in found] == [7, 9 + 12 + 10, 0]
    assert [(row[f"clients.{first}"], row[f"clients.{second}"]) for row in found] == [(0, 1), (2, 1), (0, 0)]
    assert [row["train_loss"] for row in found[:2]] == pytest.approx([0.1, (0.2 + 0.4 + 0.9) / 3])
    assert isnan(found[2]["train_loss"])


def test_a_model_s_accuracy_is_of_its_clients_groups_by_their_number(rows):
    found, names, of_group = rows
    for row, accuracies in zip(found, of_group, strict=True):
        assert [row[f"accuracy.{name}"] for name in names] == pytest.approx(accuracies)
    assert of_group[1][0] != of_group[1][1], "or weights do not show"
    assert found[0]["accuracy"] == pytest.approx(of_group[0][1])
    assert found[1]["accuracy"] == pytest.approx((2 * of_group[1][0] + of_group[1][1]) / 3)
    assert isnan(found[2]["accuracy"])


@pytest.mark.parametrize("models", [1, 2, 3])
def test_directives_of_another_number_of_models_are_not_those_of_these(models, mlp):
    state = State.initial(torch.stack([mlp.init(Stream(k)) for k in range(models)]), 6)
    state = replace(state, directives={"l2": torch.tensor([0.25, 0.5])})
    of_models = [directive_columns(state, k)["directive.l2"] for k in range(models)]
    assert of_models == [0.25, 0.5] if models == 2 else all(map(isnan, of_models))
