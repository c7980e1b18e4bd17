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
from shoal.core.processes import Workplace
from shoal.defenses.accounting import gaussian_epsilon
from shoal.metrics.attack_bounds import gaussian_bound
from shoal.protection import Demand, protect, sentences
from shoal.protection.judgement import Figures, affordable, candidates, chosen, judgement_of, shortlist
from shoal.protection.ladder import DELTA, ONE_STEP_ROUNDS, UNPROTECTED, Ladder, Rung
from shoal.protection.search import ladder_of, possible_rungs

GROUPS = ["north", "south"]
DEMAND = Demand(limit=0.55, max_cost=0.02)
BEFORE = {"exposure": 0.7, "group": "north"}


def figures_of(rows, before=0.80, groups=GROUPS):
    """The figures of attacked runs, beside an unprotected federation of accuracy ``before`` everywhere."""
    attacked = pd.DataFrame(rows)
    plain = {"accuracy.overall": before, "accuracy.north": before, "accuracy.south": before}
    seeds = pd.DataFrame([{"seed": seed, **plain} for seed in sorted(attacked["seed"].unique())])
    return Figures(attacked, seeds, groups)


def table(**figures):
    """Figures of two seeds by setting, from (accuracy, exposure of north, of south) and perhaps south's accuracy."""
    names = {"as_it_is": UNPROTECTED.name}
    return figures_of(
        [
            {"setting": names.get(name, name), "seed": seed, "accuracy.overall": accuracy + move}
            | {"exposure.north": north - move, "exposure.south": south}
            | {"accuracy.north": accuracy, "accuracy.south": dict(enumerate(rest)).get(0, accuracy)}
            for name, (accuracy, north, south, *rest) in figures.items()
            for seed, move in enumerate((-0.001, 0.001))
        ]
    )


def seeds_of(exposures, accuracy=0.8, rung="a"):
    """Judging seeds of a rung with these exposures of north."""
    of_groups = {"exposure.south": 0.5, "accuracy.north": accuracy, "accuracy.south": accuracy - 0.01}
    return figures_of(
        [
            {"setting": rung, "seed": seed, "accuracy.overall": accuracy, "exposure.north": north, **of_groups}
            for seed, north in enumerate(exposures)
        ]
    )


def judgement(rung, exposures, **further):
    return judgement_of(Rung(rung, "fewer rounds", {}), seeds_of(exposures, rung=rung, **further), DEMAND, BEFORE)


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was():
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers


def test_of_those_within_limit_and_price_the_one_whose_groups_pay_least_comes_first_then_less_exposed_ones():
    figures = table(
        as_it_is=(0.80, 0.70, 0.6),
        dear=(0.70, 0.50, 0.5),
        exposed=(0.90, 0.60, 0.5),
        unfair=(0.84, 0.52, 0.5, 0.6),
        cheap=(0.79, 0.53, 0.5),
        best=(0.82, 0.54, 0.5),
        worse=(0.81, 0.545, 0.5),
    )
    assert candidates(figures, DEMAND) == ["best", "cheap", "unfair"]
    assert affordable(figures, DEMAND) == [UNPROTECTED.name, "exposed", "unfair", "cheap", "best", "worse"]
    assert shortlist(figures, DEMAND) == ["best", "worse", "cheap", "unfair", "dear"]


def test_the_most_exposed_group_counts_not_the_mean():
    figures = table(as_it_is=(0.80, 0.70, 0.6), one_sided=(0.80, 0.50, 0.58), even=(0.80, 0.548, 0.548))
    assert candidates(figures, DEMAND) == ["even"]


def test_nothing_above_the_price_is_judged_even_where_nothing_else_helps():
    figures = table(as_it_is=(0.80, 0.70, 0.6), dear=(0.75, 0.50, 0.5), useless=(0.80, 0.71, 0.6))
    assert candidates(figures, DEMAND) == [UNPROTECTED.name]
    figures = table(as_it_is=(0.80, 0.70, 0.6), dear=(0.75, 0.50, 0.5), little=(0.79, 0.65, 0.6))
    assert candidates(figures, DEMAND) == ["little"]
    assert candidates(figures, Demand(limit=0.55, max_cost=0.06)) == ["dear"]
    figures = table(high=(0.8, 0.9, 0.5), low=(0.8, 0.6, 0.5), middle=(0.8, 0.7, 0.5))
    assert shortlist(figures, DEMAND) == ["low", "middle"]


