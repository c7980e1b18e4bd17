"""Rounds that a property attack observes."""

from contextlib import contextmanager

from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training
from shoal.property import RoundObservation

LOCAL = LocalSGD(steps=1, batch_size=8, learning_rate=0.1)


def observed(attack, before, after, report, training, last=None):
    """What the attack saw of a round, and the updates that it remembers."""
    memory = attack.initial_memory(before) if last is None else {"updates": last}
    tensors, memory = attack.observe(before, after, report, memory, training)
    return RoundObservation(after.round, **tensors), memory["updates"]


@contextmanager
def one_round(model, federation, algorithm, local=LOCAL):
    """A training, the states before and after its first round, and the report of the round."""
    with Engine(model) as engine:
        training = Training(engine.prepare(federation), algorithm, local, engine, Stream(5))
        before = training.start()
        yield training, before, *training.round(before)


def played(model, federation, algorithm, *, attack=None, rounds=6, local=LOCAL, engine=None, **settings):
    """The states of all rounds, their reports, and what the attack saw."""
    with Engine(model, **(engine or {})) as computes:
        training = Training(computes.prepare(federation), algorithm, local, computes, Stream(5), **settings)
        states, reports, observations, last = [training.start()], [], [], None
        for state, report in training.rounds(states[0], rounds):
            if attack is not None:
                observation, last = observed(attack, states[-1], state, report, training, last)
                observations.append(observation)
            states.append(state)
            reports.append(report)
    return states, reports, observations
