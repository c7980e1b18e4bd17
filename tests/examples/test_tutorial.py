"""docs/tutorial.md: its files, its commands, and the algorithm that it writes."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from textwrap import indent

import pytest
import torch

import shoal
from shoal.config.schema import read_config
from shoal.engine import Aggregate, Algorithm, LocalSGD, RoundPlan, State
from shoal.sweeps import read_sweep

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "examples"))


def test_the_methods_on_the_page_are_those_of_the_file():
    methods, script = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    inside_a_class = indent(methods.replace("\n\n\n", "\n\n"), "    ")
    assert inside_a_class in (DOCS / "examples" / "trimmed_ifca.py").read_text(encoding="utf-8")
    compile(script, "tutorial.md", "exec")


def test_every_file_and_run_of_the_page_is_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (content,) = re.findall(r"```toml\n(seed = .*?)```", PAGE, re.DOTALL)
    (tmp_path / "digits.toml").write_text(content)
    commands = re.findall(r"^\$ shoal run ((?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    asked = {}
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        changes = [value for key, value in pairwise(words) if key == "--set"]
        asked[words[words.index("--out") + 1]] = read_config(words[0], changes)
    assert {out: config.algorithm.value.title for out, config in asked.items()} == {
        "runs/ifca": "IFCA",
        "runs/trimmed": "Trimmed IFCA",
        "runs/defended": "Trimmed IFCA",
    }
    assert asked["runs/defended"].algorithm.rounds == 90
    (sweep,) = re.findall(r"```toml\n(title = .*?)```", PAGE, re.DOTALL)
    (tmp_path / "defended.toml").write_text(sweep)
    assert len(read_sweep(tmp_path / "defended.toml").runs) == 4 * 5


def test_the_largest_and_smallest_updates_of_a_cluster_move_nothing():
    from trimmed_ifca import TrimmedIFCA  # noqa: PLC0415

    assert isinstance(TrimmedIFCA(), Algorithm)
    updates = torch.tensor([[-1e6, 3.0], [1.0, 1e6], [2.0, 1.0], [3.0, 2.0], [1e6, -1e6], [7.0, 8.0]])
    plan = RoundPlan(torch.tensor([0, 0, 0, 0, 0, 2]), ())
    before = State.initial(torch.ones(3, 2), clients=6)
    after = TrimmedIFCA(3, trim=0.2).server_update(before, None, plan, Aggregate(before.models, (updates,)))
    # Of five one goes at each end, of one none; the model that nobody trained stays.
    assert after.models.tolist() == [[3.0, 3.0], [1.0, 1.0], [8.0, 9.0]]
    with pytest.raises(shoal.InputError):
        TrimmedIFCA(trim=0.5)


def test_without_trimming_it_is_ifca(build, mlp):
    from trimmed_ifca import TrimmedIFCA  # noqa: PLC0415

    models = [
        shoal.simulate(build(), mlp, algorithm, LocalSGD(), rounds=3).state.models
        for algorithm in (TrimmedIFCA(2, trim=0.0), shoal.IFCA(2), TrimmedIFCA(2, trim=0.4))
    ]
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=1e-5)
    assert not torch.allclose(models[2], models[1], rtol=0, atol=1e-3)