def test_a_federation_within_its_limit_is_left_as_it_is_unless_a_protection_is_more_accurate():
    figures = table(as_it_is=(0.80, 0.52, 0.5), dear=(0.79, 0.50, 0.5))
    assert candidates(figures, DEMAND) == [UNPROTECTED.name, "dear"]


def test_a_setting_that_one_seed_dropped_is_not_judged():
    figures = table(as_it_is=(0.80, 0.70, 0.6), dropped=(0.80, 0.60, 0.5), little=(0.79, 0.65, 0.6))
    seen = figures.attacked
    kept = seen[(seen["setting"] != "dropped") | (seen["seed"] == 0)].reset_index(drop=True)
    assert candidates(Figures(kept, figures.plain, GROUPS), DEMAND) == ["little"]


def test_where_a_promise_is_asked_for_it_is_kept_whatever_it_costs():
    figures = table(as_it_is=(0.80, 0.70, 0.6), plain=(0.80, 0.52, 0.5), noisy=(0.70, 0.51, 0.5), loud=(0.6, 0.5, 0.5))
    epsilons = {"noisy": 4.0, "loud": 2.0}
    promised = figures.attacked.assign(**{"epsilon.client": figures.attacked["setting"].map(epsilons), "epsilon": 9.0})
    of_clients = Figures(promised, figures.plain, GROUPS, "client")
    assert candidates(of_clients, Demand(view="client", epsilon=4.0)) == ["noisy"]
    assert candidates(of_clients, Demand(view="client", epsilon=3.0)) == ["loud"]
    assert candidates(of_clients, Demand(view="client", epsilon=1.0)) == [UNPROTECTED.name]
    assert "noisy" in affordable(of_clients, Demand(epsilon=4.0))


def test_a_promised_limit_is_asked_of_the_bound_whatever_was_measured():
    figures = table(as_it_is=(0.80, 0.52, 0.5), plain=(0.80, 0.51, 0.5), noisy=(0.79, 0.54, 0.5), loud=(0.6, 0.5, 0.5))
    bounds = {"noisy": 0.549, "loud": 0.52}
    promised = figures.attacked.assign(**{"bound.client.accuracy": figures.attacked["setting"].map(bounds)})
    of_clients = Figures(promised, figures.plain, GROUPS, "client")
    assert candidates(of_clients, Demand(0.55, view="client", promise=True)) == ["noisy"]
    assert candidates(of_clients, Demand(0.53, view="client", promise=True)) == ["loud"]
    assert candidates(of_clients, Demand(0.51, view="client", promise=True)) == [UNPROTECTED.name]
    assert shortlist(of_clients, Demand(0.525, view="client", promise=True)) == ["loud"]
    for setting, limit, outcome in (("noisy", 0.55, "met"), ("noisy", 0.545, "not met"), ("plain", 0.55, "not met")):
        demand = Demand(limit, view="client", promise=True)
        found = judgement_of(Rung(setting, "", {}), of_clients, demand, BEFORE)
        assert found.outcome == outcome
        said = " ".join(sentences(found, demand))
        assert ("by another client has accuracy 54.0 %; no attack on one record can exceed 54.9 %" in said) == (
            setting == "noisy"
        )


def test_a_group_on_whose_records_nobody_trained_is_at_chance():
    figures = table(as_it_is=(0.80, 0.70, nan), rung=(0.80, 0.52, nan))
    assert candidates(figures, DEMAND) == ["rung"]
    alone = Figures(figures.attacked, figures.plain, ["south"])
    assert judgement_of(Rung("rung", "", {}), alone, DEMAND, BEFORE).exposure == 0.5
    del figures.attacked["exposure.south"]
    assert candidates(figures, DEMAND) == ["rung"]


