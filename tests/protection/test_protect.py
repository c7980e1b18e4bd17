"""`shoal protect`: which rungs are judged, what a judgement says, and what a search leaves behind."""

import json
import logging
from dataclasses import asdict
from html import unescape
from math import nan
from typing import ClassVar

import pandas as pd
import pytest

from shoal.audit.finding import Estimate, exposure_summary, sentence
from shoal.cli.app import main
from shoal.config.build import load_data, resolve
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.core.processes import Workplace
from shoal.defenses.accounting import gaussian_epsilon
from shoal.metrics.attack_bounds import gaussian_bound
from shoal.protection import Demand, protect, sentences
from shoal.protection.judgement import Figures, affordable, candidates, chosen, judgement_of, least_exposed, shortlist
from shoal.protection.ladder import DELTA, ONE_STEP_ROUNDS, UNPROTECTED, Ladder, Rung
from shoal.protection.search import Candidate, _Search, fitting_candidates, ladder_of
from shoal.reports.protection_page import protection_page
from shoal.runs.directory import drop_repeated_warnings

GROUPS = ["north", "south"]
AS_IT_IS = (0.80, 0.70, 0.6)
DEMAND = Demand(limit=0.55, max_cost=0.02)


def figures_of(rows):
    """The figures of attacked runs, beside an unprotected federation of accuracy 0.8 everywhere."""
    attacked = pd.DataFrame(rows)
    plain = dict.fromkeys(("accuracy.overall", "accuracy.north", "accuracy.south"), 0.8)
    plain |= {"exposure.north": 0.7, "exposure.south": 0.6}
    return Figures(attacked, pd.DataFrame([{"seed": seed, **plain} for seed in attacked["seed"].unique()]), GROUPS)


def table(**figures):
    """Figures of two seeds by setting, from (accuracy, exposure of north, of south) and perhaps south's accuracy."""
    return figures_of(
        [
            {"setting": name.replace("_", " "), "seed": seed, "accuracy.overall": accuracy + move}
            | {"exposure.north": north - move, "exposure.south": south}
            | {"accuracy.north": accuracy, "accuracy.south": rest[0] if rest else accuracy}
            for name, (accuracy, north, south, *rest) in figures.items()
            for seed, move in enumerate((-0.001, 0.001))
        ]
    )


def judgement(rung, exposures, accuracy=0.8, alone=nan, demand=DEMAND):
    """The judgement of a rung by judging seeds with these exposures of north."""
    same = {"setting": rung, "exposure.south": 0.5, "accuracy.overall": accuracy, "accuracy.north": accuracy}
    same["accuracy.south"] = accuracy - 0.01
    figures = figures_of([{**same, "seed": seed, "exposure.north": north} for seed, north in enumerate(exposures)])
    return judgement_of(Rung(rung, "fewer rounds", {}), figures, demand, alone)


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was():
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize(
    ("settings", "max_cost", "judged"),
    [
        # Nothing above the price is judged, even where nothing else helps.
        ({"dear": (0.75, 0.50, 0.5)}, 0.02, None),
        ({"dear": (0.75, 0.50, 0.5), "little": (0.79, 0.65, 0.6)}, 0.02, "little"),
        ({"dear": (0.75, 0.50, 0.5), "little": (0.79, 0.65, 0.6)}, 0.06, "dear"),
        # The most exposed group counts, not the mean.
        ({"one sided": (0.80, 0.50, 0.58), "even": (0.80, 0.548, 0.548)}, 0.02, "even"),
        # A group on whose records nobody trained is at chance.
        ({"other": (0.80, 0.70, nan), "rung": (0.80, 0.52, nan)}, 0.02, "rung"),
    ],
)
def test_of_those_within_the_price_the_least_exposed_is_judged_where_none_keeps_the_limit(settings, max_cost, judged):
    assert least_exposed(table(**settings), Demand(max_cost=max_cost)) == judged


