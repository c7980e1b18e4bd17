"""Members of each model, and their exposure."""

from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from full_simulation import simulate_with
from shoal import IFCA, FedAvg, LocalSGD, LossThreshold, RedTeam, ShadowModels, simulate
from shoal.audit.final_attacks import exposure_of_clients
from shoal.audit.model_scores import Membership, is_personal
from shoal.core.randomness import Stream
from shoal.engine import DeployedModels, Engine, PersonalModels, State, Training

LOCAL = LocalSGD(epochs=1, batch_size=4, learning_rate=0.1)


class Scripted(IFCA):
    """Clients choose as a script says: one row of clusters per round, the last one for the end."""

    def plan(self, state, cohort):
        wanted = torch.tensor(self.script[min(state.round, len(self.script) - 1)])[cohort.clients]
        return self.plan_of(wanted, None, state, cohort)

    def deployed_models(self, state, cohort):
        plain = super().deployed_models(state, cohort)
        last = torch.tensor(self.script[-1])
        return replace(plain, model=last, assignment=last)


def scripted(*script):
    algorithm = Scripted(2)
    object.__setattr__(algorithm, "script", script)
    return algorithm


def trained(mlp, federation, *script):
    """The state after a round per row of the script."""
    with Engine(mlp) as engine:
        training = Training(federation, scripted(*script), LOCAL, engine, Stream(0))
        return list(training.rounds(training.start(), len(script)))[-1][0]


def test_the_engine_records_who_trained_which_model_and_when(mlp, build):
    state = trained(mlp, build(), [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 1, 1], [1, 1, 0, 0, 1, 1])
    assert state.trained.tolist() == [[2, 3], [1, 3], [3, 0], [3, 2], [0, 3], [0, 3]]
    assert state.trainers(1)[:, 0].tolist() == [False, False, True, True, False, False]
    assert torch.equal(state.trainers(1)[:, 1], ~state.trainers(1)[:, 0])
    assert state.trainers(2)[0].tolist() == [True, True]
    assert state.trainers(3)[1].tolist() == [True, True]
    assert torch.equal(state.trainers(2**70), state.trainers(100))


def test_a_model_that_rests_keeps_its_members(mlp, build):
    state = trained(mlp, build(), [0, 0, 0, 1, 1, 1], *[[1] * 6] * 9)
    assert state.trainers(2)[:, 0].tolist() == [True, True, True, False, False, False]


def test_a_state_made_by_hand_takes_the_assignment():
    state = State(3, torch.zeros(2, 4), torch.zeros(2), torch.tensor([0, 1, -1]))
    assert state.trainers(5).tolist() == [[True, False], [False, True], [False, False]]


def measured(mlp, build, algorithm, **settings):
    team = RedTeam(every=0, attack=LossThreshold(), shadow_models=ShadowModels(number=2))
    return simulate_with(build(), mlp, algorithm, LOCAL, **{"rounds": 4, "red_team": team} | settings)


def test_members_are_those_who_trained_and_not_those_who_choose_at_the_end(mlp, build):
    stay = [0, 0, 0, 1, 1, 1]
    plain = measured(mlp, build, scripted(stay, stay, stay, stay, stay))
    flees = measured(mlp, build, scripted(stay, stay, stay, stay, [1, 0, 0, 1, 1, 1]))
    # Client 0 leaves after the last round: the models and their members are the same, and so is its exposure.
    assert torch.equal(flees.state.models, plain.state.models)
    for k in range(2):
        assert flees.summary.by_cluster[k]["mia"] == plain.summary.by_cluster[k]["mia"]
    assert flees.clients["cluster"].tolist() == [1, 0, 0, 1, 1, 1]
    assert flees.clients["exposure"].tolist() == plain.clients["exposure"].tolist()
    assert flees.clients["attack"].tolist() == plain.clients["attack"].tolist()
    # What is told of its new model is that model's.
    assert flees.clients["mia"][0] == flees.clients["mia"][3]


def test_clients_that_never_trained_are_no_members(mlp, build):
    result = measured(mlp, build, FedAvg(), participation=0.5, rounds=1)
    trained = (result.state.trained > 0).any(dim=1).numpy()
    assert trained.sum() == 3
    assert result.clients["exposure"].notna().tolist() == trained.tolist()
    assert (result.clients.loc[~trained, "attack"] == "none").all()
    assert not result.clients.loc[~trained, "exceeded"].any()
    members = sum(metrics["members"] for metrics in result.summary.by_group.values())
    assert members == result.clients.loc[trained, "examples"].sum()


