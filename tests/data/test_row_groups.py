"""Groups of examples: a column such as sex that differs within clients, and the figures of each group."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import shoal
from shoal.data import ClientSplit, load_table
from shoal.data.swap_pairs import pair_records
from shoal.data.user.own_files import table_dataset

COLUMNS = shoal.Columns(client="ward", label="ill", group="sex", inputs=("a", "b"))
LOCAL = shoal.LocalSGD(epochs=3, batch_size=10, learning_rate=0.3)
MODEL = shoal.create_model("logistic", shoal.VectorShape(inputs=2, classes=2))


def table(wards=6, own=40, seed=0):
    """Rows of wards in which every fourth row is of a woman, whose labels are the other way round."""
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame(draw.normal(size=(wards * own, 2)), columns=[*"ab"])
    rows["ward"] = [f"w{i // own}" for i in range(len(rows))]
    rows["sex"] = ["women" if i % 4 == 0 else "men" for i in range(len(rows))]
    rows["ill"] = np.where((rows["a"] > 0) ^ (rows["sex"] == "women"), "yes", "no")
    return rows


def federation(rows=None):
    return shoal.Federation.from_table(table() if rows is None else rows, COLUMNS, test_fraction=0.5)


def simulated(of, algorithm=None, **keys):
    return shoal.simulate(of, MODEL, algorithm or shoal.FedAvg(), LOCAL, rounds=2, **keys)


def test_each_example_has_the_group_of_its_row():
    made = federation()
    assert made.groups == ("men", "women")
    assert made.groups_with_clients == [0, 1]
    torch.testing.assert_close(made.group_shares.sum(dim=1), torch.ones(6, dtype=torch.float64))
    shares = torch.bincount(made.groups_of("clients"), minlength=2) / len(made.clients.indices)
    torch.testing.assert_close(made.group_fractions.float(), shares)
    assert 0.15 < made.shares["women"] < 0.35
    assert made.test.client is not None
    assert {*made.test.client.tolist()} == {*range(6)}


def test_a_file_gives_the_groups_of_the_table(tmp_path):
    table().to_csv(tmp_path / "wards.csv", index=False)
    data = load_table(tmp_path / "wards.csv", COLUMNS)
    parts = ClientSplit(test_fraction=0.3, holdout_fraction=0.2).draw(data, shoal.Stream(0))
    preferences = shoal.draw_preferences(6, (0.5, 0.8), "threshold", shoal.Stream(0))
    made = shoal.data.federation_of_clients(data, parts, preferences)
    sexes = table()["sex"].to_numpy()
    for part, group in (("clients", made.groups_of("clients")), ("holdout", made.groups_of("holdout"))):
        rows = getattr(parts, part).indices
        assert [made.groups[g] for g in group.tolist()] == sexes[rows.numpy()].tolist()
    assert [made.groups[g] for g in made.test.group.tolist()] == sexes[parts.test.numpy()].tolist()
    assert data.shares["women"] == pytest.approx(0.25)
    (warning,) = data.warnings
    assert "6 of 6 clients" in warning


def test_figures_of_a_group_are_those_of_its_rows():
    made = federation()
    result = simulated(made)
    by_group, overall = result.summary.by_group, result.summary.overall
    shards, test = made.clients, made.test
    assert result.state is not None
    with shoal.Engine(MODEL) as engine:
        for g, name in enumerate(made.groups):
            of_test, own = test.group == g, made.groups_of("clients") == g
            right = [
                (engine.outputs(result.state.models[0], x).argmax(dim=1) == y).double()
                for x, y in ((test.x[of_test], test.y[of_test]), (shards.x[own], shards.y[own]))
            ]
            client = [float(right[1][shards.owners()[own] == i].mean()) for i in range(len(made))]
            assert by_group[name]["accuracy"] == pytest.approx(float(right[0].mean()))
            expected = np.average(client, weights=made.group_shares[:, g])
            assert by_group[name]["train_accuracy"] == pytest.approx(expected)
    assert by_group["men"]["accuracy"] > by_group["women"]["accuracy"] + 0.3
    mixed = sum(share * by_group[name]["accuracy"] for name, share in made.shares.items())
    assert overall["accuracy.overall"] == pytest.approx(mixed)
    sizes = torch.bincount(made.groups_of("clients")).tolist()
    assert [by_group[name]["members"] for name in made.groups] == pytest.approx(sizes, abs=2)
    assert {*result.clients["group"]} == {"all"}
    assert "migrated" not in overall


@pytest.mark.parametrize("algorithm", [shoal.IFCA(clusters=2), shoal.LocalOnly()])
def test_where_the_column_is_constant_within_clients_all_figures_are_those_of_groups_of_clients(algorithm):
    rows = table()
    rows["sex"] = np.where(rows["ward"].isin(["w1", "w4"]), "women", "men")
    of_clients = federation(rows)
    assert not of_clients.row_groups
    per_row = of_clients.group[of_clients.clients.owners()][torch.argsort(of_clients.clients.indices)]
    of_rows = replace(of_clients, row_groups={"clients": per_row, "holdout": per_row[:0]})
    one, other = simulated(of_clients, algorithm), simulated(of_rows, algorithm)
    for name, metrics in one.summary.by_group.items():
        mine = {key: value for key, value in metrics.items() if "by-group" not in key}
        assert {key: other.summary.by_group[name][key] for key in mine} == pytest.approx(mine, nan_ok=True)
    pd.testing.assert_frame_equal(
        one.rounds.drop(columns="seconds", errors="ignore"), other.rounds.drop(columns="seconds", errors="ignore")
    )
    assert (one.clients["accuracy"] == other.clients["accuracy"]).all()


def test_an_audit_pairs_rows_of_one_group_and_has_figures_of_each():
    made = federation()
    pairs = pair_records(made, shoal.Stream(0))
    assert pairs.within == "client"
    assert made.test.client is not None
    assert torch.equal(made.test.group[pairs.test], pairs.group[: len(pairs)])
    assert torch.equal(made.test.client[pairs.test], pairs.client[: len(pairs)])
    audit = simulated(made).audit(references=2)
    assert {*audit.groups} == {"men", "women"}
    asked = [made.groups[g] for g in pairs.group.tolist()]
    assert sorted(audit.records["group"]) == sorted(asked)


def test_pages_and_files_have_both_groups(tmp_path):
    result = simulated(federation(), shoal.IFCA(clusters=2))
    page = result.report(tmp_path / "report.html").read_text()
    assert "women" in page
    assert {"accuracy.women", "clients.men"} <= {*result.rounds}


def test_one_model_per_group_needs_groups_of_clients():
    with pytest.raises(shoal.InputError, match="by-group needs one group per client"):
        simulated(federation(), shoal.ByGroup())


def test_a_group_without_test_rows_is_refused():
    rows = table()
    with pytest.raises(shoal.InputError, match=r"'women'\)"):
        shoal.Federation.from_table(rows, COLUMNS, test=rows[rows["sex"] == "men"])


def test_clients_that_are_left_out_take_the_groups_of_their_rows_with_them():
    rows = table()
    data = table_dataset("'rows'", rows[:-30], COLUMNS, str)
    fewer = data.with_at_least(20)
    assert len(fewer.client_names) == 5
    assert [fewer.group_names[g] for g in fewer.example_group.tolist()] == rows["sex"][:200].tolist()
