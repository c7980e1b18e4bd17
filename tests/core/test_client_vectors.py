"""Clients' vectors: values that stay whatever is replaced, the same in memory and on disk."""

import errno
import os
import pickle

import pytest
import torch

from shoal.core.client_vectors import ClientVectors, VectorsOnDisk
from shoal.core.errors import InputError

CLIENTS, WIDTH = 7, 5


def first_vectors(kind, tmp_path):
    vectors = ClientVectors.same(torch.arange(float(WIDTH)), CLIENTS)
    return vectors if kind == "memory" else vectors.on_disk("of/clients", tmp_path if kind == "named" else None)


@pytest.mark.parametrize("kind", ["memory", "named", "unnamed"])
def test_vectors_equal_a_tensor_and_every_earlier_value_stays(kind, tmp_path):
    vectors, reference = first_vectors(kind, tmp_path), torch.arange(float(WIDTH)).repeat(CLIENTS, 1)
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
        for same in (value, pickle.loads(pickle.dumps(value)), value.in_memory(), value.on_disk("copy", None)):
            assert torch.equal(same.tensor(), expected)
            first, number = same.distinct()
            assert torch.equal(expected[first][number], expected)
            assert len(first) == len(expected.unique(dim=0))
            assert first.tolist() == sorted(first.tolist())


def test_two_values_of_one_file_do_not_overwrite_each_other(tmp_path):
    start = first_vectors("named", tmp_path)
    one, other = (start.replaced(torch.tensor([2]), torch.full((1, WIDTH), value)) for value in (1.0, 2.0))
    assert one.tensor()[2].tolist() == [1.0] * WIDTH
    assert other.tensor()[2].tolist() == [2.0] * WIDTH
    assert start.tensor()[2].tolist() == list(range(WIDTH))


def test_vectors_without_a_client_are_freed(tmp_path):
    """In memory a vector does not keep those that came with it, and in a file at most half of the rows are nobody's."""
    vectors = first_vectors("memory", tmp_path).replaced(torch.arange(CLIENTS), torch.ones(CLIENTS, WIDTH))
    stored = vectors.replaced(torch.arange(CLIENTS - 1), torch.zeros(CLIENTS - 1, WIDTH))
    assert {row.untyped_storage().nbytes() for row in stored._rows} == {4 * WIDTH}
    vectors = first_vectors("named", tmp_path)
    assert vectors.stored_in["rows"] == 1, "the first vector is shared"
    for i in range(40):
        vectors = vectors.replaced(torch.tensor([i % CLIENTS]), torch.full((1, WIDTH), float(i)))
        rows = vectors.stored_in["rows"]
        assert rows <= 2 * len(vectors.distinct()[0])
        assert vectors.path.stat().st_size == 4 * WIDTH * rows


def test_an_opened_file_continues_behind_the_rows_that_count(tmp_path):
    vectors = first_vectors("named", tmp_path).replaced(torch.tensor([1, 2]), torch.ones(2, WIDTH))
    kept = vectors.stored_in
    vectors.replaced(torch.tensor([0, 3]), torch.full((2, WIDTH), 9.0))
    opened = VectorsOnDisk.opened(tmp_path, vectors.name, vectors.at, kept)
    assert torch.equal(opened.tensor(), vectors.tensor())
    after = opened.replaced(torch.tensor([4]), torch.full((1, WIDTH), 4.0))
    assert after.stored_in == {**kept, "rows": 4}
    assert torch.equal(after.tensor(), vectors.tensor().index_fill(0, torch.tensor([4]), 4.0))


def test_a_file_without_write_permission_is_read(tmp_path, monkeypatch):
    vectors = first_vectors("named", tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    opened = VectorsOnDisk.opened(tmp_path, vectors.name, vectors.at, vectors.stored_in)
    assert torch.equal(opened.tensor(), vectors.tensor())


def test_a_missing_or_cut_off_file_is_named(tmp_path):
    vectors = first_vectors("named", tmp_path).replaced(torch.tensor([1]), torch.ones(1, WIDTH))
    path = vectors.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"{path.name}: is cut off: it has 39 bytes of the 40"):
        VectorsOnDisk.opened(tmp_path, vectors.name, vectors.at, vectors.stored_in)
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name}: cannot be read: No such file"):
        VectorsOnDisk.opened(tmp_path, vectors.name, vectors.at, vectors.stored_in)


@pytest.mark.parametrize("kind", ["named", "unnamed"])
def test_on_a_full_disk_no_vector_counts_and_all_others_stay(kind, tmp_path, monkeypatch):
    vectors, write = first_vectors(kind, tmp_path), os.pwrite

    def full(file, content, offset):
        if offset % (4 * WIDTH) or len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, content[:9], offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left") as raised:
            vectors.replaced(torch.tensor([1, 2]), torch.ones(2, WIDTH))
    assert raised.value.filename, "it must say where"
    assert vectors.stored_in["rows"] == 1
    after = vectors.replaced(torch.tensor([2]), torch.ones(1, WIDTH))
    assert torch.equal(after.tensor(), vectors.tensor().index_fill(0, torch.tensor([2]), 1.0))


def test_files_are_numbered_on_and_never_overwritten(tmp_path):
    vectors = first_vectors("memory", tmp_path)
    names = [vectors.on_disk(name, tmp_path).path.name for name in ("a", "a", "a-1", "b/c")]
    assert names == ["a-000001.rows", "a-000002.rows", "a-1-000001.rows", "b%2Fc-000001.rows"]
