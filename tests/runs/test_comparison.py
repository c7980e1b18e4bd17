"""Finished runs side by side: what was asked of each, what came out, and what is refused."""

import json
import shutil

import pytest

import shoal
from html_page import Page
from shoal.cli.app import main
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.runs.comparison import compare


@pytest.fixture(scope="module")
def first(toy_run, tmp_path_factory):
    run = toy_run(algorithm__rounds=1, red_team__attack="gap")
    return shutil.copytree(run, tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def changed(first, tmp_path):
    """Makes a copy of the run with other values in its configuration and its summary."""

    def copy(name, *settings, **metrics):
        out = shutil.copytree(first, tmp_path / name)
        (out / "config.toml").write_text(read_config(first / "config.toml", settings).toml())
        summary = json.loads((out / "summary.json").read_text()) | metrics
        (out / "summary.json").write_text(json.dumps(summary))
        return out

    return copy


def test_a_comparison_says_in_which_keys_runs_differ_and_not_how_fast_they_went(first, changed):
    other = changed("other", "local.learning_rate=0.5", "engine.threads=1", "checkpoint.every=7", "red_team.every=9")
    settings = compare([first, other]).settings
    assert list(settings.columns) == ["first", "other"]
    assert {key: list(values) for key, values in settings.iterrows()} == {
        "local.learning_rate": ["0.1", "0.5"],
        "red_team.every": ["2", "9"],
    }


def test_results_compare_as_their_directories_do(first, changed):
    paths = [first, changed("other", "local.learning_rate=0.5", **{"accuracy.overall": 0.1})]
    of_paths, of_results = shoal.compare([str(path) for path in paths]), shoal.compare([*map(shoal.load, paths)])
    assert list(of_results.settings.columns) == ["run 1", "run 2"]
    assert of_results.settings.to_numpy().tolist() == of_paths.settings.to_numpy().tolist()
    assert of_results.metrics.to_numpy().tolist() == of_paths.metrics.to_numpy().tolist()
    assert of_results.sentences[0].replace("run 1", "first").replace("run 2", "other") == of_paths.sentences[0]
    assert "Against run 1, run 2 shows no clear difference in accuracy" in Page(of_results._repr_html_()).text


@pytest.mark.parametrize("runs", ["runs/a", None, 3, {"a": 1}], ids=str)
def test_what_is_no_list_of_runs_is_one_sentence(runs):
    with pytest.raises(InputError, match="'runs' must be a list of directories or results"):
        shoal.compare(runs)


def test_a_key_that_one_run_lacks_is_a_dash(first, changed):
    settings = compare([first, changed("other", "algorithm.name=ifca", "defenses.l2=0.01")]).settings
    assert list(settings.loc["defenses.l2"]) == ["-", "0.01"]
    assert list(settings.loc["algorithm.name"]) == ["ifca-mir", "ifca"]


def test_epsilon_is_in_the_table_where_a_run_has_it(first, changed):
    label = "epsilon, largest of the clients"
    private = changed("private", epsilon=3.25, delta=1e-5)
    assert list(compare([first, private]).metrics.loc[label]) == ["-", "3.250"]
    assert label not in compare([first, changed("again")]).metrics.index


def figures(accuracy, **exposures):
    """Entries of a summary that leave no doubt of their differences, whose intervals are of thousands of examples."""
    entries = {"accuracy.overall": accuracy}
    for group, value in exposures.items():
        entries |= {f"{key}.{group}": value for key in ("exposure", "mia")}
        entries |= {f"mia_low.{group}": value - 0.01, f"mia_high.{group}": value + 0.01, f"test_examples.{group}": 4000}
    return entries


def test_a_sentence_says_which_way_the_second_run_differs_from_the_first(changed):
    low, high = figures(0.2, minority=0.9, majority=0.55), figures(0.8, minority=0.6, majority=0.75)
    runs = changed("low", "seed=1", **low, migrated=1), changed("high", "seed=2", **high, migrated=4)
    rise, fall = (compare(order).sentences[0] for order in (runs, runs[::-1]))
    for sentence, parts in (
        (rise, ("gains accuracy (0.200, now 0.800", "lowers the MIA accuracy on minority (0.900, now 0.600",
                "raises the MIA accuracy on majority (0.550, now 0.750", "has 4 of 10 clients")),
        (fall, ("loses accuracy (0.800, now 0.200", "raises the MIA accuracy on minority (0.600, now 0.900",
                "lowers the MIA accuracy on majority (0.750, now 0.550", "has 1 of 10 clients")),
    ):  # fmt: skip
        assert [part for part in parts if part not in sentence] == [], sentence
        assert sum(f" {verb} accuracy" in sentence for verb in ("gains", "loses")) == 1
    assert rise.startswith("Against low, high ")
    assert fall.startswith("Against high, low ")


def test_a_sentence_calls_no_difference_where_there_is_none(changed):
    same = figures(0.5, minority=0.7, majority=0.6)
    (sentence, *_) = compare([changed("one", "seed=1", **same), changed("two", "seed=2", **same)]).sentences
    assert not any(f" {verb} " in sentence for verb in ("gains", "loses", "raises", "lowers")), sentence


def test_five_runs_are_two_tables_and_a_sentence_each(first, changed, capsys):
    others = [changed(f"[{i}]", f"seed={i}", **{"accuracy.overall": 0.1 * i}) for i in range(4, 8)]
    assert main(["compare", str(first), *map(str, others)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["what", "differs", "first", "[4]", "[5]", "[6]", "[7]"]
    assert lines[1].split() == ["seed", "3", "4", "5", "6", "7"]
    assert "0.700" in next(line for line in lines if line.startswith("accuracy, all clients"))
    sentences = [line for line in lines if line.startswith("Against first, ")]
    assert [line.split()[2] for line in sentences] == ["[4]", "[5]", "[6]", "[7]"]
    assert main(["compare", str(first), str(first)]) == 0
    assert capsys.readouterr().out.startswith("The configurations are the same.")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: "", r"clients\.csv: is damaged"),
        (lambda text: text.replace("threshold", "limit"), "missing columns: threshold"),
        (lambda text: text[: text.rstrip().rfind("\n") + 1], "10 rows .got 9."),
    ],
    ids=["empty", "another column", "truncated"],
)
def test_damaged_clients_are_refused(first, changed, damage, said):
    other = changed("other")
    (other / "clients.csv").write_text(damage((other / "clients.csv").read_text()))
    with pytest.raises(InputError, match=said):
        compare([first, other])
