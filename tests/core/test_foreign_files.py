"""Files that a stranger may have written: deep, long or blown up, each refused by one sentence."""

import gzip
import io
import json
import tarfile

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.config.toml_files import read_toml
from shoal.core import foreign_files
from shoal.core.errors import InputError
from shoal.core.foreign_files import read_pictures
from shoal.data import Columns, load_table
from shoal.data.sources.idx import load_cifar10, read_idx
from shoal.runs.audits.audit_files import read_scores
from shoal.runs.audits.trace import parse_arrays
from shoal.runs.files import read_run, require_unchanged
from shoal_flower.client.policy import Ledger

DEEP = '{"algorithm": ' + "[" * 100_000
DOTTED = "a" + ".a" * 100
NESTED = "[" * 100 + "]" * 100
HUGE = json.dumps("x" * 100)


@pytest.mark.parametrize(("text", "why"), [(DEEP, "deep"), (NESTED, "deep"), (HUGE, "more than 50 bytes")])
@pytest.mark.parametrize("name", ["summary.json", "hashes.json", "ledger.json"])
def test_json_that_is_too_deep_or_too_long_is_refused(tmp_path, monkeypatch, name, text, why):
    if text is HUGE:
        monkeypatch.setattr(foreign_files, "MAX_TEXT", 50)
    (tmp_path / name).write_text(text)
    read = {
        "summary.json": read_run,
        "hashes.json": require_unchanged,
        "ledger.json": lambda out: Ledger.load(out / name),
    }
    with pytest.raises(InputError, match=rf"{name}: .*{why}"):
        read[name](tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        f"{DOTTED} = 1", f"[{DOTTED}]", f"x = {{{DOTTED} = 1}}", DOTTED.replace("a", "'a'").replace(".", " . "),
        f'"a\\"b".{DOTTED} = 1 # "', f'x = {{y = """\nit\'s """, {DOTTED} = 1}} # \'',
        f"x = {{y = '''\n\"''', {DOTTED} = 1}} # \"", f"# it's\n{DOTTED} = 1 # '", f"x = {NESTED}",
        "x = " + "[" * 100_000,
    ],
)  # fmt: skip
def test_toml_that_is_too_deep_is_refused(tmp_path, text):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InputError, match=r"a key has more than 64 parts|nested too deeply"):
        read_toml(tmp_path / "config.toml")


def test_dots_elsewhere_are_no_parts_of_a_key(tmp_path):
    text = f"x = '''{DOTTED}'''\ny = \"{DOTTED}\" # {DOTTED}\nz.a.\"{DOTTED}\" = 1.5\n"
    (tmp_path / "config.toml").write_text(text)
    assert read_toml(tmp_path / "config.toml")["x"] == DOTTED


def test_toml_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "MAX_TEXT", 50)
    (tmp_path / "config.toml").write_text(f"x = {HUGE}")
    with pytest.raises(InputError, match="it has more than 50 bytes"):
        read_toml(tmp_path / "config.toml")


TABLE = pd.DataFrame({"who": ["a", "b"] * 20, "state": ["x", "y"] * 20, "age": range(40)})
COLUMNS = Columns(client="who", label="state")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zip", "t.csv.xz", "t.parquet"])
@pytest.mark.parametrize(("limit", "why"), [("BYTES", "bytes"), ("ROWS", "39 rows"), ("COLUMNS", "2 columns")])
def test_a_table_that_is_too_large_is_refused(tmp_path, monkeypatch, name, limit, why):
    (TABLE.to_parquet if name == "t.parquet" else TABLE.to_csv)(tmp_path / name, index=False)
    for which, most in (("BYTES", 500_000), ("ROWS", 40), ("COLUMNS", 3)):
        monkeypatch.setattr(foreign_files, f"MAX_{which}", most)
    assert len(load_table(tmp_path / name, COLUMNS).labels) == 40
    monkeypatch.setattr(foreign_files, f"MAX_{limit}", {"BYTES": 200, "ROWS": 39, "COLUMNS": 2}[limit])
    with pytest.raises(InputError, match=rf"{name}' .*it has more than .*{why}"):
        load_table(tmp_path / name, COLUMNS)


def test_a_score_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "MAX_ROWS", 39)
    TABLE.to_csv(tmp_path / "scores.csv.gz", index=False)
    with pytest.raises(InputError, match="it has more than 39 rows"):
        read_scores(tmp_path / "scores.csv.gz")


def test_a_parquet_file_of_one_value_is_refused_by_its_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "MAX_CELLS", 119)
    TABLE.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="it has more than 119 cells"):
        load_table(tmp_path / "t.parquet", COLUMNS)


def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "MAX_PIXELS", 99)
    Image.new("L", (10, 10)).save(tmp_path / "p.png")
    with pytest.raises(InputError, match="it has more than 99 pixels"):
        read_pictures([tmp_path / "p.png"], ("PNG",), lambda _: pytest.fail("decoded"))


def test_arrays_and_images_that_are_blown_up_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "MAX_BYTES", 1000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000))
    with pytest.raises(InputError, match="it has more than 1,000 bytes"):
        parse_arrays(tmp_path / "a.npz", [], "x")
    (tmp_path / "i.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 4, 0]) + bytes(1024)))
    with pytest.raises(InputError, match=r"at most 1,000 bytes \(got 1,024 bytes of 1024 labels\)"):
        read_idx(tmp_path / "i.gz", "labels")
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        large = tarfile.TarInfo("data_batch_1.bin")
        large.size = 2000
        archive.addfile(large, io.BytesIO(bytes(2000)))
    with pytest.raises(InputError, match="at most 1,000 bytes"):
        load_cifar10(tmp_path / "c.tar.gz")
