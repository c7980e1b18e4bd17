"""Who is a member of which model, where clients train one model in a round, and where they train all."""

from dataclasses import replace

import pytest
import torch

from shoal.audit.model_scores import Membership, is_personal
from shoal.engine import Deployed, LocalSGD, PersonalModels, State


def after(trained, assignment):
    return replace(State.initial(torch.zeros(2, 3), len(assignment)), trained=torch.tensor(trained),
                   assignment=torch.tensor(assignment))  # fmt: skip


def deployed(model):
    return Deployed(torch.zeros(2, 3), torch.tensor(model), torch.tensor(model))


def test_a_client_that_trained_one_model_last_is_a_member_of_that_whatever_it_uses():
    state = after([[5, 0], [4, 5], [0, 0]], [0, 1, -1])
    for model in ([0, 1, 0], [1, 0, 1]):
        found = Membership.of_deployed(state, deployed(model), within=5)
        assert found.latest.tolist() == [0, 1, -1]
        assert found.trainers.tolist() == [[True, False], [True, True], [False, False]]


def test_of_models_that_were_trained_together_it_is_a_member_of_the_one_that_it_uses():
    state = after([[5, 5], [3, 3], [0, 0]], [0, 0, -1])
    assert Membership.of_deployed(state, deployed([1, 1, 1]), within=5).latest.tolist() == [1, 1, -1]
    assert Membership.of_deployed(state, deployed([0, 1, 0]), within=5).latest.tolist() == [0, 1, -1]
    # Too long before the models' last training: a member no more.
    assert Membership.of_deployed(state, deployed([1, 1, 1]), within=1).latest.tolist() == [1, -1, -1]


@pytest.mark.parametrize("model", [[0, 0, 1], [1, 1, 1]])
def test_without_a_record_of_trainings_the_assignment_decides(model):
    state = replace(after([[0, 0]] * 3, [1, 0, -1]), trained=torch.zeros(0, 0, dtype=torch.int64))
    assert Membership.of_deployed(state, deployed(model), within=5).latest.tolist() == [1, 0, -1]


def test_who_sat_a_round_out_is_no_member_of_its_own_model():
    models = torch.zeros(3, 3)
    personal = Deployed(
        PersonalModels(3, lambda some: models[some]), torch.arange(3), torch.zeros(3, dtype=torch.int64)
    )
    # Of three clients in the round one trained, as FedSoft selects them.
    state = after([[4, 4], [0, 0], [0, 0]], [0, 1, 1])
    assert Membership.of_deployed(state, personal, within=5).latest.tolist() == [0, -1, -1]
    # Who fine-tunes afterwards has trained its own model.
    tuned = replace(personal, fine_tuning=(LocalSGD(),))
    assert Membership.of_deployed(state, tuned, within=5).latest.tolist() == [0, 1, 2]
    # In local training nothing is sent, and who was there has trained.
    assert Membership.of_deployed(after([[0, 0]] * 3, [0, 1, -1]), personal, within=5).latest.tolist() == [0, 1, -1]


def test_a_cluster_with_one_client_is_no_personal_model():
    models, everybody, one = torch.zeros(3, 3), torch.arange(3), torch.zeros(3, dtype=torch.int64)
    assert not is_personal(Deployed(models, everybody, everybody))
    assert is_personal(Deployed(models, everybody, one))
    assert is_personal(Deployed(PersonalModels(3, lambda some: models[some]), everybody, everybody))
