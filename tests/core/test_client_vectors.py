"""Rows of clients: a value whatever is replaced, the same in memory and on disk, and no row that was not written."""

import errno
import os
import pickle

import pytest
import torch

from shoal.core.client_vectors import ClientVectors
from shoal.core.errors import InputError
from shoal.core.vectors_on_disk import RowFile, VectorsOnDisk

CLIENTS, WIDTH = 7, 5


def folder_of(kind, tmp_path):
    return tmp_path if kind == "named" else None


def begun(kind, tmp_path):
    rows = ClientVectors.same(torch.arange(float(WIDTH)), CLIENTS)
    return rows if kind == "memory" else VectorsOnDisk.of(rows, "of/clients", folder_of(kind, tmp_path))


@pytest.mark.parametrize("kind", ["memory", "named", "unnamed"])
def test_rows_are_a_tensor_of_which_every_earlier_value_stays(kind, tmp_path):
    rows, reference = begun(kind, tmp_path), torch.arange(float(WIDTH)).repeat(CLIENTS, 1)
    values, draw = [(rows, reference)], torch.Generator().manual_seed(0)
    for i in range(24):
        some = torch.randperm(CLIENTS, generator=draw)[: 1 + i % CLIENTS]
        given = torch.randn(len(some), WIDTH, generator=draw)
        if i % 2:
            rows, reference = rows.replaced(some, given), reference.index_copy(0, some, given)
        else:
            rows, reference = rows.moved(some, given), reference.index_add(0, some, given)
        values.append((rows, reference))
    for value, expected in values:
        assert torch.equal(value.tensor(), expected)
        assert torch.equal(value[torch.tensor([4, 0])], expected[[4, 0]])
        assert value.shape == expected.shape
        for same in (value, pickle.loads(pickle.dumps(value)), value.in_memory()):
            assert torch.equal(same.tensor(), expected)
            first, number = same.distinct()
            assert torch.equal(expected[first][number], expected)
            assert len(first) == len(expected.unique(dim=0))


def test_an_earlier_value_goes_its_own_way(tmp_path):
    start = begun("named", tmp_path)
    one, other = (start.replaced(torch.tensor([2]), torch.full((1, WIDTH), value)) for value in (1.0, 2.0))
    assert one.tensor()[2].tolist() == [1.0] * WIDTH
    assert other.tensor()[2].tolist() == [2.0] * WIDTH
    assert start.tensor()[2].tolist() == list(range(WIDTH))


def test_what_nobody_refers_to_is_not_kept(tmp_path):
    """In memory a row does not keep those that came with it, and in a file at most half of the rows are nobody's."""
    rows = begun("memory", tmp_path).replaced(torch.arange(CLIENTS), torch.ones(CLIENTS, WIDTH))
    stored = rows.replaced(torch.arange(CLIENTS - 1), torch.zeros(CLIENTS - 1, WIDTH))
    assert {row.untyped_storage().nbytes() for row in stored._rows} == {4 * WIDTH}
    rows = begun("named", tmp_path)
    assert rows.file.rows == 1, "the first row is shared"
    for i in range(40):
        some = torch.tensor([i % CLIENTS])
        rows = rows.replaced(some, torch.full((1, WIDTH), float(i)))
        assert rows.file.rows <= 2 * len(rows.distinct()[0])
        assert rows.file.path.stat().st_size == 4 * WIDTH * rows.file.rows


def test_a_file_that_is_opened_again_goes_on_behind_the_rows_that_count(tmp_path):
    rows = begun("named", tmp_path).replaced(torch.tensor([1, 2]), torch.ones(2, WIDTH))
    lost = rows.replaced(torch.tensor([0, 3]), torch.full((2, WIDTH), 9.0))
    assert lost.file is rows.file
    again = VectorsOnDisk(RowFile(rows.file.path, WIDTH, 3), rows.name, rows.at, rows.checksums)
    assert torch.equal(again.tensor(), rows.tensor())
    assert rows.file.path.stat().st_size == 4 * WIDTH * 5, "it was cut before anything was written"
    after = again.replaced(torch.tensor([4]), torch.full((1, WIDTH), 4.0))
    assert rows.file.path.stat().st_size == 4 * WIDTH * 4
    assert torch.equal(after.tensor(), rows.tensor().index_fill(0, torch.tensor([4]), 4.0))


def test_a_damaged_or_missing_file_is_one_sentence_that_names_it(tmp_path):
    rows = begun("named", tmp_path).replaced(torch.tensor([1]), torch.ones(1, WIDTH))
    path = rows.file.path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert rows[torch.tensor([0])].tolist() == [list(range(WIDTH))]
    with pytest.raises(InputError, match=rf"{path.name}: is damaged: a client's row is not what was written there"):
        rows[torch.tensor([1])]
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=rf"{path.name}: is cut off: it has 39 bytes of the 40"):
        RowFile(path, WIDTH, 2)
    with pytest.raises(InputError, match="damaged"):
        rows[torch.tensor([1])]
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name}: cannot be read: No such file"):
        RowFile(path, WIDTH, 2)


@pytest.mark.parametrize("kind", ["named", "unnamed"])
def test_on_a_full_disk_no_row_counts_and_all_others_stay(kind, tmp_path, monkeypatch):
    rows, write = begun(kind, tmp_path), os.pwrite

    def full(file, content, offset):
        if offset % (4 * WIDTH) or len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, content[:9], offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left") as raised:
            rows.replaced(torch.tensor([1, 2]), torch.ones(2, WIDTH))
    assert raised.value.filename, "it must say where"
    assert rows.file.rows == 1
    after = rows.replaced(torch.tensor([2]), torch.ones(1, WIDTH))
    assert torch.equal(after.tensor(), rows.tensor().index_fill(0, torch.tensor([2]), 1.0))


def test_files_are_numbered_on_and_not_written_over(tmp_path):
    rows = begun("memory", tmp_path)
    names = [VectorsOnDisk.of(rows, name, tmp_path).file.path.name for name in ("a", "a", "a-1", "b/c")]
    assert names == ["a-000001.rows", "a-000002.rows", "a-1-000001.rows", "b%2Fc-000001.rows"]