def test_of_those_within_limit_and_price_the_one_whose_groups_pay_least_comes_first_then_less_exposed_ones():
    figures = table(
        as_it_is=AS_IT_IS,
        dear=(0.70, 0.50, 0.5),
        exposed=(0.90, 0.60, 0.5),
        unfair=(0.84, 0.52, 0.5, 0.6),
        cheap=(0.79, 0.53, 0.5),
        best=(0.82, 0.54, 0.5),
        worse=(0.81, 0.545, 0.5),
    )
    assert candidates(figures, DEMAND) == ["best", "cheap", "unfair"]
    assert affordable(figures, DEMAND) == [UNPROTECTED.name, "exposed", "unfair", "cheap", "best", "worse"]
    assert shortlist(figures, DEMAND) == ["best", "worse", "cheap", "unfair"]
    figures = table(high=(0.8, 0.9, 0.5), low=(0.8, 0.6, 0.5), middle=(0.8, 0.7, 0.5))
    assert shortlist(figures, DEMAND) == candidates(figures, DEMAND) == []


def test_a_setting_that_one_seed_dropped_is_not_judged():
    figures = table(as_it_is=AS_IT_IS, dropped=(0.80, 0.60, 0.5), little=(0.79, 0.65, 0.6))
    seen = figures.attacked
    kept = seen[(seen["setting"] != "dropped") | (seen["seed"] == 0)].reset_index(drop=True)
    assert least_exposed(Figures(kept, figures.plain, GROUPS), DEMAND) == "little"


def test_where_a_promise_is_asked_for_it_is_kept_whatever_it_costs():
    figures = table(as_it_is=AS_IT_IS, plain=(0.80, 0.52, 0.5), noisy=(0.70, 0.51, 0.5), loud=(0.6, 0.5, 0.5))
    epsilons = {"noisy": 4.0, "loud": 2.0}
    promised = figures.attacked.assign(**{"epsilon.client": figures.attacked["setting"].map(epsilons), "epsilon": 9.0})
    of_clients = Figures(promised, figures.plain, GROUPS, "client")
    assert least_exposed(of_clients, Demand(view="client", epsilon=4.0)) == "noisy"
    assert least_exposed(of_clients, Demand(view="client", epsilon=3.0)) == "loud"
    assert least_exposed(of_clients, Demand(view="client", epsilon=1.0)) is None
    assert "noisy" in affordable(of_clients, Demand(epsilon=4.0))


def test_a_promised_limit_is_asked_of_the_bound_whatever_was_measured():
    figures = table(as_it_is=(0.80, 0.52, 0.5), plain=(0.80, 0.51, 0.5), noisy=(0.79, 0.54, 0.5), loud=(0.6, 0.5, 0.5))
    bounds = {"noisy": 0.549, "loud": 0.52}
    promised = figures.attacked.assign(**{"bound.client.accuracy": figures.attacked["setting"].map(bounds)})
    of_clients = Figures(promised, figures.plain, GROUPS, "client")
    assert candidates(of_clients, Demand(0.55, view="client", promise=True)) == ["noisy"]
    for limit, judged in ((0.53, "loud"), (0.51, None)):
        assert candidates(of_clients, Demand(limit, view="client", promise=True)) == []
        assert least_exposed(of_clients, Demand(limit, view="client", promise=True)) == judged
    assert shortlist(of_clients, Demand(0.525, view="client", promise=True)) == ["loud"]
    for setting, limit, outcome in (
        ("noisy", 0.55, "within the limit"),
        ("noisy", 0.545, "above the limit"),
        ("plain", 0.55, "above the limit"),
    ):
        demand = Demand(limit, view="client", promise=True)
        found = judgement_of(Rung(setting, "", {}), of_clients, demand)
        assert found.outcome == outcome
        said = " ".join(sentences(found, demand))
        assert ("by another client has accuracy 0.540; no attack on one record can exceed 0.549" in said) == (
            setting == "noisy"
        )


