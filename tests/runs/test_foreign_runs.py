"""A run that somebody else made is data: no code that its files name is imported, and nothing in them is unpickled."""

import pickle
import sys
from pathlib import Path

import pytest

import shoal
from shoal.cli.app import main
from shoal.core.errors import InputError
from shoal.runs.audits.trace import read_trace

TOML = """
[data]
source = "digits"
clients = 4
examples_per_client = 10
test_examples = 40
[model]
name = "strange:network"
[algorithm]
name = "fedavg"
rounds = 1
[red_team]
every = 0
attack = "gap"
[record]
updates = 1
[engine]
threads = 1
"""
CODE = """
from pathlib import Path
from torch import nn
Path({marker!r}).touch()

def network(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.height * shape.width, shape.classes))
"""
SWEEP = """
base = "base.toml"
seeds = [0]
[grid]
"local.epochs" = [1]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of a network in a module ``strange``, as its maker runs it, without any option; and the import's marker."""
    folder = tmp_path_factory.mktemp("foreign")
    marker = folder / "imported"
    (folder / "strange.py").write_text(CODE.format(marker=str(marker)))
    (folder / "run.toml").write_text(TOML)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "run.toml", "--out", str(folder / "run"), "--quiet"]) == 0
    return folder / "run", marker


@pytest.fixture
def foreign(made, monkeypatch):
    """The same, for a reader who has not imported the module yet, although it lies where Python looks."""
    run, marker = made
    monkeypatch.chdir(run.parent)
    monkeypatch.delitem(sys.modules, "strange", raising=False)
    marker.unlink(missing_ok=True)
    return run, marker


DOORS = {
    "report": ["report", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "audit": ["audit", "RUN", "--references", "0", "--out", "OUT", "--quiet"],
    "trace": ["audit", "--trace", "RUN", "--out", "OUT", "--quiet"],
    "run": ["run", "RUN/config.toml", "--out", "OUT", "--quiet"],
    "preflight": ["preflight", "RUN/config.toml"],
    "data": ["data", "RUN/config.toml"],
}


@pytest.mark.parametrize("door", DOORS)
def test_each_command_needs_a_word_before_it_imports_what_a_run_names(foreign, tmp_path, capsys, door):
    run, marker = foreign
    words = [word.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out")) for word in DOORS[door]]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{run / 'config.toml'}: names code (got 'strange:network')" in said
    assert "--allow-code" in said
    assert not marker.exists()
    assert main([*words, "--allow-code"]) == 0
    # Tables need no network.
    assert marker.exists() == (door not in ("report", "compare"))


@pytest.mark.parametrize(
    "read", [shoal.load, shoal.audit_run, shoal.audit_trace, read_trace, lambda run, **_: shoal.compare([run, run])]
)
def test_so_does_each_function(foreign, read):
    run, marker = foreign
    with pytest.raises(InputError, match=r"names code \(got 'strange:network'\).*allow_code=True"):
        read(run)
    assert not marker.exists()


def test_a_foreign_trace_and_a_foreign_sweep_import_nothing(foreign, tmp_path, capsys):
    _, marker = foreign
    (tmp_path / "trace.toml").write_text('classes = 3\nshape = [1, 4, 4]\n[model]\nname = "strange:network"\n')
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "base.toml").write_text(TOML)
    for words in (["audit", "--trace", str(tmp_path)], ["report", str(tmp_path)]):
        assert main(words) == 2
        assert "names code (got 'strange:network')" in capsys.readouterr().err
    assert not marker.exists()


@pytest.mark.parametrize("name", ["runpy:run_path", "shutil:rmtree", "os:system", "builtins:exec", "os.path:exists"])
def test_pythons_own_modules_are_never_taken_not_even_from_one_s_own_file(tmp_path, capsys, name):
    path = tmp_path / "run.toml"
    path.write_text(TOML.replace("strange:network", name))
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--allow-code"]) == 2
    assert f"must be in your own module or an installed package (got '{name}'" in capsys.readouterr().err


class Touch:
    """What a pickle of it does where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_in_the_place_of_any_file_of_a_run_is_refused_and_not_loaded(tmp_path):
    path, marker = tmp_path / "run.toml", tmp_path / "unpickled"
    path.write_text(TOML.replace("strange:network", "logistic"))
    run = tmp_path / "run"
    assert main(["run", str(path), "--out", str(run), "--quiet"]) == 0
    poison = pickle.dumps(Touch(marker))
    files = [file for file in run.rglob("*") if file.is_file() and file.suffix not in (".html", ".log")]
    assert {".safetensors", ".csv", ".json", ".toml"} <= {file.suffix for file in files}
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(poison)
        for read in (shoal.load, shoal.audit_run, shoal.audit_trace):
            try:
                read(run, out=tmp_path / "out") if read is not shoal.load else read(run)
            except InputError:
                continue
            # A function need not read every file, but if it read this one it has refused it.
        file.write_bytes(whole)
    assert not marker.exists()
    pickle.loads(poison)
    assert marker.exists(), "the pickle would have done it"


def test_no_file_of_the_package_loads_pickles():
    source = Path(shoal.__file__).parent
    words = ("import pickle", "pickle.load", "torch.load(", "joblib.load", "allow_pickle=True", "read_pickle")
    used = {(path.name, word) for path in source.rglob("*.py") for word in words if word in path.read_text("utf-8")}
    assert not used
