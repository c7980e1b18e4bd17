"""The laws of a coordinated federation."""

import pickle
from typing import Any

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR, FedAvg
from shoal.control import Knob, LimitController, RecordedDirectives
from shoal.core.randomness import Stream
from shoal.defenses import L2
from shoal.engine import Engine, LocalSGD, RiskEstimate, State, Training
from shoal.replay.stages import RecordedRisks

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)


class Told:
    """Estimates risks by the models alone, so that they differ and change, at no cost."""

    every = 2

    def estimate(self, state, federation, engine, local, stream):
        risks = 0.6 + 0.2 * state.models[:, 0].double().abs().clamp(max=1)
        return RiskEstimate(risks, torch.stack([risks - 0.1, risks + 0.1], dim=1))


RISKS = Told()
ALGORITHMS = [FedAvg(), IFCA(2), IFCAMIR()]


def coordinator(**changes: Any) -> LimitController:
    return LimitController({"l2": Knob(L2(0.3))}, **{"gain": 1.0, "target": 0.0, **changes})


def training(model, federation, algorithm, asked: LimitController | None, engine: Engine, **changes: Any) -> Training:
    steered = {"risk_estimator": RISKS, "defenses": () if asked is None else (asked,), "coordinator": asked}
    return Training(federation, algorithm, LOCAL, engine, Stream(5), **steered, **changes)


def played(model, federation, algorithm, asked: LimitController | None, rounds: int = 4, **changes: Any) -> State:
    with Engine(model, threads=changes.pop("threads", 2)) as engine:
        given = training(model, engine.prepare(federation), algorithm, asked, engine, **changes)
        return [each for each, _ in given.rounds(given.start(), rounds)][-1]


def same(one: State, other: State) -> bool:
    tensors = ("models", "risks", "assignment")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_a_coordinator_without_effect_changes_no_bit(mlp, build, algorithm):
    for threshold, without_effect in (
        (1.0, (coordinator(),)),
        (0.5, (coordinator(gain=0.0), LimitController({"l2": Knob(L2(0.0))}, gain=1.0, target=0.0))),
    ):
        federation = build(threshold=threshold)
        alone = played(mlp, federation, algorithm, None)
        assert all(same(played(mlp, federation, algorithm, asked), alone) for asked in without_effect)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_directives_change_training_where_members_are_over_their_limits(mlp, build, algorithm):
    steered = played(mlp, build(threshold=0.5), algorithm, coordinator())
    assert float(steered.directives["l2"].max()) == 1.0
    assert not same(steered, played(mlp, build(threshold=0.5), algorithm, None))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_interruption_threads_and_client_order_change_no_directive(mlp, build, algorithm):
    federation, asked = build(threshold=0.5), coordinator(vote_epsilon=1.0)
    whole = played(mlp, federation, algorithm, asked)
    assert same(played(mlp, federation, algorithm, asked, threads=1), whole)
    with Engine(mlp) as engine:
        given = training(mlp, federation, algorithm, asked, engine)
        state = given.start()
        for upto in (3, 4):
            state = pickle.loads(pickle.dumps([each for each, _ in given.rounds(state, upto)][-1]))
    assert same(state, whole)
    assert torch.equal(state.directives["l2"], whole.directives["l2"])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = played(mlp, federation.take(order), algorithm, asked)
    torch.testing.assert_close(permuted.directives["l2"], whole.directives["l2"])
    torch.testing.assert_close(permuted.models, whole.models, rtol=1e-4, atol=1e-5)


def test_recorded_risks_and_directives_replay_the_run(mlp, build):
    federation, asked = build(threshold=0.5), coordinator()
    with Engine(mlp) as engine:
        given = training(mlp, federation, IFCAMIR(), asked, engine)
        states = [each for each, _ in given.rounds(given.start(), 4)]
        rows = [
            {"round": each.round, "risk": float(each.risks[k]), "directive.l2": float(each.directives["l2"][k])}
            for each in states
            for k in range(2)
        ]
        again = Training(
            federation, IFCAMIR(), LOCAL, engine, Stream(5), risk_estimator=RecordedRisks.from_rows(2, rows),
            defenses=(asked,), coordinator=RecordedDirectives.from_rows(asked, rows, Stream(5)),
        )  # fmt: skip
        replayed = [each for each, _ in again.rounds(again.start(), 4)][-1]
    assert same(replayed, states[-1])
    assert len({each["directive.l2"] for each in rows}) > 1