def test_a_group_without_any_exposure_is_judged_to_be_at_chance():
    figures = table(rung=(0.80, 0.52, nan))
    alone = Figures(figures.attacked, figures.plain, ["south"])
    assert judgement_of(Rung("rung", "", {}), alone, DEMAND).exposure == 0.5
    del figures.attacked["exposure.south"]
    assert candidates(figures, DEMAND) == ["rung"]


@pytest.mark.usefixtures("_unrendered_figures")
@pytest.mark.parametrize(
    ("exposures", "outcome"),
    [
        ((0.51, 0.5102, 0.5101), "within the limit"),
        ((0.60, 0.6002, 0.6001), "above the limit"),
        ((0.51, 0.52, 0.53), "not decided"),
    ],
)
def test_terminal_page_and_file_print_one_verdict_by_the_interval_of_the_judging_seeds(exposures, outcome):
    best, demand = judgement("a", exposures), DEMAND
    worst, other = best.findings
    assert (best.outcome, worst.verdict, worst.group, best.before, best.seeds) == (
        outcome, outcome, "north", pytest.approx(0.7), 3
    )  # fmt: skip
    mean = pd.Series(exposures).mean()
    assert worst.accuracy == demand.test_of("a").estimates({"a": exposures, "b": exposures}, {"a": 0, "b": 0})["a"]
    assert str(other.accuracy) == str(Estimate(0.5, 0.5, 0.5))
    assert best.hopeless == (outcome == "above the limit")
    assert (best.payer, best.payer_accuracy) == ("south", pytest.approx(0.79))
    document, said = best.json | asdict(demand), sentences(best, demand)
    front = table(as_it_is=AS_IT_IS, a=(0.80, mean, 0.5)).means()
    page = unescape(protection_page(front, document, said, "protected.toml"))
    assert all(text in page for text in said)
    assert said[1].count(worst.group) == 1
    assert said[1].startswith(exposure_summary(best.findings, unasked=False))
    assert said[2].startswith(sentence(worst))
    assert document["findings"] == [worst.json, other.json]
    assert document["words"] == best.words
    assert (document["findings"][0]["verdict"], document["findings"][0]["limit"]) == (outcome, demand.limit)
    ends = document["exposure"], document["exposure_low"], document["exposure_high"]
    assert ends == (worst.accuracy.value, worst.accuracy.low, worst.accuracy.high)


@pytest.mark.parametrize(("exposures", "hopeless"), [((0.5, 0.53, 0.56), False), ((0.55, 0.58, 0.61), True)])
def test_seeds_are_added_while_all_of_them_may_show_the_limit_to_be_kept(exposures, hopeless):
    found = judgement("a", exposures)
    assert (found.outcome, found.hopeless) == ("not decided", hopeless)


def test_changes_are_paired_on_the_seeds_of_the_unprotected_federation():
    seen = figures_of(
        [
            {"setting": "a", "seed": seed, "exposure.north": 0.5, "exposure.south": 0.5, "accuracy.overall": accuracy}
            | {"accuracy.north": accuracy, "accuracy.south": accuracy}
            for seed, accuracy in enumerate((0.9, 0.9, 0.6))
        ]
    )
    paired = Figures(seen.attacked, seen.plain[seen.plain["seed"] < 2], GROUPS)
    found = judgement_of(Rung("a", "", {}), paired, DEMAND)
    assert (found.accuracy, found.accuracy - found.accuracy_before) == (pytest.approx(0.8), pytest.approx(0.1))


def test_records_within_a_run_widen_intervals_of_seeds_that_agree_by_chance():
    figures = figures_of(
        [
            {"setting": "a", "seed": seed, "exposure.north": 0.5, "exposure.south": 0.5, "accuracy.overall": 0.8}
            | {"accuracy.north": 0.8, "accuracy.south": 0.8}
            | {"mia_low.north": 0.3, "mia_high.north": 0.7}
            for seed in range(3)
        ]
    )
    north, south = judgement_of(Rung("a", "", {}), figures, DEMAND).findings
    assert (north.group, north.verdict, south.verdict) == ("north", "not decided", "within the limit")


