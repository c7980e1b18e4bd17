"""Global model acquisition: how many sybils obtain how many models, and that they see what newcomers are sent."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from relabelled import FOUR, FULL, LINEAR, TWO, relabelled
from shoal.algorithms import CFL
from shoal.attacks import Acquisition, ModelAcquisition
from shoal.attacks.updates.model_acquisition import ReceivedModels, SybilPaths
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, State, Training

SPLITS = CFL(eps1=0.25, eps2=0.4)
ONE = [0, 0, 0, 0]


@cache
def settled(groups: tuple[int, ...]) -> State:
    """CFL after 30 rounds, with a cluster for each group."""
    with Engine(LINEAR, threads=1) as engine:
        training = Training(engine.prepare(relabelled(list(groups))), SPLITS, FULL, engine, Stream(3))
        state = training.start()
        for after, _ in training.rounds(state, 30):
            state = after
    assert len(state.models) == len(set(groups))
    return state


def attacked(
    groups: list[int], attack: ModelAcquisition, *, group: int = 0, sybils: int = 8, state=None, algorithm=SPLITS, **how
) -> Acquisition:
    """What sybils with examples of group ``own`` obtain."""
    with Engine(LINEAR, threads=1) as engine:
        federation = engine.prepare(relabelled([*groups, *[group] * sybils]))
        training = Training(federation, algorithm, FULL, engine, Stream(3))
        examples = federation.clients.take(torch.tensor([min(len(groups), len(federation) - 1)]))
        start = settled(tuple(groups)) if state is None else state
        return attack.acquire(training, start, examples, **{"rounds": 24, "every": 3} | how)


@cache
def of_four() -> Acquisition:
    return attacked(FOUR, ModelAcquisition())


def test_one_sybil_has_the_model_of_one_cluster_and_the_second_says_that_there_is_no_other():
    acquired = attacked(ONE, ModelAcquisition(), rounds=9)
    assert acquired.share(1) == 1
    assert len(acquired.join_rounds) == 2, "a model that goes on changing has no split after it"


@pytest.mark.parametrize("group", [0, 2])
def test_two_sybils_have_the_models_of_two_opposed_groups(group):
    acquired = attacked(TWO, ModelAcquisition(), group=group, sybils=2, rounds=6)
    assert [acquired.share(1), acquired.share(2)] == [0.5, 1]


def test_four_sybils_have_the_models_of_four_groups_and_no_more_than_twice_as_many_join():
    acquired = of_four()
    assert [acquired.share(s) for s in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1]
    more = attacked(FOUR, ModelAcquisition(), sybils=10, rounds=30)
    assert len(more.join_rounds) <= 8, "then every way is known to end"
    assert acquired.share(upto=acquired.join_rounds[0]) == 0, "the first round has the model of a split alone"
    for joined, number in enumerate(acquired.join_rounds):
        assert acquired.share(upto=number) <= joined / 4, (
            "who admits one newcomer in three rounds slows it, and no more"
        )


def test_antiparallel_updates_need_fewer_sybils_than_random_ones():
    chance = attacked(FOUR, ModelAcquisition(("random",) * 8))
    assert chance.share(4) < of_four().share(4)
    assert chance.share(1) < chance.share(8)


def test_sybils_that_stay_are_sent_the_latest_model_of_every_cluster():
    acquired = of_four()
    last = acquired.history[-1].round
    assert {k: harvested.round for k, harvested in acquired.latest().items()} == dict.fromkeys(range(4), last)
    assert len(acquired.state.models) == 4
    assert acquired.state.round == last


def test_updates_of_full_length_make_clusters_of_their_own():
    """So the paper's sybils obtain a model of one round or two, and then lose its cluster."""
    acquired = attacked(FOUR, ModelAcquisition(scale=1.0), sybils=4, rounds=20)
    assert acquired.share() == 1
    assert len(acquired.state.models) > 4
    assert min(harvested.round for harvested in acquired.latest().values()) < acquired.history[-1].round


class Watched:
    """An algorithm, and what it plans to send to each client."""

    def __init__(self, base):
        self.base, self.sent = base, {}

    def plan(self, state, cohort):
        plan = self.base.plan(state, cohort)
        (training,) = plan.trainings
        models = training.initial_params[training.init_index]
        self.sent[cohort.round] = dict(zip(cohort.clients.tolist(), models, strict=True))
        return plan

    def __getattr__(self, name):
        return getattr(self.base, name)


