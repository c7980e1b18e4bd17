"""The parts of the coordinator: votes, utilities, what knobs do, and how strong each is."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from shoal.control import Knob, LimitController, RecordedDirectives, RiskPrediction
from shoal.control.coordinator import over_limit_shares, utilities
from shoal.control.knobs import Memory, Sensitivity, allocate
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import L2
from shoal.engine import ClusterRound, Engine, LocalSGD, State

FLOAT = torch.float64


def federation_of(thresholds: list[float], **further) -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(3, 1, 6, 6, generator=generator), torch.tensor([0, 1, 2])) for _ in thresholds]
    return Federation.from_tensors(clients, test=clients[0], threshold=thresholds, **further)


@pytest.mark.parametrize("seed", range(20))
def test_allocation_is_the_solution_of_the_linear_program(seed):
    random = np.random.default_rng(seed)
    relief, cost = random.uniform(0.01, 0.1, 4), random.uniform(0.0, 0.05, 4)
    demand, budget = random.uniform(0.0, 0.3), random.uniform(0.0, 0.1)
    found = allocate(demand, torch.tensor(relief), torch.tensor(cost), budget).numpy()
    most = -linprog(-relief, A_ub=[cost], b_ub=[budget], bounds=[(0, 1)] * 4).fun
    least = linprog(cost, A_eq=[relief], b_eq=[min(demand, most)], bounds=[(0, 1)] * 4).fun
    assert found.min() >= 0
    assert found.max() <= 1
    assert relief @ found == pytest.approx(min(demand, most))
    assert cost @ found == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_allocation_changes_no_more_than_it_must_and_keeps_the_budget(seed):
    random = np.random.default_rng(seed)
    relief, cost, held = random.uniform(0.01, 0.1, 4), random.uniform(0.0, 0.05, 4), random.uniform(0.0, 1.0, 4)
    given = (torch.tensor(relief), torch.tensor(cost))
    had, spent = float(relief @ held), float(cost @ held)
    more, less = (allocate(had * f, *given, 1.0, torch.tensor(held)).numpy() for f in (1.1, 0.7))
    assert (more >= held).all()
    assert (less <= held).all()
    assert [relief @ more, relief @ less] == pytest.approx([min(had * 1.1, relief.sum()), had * 0.7])
    np.testing.assert_allclose(allocate(had, *given, spent, torch.tensor(held)).numpy(), held, atol=1e-9)
    # Of those that moved up, none is dearer than one that is not full yet; of those down, none cheaper than one left.
    dear = cost / relief
    assert max(dear[more > held + 1e-9], default=0) <= min(dear[more < 1 - 1e-9], default=np.inf)
    assert min(dear[less < held - 1e-9], default=np.inf) >= max(dear[less > 1e-9], default=0)
    tight = allocate(had, *given, 0.5 * spent, torch.tensor(held)).numpy()
    assert cost @ tight <= 0.5 * spent + 1e-9
    assert tight.min() >= 0


def test_a_knob_that_reduces_no_risk_stays_off():
    assert allocate(1.0, torch.tensor([0.0, 0.1]), torch.tensor([0.0, 0.1]), 1.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("cost", [0.0, -0.3])
def test_a_knob_that_costs_nothing_is_raised_first_and_without_a_budget(cost):
    relief, costs = torch.tensor([0.04, 0.04]), torch.tensor([0.02, cost])
    assert allocate(0.05, relief, costs, 0.005).tolist() == pytest.approx([0.25, 1.0])
    assert allocate(0.05, relief, costs, 0.0).tolist() == [0.0, 1.0]


def sensitivity(prior: list[float], ratio: float = 1.0) -> Sensitivity:
    count = len(prior)
    return Sensitivity(
        torch.tensor(prior, dtype=FLOAT), torch.zeros(count, count, dtype=FLOAT), torch.zeros(count, dtype=FLOAT), ratio
    )


def test_effects_are_learned_whatever_the_trend():
    true, learned = torch.tensor([0.3, -0.2], dtype=FLOAT), sensitivity([0.0, 0.1], 0.01)
    generator = Stream(1).generator()
    for trend in (0.5, -1.0, 2.0, 0.1):
        strengths = torch.rand(3, 2, generator=generator, dtype=FLOAT)
        learned = learned.observed(strengths, strengths @ true + trend)
    torch.testing.assert_close(learned.effect(), true, atol=1e-3, rtol=0)


def test_nothing_is_learned_from_one_cluster_or_equal_changes():
    # After an estimate that did teach: what is known is not forgotten either.
    before = sensitivity([0.3, 0.1]).observed(torch.eye(2, dtype=FLOAT), torch.tensor([0.4, 0.0], dtype=FLOAT))
    alone = before.observed(torch.ones(1, 2, dtype=FLOAT), torch.tensor([5.0], dtype=FLOAT))
    alike = before.observed(torch.ones(3, 2, dtype=FLOAT), torch.tensor([5.0, 4.0, 6.0], dtype=FLOAT))
    unknown = before.observed(torch.eye(2, dtype=FLOAT), torch.tensor([5.0, math.nan], dtype=FLOAT))
    assert alone is before
    assert unknown is before
    torch.testing.assert_close(alike.evidence / alike.information[0, 0], before.evidence / before.information[0, 0])


def test_a_single_observation_moves_the_belief_by_ridge_regression():
    strengths, change, prior = torch.eye(2, dtype=FLOAT), torch.tensor([0.4, 0.0], dtype=FLOAT), [0.1, 0.2]
    x, y = np.array([[0.5, -0.5], [-0.5, 0.5]]), np.array([0.2, -0.2])
    ridge = np.array(prior) + np.linalg.solve(x.T @ x + 4 * np.eye(2), x.T @ (y - x @ np.array(prior)))
    found = sensitivity(prior, 2.0).observed(strengths, change).effect()
    np.testing.assert_allclose(found.numpy(), ridge)


def test_a_model_that_nobody_uses_teaches_nothing():
    """Its risk is the last one, whatever its knobs do."""
    coordinator, none = LimitController({"l2": Knob(L2(0.1))}), torch.full((3,), torch.nan, dtype=FLOAT)
    state = State.initial(torch.zeros(3, 4), 3)
    shares = torch.tensor([1.0, 0.5, torch.nan], dtype=FLOAT)
    for risks in ([0.7, 0.7, 0.7], [0.6, 0.65, 0.7], [0.5, 0.6, 0.7]):
        state = replace(state, risks=torch.tensor(risks, dtype=FLOAT))
        before = Memory.from_state(state, coordinator.knobs)
        state = coordinator.steer(state, shares, shares, none, none)
        after = Memory.from_state(state, coordinator.knobs)
        changed = (before.strengths - before.strengths_before)[:2]
        alone = before.risk_reduction.observed(changed, (before.risk - state.risks)[:2])
        assert torch.equal(after.risk_reduction.evidence, alone.evidence)
    assert (after.risk_reduction.evidence != 0).any(), "or nothing was learned at all"


def test_votes_are_counted_by_model_and_nobody_else_is_asked():
    federation = federation_of([0.5, 0.6, 0.7, 0.8, 0.5])
    shares = over_limit_shares(
        torch.tensor([0.65, 0.75, 0.9], dtype=FLOAT), torch.tensor([0, 0, 1, 1, -1]), federation, None, Stream(0)
    )
    assert shares[:2].tolist() == [1.0, 0.5]
    at_the_limit = torch.tensor([0.6, 0.8, 0.9], dtype=FLOAT), torch.tensor([0, 0, 1, 1, -1])
    assert over_limit_shares(*at_the_limit, federation, None, Stream(0))[:2].tolist() == [0.5, 0.5]
    assert math.isnan(shares[2]), "a model without members has no share"


def test_randomised_answers_are_unbiased_and_go_with_the_client():
    many = 4000
    federation = federation_of([0.6] * many)
    half = torch.arange(many) % 4 == 0
    federation.preferences.threshold[half] = 0.5
    risks, assignment = torch.tensor([0.55], dtype=FLOAT), torch.zeros(many, dtype=torch.int64)
    found = [over_limit_shares(risks, assignment, federation, 1.0, Stream(seed)) for seed in range(20)]
    lies = 1 / (1 + math.e)
    deviation = math.sqrt(lies * (1 - lies) / many) / (1 - 2 * lies)
    assert abs(float(torch.stack(found).mean()) - 0.25) < 4 * deviation / math.sqrt(20)
    assert len({float(each) for each in found}) > 10
    few = [over_limit_shares(risks, assignment[:4], federation_of([0.6] * 4), 0.5, Stream(seed)) for seed in range(20)]
    assert min(few) == 0, "a share is never less"
    assert max(few) == 1, "nor more"
    order = torch.randperm(many, generator=torch.Generator().manual_seed(1))
    again = over_limit_shares(risks, assignment, federation.take(order), 1.0, Stream(0))
    assert float(again) == float(found[0])


def test_utilities_are_of_the_members_hold_outs_or_else_of_the_shadow_set(mlp):
    generator = torch.Generator().manual_seed(3)
    own = [(torch.randn(20, 1, 6, 6, generator=generator), torch.arange(20) % 3) for _ in range(4)]
    models = torch.stack([mlp.init(Stream(k)) for k in range(3)])
    assignment = torch.tensor([0, 0, 1, -1])
    held = Federation.from_tensors(own, test=own[0], holdout=own, shadow=own[3])
    with Engine(mlp) as engine:
        state = State(1, models, torch.full((3,), 0.5, dtype=FLOAT), assignment)
        for federation, examples in (
            (held, [(torch.cat([own[0][0], own[1][0]]), torch.cat([own[0][1], own[1][1]])), own[2]]),
            (Federation.from_tensors(own, test=own[0], shadow=own[3]), [own[3], own[3]]),
        ):
            values, errors = utilities(state, federation, engine)
            for k, (x, y) in enumerate(examples):
                right = (engine.outputs(models[k], x).argmax(dim=1) == y).double()
                assert float(values[k]) == float(right.mean())
                assert float(errors[k]) == pytest.approx(float((right.mean() * (1 - right.mean()) / len(y)).sqrt()))
            assert math.isnan(values[2])


def coordinator(**changes) -> LimitController:
    return LimitController(
        {"l2": Knob(L2(0.1), risk_reduction=0.1, accuracy_cost=0.01)}, **{"gain": 0.1, "max_cost": 0.02, **changes}
    )


def updated(
    asked: LimitController, risks: list[list[float]], thresholds: list[float], mlp, half: float = math.nan
) -> list[State]:
    """The states after each estimate of these risks (K,); clients are dealt out in turn.

    ``half`` is how far the ends of a risk's interval are from it.
    """
    federation = federation_of(thresholds)
    models = torch.stack([mlp.init(Stream(k)) for k in range(len(risks[0]))])
    with Engine(mlp) as engine:
        state = State.initial(models, len(thresholds))
        state = asked.start(state, federation, engine, Stream(0))
        states = [state]
        for number, each in enumerate(risks, start=1):
            assignment = torch.arange(len(thresholds)) % len(each)
            state = State(
                number,
                models,
                torch.tensor(each, dtype=FLOAT),
                assignment,
                directives=state.directives,
                control=state.control,
                risk_intervals=torch.tensor([[risk - half, risk + half] for risk in each], dtype=FLOAT),
            )
            state = asked.update(state, federation, engine, Stream(number))
            states.append(state)
    return states


def strengths(states: list[State]) -> list[list[float]]:
    return [each.directives["l2"].tolist() for each in states]


def test_integral_action_moves_only_the_cluster_over_its_limit_and_stops_at_full_strength(mlp):
    # Of model 0 all members are over their limit (e = 0.9), of model 1 nobody.
    found = strengths(updated(coordinator(), [[0.7, 0.5]] * 3, [0.6] * 6, mlp))
    assert [each[1] for each in found] == [0.0] * 4
    assert [each[0] for each in found] == pytest.approx([0.0, 0.9, 1.0, 1.0])


@pytest.mark.parametrize(
    ("factor", "level", "strength"),
    [(1.0, 0.5, 0.0), (1.4, 0.5, 0.0), (1.6, 0.5, 0.9), (3.0, 0.5, 0.9), (0.4, 0.6, 0.0), (0.6, 0.6, 0.9)],
)
def test_clients_are_asked_about_a_line_of_the_estimate(factor, level, strength, mlp):
    """An estimate of 0.6 is told as level + 0.1 factor; all tolerate 0.65."""
    states = updated(coordinator(audit_factor=factor, audit_level=level), [[0.6]], [0.65] * 4, mlp)
    assert strengths(states)[-1] == pytest.approx([strength])


def test_a_knob_that_seemed_to_harm_once_is_not_given_up(mlp):
    """The steered model's risk rose by 0.3: less relief than a quarter of what was believed is not concluded."""
    states = updated(coordinator(gain=1.0), [[0.6, 0.5], [0.9, 0.5], [0.9, 0.5]], [0.55] * 6, mlp)
    assert float(Memory.from_state(states[-1], coordinator().knobs).risk_reduction.effect()) < 0
    assert [each[0] for each in strengths(states)] == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert float(states[-1].control["demand"][0]) == pytest.approx(0.25 * 0.1)