def test_the_level_is_divided_over_the_federation_as_it_is_and_three_protections():
    levels = [DEMAND.test_of(name).level for name in (UNPROTECTED.name, "a", "b", "c")]
    assert sum(levels) == pytest.approx(0.05)


def test_of_equals_the_one_with_the_lowest_epsilon_is_judged_first():
    figures = table(plain=(0.80, 0.52, 0.5), noisy=(0.80, 0.54, 0.5), loud=(0.799, 0.54, 0.5), dear=(0.785, 0.5, 0.5))
    epsilons = {"noisy": 4.0, "loud": 2.0, "dear": 1.0}
    seen = figures.attacked.assign(epsilon=figures.attacked["setting"].map(epsilons))
    assert candidates(Figures(seen, figures.plain, GROUPS), DEMAND)[0] == "loud"


def test_the_first_that_is_met_is_chosen_or_else_the_least_exposed():
    high, low = judgement("a", (0.60, 0.601)), judgement("b", (0.58, 0.581))
    met = judgement("c", (0.51, 0.51))
    assert chosen([high, low]).rung == "b"
    assert chosen([high, met, low]).rung == "c"


@pytest.mark.parametrize("view", ["outsider", "client", "server"])
def test_the_sentences_have_the_price_the_group_and_what_is_not_covered(view):
    text = " ".join(sentences(judgement("a", (0.5199, 0.52, 0.5201), accuracy=0.77), Demand(view=view)))
    for part in (
        "with fewer rounds.",
        "accuracy 0.520 (",
        "Without the protection, north has 0.700 on the same seeds",
        "(-0.030), more than the maximum cost",
    ):
        assert part in text
    assert "south loses most, from 0.800 to 0.760" in text
    assert "a measurement, not a guarantee" in text
    others = {"outsider": ("other clients", "server"), "client": ("server",), "server": ()}[view]
    assert all(f"{other}" in text.partition("does not cover")[2] for other in others)


@pytest.mark.parametrize(("alone", "said"), [(0.9, "the clients add nothing"), (0.7, "less than with clients")])
def test_a_shadow_set_that_does_without_clients_is_said_to(alone, said):
    text = sentences(judgement("a", (0.51, 0.52), alone=alone), DEMAND)
    assert said in text[4]


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
    return [*dict.fromkeys(one.name for one in fitting_candidates(config, data, ladder.rungs))]


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
def test_a_federation_within_its_limit_is_left_as_it_is_without_a_search_and_no_run_is_done_twice(
    small, tmp_path, capsys, view
):
    out = tmp_path / "out"
    call = ["protect", str(small), "--out", str(out), "--limit", "1.0", "--view", view, *QUICK]
    assert main(call) == 0
    said = capsys.readouterr().out
    figures = json.loads((out / "protection.json").read_text())
    assert (figures["outcome"], figures["rung"], figures["searched"]) == ("within the limit", UNPROTECTED.name, False)
    assert figures["level"] == 0.05
    protected = read_config(out / "protected.toml")
    assert protected == read_config(small)
    page = (out / "protection.html").read_text()
    assert all(line in page for line in said.splitlines()[1:2])
    done = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    assert len(done) == 4, "two seeds, and two of the shadow set alone"
    assert main(call) == 0
    assert capsys.readouterr().out == said
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")} == done
    assert main([*call, "--view", "client"]) == 2
    assert "has a search with another configuration, view or number" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")} == done


