"""`shoal protect`: which rungs are judged, what a judgement says, and what a search leaves behind."""

import json
import logging
from math import nan

import pandas as pd
import pytest

from shoal.cli.app import main
from shoal.config.build import load_data, resolve
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.protection import Demand, ladder, sentences
from shoal.protection.ladder import UNPROTECTED, Rung
from shoal.protection.search import candidates, chosen, judged, possible_rungs

GROUPS = ["north", "south"]
DEMAND = Demand(limit=0.55, max_cost=0.02)


def table(**figures):
    """Rows of two seeds by setting, from (accuracy, exposure of north, of south)."""
    names = {"as_it_is": UNPROTECTED.name}
    rows = [
        {"setting": names.get(name, name), "seed": seed, "accuracy.overall": accuracy + move}
        | {"exposure.north": north - move, "exposure.south": south}
        for name, (accuracy, north, south) in figures.items()
        for seed, move in enumerate((-0.001, 0.001))
    ]
    return pd.DataFrame(rows)


def seeds_of(exposures, accuracy=0.8, rung="a"):
    """Judging seeds of a rung with these exposures of north, beside the unprotected federation."""
    rows = [{"setting": UNPROTECTED.name, "accuracy.overall": 0.8, "exposure.north": 0.7, "exposure.south": 0.6}]
    rows += [
        {"setting": rung, "accuracy.overall": accuracy, "exposure.north": north, "exposure.south": 0.5}
        for north in exposures
    ]
    return pd.DataFrame(rows)


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was():
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers


def test_the_most_accurate_within_limit_and_price_comes_first_then_less_exposed_ones():
    figures = table(
        as_it_is=(0.80, 0.70, 0.6),
        dear=(0.70, 0.50, 0.5),
        exposed=(0.90, 0.60, 0.5),
        cheap=(0.79, 0.53, 0.5),
        best=(0.82, 0.54, 0.5),
        worse=(0.81, 0.545, 0.5),
    )
    assert candidates(figures, GROUPS, DEMAND) == ["best", "cheap"]
    assert candidates(figures.iloc[::-1], GROUPS, DEMAND) == ["best", "cheap"]


def test_the_most_exposed_group_counts_not_the_mean():
    figures = table(as_it_is=(0.80, 0.70, 0.6), one_sided=(0.80, 0.50, 0.58), even=(0.80, 0.548, 0.548))
    assert candidates(figures, GROUPS, DEMAND) == ["even"]


def test_nothing_above_the_price_is_judged_even_where_nothing_else_helps():
    figures = table(as_it_is=(0.80, 0.70, 0.6), dear=(0.75, 0.50, 0.5), useless=(0.80, 0.71, 0.6))
    assert candidates(figures, GROUPS, DEMAND) == [UNPROTECTED.name]
    figures = table(as_it_is=(0.80, 0.70, 0.6), dear=(0.75, 0.50, 0.5), little=(0.79, 0.65, 0.6))
    assert candidates(figures, GROUPS, DEMAND) == ["little"]
    assert candidates(figures, GROUPS, Demand(limit=0.55, max_cost=0.06)) == ["dear"]


def test_a_federation_within_its_limit_is_left_as_it_is_unless_a_protection_is_more_accurate():
    figures = table(as_it_is=(0.80, 0.52, 0.5), dear=(0.79, 0.50, 0.5))
    assert candidates(figures, GROUPS, DEMAND) == [UNPROTECTED.name, "dear"]


def test_a_group_on_whose_records_nobody_trained_is_at_chance():
    figures = table(as_it_is=(0.80, 0.70, nan), rung=(0.80, 0.52, nan))
    assert candidates(figures, GROUPS, DEMAND) == ["rung"]
    assert judged(Rung("rung", "", {}), figures, ["south"], DEMAND).exposure == 0.5
    del figures["exposure.south"]
    assert candidates(figures, GROUPS, DEMAND) == ["rung"]


@pytest.mark.parametrize(
    ("exposures", "outcome"),
    [((0.51, 0.512, 0.511), "met"), ((0.60, 0.602, 0.601), "not met"), ((0.50, 0.54, 0.58), "open")],
)
def test_an_outcome_is_by_the_interval_of_the_judging_seeds(exposures, outcome):
    best = judged(Rung("a", "a rung", {}), seeds_of(exposures), GROUPS, DEMAND)
    assert (best.outcome, best.group, best.before) == (outcome, "north", 0.7)
    assert best.exposure_low < best.exposure < best.exposure_high
    assert (best.more_seeds > 0) == (outcome == "open")