def test_sybil_updates_depend_on_models_sent_to_sybils_alone(monkeypatch):
    asked, original = [], ModelAcquisition.reply

    def watched(self, received, number, model, honest, stream):
        asked.append((list(received), number, model))
        return original(self, received, number, model, honest, stream)

    monkeypatch.setattr(ModelAcquisition, "reply", watched)
    algorithm = Watched(SPLITS)
    acquired = attacked(FOUR, ModelAcquisition(), algorithm=algorithm, sybils=3, rounds=9)
    assert len(asked) == len(acquired.history) == 9 + 6 + 3
    for before, number, model in asked:
        sybil = acquired.history[len(before)].sybil
        assert torch.equal(model, algorithm.sent[number][sybil])
        assert before == list(acquired.history[: len(before)])
    of_one_round = {(harvested.round, harvested.sybil): harvested.cluster for harvested in acquired.harvest}
    assert len(of_one_round) == len(acquired.harvest), "a client is sent one cluster's model"


def test_other_clusters_models_reach_nobody_who_is_not_in_them():
    state = settled(tuple(FOUR))
    (cluster,) = {harvested.cluster for harvested in attacked(FOUR, ModelAcquisition(), sybils=1, rounds=5).harvest}
    elsewhere = torch.arange(4) != cluster
    spoiled = replace(state, models=torch.where(elsewhere[:, None], torch.randn(1), state.models))
    one, other = (
        attacked(FOUR, ModelAcquisition(), sybils=1, rounds=5, state=harvested) for harvested in (state, spoiled)
    )
    for a, b in zip(one.history, other.history, strict=True):
        assert torch.equal(a.model, b.model)
        assert torch.equal(a.update, b.update)


def received(*ways: str) -> list[ReceivedModels]:
    """Sybils in sequence; a letter is a model that one receives, in upper case where its reply is antiparallel."""
    items, number = [], 0
    for sybil, way in enumerate(ways):
        for letter in way:
            number += 1
            model, reply = torch.tensor([float(ord(letter.lower()))]), int(letter.isupper())
            items.append(ReceivedModels(number, sybil, model, reply, torch.tensor([1.0 - 2 * reply])))
    return items


def choice(letter: str, *ways: str) -> int:
    return SybilPaths(received(*ways), 2).choice(torch.tensor([float(ord(letter))]), 1000)


def test_a_sybil_tries_what_no_sybil_has_tried_and_then_goes_where_something_is_unknown():
    assert choice("a") == 0
    assert choice("a", "abx") == 1
    assert choice("z", "abx") == 0
    # Behind a's opposite only one model was seen, c; all of b is known.
    tried = ("aby", "aBx", "abw", "aBv")
    assert choice("a", *tried, "Ac") == 1
    assert choice("a", "aby", "Acz") == 0, "the unknown b is as near as c"
    assert choice("a", "aby", "abw", "Ac") == 1, "c is nearer: b was seen twice, and its other reply is a step away"


@pytest.mark.parametrize(
    ("ways", "finished"),
    [
        ((), False),
        (("a",), False),
        (("a", "b"), True),
        (("abc", "Ade"), False),
        (("abc", "Ade", "afg", "Ahi"), True),
        # Refused for both replies.
        (("aAAA",), True),
    ],
    ids=str,
)
def test_sybil_paths_are_finished_once_every_way_ends_at_a_training_model(ways, finished):
    assert SybilPaths(received(*ways), 2).is_complete is finished


def test_the_same_reply_to_the_same_model_is_the_same_update():
    paths = SybilPaths(received("abx", "Ac"), 2)
    assert paths.update_of(torch.tensor([97.0]), 1).tolist() == [-1.0]
    assert paths.update_of(torch.tensor([98.0]), 1) is None
    assert [model.tolist() for model in paths.next_models(torch.tensor([97.0]))] == [[98.0], [99.0]]


def test_away_is_opposite_to_what_was_found():
    attack = ModelAcquisition(("honest", "antiparallel", "away"), scale=0.5)
    seen, origin = list[ReceivedModels](), torch.zeros(2)
    for sybil, (reply, to) in enumerate(((0, [2.0, 0.0]), (1, [0.0, 3.0]))):
        seen.append(ReceivedModels(2 * sybil, sybil, origin, reply, torch.ones(2)))
        seen.append(ReceivedModels(2 * sybil + 1, sybil, torch.tensor(to), 0, torch.ones(2)))
    chosen, update = attack.reply(seen, 9, origin, torch.tensor([0.0, 2.0]), Stream(0))
    assert chosen == 2
    torch.testing.assert_close(update, torch.tensor([-1.0, -1.0]) / 2**0.5)


def test_wrong_inputs_are_one_sentence():
    with pytest.raises(InputError, match="'replies'"):
        ModelAcquisition(())
    with pytest.raises(InputError, match=r"sybils after the state's 4 clients \(got none\)"):
        attacked(ONE, ModelAcquisition(), sybils=0)
    with pytest.raises(InputError, match="'rounds' and 'every'"):
        attacked(ONE, ModelAcquisition(), rounds=9, every=0)
    assert len(attacked(ONE, ModelAcquisition(), sybils=2, rounds=2, every=1).join_rounds) == 2