@pytest.mark.usefixtures("_unrendered_figures")
def test_a_search_leaves_a_configuration_that_runs_compared_on_the_same_seeds(small, tmp_path):
    out = tmp_path / "out"
    # A limit at chance is not shown to be met by two seeds, so protections are tried.
    assert main(["protect", str(small), "--out", str(out), "--limit", "0.5", *QUICK]) == 0
    figures, runs = json.loads((out / "protection.json").read_text()), pd.read_csv(out / "runs.csv")
    assert figures["searched"]
    assert {"1 round", UNPROTECTED.name} <= {*runs["setting"]}
    assert read_config(out / "protected.toml").algorithm.rounds == (1 if figures["rung"] == "1 round" else 2)
    column = f"exposure.{figures['group']}"
    before = runs[(runs["setting"] == UNPROTECTED.name) & (runs["seed"] > runs["seed"].min())]
    assert figures["before"] == pytest.approx(before[column].fillna(0.5).mean())
    assert before["seed"].nunique() == figures["seeds"] == 2


class Stub(_Search):
    """A search whose runs have given figures: (accuracy, exposure) by setting."""

    given: ClassVar = {}

    def runs(self, settings, seeds, *, attacked):
        def row(name, seed):
            name = name.partition(", rate")[0]
            accuracy, exposure = self.given[name]
            self.rows.setdefault(name, {"attacked": 0})["attacked"] += attacked
            same = {"setting": name, "seed": seed, "accuracy.overall": accuracy, "accuracy.all": accuracy}
            return same | {"exposure.all": exposure + 0.001 * (seed % 2)}

        return pd.DataFrame([row(name, seed) for name in settings for seed in seeds])


def test_the_search_ends_with_the_first_group_that_has_an_answer_and_judges_three_at_most(toy_config):
    config = toy_config()
    names = [f"{number}" for number in range(12)]
    fitting = [Candidate(name, Rung(name, "", {}), config) for name in names]

    def search(exposures):
        given = {name: (0.85 - 0.01 * int(name), one) for name, one in zip(names, exposures, strict=True)}
        Stub.given = {UNPROTECTED.name: (0.8, 0.9)} | given
        stub = Stub(Workplace(None), config, ["all"], DEMAND)
        return stub.best(fitting, stub.judge(UNPROTECTED.name)), stub

    best, stub = search([0.6, 0.6, 0.51, 0.5, *[0.5] * 8])
    assert (best.rung, best.outcome) == ("2", "within the limit")
    assert not any(stub.rows[name]["attacked"] for name in names[4:]), "less accurate ones are not attacked"
    assert stub.rows["0"]["attacked"] == 1, "one seed shows it to be above the limit"
    best, stub = search([0.7, 0.65, 0.6, 0.61, *[0.62] * 8])
    assert (best.rung, best.outcome == "within the limit") == ("2", False)
    assert all(stub.rows[name]["attacked"] for name in names[:8]), "all within the price are tried"
    assert not any(stub.rows[name]["attacked"] for name in names[10:]), "nothing above the price is"


def test_a_warning_of_many_runs_is_printed_once(caplog):
    log = logging.getLogger("shoal")
    caplog.handler.setLevel(logging.INFO)
    logging.getLogger().addHandler(caplog.handler)
    with drop_repeated_warnings():
        for seed in range(3):
            log.warning("seed %d of 1,749 rows is odd", seed)
            log.warning("another")
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records) == 2
    log.warning("another")
    assert len(caplog.records) == 3
    logging.getLogger().removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--view", "nobody"], "view"),
        (["--limit", "0.4"], "'limit' must be from 0.5"),
        (["--limit", "nan"], "limit"),
        (["--limit", "0.5", "--promise"], "with 'promise'"),
        (["--limit", "1.0", "--promise"], "with 'promise'"),
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
        with pytest.raises(InputError, match=f"guarantees {said}"):
            protect(config, Workplace(tmp_path / "out"), demand)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["summary.json", "notes.txt", "sweep.toml"])
def test_a_directory_of_something_else_is_left_alone(small, tmp_path, capsys, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    assert main(["protect", str(small), "--out", str(tmp_path / "out")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
