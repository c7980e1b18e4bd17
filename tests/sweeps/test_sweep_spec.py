"""A sweep's file: what becomes of it, and what is said of a wrong one."""

import itertools
import shutil

import pytest

from shoal.attacks import ShadowModelAttack
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.sweeps import read_sweep
from shoal.sweeps.plan import digest_of, plan_runs

GROUPS = {
    "minority": {"share": 0.3, "rotation": [0, 20]},
    "middle": {"share": 0.2, "rotation": [20, 40]},
    "majority": {"share": 0.5, "rotation": [60, 90]},
}
BASE = {"data__groups": GROUPS, "algorithm__rounds": 2, "red_team": {"every": 1, "shadow_models": 2}}
"""Changes of the toy run."""

SWEEP = """
base = "base.toml"
seeds = [4, 2]
[changes]
"local.batch_size" = 7
[grid]
"data.groups.minority.share" = [0.1, 0.4]
[grid.algorithm]
"plain" = { "algorithm.name" = "ifca", "red_team.every" = 2 }
"wary" = { "algorithm.name" = "ifca-mir" }
"""


@pytest.fixture
def written(toy_sweep, tmp_path):
    """Writes a sweep's file beside its base, and returns its path."""
    (tmp_path / "number.toml").write_text("data = 5")
    return lambda text: toy_sweep(tmp_path, text, **BASE)


def test_the_runs_are_the_product_in_the_order_of_the_file(written):
    sweep = read_sweep(written(SWEEP))
    assert sweep.axes == {"data.groups.minority.share": (0.1, 0.4), "algorithm": ("plain", "wary")}
    places = [(*run.settings.values(), run.seed) for run in sweep.runs]
    assert places == list(itertools.product((0.1, 0.4), ("plain", "wary"), (4, 2)))
    for run in sweep.runs:
        share, algorithm = run.settings.values()
        config = run.config
        assert config.seed == run.seed
        assert config.local.batch_size == 7
        assert config.data.groups["minority"].share == share
        assert (config.algorithm.name, config.red_team.every) == (
            ("ifca", 2) if algorithm == "plain" else ("ifca-mir", 1)
        )


def test_a_setting_s_algorithm_leaves_shared_keys_of_others_and_is_set_no_key_of_others(written):
    shared = SWEEP.replace('"local.batch_size" = 7', '"algorithm.clusters" = 3')
    runs = read_sweep(written(shared.replace('"ifca-mir" }', '"fedavg" }'))).runs
    assert {getattr(run.config.algorithm.value, "clusters", 1) for run in runs} == {3, 1}
    own = SWEEP.replace('"ifca-mir" }', '"fedavg", "algorithm.clusters" = 2 }')
    with pytest.raises(InputError, match=r"algorithm = wary.*'algorithm.clusters'.*'fedavg'"):
        read_sweep(written(own))


def test_the_last_group_takes_what_the_others_leave_and_only_when_shares_change(written):
    shares = [
        [group.share for group in run.config.data.groups.values()] for run in read_sweep(written(SWEEP)).runs[::4]
    ]
    assert shares == [[0.1, 0.2, 0.7], [0.4, 0.2, 0.4]]
    given = SWEEP.replace("[grid]\n", '[grid]\n"data.groups.majority.share" = [0.7]\n').replace("[0.1, 0.4]", "[0.1]")
    assert [group.share for group in read_sweep(written(given)).runs[0].config.data.groups.values()] == [0.1, 0.2, 0.7]
    none = SWEEP.replace('"data.groups.minority.share" = [0.1, 0.4]', '"local.epochs" = [1]')
    assert [group.share for group in read_sweep(written(none)).runs[0].config.data.groups.values()] == [0.3, 0.2, 0.5]


def test_lists_and_booleans_can_be_settings(written):
    asked = SWEEP.replace(
        '"data.groups.minority.share" = [0.1, 0.4]',
        '"data.groups.minority.rotation" = [[0, 10], [0, 20]]\n"red_team.per_class" = [true, false]',
    )
    sweep = read_sweep(written(asked))
    assert sweep.axes["data.groups.minority.rotation"] == ("[0, 10]", "[0, 20]")
    assert sweep.runs[0].config.data.groups["minority"].rotation == (0, 10)
    assert sweep.runs[0].config.red_team.attack == ShadowModelAttack(per_class=True)


