"""Files that a stranger may have written: deep, long or blown up, each refused by one sentence."""

import json

import pytest

from shoal.config.toml_files import read_toml
from shoal.core import foreign_files
from shoal.core.errors import InputError
from shoal.deployment.client.ledger import Ledger
from shoal.runs.files import read_run
from shoal.runs.hashes import require_unchanged

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
