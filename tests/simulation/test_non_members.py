"""Groups without clients, and attacks against the non-members of other groups."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.engine import Engine
from shoal.metrics.summary import parse_summary
from shoal.runs.comparison import compare
from shoal.runs.result import report_of
from shoal.runs.run import run
from shoal.simulation.measure import measure_final
from shoal.simulation.play import initial_state, run_rounds

pytestmark = pytest.mark.usefixtures("_rendered_figures")

GROUPS = {
    "few": {"share": 0.2, "rotation": [0, 20]},
    "some": {"share": 0.3, "brightness": [0.3, 0.6]},
    "many": {"share": 0.5, "rotation": [60, 90]},
}
NOBODY = {"share": 0.0, "rotation": [150, 180]}
SAME = ("clients.csv", "roc.csv", "models.safetensors")


def table(groups, test_examples, **changes):
    """A small run on digits in which each group gets 200 test images, as a table."""
    return {
        "seed": 3,
        "data": {
            "source": "digits",
            "clients": 10,
            "examples_per_client": 20,
            "shadow_examples": 120,
            "test_examples": test_examples,
            "groups": groups,
            **changes.pop("data", {}),
        },
        "model": {"name": "mlp", "hidden": 16},
        "algorithm": {"name": "ifca-mir", "rounds": 3},
        "local": {"epochs": 2, "batch_size": 10},
        "red_team": {"every": 2, "attack": "loss-threshold", "shadow_models": 2, **changes.pop("red_team", {})},
        **changes,
    }


def finish(out: Path, groups, test_examples, **changes) -> Path:
    return run(parse_config(table(groups, test_examples, **changes), "test"), out)


def figures(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("against") / "without", GROUPS, 600)


@pytest.fixture(scope="module")
def outsiders(tmp_path_factory):
    """A run with a group of share 0 between the others."""
    names = ("few", "nobody", "some", "many")
    groups = {name: (GROUPS | {"nobody": NOBODY})[name] for name in names}
    return finish(tmp_path_factory.mktemp("against") / "with", groups, 800)


def same_but_for_nobody(found: Path, before: Path) -> None:
    for name in SAME:
        assert (found / name).read_bytes() == (before / name).read_bytes(), name
    ours, theirs = figures(found), figures(before)
    known = [key for key in theirs if not key.startswith("seconds.")]
    assert {key: ours[key] for key in known} == {key: theirs[key] for key in known}
    kinds = ("mia_against_nobody", "mia_auc_against_nobody", "loss_threshold_against_nobody")
    assert set(ours) - set(theirs) == {f"{kind}.{group}" for kind in kinds for group in GROUPS}
    rounds = (pd.read_csv(out / "rounds.csv") for out in (found, before))
    after, old = rounds
    assert (after["clients.nobody"] == 0).all()
    assert after["accuracy.nobody"].between(0, 1).all()
    pd.testing.assert_frame_equal(after.drop(columns=["clients.nobody", "accuracy.nobody"]), old, check_exact=True)


def test_a_group_without_clients_changes_nothing_else_wherever_it_stands(outsiders, without, tmp_path):
    same_but_for_nobody(outsiders, without)
    same_but_for_nobody(finish(tmp_path / "out", GROUPS | {"nobody": NOBODY}, 800), without)


def test_a_group_without_clients_changes_nothing_where_images_are_reused(tmp_path):
    reused = {"data": {"reuse_images": True}}
    before = finish(tmp_path / "before", GROUPS, 600, **reused)
    found = finish(tmp_path / "found", {"nobody": NOBODY} | GROUPS, 800, **reused)
    same_but_for_nobody(found, before)


def test_population_non_members_are_the_mixture_of_all_groups_non_members(outsiders):
    """At a fixed threshold the false positive rate of a mixture is the mixture of the rates; so is the accuracy."""
    found = figures(outsiders)
    for group in GROUPS:
        against = {other: found[f"mia_against_{other}.{group}"] for other in GROUPS if other != group}
        parts = against | {group: found[f"mia.{group}"]}
        mixed = sum(GROUPS[other]["share"] * accuracy for other, accuracy in parts.items())
        assert found[f"mia_population.{group}"] == pytest.approx(mixed, abs=1e-12)
        assert len({round(accuracy, 6) for accuracy in parts.values()}) > 1, "the parts must differ to show anything"


@pytest.mark.parametrize("name", ["ifca-mir", "fedavg"])
def test_non_members_of_another_group_by_hand(name):
    """The gap attack from the models and who trained them: each member brings non-members of its own label."""
    changes = {"red_team": {"attack": "gap"}, "algorithm": {"name": name, "rounds": 5}}
    groups = GROUPS | {"nobody": NOBODY}
    _, simulation = build(parse_config(table(groups, 800, **changes), "test"))
    federation = simulation.federation
    with Engine(simulation.setup.model) as engine:
        for after, _ in run_rounds(simulation, engine, initial_state(simulation, engine)):
            now = after
        result = measure_final(simulation, engine, now)
        right = [engine.outputs(model, federation.test.x).argmax(1) == federation.test.y for model in now.state.models]
        latest = now.state.assignment
        for g, group in enumerate(GROUPS):
            for h, other in enumerate(federation.groups):
                if h == g:
                    continue
                said, member, weight = [], [], []
                for i in torch.nonzero(federation.group == g).flatten().tolist():
                    rows, k = federation.clients.indices_of(i), latest[i]
                    labels = federation.clients.y[rows]
                    own = engine.outputs(now.state.models[k], federation.clients.x[rows]).argmax(1) == labels
                    for label, caught in zip(labels, own, strict=True):
                        theirs = right[k][(federation.test.group == h) & (federation.test.y == label)]
                        said += [caught[None], theirs]
                        member += [np.ones(1), np.zeros(len(theirs))]
                        weight += [np.ones(1), np.full(len(theirs), 1 / len(theirs))]
                said, member, weight = map(np.concatenate, (said, member, weight))
                found = result.summary.by_group[group]
                balanced = balanced_accuracy_score(member, said, sample_weight=weight)
                assert found[f"mia_against_{other}"] == pytest.approx(balanced, abs=1e-12)
                auc = roc_auc_score(member, said, sample_weight=weight)
                assert found[f"mia_auc_against_{other}"] == pytest.approx(auc, abs=1e-12)


def test_nothing_is_said_by_group_of_a_group_without_clients(outsiders):
    found = figures(outsiders)
    assert not [key for key in found if key.endswith(".nobody")]
    assert list(parse_summary(found).by_group) == list(GROUPS)
    assert set(pd.read_csv(outsiders / "roc.csv")["group"]) == set(GROUPS)
    assert load_file(outsiders / "samples.safetensors")["nobody"].shape[0] > 0


def test_the_report_shows_its_images_and_no_column(outsiders, without):
    page = report_of(outsiders).read_text()
    assert '<th scope="col" class="number">nobody</th>' not in page
    assert page.count('<th scope="col" class="number">few</th>') == 1
    assert page.count('alt="A held-out image of') == 4 * 8
    # All but that of the time, which is of the clock.
    figures_after, figures_before = (
        [svg for svg in re.findall("<svg .*?</svg>", text, re.DOTALL) if 'id="time-' not in svg]
        for text in (page, report_of(without).read_text())
    )
    assert figures_after == figures_before


def test_runs_with_and_without_it_compare(outsiders, without):
    comparison = compare([without, outsiders])
    assert "nobody" not in " ".join([*map(str, comparison.metrics.index), *comparison.sentences])


def test_one_group_with_clients_and_one_without(tmp_path):
    groups = {"all": {"share": 1.0}, "turned": {"share": 0, "rotation": [90, 90]}}
    local = {"epochs": 10, "batch_size": 10, "learning_rate": 0.3}
    learnt = {"algorithm": {"name": "fedavg", "rounds": 5}, "local": local, "red_team": {"every": 0, "attack": "gap"}}
    out = finish(tmp_path / "out", groups, 400, **learnt)
    found = figures(out)
    assert found["mia_population.all"] == found["mia.all"]
    # Of ten classes, at least half right (0.8 to 0.97 over seeds), and turned digits are seldom recognised: the gap
    # attack against them is 0.5 + (train - turned accuracy) / 2, and half the difference of the accuracies higher.
    assert found["accuracy.all"] > 0.5
    assert found["mia_against_turned.all"] > found["mia.all"] + 0.1
    assert found["fairness.equalized_odds"] == 0.0
    assert "highest of the groups" not in report_of(out).read_text()