def test_who_trained_too_long_ago_is_no_member(mlp, build):
    stay, gone = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]
    # Client 2 leaves model 0 before the last four of its rounds and trains the other since.
    for member_rounds, members in ((4, [12 + 9, 7 + 12 + 5 + 10]), (5, [9 + 12 + 7, 7 + 12 + 5 + 10])):
        result = measured(
            mlp, build, scripted(stay, gone, gone, gone, gone, gone), rounds=5, member_rounds=member_rounds
        )
        audited = [int(metrics["examples"]) for metrics in result.summary.by_cluster.values()]
        assert audited == [21, 34], "sizes are of those who choose the model at the end"
        exposed = result.state.trainers(member_rounds)
        assert [int((exposed[:, k] * torch.tensor([9, 12, 7, 12, 5, 10])).sum()) for k in (0, 1)] == members
    # In groups everybody counts once, on the model that it trained last.
    assert sum(metrics["members"] for metrics in result.summary.by_group.values()) == 55


def test_exposure_is_by_the_deciding_attack_on_the_most_exposed_model_that_a_client_trained(build):
    federation = build(threshold=0.6)
    nan = float("nan")
    first, other = ((0.55, 0.5), (0.7, 0.65), (nan, nan)), ((0.66, 0.64), (0.72, 0.66), (nan, nan))
    by_model = [
        {
            name: SimpleNamespace(accuracy=accuracy, low=low, auc=accuracy, auc_low=low, null_high=0.54)
            for name, (accuracy, low) in attacks
        }
        for attacks in (zip(("first", "other"), pair, strict=True) for pair in zip(first, other, strict=True))
    ]
    trainers = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1]], dtype=bool)
    columns = exposure_of_clients(by_model, trainers, federation)
    # On the first model the other is certain to be stronger, on the second it is larger by chance.
    np.testing.assert_array_equal(columns["exposure"], [0.66, 0.7, 0.7, nan, nan, 0.66])
    at_once = 0.66 - 0.02 * NormalDist().inv_cdf(0.9875) / NormalDist().inv_cdf(0.975)
    np.testing.assert_allclose(columns["exposure_low"], [at_once, 0.65, 0.65, nan, nan, at_once])
    np.testing.assert_array_equal(columns["exposure_null_high"], [0.54, 0.54, 0.54, nan, nan, 0.54])
    assert columns["attack"].tolist() == ["other", "first", "first", "none", "none", "other"]
    assert columns["exceeded"].tolist() == [True, True, True, False, False, True]
    strict = exposure_of_clients(by_model, trainers, build(threshold=0.64))
    assert strict["exceeded"].tolist() == [False, True, True, False, False, False], "the estimate is above, the end not"


def test_untrained_models_exceed_nobody_s_limit(mlp, build):
    """With the lowest possible threshold; by the estimate alone about half of all clients would be over theirs."""
    exceeded = over = 0
    for seed in range(8):
        local = LocalSGD(steps=1, learning_rate=1e-9)
        team = RedTeam(every=0, attack=LossThreshold(), shadow_models=ShadowModels(number=2))
        result = simulate(build(threshold=0.5), mlp, FedAvg(), local, rounds=1, red_team=team, seed=seed)
        exceeded += result.summary.overall["exceeded.total"]
        over += result.summary.overall["violations.total"]
    assert exceeded == 0
    assert over > 0


def test_the_summary_says_how_many_examples_shadow_models_had(mlp, build, caplog):
    result = measured(mlp, build, FedAvg())
    # 55 examples of the clients, and half of 60 in the shadow set.
    assert result.summary.by_cluster[0]["shadow_examples"] == 30
    assert "too few examples for shadow models" in caplog.text


def after(trained, assignment):
    return replace(State.initial(torch.zeros(2, 3), len(assignment)), trained=torch.tensor(trained),
                   assignment=torch.tensor(assignment))  # fmt: skip


def deployed(model):
    return DeployedModels(torch.zeros(2, 3), torch.tensor(model), torch.tensor(model))


def test_a_client_that_trained_one_model_last_is_a_member_of_that_whatever_it_uses():
    state = after([[5, 0], [4, 5], [0, 0]], [0, 1, -1])
    for model in ([0, 1, 0], [1, 0, 1]):
        members = Membership.of_deployed(state, deployed(model), within=5)
        assert members.latest.tolist() == [0, 1, -1]
        assert members.trainers.tolist() == [[True, False], [True, True], [False, False]]


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
    personal = DeployedModels(
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
    assert not is_personal(DeployedModels(models, everybody, everybody))
    assert is_personal(DeployedModels(models, everybody, one))
    assert is_personal(DeployedModels(PersonalModels(3, lambda some: models[some]), everybody, everybody))
