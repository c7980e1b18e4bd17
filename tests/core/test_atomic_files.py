"""Files that are whole or absent."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.core.atomic_files import (
    PRIVATE,
    private_folder,
    remove_unfinished,
    write_atomically,
    write_bytes,
    write_text,
)


@pytest.fixture
def umask() -> Iterator[None]:
    """Gives the process's umask back."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_text_is_written_in_utf8_as_it_is(tmp_path: Path) -> None:
    write_text(tmp_path / "a.csv", "é\nb\r\n")
    assert (tmp_path / "a.csv").read_bytes() == b"\xc3\xa9\nb\r\n"


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write_bytes(path, b"a long first content")
    write_bytes(path, b"short")
    assert path.read_bytes() == b"short"
    assert [p.name for p in tmp_path.iterdir()] == ["model.bin"]


@pytest.mark.parametrize("existing", [True, False])
def test_a_writer_that_fails_half_way_leaves_what_was_there(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "model.bin"
    if existing:
        path.write_text("old")

    def half(temporary: Path) -> None:
        temporary.write_text("ha")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_atomically(path, half)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == ([("model.bin", "old")] if existing else [])


def test_the_old_file_is_there_while_the_new_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text("old")
    observed = []

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        observed.append((path.read_text(), temporary.parent == path.parent))

    write_atomically(path, write)
    assert observed == [("old", True)]
    assert path.read_text() == "new"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: None, mask: int, mode: int) -> None:
    os.umask(mask)
    write_text(tmp_path / "summary.json", "{}")
    assert stat.S_IMODE((tmp_path / "summary.json").stat().st_mode) == mode
    assert os.umask(mask) == mask


def test_a_private_file_and_folder_are_their_owner_s_alone_at_every_moment(tmp_path: Path, umask: None) -> None:
    os.umask(0)
    folder, modes = private_folder(tmp_path / "state"), list[int]()
    (folder / "a").write_text("of everybody")
    write_atomically(folder / "a", lambda temporary: modes.append(temporary.stat().st_mode), mode=PRIVATE)
    write_text(folder / "b", "x", mode=PRIVATE)
    write_bytes(folder / "c", b"x", mode=PRIVATE)
    modes += [path.stat().st_mode for path in folder.iterdir()]
    assert {stat.S_IMODE(mode) for mode in modes} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "a.txt", "x")
    assert not list(tmp_path.iterdir())


def test_what_a_crash_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("rounds.csv", ".hidden", "x.unfinished"):
        (tmp_path / name).write_text(name)

    def crash(temporary: Path) -> None:
        """A killed process cannot clean up: keep what it had under its temporary name."""
        os.link(temporary, temporary.with_stem(f"{temporary.stem}2"))
        os.link(temporary, tmp_path / "kept")

    write_atomically(tmp_path / "rounds.csv", crash)
    assert len(list(tmp_path.iterdir())) == 5
    remove_unfinished(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", "kept", "rounds.csv", "x.unfinished"]


def test_an_error_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    def on_a_full_disk(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "folder").mkdir()
    for path, write in ((tmp_path / "a.csv", on_a_full_disk), (tmp_path / "folder", Path.touch)):
        with pytest.raises(OSError, match=str(path)):
            write_atomically(path, write)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