def test_demand_is_not_wound_up_and_is_released_slowly(mlp):
    states = updated(coordinator(release=0.05), [[0.7]] * 10 + [[0.5]] * 3, [0.6] * 4, mlp)
    # After ten estimates at full strength the first one below the limit already moves it: by release * target / relief.
    assert [each[0] for each in strengths(states)][-4:] == pytest.approx([1.0, 0.95, 0.9, 0.85])


@pytest.mark.parametrize(("half", "released"), [(math.nan, True), (0.05, True), (0.15, False)])
def test_knobs_are_released_on_what_the_interval_leaves_possible(mlp, half, released):
    risks, limits = [[0.7]] * 2 + [[0.5]] * 3, [0.6] * 4
    by_interval = strengths(updated(coordinator(release_on="interval"), risks, limits, mlp, half))
    by_estimate = strengths(updated(coordinator(), risks, limits, mlp, half))
    assert by_interval[:3] == by_estimate[:3], "raised on the estimate either way"
    assert (by_interval == by_estimate) is released
    assert (by_interval[-1][0] < by_interval[2][0]) is released


def test_the_budget_bounds_strength_and_what_cannot_be_kept_is_said(mlp, caplog):
    with caplog.at_level("INFO"):
        states = updated(coordinator(max_cost=0.004), [[0.7]] * 2, [0.6] * 4, mlp)
    assert strengths(states)[-1] == pytest.approx([0.4])
    # Not by the first estimate, which found no knob on.
    assert [each.control["limit_unmet"].tolist() for each in states] == [[0.0], [0.0], [1.0]]
    assert "stays above its members' limits" in caplog.text