@pytest.mark.parametrize(
    ("exposures", "outcome"),
    [((0.51, 0.512, 0.511), "met"), ((0.60, 0.602, 0.601), "not met"), ((0.51, 0.52, 0.53), "open")],
)
def test_an_outcome_is_by_the_interval_of_the_judging_seeds(exposures, outcome):
    best = judgement("a", exposures)
    assert (best.outcome, best.group, best.before, best.seeds) == (outcome, "north", 0.7, 3)
    assert best.exposure_low < best.exposure < best.exposure_high
    assert (best.more_seeds > 0) == (outcome == "open")
    assert 2 * best.exposure == pytest.approx(best.exposure_low + best.exposure_high)
    assert (best.payer, best.payer_accuracy) == ("south", pytest.approx(0.79))


def test_so_many_more_seeds_decide_an_open_outcome():
    """At the same mean and standard deviation the interval is below the limit, and with one seed fewer it is not."""
    few = (0.51, 0.52, 0.53)
    more, mean, spread = judgement("a", few).more_seeds, pd.Series(few).mean(), pd.Series(few).std()

    def outcome(seeds):
        half = pd.Series([1.0, -1.0] * (seeds // 2) + [0.0] * (seeds % 2))
        return judgement("a", mean + spread * half / half.std()).outcome

    assert more > 1
    assert outcome(3 + more) == "met"
    assert outcome(3 + more - 1) == "open"
    assert judgement("a", (0.50, 0.52, 0.55)).more_seeds == 0, "further runs vary more than that"


def test_the_first_that_is_met_is_chosen_or_else_the_least_exposed():
    high, low = judgement("a", (0.60, 0.601)), judgement("b", (0.58, 0.581))
    met = judgement("c", (0.51, 0.511))
    assert chosen([high, low]).rung == "b"
    assert chosen([high, met, low]).rung == "c"


@pytest.mark.parametrize("view", ["outsider", "client", "server"])
def test_the_sentences_have_the_price_the_group_and_what_is_not_covered(view):
    text = " ".join(sentences(judgement("a", (0.518, 0.52, 0.522), accuracy=0.77), Demand(view=view)))
    for part in ("with fewer rounds.", "of north", "is then 0.520", "north had 0.700", "(-0.030), more than the price"):
        assert part in text
    assert "south pays most, from 0.800 to 0.760" in text
    assert "not a promise" in text
    others = {"outsider": ("other clients", "server"), "client": ("server",), "server": ()}[view]
    assert all(f"{other}" in text.partition("does not cover")[2] for other in others)


@pytest.mark.parametrize(("alone", "said"), [(0.9, "it need not ask clients"), (0.7, "clients add to it")])
def test_a_shadow_set_that_does_without_clients_is_said_to(alone, said):
    best = judgement_of(Rung("a", "b", {}), seeds_of((0.51, 0.52)), DEMAND, BEFORE, alone=alone)
    assert said in sentences(best, DEMAND)[3]


@pytest.mark.parametrize("view", ["outsider", "client", "server"])
@pytest.mark.parametrize("promise", [{"epsilon": 3.0}, {"promise": True, "limit": 0.6, "epsilon": 9.0}], ids=str)
def test_the_noise_of_a_promise_is_the_least_that_keeps_it(toy_config, view, promise):
    ladder = Ladder(toy_config(), (1, 8, 8), 20.0, 10.0, 100, view, Demand(**promise).mu)
    rungs = ladder.rungs
    assert rungs
    for rung in rungs:
        rule, algorithm = rung.changes["defenses"]["dp_sgd"], rung.changes["algorithm"]
        least = rule["min_clients"]
        share = {"outsider": 1.0, "client": (least - 1) / least, "server": 1 / least}[view]
        squares = ONE_STEP_ROUNDS / (share * rule["noise_multiplier"] ** 2)
        squares += algorithm["noise_multiplier"] ** -2 if algorithm["name"] == "private-means" else 0.0
        mu = squares**0.5
        value, most = (gaussian_bound(mu).accuracy, 0.6) if "promise" in promise else (gaussian_epsilon(mu, DELTA), 3.0)
        assert 0.96 * most < value <= most


def names_on(config, data):
    ladder = ladder_of(config, resolve(config, data).simulation.federation, DEMAND)
    return [rung.name for rung in possible_rungs(config, data, ladder.rungs)]


def test_the_ladder_fits_the_data(toy_config):
    config = toy_config()
    data = load_data(config.data)
    images = names_on(config, data)
    assert {"2 rounds", "16 components, 30 steps", "16 components, student", "student", "augmentation"} <= {*images}
    assert {"32 components, noise 8", "32 components, private clusters, noise 4"} <= {*images}
    assert {"32 components, public start, noise 4"} <= {*images}
    config = toy_config(data__shadow_examples=0, red_team={"every": 0, "attack": "gap"}, algorithm__name="ifca")
    assert names_on(config, data) == ["wavelets, 30 steps", "wavelets, 6 steps", "2 rounds", "pooling", "augmentation"]
    config = toy_config(release={"distil": "end"}, algorithm__rounds=1)
    assert "student" not in names_on(config, data)
    assert "1 rounds" not in names_on(config, data)
    tables = [rung.name for rung in Ladder(config, (30,), 20.0, 10.0, 60).rungs]
    assert not any("wavelets" in name or "augmentation" in name for name in tables)
    assert {"8 components, 6 steps", "16 components, noise 4"} <= {*tables}


@pytest.fixture
def small(toy_config, tmp_path, monkeypatch):
    """The file of a small run, on a ladder of two rungs."""
    rungs = (Rung("1 round", "1 round instead of 2", {"algorithm.rounds": 1}), Rung("impossible", "", {"seed": -1}))
    monkeypatch.setattr(Ladder, "rungs", rungs)
    path = tmp_path / "small.toml"
    changes = {"algorithm": {"name": "ifca", "rounds": 2}, "red_team": {"every": 0, "attack": "gap"}}
    path.write_text(toy_config(**changes, data__test_examples=40).toml())
    return path


QUICK = ["--references", "1", "--choosing", "1", "--judging", "2", "--max-cost", "1.0", "--quiet"]


@pytest.mark.usefixtures("_unrendered_figures")
@pytest.mark.parametrize("view", ["outsider", "server"])
def test_a_search_leaves_a_configuration_that_runs_and_does_no_run_twice(small, tmp_path, capsys, view):
    out = tmp_path / "out"
    call = ["protect", str(small), "--out", str(out), "--limit", "1.0", "--view", view, *QUICK]
    assert main(call) == 0
    said = capsys.readouterr().out
    figures = json.loads((out / "protection.json").read_text())
    assert figures["outcome"] == "met"
    protected = read_config(out / "protected.toml")
    assert protected.algorithm.rounds == (1 if figures["rung"] == "1 round" else 2)
    assert protected.evaluation == read_config(small).evaluation
    page = (out / "protection.html").read_text()
    assert all(line in page for line in said.splitlines()[1:2])
    done = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    assert len(done) >= 4
    assert main(call) == 0
    assert capsys.readouterr().out == said
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")} == done
    assert main([*call, "--view", "client"]) == 2
    assert "holds a search of another configuration, view or number" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")} == done


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--view", "nobody"], "view"),
        (["--limit", "0.4"], "'limit' must be in [0.5, 1]"),
        (["--limit", "nan"], "limit"),
        (["--max-cost", "-1"], "max_cost"),
        (["--judging", "1"], "'judging' must be at least 2"),
        (["--references", "0"], "references"),
        (["--epsilon", "0"], "epsilon"),
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


def test_a_promise_without_a_setting_that_keeps_it_is_refused(toy_config, tmp_path):
    """Without public examples there are no components, on which noise would leave something."""
    plain = {"red_team": {"every": 0, "attack": "gap"}, "algorithm__name": "ifca"}
    config = toy_config(data__shadow_examples=0, **plain)
    asked = (Demand(epsilon=2.0), "an epsilon of 2"), (Demand(0.6, promise=True), "a limit of 0.6 on every")
    for demand, said in asked:
        with pytest.raises(InputError, match=f"none has {said}"):
            protect(config, Workplace(tmp_path / "out"), demand)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["summary.json", "notes.txt", "sweep.toml"])
def test_a_directory_of_something_else_is_left_alone(small, tmp_path, capsys, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    assert main(["protect", str(small), "--out", str(tmp_path / "out")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("limit", [0.5, 1.0])
def test_a_promised_limit_is_strictly_inside(limit):
    with pytest.raises(InputError, match="with 'promise'"):
        Demand(limit=limit, promise=True)