def test_so_many_more_seeds_decide_an_open_outcome():
    """At the same mean and standard deviation the interval is below the limit, and with one seed fewer it is not."""
    rung, few = Rung("a", "a rung", {}), (0.51, 0.53, 0.56)
    more = judged(rung, seeds_of(few), GROUPS, DEMAND).more_seeds
    mean, spread = pd.Series(few).mean(), pd.Series(few).std()

    def outcome(seeds):
        half = pd.Series([1.0, -1.0] * (seeds // 2) + [0.0] * (seeds % 2))
        return judged(rung, seeds_of(mean + spread * half / half.std()), GROUPS, DEMAND).outcome

    assert more > 0
    assert outcome(3 + more) == "met"
    assert outcome(3 + more - 1) == "open"


def test_the_first_that_is_met_is_chosen_or_else_the_least_exposed():
    high, low = (judged(Rung(name, name, {}), seeds_of(seeds, rung=name), GROUPS, DEMAND)
                 for name, seeds in (("a", (0.60, 0.601)), ("b", (0.58, 0.581))))  # fmt: skip
    met = judged(Rung("c", "c", {}), seeds_of((0.51, 0.511), rung="c"), GROUPS, DEMAND)
    assert chosen([high, low]).rung == "b"
    assert chosen([high, met, low]).rung == "c"


@pytest.mark.parametrize("view", ["outsider", "client", "server"])
def test_the_sentences_have_the_price_the_group_and_what_is_not_covered(view):
    best = judged(Rung("a", "fewer rounds", {}), seeds_of((0.51, 0.52, 0.53), accuracy=0.77), GROUPS, DEMAND)
    text = " ".join(sentences(best, Demand(view=view)))
    for part in ("with fewer rounds.", "of north", "0.700 to 0.520", "(-0.030), more than the price of 0.02"):
        assert part in text
    assert "not a promise" in text
    others = {"outsider": ("other clients", "server"), "client": ("server",), "server": ()}[view]
    assert all(f"{other}" in text.partition("does not cover")[2] for other in others)


def names_on(config, data):
    clients = resolve(config, data).simulation().federation
    return [
        rung.name
        for rung in possible_rungs(
            config, data, ladder(config, tuple(clients.clients.x.shape[1:]), len(clients.shadow))
        )
    ]


def test_the_ladder_fits_the_data(toy_config):
    config = toy_config()
    data = load_data(config.data)
    images = names_on(config, data)
    assert {"2 rounds", "wavelets", "wavelets, student", "16 components, student", "student"} <= {*images}
    config = toy_config(data__shadow_examples=0, red_team={"every": 0, "attack": "gap"}, algorithm__name="ifca")
    assert names_on(config, data) == ["2 rounds", "wavelets"]
    config = toy_config(release={"distil": "end"}, algorithm__rounds=1)
    assert "student" not in names_on(config, data)
    assert not any("rounds" in name and "components" not in name for name in names_on(config, data))
    tables = ladder(config, (30,), 60)
    assert not any("wavelets" in rung.name for rung in tables)
    assert "8 components" in [rung.name for rung in tables]


@pytest.fixture
def small(toy_config, tmp_path, monkeypatch):
    """The file of a small run; pages of its runs are left out, and the ladder has two rungs."""
    monkeypatch.setattr("shoal.sweeps.workers.report_of", lambda out, **_: (out / "report.html").touch())
    rungs = (Rung("1 round", "1 round instead of 2", {"algorithm.rounds": 1}), Rung("impossible", "", {"seed": -1}))
    monkeypatch.setattr("shoal.protection.search.ladder", lambda *_: rungs)
    path = tmp_path / "small.toml"
    path.write_text(
        toy_config(
            algorithm={"name": "ifca", "rounds": 2}, red_team={"every": 0, "attack": "gap"}, data__test_examples=40
        ).toml()
    )
    return path


QUICK = ["--references", "1", "--choosing", "1", "--judging", "2", "--max-cost", "1.0", "--quiet"]


def test_a_search_leaves_a_configuration_that_runs_and_does_no_run_twice(small, tmp_path, capsys):
    out = tmp_path / "out"
    call = ["protect", str(small), "--out", str(out), "--limit", "1.0", *QUICK]
    assert main(call) == 0
    said = capsys.readouterr().out
    figures = json.loads((out / "protection.json").read_text())
    assert figures["outcome"] == "met"
    protected = read_config(out / "protected.toml")
    assert protected.algorithm.rounds == (1 if figures["rung"] == "1 round" else 2)
    assert protected.evaluation == read_config(small).evaluation
    page = (out / "protection.html").read_text()
    assert all(line in page for line in said.splitlines()[1:2])
    done = {path: path.stat().st_mtime_ns for path in out.glob("*/runs/*/summary.json")}
    assert len(done) >= 4
    assert main(call) == 0
    assert capsys.readouterr().out == said
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/runs/*/summary.json")} == done
    assert main([*call, "--view", "client"]) == 2
    assert "holds a search of another configuration, view or number" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/runs/*/summary.json")} == done


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--view", "nobody"], "view"),
        (["--limit", "0.4"], "'limit' must be in [0.5, 1]"),
        (["--limit", "nan"], "limit"),
        (["--max-cost", "-1"], "max_cost"),
        (["--judging", "1"], "'judging' must be at least 2"),
        (["--references", "0"], "references"),
        (["--jobs", "0"], "jobs"),
        (["--set", "algorithm.round=3"], "unknown key 'algorithm.round'"),
        (["--set", 'property_attack.name="x"'], "property_attack"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(small, tmp_path, capsys, more, said):
    assert main(["protect", str(small), "--out", str(tmp_path / "out"), *more]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert error.startswith("shoal: ")
    assert "\n" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


@pytest.mark.parametrize("name", ["summary.json", "notes.txt", "sweep.toml"])
def test_a_directory_of_something_else_is_left_alone(small, tmp_path, capsys, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    assert main(["protect", str(small), "--out", str(tmp_path / "out")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_demands_are_checked():
    with pytest.raises(InputError, match="chance"):
        Demand(limit=0.3)