def test_a_share_within_the_target_leaves_no_limit_unmet(mlp):
    # At full strength, one of twelve members is over its limit: more than nobody, and less than the target.
    states = updated(coordinator(max_cost=0.004), [[0.7]] * 2 + [[0.65]] * 2, [0.6] + [0.66] * 11, mlp)
    assert [each.control["limit_unmet"].tolist() for each in states] == [[0.0], [0.0], [1.0], [0.0], [0.0]]
    assert strengths(states)[-1] == pytest.approx([0.4])


def test_a_fall_of_accuracy_halves_the_demand(mlp):
    asked, clients = coordinator(), [(torch.zeros(3, 1, 6, 6), torch.arange(3))] * 4
    federation = Federation.from_tensors(clients, test=clients[0], holdout=clients, threshold=0.6)
    state = replace(
        wanting(asked, 0.08, best=2.0), models=mlp.init(Stream(0))[None], risks=torch.tensor([0.7]).double()
    )
    with Engine(mlp) as engine:
        state = asked.update(
            replace(state, assignment=torch.zeros(4, dtype=torch.int64)), federation, engine, Stream(1)
        )
    assert state.control["demand"].tolist() == pytest.approx([0.04])


def estimated(asked: LimitController, state: State, *numbers: float) -> State:
    """One model after an estimate: its share over the limit, the possible one, held-out accuracy, standard error."""
    return asked.steer(state, *(torch.tensor([number], dtype=FLOAT) for number in numbers))


