"""Results of simulations in Python: to a directory and back, gone on from, and never killed."""

import copy
import pickle
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass, replace
from types import ModuleType

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import shoal
from full_simulation import simulate_with
from html_page import Page, page_of
from run_files import stop_after
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.cli.app import main
from shoal.data.content import fingerprint
from unrendered import rendered_figures

IMAGES = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = (IMAGES[:, 0, 0, 0] > 0.5).long()


def federation(images=IMAGES, clients=6):
    own = [(images[i : i + 6], LABELS[i : i + 6]) for i in range(0, 6 * clients, 6)]
    test = shoal.Examples(images[36:60], LABELS[36:60], ["few", "many", "many"] * 8)
    return shoal.Federation.from_tensors(
        own, groups=["few", "few", "many", "many", "many", "many"][:clients], test=test
    )


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))


def simulated(**changes):
    settings = {
        "federation": federation(),
        "model": shoal.Model(network),
        "algorithm": shoal.IFCA(clusters=2),
        "local": shoal.LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, decay=0.9),
        "rounds": 4,
        "participation": 0.7,
    }
    return simulate_with(**settings | changes)


@pytest.fixture(scope="module")
def result():
    return simulated()


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("saved") / "deep" / "run")


def values(result):
    """The metrics without wall times."""
    flat = {key: value for key, value in result.summary.overall.items() if not key.startswith("seconds.")}
    return result.summary.run, flat, result.summary.by_group, result.summary.by_cluster


def require_same_models(one, other):
    assert one.models.keys() == other.models.keys()
    for k, tensors in one.models.items():
        assert tensors.keys() == other.models[k].keys()
        assert all(torch.equal(tensor, other.models[k][name]) for name, tensor in tensors.items())


def require_same(one, other):
    assert values(one) == values(other)
    require_same_models(one, other)
    for name in ("rounds", "clients", "roc"):
        shared = [column for column in getattr(one, name) if column in getattr(other, name)]
        pd.testing.assert_frame_equal(getattr(one, name)[shared], getattr(other, name)[shared], check_dtype=False)


def test_a_pickled_result_is_as_one_read_from_a_directory(result):
    again = pickle.loads(pickle.dumps(result))
    require_same(again, result)
    assert torch.equal(again.state.models, result.state.models)
    assert (again.simulation, again.engine) == (None, None)
    with pytest.raises(shoal.InputError, match="from pickle has no examples"):
        again.audit(references=0)


def test_a_copied_result_can_be_audited(result):
    for copied in (copy.copy(result), copy.deepcopy(result)):
        require_same(copied, result)
        assert copied.audit(references=0).members == result.audit(references=0).members
    copied.clients["cluster"] = -1
    assert -1 not in result.clients["cluster"].tolist()


def test_a_notebook_shows_a_result_and_an_audit_as_tables(result):
    shown, audited = (Page(each._repr_html_()) for each in (result, result.audit(references=0)))
    assert "Test accuracy" in shown.text
    for words in ("few", "many"):
        assert words in shown.text
        assert words in audited.text


def test_a_page_says_what_the_examples_are(tmp_path):
    rows = federation(IMAGES.flatten(1))
    model = shoal.Model(lambda: nn.Linear(16, 2))
    out = simulated(federation=rows, model=model, rounds=1).save(tmp_path / "run")
    with rendered_figures():
        page = shoal.load(out).report(tmp_path / "page.html")
    assert "accuracy on held-out rows" in page_of(page.read_text()).text


def test_a_saved_result_comes_back(result, saved):
    back = shoal.load(saved)
    require_same(result, back)
    assert back.description == result.description
    assert all(np.array_equal(back.samples[name], images) for name, images in result.samples.items())
    model = network()
    model.load_state_dict(back.models[1])
    assert torch.equal(model[1].weight, result.models[1]["1.weight"])


def test_a_result_that_came_back_is_saved_as_the_same_files(saved, tmp_path):
    again = shoal.load(saved).save(tmp_path / "again")
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in saved.iterdir())
    assert all((again / path.name).read_bytes() == path.read_bytes() for path in saved.iterdir())


def test_the_commands_take_a_saved_result(result, saved, tmp_path, capsys):
    copy = shutil.copytree(saved, tmp_path / "copy")
    assert main(["report", str(copy)]) == 0
    page = (copy / "report.html").read_text()
    assert page == result.report(tmp_path / "page.html").read_text()
    assert "IFCA on memory-" in page_of(page).text
    with pytest.raises(shoal.InputError, match="cannot be written"):
        result.report(tmp_path)
    assert main(["compare", str(copy), str(saved)]) == 0
    assert "Against copy, run shows no clear difference in accuracy" in " ".join(capsys.readouterr().out.split())


