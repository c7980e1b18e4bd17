"""What a simulation will show of its records, said before its first round."""

from dataclasses import replace

import pytest
import torch

import shoal
from shoal.preflight.preflight_report import COLUMNS


def federation_of(sizes=(6, 6, 6, 6), inputs=40, groups=None, test=90):
    draw = torch.Generator().manual_seed(0)

    def examples(count):
        return torch.randn(count, inputs, generator=draw), torch.arange(count) % 3

    names = sorted(set(groups)) if groups else ["all"]
    held_out = shoal.Examples(*examples(test), names * (test // len(names)))
    return shoal.Federation.from_tensors([examples(size) for size in sizes], test=held_out, groups=groups)


def simulation_of(federation=None, *, hidden=16, rounds=4, **changes):
    model = shoal.create_model("mlp", shoal.VectorShape(inputs=40, classes=3), hidden=hidden)
    settings = {"algorithm": shoal.FedAvg(), "local": shoal.LocalSGD(epochs=2, batch_size=3), **changes}
    return shoal.Simulation(federation or federation_of(), model, rounds=rounds, **settings)


def verdicts(report):
    return dict(zip(report.views["view"], report.views["verdict"], strict=True))


def test_one_client_a_sum_and_all_rounds_as_one_move():
    report = simulation_of().preflight()
    rows = report.views.set_index("view")
    assert rows["verdict"].to_dict() == {"server": "recognised", "client": "recognised", "outsider": "between"}
    assert rows["examples"].to_dict() == {"server": 6, "client": 24, "outsider": 24}
    assert rows["rounds"].to_dict() == {"server": 1, "client": 2, "outsider": 1}
    assert (rows["layer"] == "hidden").all()
    assert rows["inputs"].unique().tolist() == [40]
    assert "every client: every record is recognised after one round" in str(report)
    assert "the 4 clients in a sum: every record is recognised after 2 rounds" in str(report)
    assert report.flat()["views.client.all.auc.low"] == 0.9
    assert report.flat()["views.outsider.all.auc.high"] == 1.0
    assert [*report.views.columns] == [*COLUMNS]


def test_the_sizes_of_clients_decide_whose_records_are_recognised():
    # Without enough examples to predict the filter, by the span alone.
    report = simulation_of(federation_of((6, 9, 30, 15), test=39), rounds=1).preflight()
    server = report.views.iloc[0]
    assert (server["verdict"], server["examples"], server["recognised"]) == ("recognised", 15, 30 / 60)
    assert "3 of 4 clients, with at most 15 rows each" in report.sentences["server"][0]
    assert report.answers["server"] == "recognises 50 % of the records."


def test_clusters_are_the_groups_where_there_are_as_many_models():
    federation = federation_of((6,) * 4, groups=["few", "many", "many", "many"])
    report = simulation_of(federation, algorithm=shoal.IFCA(clusters=2)).preflight()
    rows = report.views[report.views["view"] == "client"]
    assert dict(zip(rows["group"], rows["clients"], strict=True)) == {"few": 1, "many": 3}
    assert "a client alone in its cluster" in report.sentences["client"][0]
    for algorithm in (shoal.FedAvg(), shoal.FedSoft(clusters=2), shoal.IFCA(clusters=1)):
        rows = simulation_of(federation, algorithm=algorithm).preflight().views
        assert set(rows.loc[rows["view"] == "client", "clients"]) == {4}


def test_a_sum_has_the_real_clients_and_rows_of_a_group_and_no_more_rows_than_the_table():
    federation = federation_of((8, 7, 7, 7, 3, 2), groups=["one", "two", "two", "three", "three", "three"])
    rows = simulation_of(federation, algorithm=shoal.IFCA(clusters=2)).preflight().views
    rows = rows[rows["view"] == "client"].set_index("group")
    assert rows["clients"].to_dict() == {"one": 1, "two": 2, "three": 3}
    assert rows["examples"].to_dict() == {"one": 8, "two": 14, "three": 12}
    rows = simulation_of(federation).preflight().views
    assert set(rows.loc[rows["view"] == "client", "examples"]) == {8 + 7 + 7 + 7 + 3 + 2}


def test_what_is_not_sent_is_not_seen():
    local = simulation_of(algorithm=shoal.LocalOnly()).preflight()
    assert len(local.views) == 0
    assert "nothing is sent" in local.answers["server"]
    assert not local.changes
    # Of FedRep the head stays with the client; here it is all that could give its records away.
    head = simulation_of(hidden=2, algorithm=shoal.FedRep(), local=shoal.LocalSGD(epochs=2)).preflight()
    assert set(head.views["layer"]) == {"hidden"}


def test_noise_and_optimizers_end_the_exact_attack():
    little = simulation_of(defenses=[shoal.DPSGD(noise_multiplier=0.01)]).preflight()
    assert verdicts(little)["server"] == "recognised"
    assert "matched filter (AUC up to 1.00)" in little.sentences["server"][0]
    assert 0.99 < little.flat()["views.server.all.auc.expected"] <= 1
    some = simulation_of(defenses=[shoal.DPSGD(noise_multiplier=1.0)]).preflight()
    assert verdicts(some)["server"] == "between"
    assert 0.6 < some.flat()["views.server.all.auc.expected"] < 0.99
    private = simulation_of(defenses=[shoal.DPSGD(noise_multiplier=50.0)]).preflight()
    assert set(private.views["verdict"]) == {"hidden"}
    assert 0 < private.flat()["epsilon"] < 1
    assert private.flat()["delta"] == 1e-5
    assert "no attack on a record has a balanced accuracy above 0." in str(private)
    assert "under noise" in private.sentences["server"][0]
    adam = shoal.LocalSGD(optimizer=shoal.TorchOptimizer("Adam"))
    assert verdicts(simulation_of(local=adam).preflight())["server"] == "between"
    assert "not plain sums of gradients" in simulation_of(local=adam).preflight().sentences["server"][0]
    clipped = simulation_of(defenses=[shoal.NormClipping(1.0)]).preflight()
    assert verdicts(clipped)["server"] == "recognised"
    laplace = simulation_of(defenses=[shoal.LaplaceNoise(epsilon=1.0)]).preflight()
    assert verdicts(laplace)["server"] == "between"


def test_noise_in_the_sum_hides_more_from_clients_than_from_the_server():
    rule = shoal.DPSGD(noise_multiplier=8.0, noise="sum", min_clients=4)
    local = shoal.LocalSGD(steps=1, batch_size="all")
    simulation = simulation_of(local=local, defenses=[rule], rounds=1)
    flat = simulation.preflight().flat()
    assert flat["epsilon.outsider"] < flat["epsilon.client"] < flat["epsilon.server"]
    result = shoal.Run(simulation).train()
    for view in ("outsider", "client", "server"):
        assert result.summary.overall[f"epsilon.{view}"] == pytest.approx(flat[f"epsilon.{view}"])
    # Four shares of noise 4 are a noise of 8 in the sum.
    less = replace(rule, noise_multiplier=4.0)
    noisy = {"server": "between", "client": "hidden", "outsider": "hidden"}
    assert verdicts(simulation_of(local=local, defenses=[less], rounds=1, hidden=4).preflight()) == noisy


def test_part_of_the_clients_in_a_round():
    half = simulation_of(rounds=9, participation=0.5).preflight().views.set_index("view")
    # Of 24 rows on average 12, 18 and 21 are behind one, two and three moves of at most 16 directions each.
    assert half.loc["client", ["verdict", "rounds", "distinct"]].tolist() == ["recognised", 1, 12]


def test_few_clients_in_a_round_are_at_least_one():
    """Four clients: a participation of 0.01 has the risk and the epsilon of one of four."""
    least, quarter = (
        simulation_of(rounds=9, participation=fraction, defenses=[shoal.DPSGD(1.0, 1.0)]).preflight()
        for fraction in (0.01, 0.25)
    )
    assert least.views.equals(quarter.views)
    assert least.epsilons == quarter.epsilons


def test_transformed_images_are_other_inputs_in_every_pass():
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.rand(6, 1, 6, 6, generator=draw), [0, 1, 2] * 2) for _ in range(2)]
    federation = shoal.Federation.from_tensors(clients, test=(torch.rand(60, 1, 6, 6, generator=draw), [0, 1, 2] * 20))
    model = shoal.create_model("mlp", shoal.Shape(1, 6, 6, 3), hidden=16)
    simulation = shoal.Simulation(federation, model, shoal.FedAvg(), shoal.LocalSGD(epochs=3), rounds=2)
    server = simulation.preflight().views.iloc[0]
    assert (server["verdict"], server["distinct"]) == ("recognised", 6)
    turned = replace(simulation, defenses=[shoal.Augmentation()]).preflight()
    assert (turned.views.iloc[0]["verdict"], turned.views.iloc[0]["distinct"] % 18) == ("between", 0)
    assert "searches it for each record" in str(turned)
    flips = shoal.Augmentation(rotation=0.0, shift=0.0, flip=True)
    flipped = replace(simulation, defenses=[flips]).preflight().views.iloc[0]
    assert (flipped["verdict"], flipped["distinct"]) == ("recognised", 12)