def wanting(asked: LimitController, demand: float, best: float = 0.8) -> State:
    """One model that needs this much relief and once had the held-out accuracy ``best``."""
    none = Memory.empty(1, asked.knobs)
    memory = replace(none, demand=none.demand + demand, best=torch.full_like(none.best, best))
    return replace(State.initial(torch.zeros(1, 4), 10), control=memory.tensors())


@pytest.mark.parametrize("max_cost", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("error", [0.0, 0.004, 0.02])
def test_demand_is_halved_beyond_the_cost_that_is_allowed_and_two_errors_of_a_difference(max_cost, error):
    asked = LimitController({"l2": Knob(L2(0.1), risk_reduction=0.1, accuracy_cost=1e-9)}, max_cost=max_cost + 1e-9)
    allowed = asked.max_cost + 2 * math.sqrt(error**2 + error**2)
    for fell, demand in ((allowed - 1e-6, 0.05 + 0.1 * (0.12 - 0.1)), (allowed + 1e-6, 0.05 / 2)):
        after = estimated(asked, wanting(asked, 0.05), 0.12, 0.12, 0.8 - fell, error)
        assert float(after.control["demand"]) == pytest.approx(demand)


def test_a_fall_is_measured_from_the_best_accuracy_so_far():
    asked, demands = coordinator(max_cost=0.01, target=0.9), []
    state = wanting(asked, 0.05, best=math.nan)
    for utility in (0.7, 0.8, 0.795, 0.785, 0.785):
        state = estimated(asked, state, 0.9, 0.9, utility, 0.0)
        demands.append(float(state.control["demand"]))
    assert demands == pytest.approx([0.05, 0.05, 0.05, 0.025, 0.0125])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03, 0.049])