def test_a_run_from_python_is_repeated_once_its_parts_have_names(saved, result, tmp_path, monkeypatch, capsys):
    own = ModuleType("own")
    own.source, own.network = lambda path, task: federation(), lambda shape: network()  # pyright: ignore
    monkeypatch.setitem(sys.modules, "own", own)
    command = ["run", str(saved / "config.toml"), "--out", str(tmp_path / "again"), "--quiet", "--allow-code"]
    assert main(command) == 2
    assert "'data.source', 'model.name'" in capsys.readouterr().err
    assert main([*command, "--set", "data.source=own:source"]) == 2
    assert "'model.name'" in capsys.readouterr().err
    (tmp_path / "sweep.toml").write_text(f'base = "{saved}/config.toml"\nseeds = [0]\n[grid]\n"local.epochs" = [1]\n')
    assert main(["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "swept")]) == 2
    assert "'data.source', 'model.name'" in capsys.readouterr().err
    assert main([*command, "--set", "data.source=own:source", "--set", "model.name=own:network"]) == 0
    require_same_models(result, shoal.load(tmp_path / "again", allow_code=True))


@pytest.mark.parametrize(
    ("changes", "unnamed"),
    [
        ({"model": shoal.create_model("mlp", shoal.Shape(1, 4, 4, 2), hidden=4)}, ["data.source"]),
        (
            {
                "model": shoal.create_model("logistic", shoal.Shape(1, 4, 4, 2)),
                "algorithm": shoal.FedOpt(shoal.IFCA(clusters=2)),
                "defenses": [shoal.L2(0.1), shoal.Augmentation()],
                "red_team": shoal.RedTeam(every=1, estimator="audit", attack=shoal.LossThreshold()),
                "coordinator": shoal.LimitController({"mixup": shoal.Knob(shoal.Mixup(0.2))}),
                "federation": replace(federation(), shadow=federation().test),
            },
            ["data.source"],
        ),
        ({"defenses": [shoal.Augmentation(), shoal.L2(0.1)]}, ["data.source", "model.name", "defenses"]),
    ],
    ids=["model", "all", "order of defences"],
)
def test_what_has_a_name_is_written_as_a_configuration_has_it(changes, unnamed, tmp_path):
    out = simulated(rounds=1, **changes).save(tmp_path / "run")
    assert tomllib.loads((out / "config.toml").read_text())["simulation"]["unnamed"] == unnamed
    given = {"data.source": '"digits"', "model.name": '"logistic"', "defenses": "{}"}
    own = [f"{part}={given[part]}" for part in unnamed]
    sizes = ["data.clients=6", "data.examples_per_client=6", "data.test_examples=24"]
    config = shoal.read_config(out / "config.toml", [*own, *sizes])
    assert config.algorithm.value == changes.get("algorithm", shoal.IFCA(clusters=2))
    if len(unnamed) == 1:
        assert list(config.defenses.all()) == changes.get("defenses", [])
    if "coordinator" in changes:
        assert config.coordinator.coordinator() == changes["coordinator"]


def test_a_simulation_and_a_configuration_do_not_go_on_in_each_other_s_directories(saved, toy_config, toy_run):
    with pytest.raises(shoal.InputError, match="has a run of a simulation in Python"):
        shoal.run(toy_config(), saved, resume=True)
    with pytest.raises(shoal.InputError, match="has a run of a configuration"):
        simulated(out=toy_run(algorithm__rounds=1), resume=True)
    with pytest.raises(shoal.InputError, match="'resume' needs 'out'"):
        simulated(resume=True)


def test_nothing_is_overwritten_and_nothing_left_behind(result, saved, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(shoal.InputError, match="exists already; save to another directory"):
        result.save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(shoal.InputError, match="cannot be written"):
        result.save(tmp_path / "file" / "out")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoal.runs.result.write_bytes", full)
    with pytest.raises(shoal.InputError, match="No space left on device"):
        result.save(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@dataclass(frozen=True)
class Mine(FedAvg):
    """An algorithm that no other process can import."""

    __module__ = "__main__"


def test_an_algorithm_of_a_notebook_is_named_and_reported(tmp_path):
    saved = simulated(algorithm=Mine(), rounds=1).save(tmp_path / "mine")
    back = shoal.load(saved)
    assert back.description.algorithm == "__main__:Mine"
    assert "Mine on memory-" in page_of(back.report(tmp_path / "page.html").read_text()).text


def test_a_plot_shows_each_cluster_with_units(result):
    mpl.use("Agg")
    before = dict(mpl.rcParams)
    accuracy, exposure, size = result.plot()
    labels = [axes.get_ylabel() for axes in (accuracy, exposure, size)]
    assert labels == ["accuracy", "exposure (balanced accuracy)", "size (clients)"]
    assert size.get_xlabel() == "round"
    drawn = [line for line in size.get_lines() if line.get_label().startswith("cluster")]
    assert [line.get_label() for line in drawn] == ["cluster 0", "cluster 1"]
    by_cluster = [rows["clients"].tolist() for _, rows in result.rounds.groupby("cluster")]
    assert [line.get_ydata().tolist() for line in drawn] == by_cluster
    # Neither colours nor dashes alone tell them apart.
    assert len({line.get_color() for line in drawn}) == len({line.get_linestyle() for line in drawn}) == 2
    measured = [line.get_ydata()[0] for line in exposure.get_lines() if line.get_marker() == "D"]
    assert measured == [each["mia"] for each in result.summary.by_cluster.values() if "mia" in each]
    assert dict(mpl.rcParams) == before
    mpl.pyplot.close(size.figure)


def test_a_finished_run_by_configuration_is_loaded_with_its_models(toy_run, tmp_path):
    out = toy_run(algorithm__rounds=1)
    back = shoal.load(out)
    assert back.summary.run["dataset"] == "digits"
    assert sorted(back.models) == [0, 1]
    assert back.models[0]["hidden.weight"].shape == (16, 64)
    assert back.state is None
    broken = shutil.copytree(out, tmp_path / "broken")
    (broken / "models.safetensors").write_bytes(b"nonsense")
    with pytest.raises(shoal.InputError, match="is damaged"):
        shoal.load(broken)
    for name in ("models.safetensors", "summary.json"):
        (broken / name).unlink()
        with pytest.raises(shoal.InputError, match=name):
            shoal.load(broken)


def test_names_of_strangers_are_no_formulas_in_a_run_s_tables_and_come_back(tmp_path):
    own = federation()
    named = replace(own, groups=("=1+1", "many"), names=("@a", "'t Gooi", "+b", "'=c", "d", "e"))
    result = simulated(federation=named, rounds=1)
    out = result.save(tmp_path / "run")
    for name in ("clients.csv", "roc.csv"):
        assert not any(line.startswith(("=", "@", "+")) for line in re.split("[,\n]", (out / name).read_text()))
    clients = shoal.load(out).clients
    assert clients["name"].tolist() == [*named.names]
    assert set(clients["group"]) == {"=1+1", "many"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 3}, "'algorithm.rounds' must be at least 4 to resume"),
        ({"seed": 1}, r"seed = 0 \(got 1\)"),
        ({"participation": 1.0}, "participation = 0.7"),
        ({"algorithm": shoal.IFCA(clusters=3)}, "algorithm.clusters = 2"),
        ({"local": shoal.LocalSGD(epochs=3)}, "local.epochs = 2"),
        ({"federation": federation(clients=5)}, "'simulation.federation'"),
        ({"federation": federation(IMAGES.flip(3))}, "'simulation.examples'"),
        ({"model": shoal.Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))}, "'simulation.network'"),
        ({"defenses": [shoal.L2(0.1)]}, "defenses.l2 = None"),
        ({"precision": "bf16"}, "engine.precision = 'fp32'"),
    ],
    ids=str,
)
def test_another_simulation_does_not_go_on_in_a_directory(saved, changes, words):
    with pytest.raises(shoal.InputError, match=words):
        simulated(out=saved, resume=True, **changes)


