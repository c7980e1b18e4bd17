"""Clients' vectors: values that stay whatever is replaced."""

import pickle

import torch

from shoal.engine.state import ClientVectors

CLIENTS, WIDTH = 7, 5


def test_vectors_equal_a_tensor_and_every_earlier_value_stays():
    vectors = ClientVectors.same(torch.arange(float(WIDTH)), CLIENTS)
    reference = torch.arange(float(WIDTH)).repeat(CLIENTS, 1)
    values, draw = [(vectors, reference)], torch.Generator().manual_seed(0)
    for i in range(24):
        some = torch.randperm(CLIENTS, generator=draw)[: 1 + i % CLIENTS]
        update = torch.randn(len(some), WIDTH, generator=draw)
        if i % 2:
            vectors, reference = vectors.replaced(some, update), reference.index_copy(0, some, update)
        else:
            vectors, reference = vectors.moved(some, update), reference.index_add(0, some, update)
        values.append((vectors, reference))
    for value, expected in values:
        assert torch.equal(value[torch.tensor([4, 0])], expected[[4, 0]])
        assert value[torch.tensor([], dtype=torch.int64)].shape == (0, WIDTH)
        assert value.shape == expected.shape
        for same in (value, pickle.loads(pickle.dumps(value))):
            assert torch.equal(same.tensor(), expected)
            first, number = same.distinct()
            assert torch.equal(expected[first][number], expected)
            assert len(first) == len(expected.unique(dim=0))
            assert first.tolist() == sorted(first.tolist())


def test_a_vector_keeps_none_of_those_that_came_with_it():
    vectors = ClientVectors.same(torch.arange(float(WIDTH)), CLIENTS)
    stored = vectors.replaced(torch.arange(CLIENTS), torch.ones(CLIENTS, WIDTH))
    assert {row.untyped_storage().nbytes() for row in stored._rows} == {4 * WIDTH}