@pytest.mark.parametrize("target", [0.1, 0.2])
def test_release_is_in_proportion_to_the_distance_from_the_target(share, target):
    asked = coordinator(target=target, hysteresis=0.05, release=0.1)
    for possible, released in ((share, 0.1 * (target - share)), (target - 0.04, 0.0)):
        after = estimated(asked, wanting(asked, 0.05), share, possible, 0.8, 0.0)
        assert float(after.control["demand"]) == pytest.approx(0.05 - released), "by what is possible"
    after = estimated(asked, wanting(asked, 0.05), 0.0, share, 0.8, 0.0)
    assert float(after.control["demand"]) == pytest.approx(0.05 - 0.1 * (target - share)), "not by the estimate"


@pytest.mark.parametrize("share", [0.15, 0.4, 1.0])
def test_demand_rises_in_proportion_to_the_distance_from_the_target(share):
    asked = coordinator(gain=0.05, release=7.0)
    after = estimated(asked, wanting(asked, 0.01), share, share, 0.8, 0.0)
    assert float(after.control["demand"]) == pytest.approx(0.01 + 0.05 * (share - 0.1))


def test_prices_are_dual_ascent_and_discounts_alone():
    asked, price = coordinator(min_clients=4, price_step=0.1), [0.0, 0.0, 0.0]
    nothing = torch.full((3,), math.nan, dtype=FLOAT)
    state = State.initial(torch.zeros(3, 4), 10)
    for members in ((2, 3, 5), (1, 0, 9), (3, 6, 1), (4, 6, 0), (0, 9, 1)):
        chosen = torch.repeat_interleave(torch.arange(3), torch.tensor(members))
        state = asked.steer(replace(state, assignment=chosen), nothing, nothing, nothing, nothing)
        # Multipliers of the constraints min_clients - members <= 0; the price is minus a multiplier.
        price = [min(0.0, p - 0.1 * (4 - m) / 4) for p, m in zip(price, members, strict=True)]
        assert state.directives["price"].tolist() == pytest.approx(price)
    assert price[1] == 0 > price[0], "a model with members enough has no price, and never a surcharge"


@pytest.mark.parametrize("asked", [coordinator(gain=0.0), coordinator(target=1.0)])
def test_no_gain_or_no_set_point_gives_no_directive(asked, mlp):
    assert all(each == [0.0, 0.0] for each in strengths(updated(asked, [[0.9, 0.9]] * 3, [0.5] * 6, mlp)))


def test_a_predicted_risk_sets_the_first_directives(mlp):
    asked = coordinator(prediction=RiskPrediction(factor=0.5, exponent=0.01))
    within, over = (updated(asked, [[0.5]], [limit] * 4, mlp)[0] for limit in (0.8, 0.6))
    assert within.directives["l2"].tolist() == [0.0]
    assert over.directives["l2"].tolist() == pytest.approx([0.9])