def test_an_empty_setting_leaves_the_base_as_it_is_and_none_removes_one_of_its_sections(written):
    plain = SWEEP.replace('"plain" = { "algorithm.name" = "ifca", "red_team.every" = 2 }', '"plain" = {}')
    base, first = read_config(written(plain).parent / "base.toml"), read_sweep(written(plain)).runs[0].config
    assert first.algorithm == base.algorithm
    assert first.red_team == base.red_team
    groups = SWEEP.replace('"plain" = {', '"plain" = { "data.groups" = "none",')
    without = read_sweep(written(groups.replace('"data.groups.minority.share" = [0.1, 0.4]', ""))).runs
    assert [len(run.config.data.groups) for run in without] == [1, 1, 3, 3]
    with pytest.raises(InputError, match=r"'local' must be"):
        read_sweep(written(SWEEP.replace('"local.batch_size" = 7', '"local" = "some"')))


def test_a_run_is_named_by_what_it_runs_and_not_by_how_fast(written, tmp_path):
    digests = [each.digest for each in plan_runs(read_sweep(written(SWEEP)))]
    assert len(set(digests)) == 8
    faster = SWEEP.replace("[changes]", '[changes]\n"engine.threads" = 1\n"checkpoint.every" = 5')
    assert [each.digest for each in plan_runs(read_sweep(written(faster)))] == digests
    decided = plan_runs(read_sweep(written(SWEEP)))[0].config
    config = tmp_path / "config.toml"
    config.write_text(decided.toml())
    assert digest_of(read_config(config)) == digests[0], "the configuration on disk has the same name"
    other = SWEEP.replace('"local.batch_size" = 7', '"local.batch_size" = 8')
    assert not set(digests) & {each.digest for each in plan_runs(read_sweep(written(other)))}


def test_the_copy_of_a_sweep_asks_for_the_same_runs(written, tmp_path):
    sweep = read_sweep(written(SWEEP))
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "base.toml", copy)
    (copy / "sweep.toml").write_text(sweep.toml("base.toml"))
    again = read_sweep(copy / "sweep.toml")
    assert [each.digest for each in plan_runs(again)] == [each.digest for each in plan_runs(sweep)]
    assert (again.axes, again.seeds, again.shown) == (sweep.axes, sweep.seeds, sweep.shown)


@pytest.mark.parametrize("name", ["run", "seed", "key", "mean", "sd", "n", "larger.mia", "seconds.total"])
def test_an_axis_has_no_name_of_a_column(written, name):
    with pytest.raises(InputError, match=rf"'grid\.{name}' cannot be an axis; (list seeds|rename the axis)"):
        read_sweep(written(SWEEP.replace("[grid.algorithm]", f"[grid.'{name}']")))


def test_several_sweeps_can_share_what_they_show(written, tmp_path):
    table = '[tables.t]\ny = ["mia.minority"]\nrows = ["algorithm"]\naverage = ["data.groups.minority.share"]\n'
    (tmp_path / "show.toml").write_text(table + "[labels]\nplain = 'IFCA'")
    shared = 'shown = "show.toml"\n' + SWEEP
    sweep = read_sweep(written(shared + "[labels]\nwary = 'IFCA-MIR'"))
    assert list(sweep.shown.tables) == ["t"]
    assert sweep.shown.labels == {"plain": "IFCA", "wary": "IFCA-MIR"}
    copy = tmp_path / "copy.toml"
    copy.write_text(sweep.toml("base.toml"))
    (tmp_path / "show.toml").unlink()
    assert read_sweep(copy).shown == sweep.shown, "the copy has it in it"
    for text, said in (
        (table, "'tables.t' is also in the sweep's file"),
        ("[grid]", "unknown key 'grid'"),
        ("labels = ['IFCA']", "'labels' must be a table"),
        ("tables = 5", "'tables' must be a table"),
    ):
        (tmp_path / "show.toml").write_text(text)
        with pytest.raises(InputError, match=said):
            read_sweep(written(shared + table))