def test_the_advice_holds():
    """A configuration with what is named has the verdict that is named, and one with less does not."""
    report = simulation_of().preflight()
    (sums,) = [line for line in report.changes["all, to the server"] if line.startswith("Clients in a secure sum")]
    partly, hidden = (int(amount.split(" ")[0].replace(",", "")) for amount in sums.split("at least ")[1:])
    seen = simulation_of().visible_moves()
    verdict = [seen.most(replace(seen.moves("server", 6, 1), examples=6 * n)).verdict for n in (partly, hidden)]
    assert verdict == ["between", "hidden"]
    assert seen.most(replace(seen.moves("server", 6, 1), examples=6)).verdict == "recognised"
    (noise,) = [line for line in report.changes["all, to the server"] if line.startswith("Noise")]
    least = float(noise.split("at least ")[-1].split(" ")[0])
    for multiplier, said in ((least, "hidden"), (least / 2, "between")):
        private = simulation_of(defenses=[shoal.DPSGD(noise_multiplier=multiplier)]).preflight()
        assert verdicts(private)["server"] == said


def test_laplace_noise_is_in_lengths_of_an_update():
    views = {
        nu: simulation_of(defenses=[shoal.LaplaceNoise(noise_multiplier=nu)]).preflight().flat() for nu in (0.1, 100.0)
    }
    assert views[0.1]["views.server.all.verdict"] == "recognised"
    assert views[100.0]["views.server.all.verdict"] == "hidden"


def test_nothing_is_trained_or_drawn_anew():
    simulation = simulation_of()
    before = torch.random.get_rng_state()
    report = simulation.preflight()
    assert torch.random.get_rng_state().equal(before)
    assert report.views.equals(simulation.preflight().views)
    assert repr(report).startswith("Preflight(views=")