def test_threads_do_not_make_another_simulation(saved):
    assert simulated(out=saved, resume=True, threads=1).summary.run["rounds"] == 4


def test_a_fingerprint_sees_every_part_of_a_federation():
    given = federation()
    others = [
        replace(given, ids=given.ids + 1),
        replace(given, groups=("few", "others")),
        replace(given, test=replace(given.test, y=1 - given.test.y)),
        replace(given, clients=replace(given.clients, x=given.clients.x + 1)),
        given.take(torch.arange(5, -1, -1)),
    ]
    assert len({fingerprint(each) for each in (given, *others)}) == 6
    assert fingerprint(given) == fingerprint(federation())


def test_a_federation_of_one_client_has_a_fingerprint():
    """Its threshold, one number given for all, is one number expanded to one."""
    x, y = torch.zeros(2, 1), torch.tensor([0, 1])
    one, other = (shoal.Federation.from_tensors([(x, y)], test=(x, y), threshold=each) for each in (0.6, 0.7))
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "algorithm",
    [shoal.IFCA(clusters=2), shoal.Scaffold(), shoal.FedOpt(), shoal.Ditto(), shoal.LocalOnly(), shoal.MRMTL()],
    ids=["ifca", "scaffold", "fedopt", "ditto", "local", "mr-mtl"],
)
def test_some_rounds_and_more_from_their_result_are_all_rounds(algorithm):
    whole, first = simulated(algorithm=algorithm), simulated(algorithm=algorithm, rounds=2)
    more = simulated(algorithm=algorithm, rounds=2, start=first)
    require_same_models(whole, more)
    assert more.rounds["round"].unique().tolist() == [3, 4]
    assert values(more) == values(whole)
    pd.testing.assert_frame_equal(whole.clients, more.clients)