FIGURE = SWEEP + '[figures.f]\nkind = "bars"\nx = "algorithm"\naverage = ["data.groups.minority.share"]\ny = ["x"]\n'

BAD = {
    "no path": (SWEEP.replace('"base.toml"', '"a\\u0000b"'), "null bytes (got"),
    "an integer beyond 64 bits": (
        SWEEP.replace("[4, 2]", "[0x10000000000000000]"),
        "65 bits)",
    ),
    "a number of thousands of digits": (SWEEP.replace("0.4]", f"1{'0' * 5000}]"), "is not TOML: Exceeds the limit"),
    "lists without end": (f"x = {'[' * 5000}{']' * 5000}", "is nested too deeply"),
    "several keys as one": (SWEEP.replace('"local.batch_size"', '"local = { a = 1, b = 2 } #"'), "is not a key"),
    "a key of an axis and of changes, written otherwise": (
        SWEEP.replace('"local.batch_size"', '"algorithm . name"'),
        "'algorithm.name' is set by 'grid.algorithm' and by 'changes'",
    ),
    "a table that has a key of changes": (
        SWEEP.replace("[grid]", '[grid]\n"local" = [{ epochs = 2 }]'),
        "'local' is set by 'grid.local' and by 'changes'",
    ),
    "a seed in changes": (SWEEP.replace('"local.batch_size"', '"seed"'), "'changes' sets 'seed'; list seeds"),
    "a date": (SWEEP.replace("0.4]", "2026-01-01]"), "has a date or a time"),
    "an axis without a name": (SWEEP.replace("[grid.algorithm]", '[grid.""]'), "(got '')"),
    "a setting of two lines": (SWEEP.replace('"plain"', '"a\\rb"'), r"(got 'a\rb')"),
    "data that are no table": (SWEEP.replace("base.toml", "number.toml"), "'data' is a value, not a table"),
    "unknown key in the grid": (
        SWEEP.replace("minority.share", "minority.shar"),
        "unknown key 'data.groups.minority.shar'; did you mean 'share'?",
    ),
    "a wrong value": (SWEEP.replace("0.4]", "-1]"), "'data.groups.minority.share' must be"),
    "no grid": (SWEEP[: SWEEP.index("[grid]")], "'grid' is missing"),
    "an axis of one value": (
        SWEEP.replace("[grid]", '[grid]\n"local.epochs" = 3'),
        "'grid.local.epochs' must be a list of values or a table of settings (got 3)",
    ),
    "an empty grid": (SWEEP[: SWEEP.index("[grid]")] + "[grid]", "'grid' is empty"),
    "an empty axis": (SWEEP.replace("[0.1, 0.4]", "[]"), "'grid.data.groups.minority.share' is empty"),
    "a setting twice": (SWEEP.replace("[0.1, 0.4]", "[0.1, 0.1]"), "has 0.1 twice"),
    "a seed twice": (SWEEP.replace("[4, 2]", "[4, 4]"), "'seeds' has 4 twice"),
    "no seed": (SWEEP.replace("[4, 2]", "[]"), "'seeds' must be not empty"),
    "a seed in a setting": (SWEEP.replace('"red_team.every" = 2', '"seed" = 2'), "list seeds in 'seeds'"),
    "a key of two axes": (SWEEP.replace("[grid]", '[grid]\n"algorithm.name" = ["ifca"]'), "is set by 'grid.algorithm'"),
    "a key of an axis and of changes": (SWEEP.replace('"local.batch_size"', '"algorithm.name"'), "and by 'changes'"),
    "a key without quotes": (
        SWEEP.replace("[grid]", "[grid]\nlocal.epochs = [1, 2]"),
        "a table of keys and values",
    ),
    "no key at all": (SWEEP.replace("local.batch_size", "local..size"), "is not a key"),
    "a value for a table": (SWEEP.replace('"local.batch_size"', '"model.name.batch"'), "is a value, not a table"),
    "no base": (SWEEP.replace("base.toml", "other.toml"), "other.toml: cannot be read"),
    "an unknown key of its own": (SWEEP.replace("seeds", "sedes"), "unknown key 'sedes'; did you mean 'seeds'?"),
    "nothing left for the last group": (SWEEP.replace("0.4]", "0.8]"), "more than 0 for the group 'majority'"),
    "a table over no axis": (
        SWEEP + '[tables.t]\ny = ["mia.minority"]\nrows = ["algo"]',
        "does not vary 'algo'; did you mean 'algorithm'?",
    ),
    "an axis unspoken for": (
        SWEEP + '[tables.t]\ny = ["mia.minority"]\nrows = ["algorithm"]',
        "'data.groups.minority.share' also varies in the sweep",
    ),
    "an axis spoken for twice": (
        SWEEP + '[tables.t]\ny = ["mia.minority"]\nrows = ["algorithm"]\naverage = ["algorithm"]',
        "'algorithm' is used twice",
    ),
    "held at no setting": (
        SWEEP + '[tables.t]\ny = ["mia.minority"]\nrows = ["data.groups.minority.share"]\nwhere.algorithm = "brave"',
        "'where.algorithm' must be one of plain, wary (got 'brave')",
    ),
    "held at true where it is 1": (
        SWEEP.replace('"data.groups.minority.share" = [0.1, 0.4]', '"local.epochs" = [1, 2]')
        + '[tables.t]\ny = ["x"]\nrows = ["algorithm"]\nwhere."local.epochs" = true',
        "'where.local.epochs' must be one of 1, 2 (got True)",
    ),
    "a key twice": (
        SWEEP + '[tables.t]\ny = ["x", "x"]\nrows = ["algorithm"]\naverage = ["data.groups.minority.share"]',
        "'y' has 'x' twice",
    ),
    "a figure of no kind": (
        SWEEP + '[figures.f]\nkind = "pie"\nx = "algorithm"\ny = ["x"]',
        "'figures.f.kind' must be 'boxes'",
    ),
    "a figure over nothing": (SWEEP + '[figures.f]\nkind = "bars"\ny = ["x"]', "'figures.f.x' is missing"),
    "a level that is none": (FIGURE + "level = nan", "'figures.f.level' must be a finite number (got nan"),
    "a name too long for a file": (SWEEP + f"[tables.{'a' * 201}]\ny = ['x']", "at most 200 bytes"),
    "a file's name that is none": (SWEEP + '[tables."a/b"]\ny = ["x"]', "'tables.a/b' must have a name of letters"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD.keys())
def test_a_wrong_file_gets_one_sentence(written, text, said):
    with pytest.raises(InputError) as raised:
        read_sweep(written(text))
    assert said in str(raised.value)
    assert str(raised.value).count("\n") == 0


def test_what_only_the_data_show_is_said_before_anything_runs(written):
    many = SWEEP.replace("[0.1, 0.4]", "[0.1]").replace("[changes]", '[changes]\n"data.clients" = 1000')
    with pytest.raises(InputError, match=r"share = 0.1, algorithm = plain, seed 4: \[data\]: .*12,100 images"):
        plan_runs(read_sweep(written(many)))
    for key, value, said in (
        ("data.clients", "4", r"\[data\]: .*0.1 of 4 clients"),
        ("data.groups.majority.share", "0.9", r"\[data\]: .*shares.* must sum to 1"),
        ("privacy.thresholds", "[0.8, 0.5]", r"\[privacy\]: .*thresholds' must be \[low, high\]"),
        ("privacy.beta", "[0.5]", r"\[privacy\]: .*beta'.* 10 numbers"),
    ):
        with pytest.raises(InputError, match=f"algorithm = plain, seed 4: .*{said}"):
            plan_runs(read_sweep(written(SWEEP.replace("[changes]", f'[changes]\n"{key}" = {value}'))))
    same = SWEEP.replace('"algorithm.name" = "ifca-mir"', '"algorithm.name" = "ifca", "red_team.every" = 2')
    with pytest.raises(InputError, match=r"are the same run"):
        plan_runs(read_sweep(written(same)))