def test_a_predicted_risk_is_asked_about_by_randomised_response(mlp):
    """Every answer of a client, also the first, has the stated epsilon: false with probability 1 / (1 + e^epsilon)."""
    many, epsilon = 400, 0.5
    asked = coordinator(prediction=RiskPrediction(factor=0.5, exponent=0.01), vote_epsilon=epsilon, target=0.0)
    federation, lies = federation_of([0.6] * many), 1 / (1 + math.exp(epsilon))
    federation.preferences.threshold[: many * 3 // 4] = 0.9
    with Engine(mlp) as engine:
        state = State.initial(mlp.init(Stream(0))[None], many)
        found = [asked.start(state, federation, engine, Stream(seed)).control["demand"] for seed in range(40)]
        played = RecordedDirectives.from_rows(asked, [], Stream(7)).start(state, federation, engine, Stream(8))
        attacked = asked.start(state, federation, engine, Stream(7)("coordinator", 0))
    assert torch.equal(played.control["demand"], attacked.control["demand"])
    shares = torch.cat(found) / asked.gain
    deviation = math.sqrt(lies * (1 - lies) / many) / (1 - 2 * lies)
    assert abs(float(shares.mean()) - 0.25) < 4 * deviation / math.sqrt(len(found))
    assert float(shares.std()) == pytest.approx(deviation, rel=0.4)


@pytest.mark.parametrize(
    ("limit", "models", "strength"), [(0.62, 1, 0.9), (0.63, 1, 0.0), (0.74, 2, 0.9), (0.76, 2, 0.0)]
)
def test_a_predicted_risk_is_of_the_examples_of_a_class_that_a_model_has(limit, models, strength, mlp):
    """Four clients with an example of each of three classes: 4 a class give 0.5 + 0.5 / 4, two of two models 0.75."""
    asked = coordinator(prediction=RiskPrediction(factor=1.0, exponent=1.0))
    first = updated(asked, [[0.5] * models], [limit] * 4, mlp)[0]
    assert first.directives["l2"].tolist() == pytest.approx([strength] * models)


@pytest.mark.parametrize("prediction", [RiskPrediction(), RiskPrediction(factor=0.5, exponent=1.0)], ids=repr)
def test_examples_per_class_are_the_fewest_that_keep_the_predicted_risk_at_a_bound(prediction):
    for bound in (0.55, 0.6, 0.7):
        least = prediction.examples_per_class(bound)
        assert prediction.risk(least) == pytest.approx(bound)
        assert prediction.risk(0.9 * least) > bound
    assert prediction.examples_per_class(1.0) == 0, "one example has no higher risk than that"
    for outside in (0.5, 1.01):
        with pytest.raises(InputError, match=rf"^'risk' must be .*\(got {outside}\)$"):
            prediction.examples_per_class(outside)


def test_another_number_of_models_begins_anew_and_keeps_what_was_learned(mlp):
    asked = coordinator()
    state = updated(asked, [[0.7, 0.5], [0.6, 0.5]], [0.6] * 6, mlp)[-1]
    federation, models = federation_of([0.6] * 6), torch.stack([mlp.init(Stream(k)) for k in range(3)])
    with Engine(mlp) as engine:
        split = State(3, models, torch.tensor([0.5, 0.7, 0.5], dtype=FLOAT), torch.arange(6) % 3, control=state.control)
        after = asked.update(split, federation, engine, Stream(3))
    # The risk of model 0 fell by 0.1 at strength 0.9, against 0.1 at full strength as believed.
    x = 0.45
    relief = 0.1 + 2 * x * (0.05 - x * 0.1) / (1 + 2 * x * x)
    assert after.directives["l2"].tolist() == pytest.approx([0.0, 0.09 / relief, 0.0], rel=0.01)


def test_local_training_is_the_same_object_without_a_directive():
    asked, local = coordinator(), LocalSGD(epochs=2)
    assert asked.local(local, ClusterRound(1, 0)) is local
    assert asked.local(local, ClusterRound(1, 0, directive={"l2": 0.0})) is local
    assert asked.local(local, ClusterRound(1, 0, directive={"l2": 0.5})).weight_decay == pytest.approx(0.05)


def test_recorded_directives_come_back_round_by_round(mlp):
    rows = [{"round": r, "cluster": k, "directive.l2": r + k / 10} for r in (2, 4) for k in range(2)]
    recorded = RecordedDirectives.from_rows(coordinator(), rows, Stream(0))
    models = torch.stack([mlp.init(Stream(k)) for k in range(2)])
    with Engine(mlp) as engine:
        for number, expected in ((2, [2.0, 2.1]), (3, [9.0, 9.0]), (4, [4.0, 4.1])):
            state = State(
                number, models, torch.full((2,), 0.5, dtype=FLOAT), torch.zeros(2, dtype=torch.int64),
                directives={"l2": torch.full((2,), 9.0, dtype=FLOAT)},
            )  # fmt: skip
            after = recorded.update(state, federation_of([0.6, 0.6]), engine, Stream(0))
            assert after.directives["l2"].tolist() == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": 1.5}, "'target' must be at most 1"),
        ({"gain": -1.0}, "'gain' must be at least 0"),
        ({"audit_factor": 0.0}, "'audit_factor' must be above 0"),
        ({"vote_epsilon": 0.0}, "'vote_epsilon' must be above 0"),
        ({"max_cost": -0.1}, "'max_cost' must be at least 0"),
    ],
)
def test_wrong_values_are_one_sentence(change, sentence):
    with pytest.raises(InputError, match=sentence):
        coordinator(**change)
