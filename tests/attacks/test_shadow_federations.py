"""Shadow models trained as a cluster is: the owners, the rounds, and what is known of their members."""

from dataclasses import replace

import pytest
import torch

from shoal.attacks import ShadowModels
from shoal.attacks.queries.shadow_models import ShadowFederation, split_between_owners, train_shadow_federations
from shoal.core.randomness import Stream
from shoal.data import Shards
from shoal.engine import DivergenceError, LocalSGD

FULL = LocalSGD(steps=1, batch_size="all", learning_rate=0.2)


def records_of(clustered, shadows, local, stream=None):
    locals_ = local if isinstance(local, tuple) else (local,) * 2
    return shadows.records(*clustered, locals_, stream or Stream(0))


@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_of_one_full_step_are_gradient_descent_on_the_pool(clustered, rounds):
    """The average of one gradient step each, weighted by examples, is one step on all examples together."""
    state, federation, engine = clustered
    state = replace(state, round=rounds)
    federated = records_of((state, federation, engine), ShadowModels(number=2, training="federated"), FULL)
    pooled = ShadowModels(number=2, warm_start=False, epochs=rounds)
    for one, other in zip(federated, records_of((state, federation, engine), pooled, FULL), strict=True):
        assert torch.equal(one.example, other.example)
        assert torch.equal(one.member, other.member)
        torch.testing.assert_close(one.outputs, other.outputs, rtol=1e-4, atol=1e-5)


def test_earlier_rounds_have_their_own_learning_rate(clustered):
    """Local training is given as the last round's; the steps before it are larger by the decay."""
    _, federation, engine = clustered
    decaying = replace(FULL, learning_rate=0.8, decay=0.5)
    shadow, inside = federation.shadow, torch.arange(20)
    starts = engine.model.init(Stream(3))[None]
    one = ShadowFederation(starts[0], inside, torch.tensor([20]), decaying.at_round(3))
    ends = train_shadow_federations([one], shadow, 3, engine, Stream(0))
    expected, shards = starts, Shards.from_indices(shadow.x, shadow.y, inside, torch.tensor([20]))
    for rate in (0.8, 0.4, 0.2):
        local = replace(FULL, learning_rate=rate)
        randomness = local.randomness(shards, torch.arange(1), Stream(9))
        ((_, expected),) = engine.train(expected, torch.zeros(1, dtype=torch.int64), shards, randomness, local)
    torch.testing.assert_close(ends, expected)


@pytest.mark.parametrize(
    ("examples", "sizes", "parts"),
    [(55, (9, 12, 7, 12, 5, 10), (9, 12, 7, 12, 5, 10)), (20, (30, 10), (15, 5)), (2, (1, 1, 1, 1), (1, 1))],
)
def test_owners_have_the_clients_sizes_or_their_proportions(examples, sizes, parts):
    assert split_between_owners(examples, torch.tensor(sizes)).tolist() == list(parts)


def test_as_many_owners_as_the_cluster_has_clients(clustered, monkeypatch):
    seen = []

    def spy(federations, shadow, rounds, engine, stream):
        seen.append((federations, rounds))
        return torch.stack([one.start for one in federations])

    monkeypatch.setattr("shoal.attacks.queries.shadow_models.train_shadow_federations", spy)
    records_of(clustered, ShadowModels(number=2, training="federated"), FULL)
    ((federations, rounds),) = seen
    sizes = [one.sizes.tolist() for one in federations]
    assert rounds == 5, "as many as the run has done"
    # Clusters hold 9 + 12 and 7 + 12 + 5 + 10 = 34 examples; half the shadow set is 30.
    assert sizes[:2] == [[9, 12]] * 2
    assert [len(one) for one in sizes[2:]] == [4, 4]
    assert [len(one.examples) for one in federations] == [21, 21, 30, 30] == [sum(one) for one in sizes]
    empty = replace(clustered[0], assignment=torch.zeros(6, dtype=torch.int64))
    records_of((empty, *clustered[1:]), ShadowModels(number=1, epochs=7, training="federated"), FULL)
    (of_all, of_empty), _ = seen[1]
    assert of_empty.sizes.tolist() == [round(55 / 6)], "an empty cluster: one average client"
    assert (of_all.local.epochs, of_all.local.steps) == (7, None), "in every round"


def test_each_cluster_s_owners_train_as_its_clients_do(clustered):
    still = replace(FULL, learning_rate=1e-12)
    moving, resting = records_of(clustered, ShadowModels(number=1, training="federated"), (FULL, still))
    engine, federation = clustered[2], clustered[1]
    for s, (records, moves) in enumerate(((moving, True), (resting, False))):
        begun = engine.outputs(engine.model.init(Stream(0)("start", s)), federation.shadow.x[records.example])
        assert torch.allclose(records.outputs, begun, atol=1e-4) is not moves


def test_one_shadow_model_s_batches_do_not_depend_on_the_others(clustered):
    """What its owners draw is named by the shadow model, not by their place among all owners."""
    _, federation, engine = clustered
    local = LocalSGD(epochs=2, batch_size=3, learning_rate=0.2)
    starts = [engine.model.init(Stream(3)(k)) for k in range(2)]
    second = ShadowFederation(starts[1], torch.arange(20, 32), torch.tensor([6, 6]), local)
    few, many = (
        train_shadow_federations(
            [ShadowFederation(starts[0], torch.arange(12), sizes, local), second],
            federation.shadow,
            2,
            engine,
            Stream(0),
        )
        for sizes in (torch.tensor([12]), torch.tensor([4, 4, 4]))
    )
    assert torch.equal(few[1], many[1])
    assert not torch.equal(few[0], many[0])


def test_reference_models_are_those_that_were_trained(clustered):
    shadows = ShadowModels(number=2, training="federated")
    state, federation, engine = clustered
    for records in shadows.records(state, federation, engine, (FULL,) * 2, Stream(0), keep_models=True):
        assert records.reference.models.shape == (2, state.models.shape[1])
        outputs = engine.outputs(records.reference.models[1], federation.shadow.x)
        torch.testing.assert_close(records.reference.outputs[1], outputs)


def test_divergence_is_said(clustered):
    wild = LocalSGD(epochs=5, batch_size=1, learning_rate=1e30)
    with pytest.raises(DivergenceError):
        records_of(clustered, ShadowModels(training="federated"), wild)