def test_more_rounds_go_on_from_what_clients_trained_last_and_not_from_what_they_use():
    """A client that was absent since stands where it trained, for estimates of risk and for absent clients."""
    settings = {
        "algorithm": shoal.IFCAMIR(shoal.IFCA(clusters=2)),
        "participation": 0.4,
        "red_team": shoal.RedTeam(every=1, estimator="audit", attack=shoal.LossThreshold()),
        "federation": replace(federation(), shadow=federation().test),
    }
    whole, first = simulated(**settings, rounds=6), simulated(**settings, rounds=3)
    assert first.clients["cluster"].tolist() != first.state.assignment.tolist(), "or nothing would be shown"
    more = simulated(**settings, rounds=3, start=first)
    require_same_models(whole, more)
    assert torch.equal(whole.state.risks, more.state.risks)
    assert torch.equal(whole.state.assignment, more.state.assignment)


def test_who_trained_before_the_start_alone_stays_a_member():
    whole, first = simulated(), simulated(rounds=2)
    more = simulated(rounds=2, start=first)
    last = whole.state.trained.amax(dim=1)
    assert ((last > 0) & (last <= 2)).any(), "somebody trains in the first rounds alone"
    assert torch.equal(more.state.trained, whole.state.trained)


def test_a_directory_starts_as_its_result_does(tmp_path):
    # With this seed all clients train their models in the later rounds; earlier trainers are unknown.
    first = simulated(rounds=2, seed=3)
    saved = first.save(tmp_path / "first")
    more = simulated(rounds=2, start=first, seed=3)
    assert (more.state.trained.amax(dim=1) > 2).all()
    require_same(more, simulated(rounds=2, start=shoal.load(saved), seed=3))


def test_models_with_batch_norm_load_strictly_and_start_others(tmp_path):
    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    model = shoal.Model(build)
    first = simulated(model=model, rounds=1)
    back = shoal.load(first.save(tmp_path / "first"))
    require_same_models(first, back)
    build().load_state_dict(back.models[0])
    require_same_models(simulated(model=model, rounds=1, start=first), simulated(model=model, rounds=1, start=back))


def test_a_start_that_is_resumed_is_never_killed(tmp_path, result):
    whole = simulated(rounds=2, start=result)
    with pytest.raises(KeyboardInterrupt):
        simulated(rounds=2, start=result, out=tmp_path / "out", watch=stop_after(5))
    require_same(whole, simulated(rounds=2, start=result, out=tmp_path / "out", resume=True))
    with pytest.raises(shoal.InputError, match=r"simulation.start.models = '\w+'"):
        simulated(rounds=2, out=tmp_path / "out", resume=True)


def test_a_start_serves_other_clients(result):
    more = simulated(federation=federation(clients=5), start=result, rounds=1)
    assert more.summary.run["rounds"] == 5
    assert len(more.clients) == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": shoal.Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))},
            r"'1.weight' is \(4, 16\) in 'start', \(2, 16\) in",
        ),
        (
            {"model": shoal.Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4, bias=False)))},
            r"'1\.bias' is \(4,\) in 'start', missing in the model",
        ),
        ({"algorithm": shoal.IFCA(clusters=3)}, "'start' must have .*got 2"),
        ({"algorithm": shoal.FedAvg()}, "'start' must have .*got 2"),
        ({"start": 3}, "'start' must be a WarmStart, such as simulate"),
    ],
    ids=str,
)
def test_a_start_that_does_not_fit_is_one_sentence(result, changes, words):
    with pytest.raises(shoal.InputError, match=words):
        simulated(**{"start": result, "rounds": 1} | changes)


def test_epsilon_is_of_the_new_rounds_alone():
    private = {"defenses": [shoal.DPSGD(max_grad_norm=1.0, noise_multiplier=2.0)], "participation": 1.0, "rounds": 1}
    first = simulated(**private)
    more = simulated(**private, start=first)
    assert more.summary.overall["epsilon"] == pytest.approx(first.summary.overall["epsilon"])


def test_progress_is_shown_to_a_person_alone(monkeypatch, capsys):
    simulated(rounds=2)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    plain = simulated(rounds=2)
    shown = capsys.readouterr().err
    for words in ("round", "2/2"):
        assert words in shown
    watched = simulated(rounds=2, watch=lambda *_: None)
    assert capsys.readouterr().err == ""
    require_same_models(plain, watched)
