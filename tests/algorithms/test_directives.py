"""What every means of the server has in common: directives of 0 are the base, and of 1 what it is without any."""

import pickle
from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR, EarlyStopping, FedOpt, Pooling, PricedChoice, RRCluster, SharedBody
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, State, Training

MEANS = {
    "pooling": lambda base: Pooling(base, 0.7),
    "price": lambda base: PricedChoice(base, (0.0, 5.0)),
    "size_floor": lambda base: RRCluster(base, 3),
    "shared_body": SharedBody,
    "stop": lambda base: EarlyStopping(base, after=0),
}
FIXED = [name for name in MEANS if name != "price"]  # A price is no fraction of another one.


def same(one: State, other: State) -> bool:
    names = ("models", "assignment", "trained")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


BASES = [IFCA(2), IFCAMIR(IFCA(2, weighting="examples")), FedOpt(IFCA(2))]
# RR-Cluster is wrapped by FedOpt, and not the other way round.
PAIRS = [(name, base) for name in MEANS for base in BASES if name != "size_floor" or not isinstance(base, FedOpt)]


@pytest.mark.parametrize(("name", "base"), PAIRS, ids=str)
def test_a_directive_of_0_is_the_base_bit_for_bit(play, name, base):
    steered, plain, fixed = (
        play(MEANS[name](base), risks=(0.7, 0.6), **{name: (0.0, 0.0)})[0][-1],
        play(base, risks=(0.7, 0.6))[0][-1],
        play(MEANS[name](base), risks=(0.7, 0.6))[0][-1],
    )
    assert same(steered, plain)
    assert not same(fixed, plain), "what changes nothing at full strength shows nothing at none"


@pytest.mark.parametrize("name", FIXED)
def test_a_directive_of_1_is_the_means_without_one(play, name):
    assert same(play(MEANS[name](IFCA(2)), **{name: (1.0, 1.0)})[0][-1], play(MEANS[name](IFCA(2)))[0][-1])


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("wrong", [(0.5, 1.5), (-0.1, 0.0), (float("nan"), 0.0)])
def test_other_directives_are_one_sentence(play, name, wrong):
    sentence = rf"^the directive '{name}' must be a number in \[0, 1\] for each of 2 clusters; got [^\n]*$"
    with pytest.raises(InputError, match=sentence):
        play(MEANS[name](IFCA(2)), **{name: wrong})


def test_a_directive_has_a_number_for_each_cluster():
    one = State(1, torch.zeros(2, 3), torch.zeros(2), torch.zeros(6), directives={"pooling": torch.tensor([0.5])})
    with pytest.raises(InputError, match=r"^the directive 'pooling' must be a number in \[0, 1\] for each of 2 "):
        one.strength("pooling")
    assert one.strength("stop").tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", MEANS)
def test_steered_clusters_go_on_after_an_interruption_and_with_their_clients_permuted(mlp, build, name):
    algorithm = MEANS[name](IFCA(2))
    local, order = LocalSGD(epochs=1, batch_size=4, learning_rate=0.3), torch.tensor([3, 0, 5, 1, 4, 2])
    strength = {name: torch.tensor([0.3, 1.0], dtype=torch.float64)}

    def played(federation, stops):
        with Engine(mlp, threads=1) as engine:
            training = Training(engine.prepare(federation), algorithm, local, engine, Stream(5), participation=0.7)
            state = replace(training.start(), directives=strength)
            for upto in stops:
                state = pickle.loads(pickle.dumps([each for each, _ in training.rounds(state, upto)][-1]))
        return state

    whole = played(build(), (4,))
    assert same(played(build(), (2, 4)), whole)
    permuted = played(build().take(order), (4,))
    assert torch.equal(permuted.assignment, whole.assignment[order])
    torch.testing.assert_close(permuted.models, whole.models, rtol=1e-5, atol=1e-7)
