"""The board of defences: the same federations for everybody, seeds that nobody knows beforehand, shared places."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

from shoal.board.board import Defence, measure, read_board, read_defence, read_rows
from shoal.board.places import OTHERS, RISK, UTILITY, markdown, overview, places, standings
from shoal.core.errors import InputError

FEDERATION = {
    "seed": 0,
    "data": {
        "source": "digits", "clients": 6, "examples_per_client": 20, "test_examples": 60, "shadow_examples": 100,
        "groups": {
            "minority": {"share": 0.34, "rotation": [0, 0]}, "majority": {"share": 0.66, "rotation": [180, 180]},
        },
    },
    "model": {"name": "logistic"},
    "algorithm": {"name": "ifca", "rounds": 2},
    "local": {"batch_size": "all"},
    "red_team": {"every": 0, "attack": "gap"},
    "engine": {"threads": 1},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    board = tmp_path / "board"
    board.mkdir()
    (board / "small.toml").write_text(tomli_w.dumps(FEDERATION))
    federation = {"file": "small.toml", "configuration": "?", "examples": "?"}
    asked = {"development_seeds": [100], "judging_seeds": 2, "references": 1, "federations": {"small": federation}}
    (board / "board.toml").write_text(tomli_w.dumps(asked))
    federation["configuration"], federation["examples"] = read_board(board).hashes("small")
    (board / "board.toml").write_text(tomli_w.dumps(asked))
    return board


def written(path, **table):
    path.write_text(tomli_w.dumps({"name": "mine", "about": "a trial", **table}))
    return path


def rows(**means):
    """Rows of defences on one federation: the same spread for all, ``means`` by defence and column."""
    spread = np.array([-0.01, 0.0, 0.01])
    table = []
    for defence, changed in means.items():
        columns = dict.fromkeys(UTILITY, 0.8) | dict.fromkeys(RISK, 0.6) | changed
        table += [
            {"defence": defence, "federation": "f", "seed": i, **{c: value + spread[i] for c, value in columns.items()}}
            for i in range(3)
        ]
    return pd.DataFrame(table)


class TestPlaces:
    def test_what_lies_within_the_intervals_shares_a_place(self):
        assert places(rows(a={}, b={"accuracy": 0.805})).to_dict() == {"a": 1, "b": 1}

    def test_clearly_better_in_one_and_worse_in_none_is_a_place_ahead(self):
        assert places(rows(a={}, b={"server": 0.5}, c={"server": 0.5, "minority": 0.9})).to_dict() == {
            "a": 3, "b": 2, "c": 1,
        }  # fmt: skip

    def test_utility_bought_by_exposure_is_no_better_place(self):
        assert places(rows(a={}, b={"accuracy": 0.9, "client": 0.9})).to_dict() == {"a": 1, "b": 1}

    def test_a_single_seed_shows_nothing(self):
        single = rows(a={}, b={"accuracy": 0.99}).query("seed == 0")
        assert places(single).to_dict() == {"a": 1, "b": 1}

    def test_the_table_begins_with_places_by_federation_and_lacks_none(self):
        measured = rows(a={}, b={"server": 0.5}).assign(**dict.fromkeys(OTHERS, 0.0))
        alone = measured.query("defence == 'a'").assign(federation="g")
        tables = {name: standings(pd.concat([measured, alone]), name) for name in ("f", "g")}
        assert overview(tables).fillna(0).to_dict("index") == {"b": {"f": 1, "g": 0}, "a": {"f": 2, "g": 1}}
        assert markdown(tables).startswith("| defence | f | g |\n|---|---:|---:|\n| b | 1 |  |\n| a | 2 | 1 |\n\n")

    def test_half_an_interval_is_students(self):
        table = rows(a={}).assign(**dict.fromkeys(OTHERS, 0.0))
        half = standings(table, "f")["accuracy.half"].item()
        assert half == pytest.approx(4.302653 * 0.01 / np.sqrt(3), rel=1e-5)


class TestDefence:
    def test_seeds_follow_from_the_changes_alone(self):
        changes = {"local.epochs": 2}
        assert Defence("a", "x", changes).seeds(3) == Defence("b", "y", changes).seeds(3)
        assert not {*Defence("a", "x", changes).seeds(3)} & {*Defence("a", "x", {"local.epochs": 3}).seeds(3)}
        assert Defence("a", "x", changes).seeds(2) == Defence("a", "x", changes).seeds(3)[:2]

    @pytest.mark.parametrize("key", ["data.clients", "seed", "evaluation.view", "canaries.per_client", "privacy.beta"])
    def test_the_federation_and_its_measurement_cannot_be_changed(self, folder, tmp_path, key):
        with pytest.raises(InputError, match=f"'{key}' belongs to the board's federations"):
            read_defence(written(tmp_path / "mine.toml", changes={key: 3}), read_board(folder))

    def test_a_federation_that_the_board_lacks_is_one_sentence(self, folder, tmp_path):
        mine = written(tmp_path / "mine.toml", federations={"large": {"local.epochs": 2}})
        with pytest.raises(InputError, match="the board has no federation 'large'; it has small"):
            read_defence(mine, read_board(folder))

    def test_changes_of_one_federation_go_before_those_of_all(self):
        defence = Defence("a", "x", {"local.epochs": 2}, {"f": {"local.epochs": 3}})
        assert defence.applied({"local": {}}, "f") == {"local": {"epochs": 3}}
        assert defence.applied({"local": {}}, "g") == {"local": {"epochs": 2}}

    def test_a_key_inside_a_table_that_was_set_changes_one_federation_alone(self):
        defence = Defence("a", "x", {"local": {"epochs": 2}}, {"f": {"local.epochs": 3}})
        seeds = defence.seeds(1)
        assert defence.applied({}, "f") == {"local": {"epochs": 3}}
        assert defence.applied({}, "g") == {"local": {"epochs": 2}}
        assert defence.seeds(1) == seeds


class TestBoard:
    def test_another_federation_is_refused_before_anything_runs(self, folder, tmp_path):
        (folder / "small.toml").write_text(tomli_w.dumps(FEDERATION | {"local": {"batch_size": 5}}))
        with pytest.raises(InputError, match="computes something else than the board's federation 'small'"):
            measure(read_board(folder), Defence("a", "x"), tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_directory_that_cannot_be_made_is_one_sentence(self, folder, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="file"):
            measure(read_board(folder), Defence("a", "x"), tmp_path / "file")

    def test_other_examples_are_refused(self, folder, tmp_path):
        table = (folder / "board.toml").read_text()
        (folder / "board.toml").write_text(table.replace('examples = "', 'examples = "0'))
        with pytest.raises(InputError, match="its examples are not the board's"):
            measure(read_board(folder), Defence("a", "x"), tmp_path / "out")

    @pytest.mark.usefixtures("_unrendered_figures")
    def test_a_row_has_every_view_and_is_measured_once(self, folder, tmp_path, monkeypatch):
        board, defence = read_board(folder), Defence("server", "x", {"algorithm": {"name": "ifca", "rounds": 1}})
        table = measure(board, defence, tmp_path / "out")
        row = table.iloc[0]
        assert table["seed"].tolist() == [100]
        assert row["outsider"] <= row["client"] <= row["server"] <= 1
        assert row["server"] > 0.9
        assert row["megabytes"] == pytest.approx(2 * 4 * 650 * 1 / 1e6)
        monkeypatch.setattr("shoal.board.board.audit_run", lambda *_, **__: pytest.fail("audited again"))
        assert measure(board, defence, tmp_path / "out").equals(table)

    def test_rows_that_are_none_are_one_sentence(self, folder):
        (folder / "rows").mkdir()
        (folder / "rows" / "mine.csv").write_text("defence,seed\na,1\n")
        with pytest.raises(InputError, match="lacks the columns 'accuracy', 'client'"):
            read_rows(folder)

    def test_the_boards_own_files_are_whole(self):
        board = read_board(Path("experiments/board"))
        defences = [read_defence(path, board) for path in sorted(Path("experiments/board/defences").glob("*.toml"))]
        assert len(defences) >= 10
        assert len({defence.name for defence in defences}) == len(defences)
