"""What a server reads off a node's refusals: which of its questions fail must not depend on the node's data."""

import math
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save

from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.data import Standardizer
from shoal.models import Model, VectorShape, create_model
from shoal.models.model import hash_of
from shoal_flower.client import client_app
from shoal_flower.client.client_round import histograms_reply, training_reply
from shoal_flower.client.node_data import keep_features
from shoal_flower.client.policy import Ledger, Policy
from shoal_flower.flower_config import NodeSettings, RunSettings
from shoal_flower.messages import (
    FROZEN,
    NO_FEATURES,
    NO_FROZEN,
    REFUSED,
    Limits,
    NotAllowedError,
    Offer,
    Refusal,
)
from shoal_flower.wire_codec import pack_offer, pack_reply, unpack_refusal

COLUMNS = '[columns]\nclient = "clinic"\nlabel = "ill"\ninputs = ["age", "dose", "ward"]\n'
POLICY = f"""
classes = ["no", "yes", "maybe"]
min_noise_multiplier = 0.8
max_grad_norm = 1.0
choice_epsilon = 1.0
sampling = "poisson"
{COLUMNS}
"""
CLASSES = ("no", "yes", "maybe")
MLP = {"name": "mlp", "hidden": 2}
NOISY = {"dp_sgd": {"max_grad_norm": 1.0, "noise_multiplier": 20.0, "sampling": "poisson"}}
ORDINARY, RARE = "north,50,1.5,a,yes", "north,71,,rare,maybe"
"""A row of one node, and the row that the other node has instead."""


def a_node(folder: Path, last: str = RARE, policy: str = POLICY, **keys: object) -> dict[str, object]:
    """The configuration of a node with a budget, whose table ends with the row ``last``."""
    folder.mkdir(exist_ok=True)
    rows = [f"north,{20 + i % 40},{i / 10},{'ab'[i % 2]},{'yes' if i % 2 else 'no'}" for i in range(39)]
    (folder / "north.csv").write_text("\n".join(["clinic,age,dose,ward,ill", *rows, last]) + "\n")
    (folder / "policy.toml").write_text(policy)
    paths = {"data-path": str(folder / "north.csv"), "state-dir": str(folder / "state")}
    return {"client": "north", **paths, "policy": str(folder / "policy.toml"), "epsilon-budget": 10.0, **keys}


def a_scale(*inputs: str, **fields: Any) -> Standardizer:
    """Numbers as they are."""
    return Standardizer(inputs, (0.0,) * len(inputs), (1.0,) * len(inputs), **fields)


def an_offer(
    inputs: tuple[str, ...] | None,
    classes: tuple[str, ...] = CLASSES,
    scale: Standardizer | None = None,
    models: torch.Tensor | None = None,
    clusters: int = 1,
    columns: dict[str, str] | None = None,
    **tables: object,
) -> Offer:
    """An offer of logistic models of zeros, for a table with these inputs."""
    named = {"client": "clinic", "label": "ill", **({"inputs": list(inputs)} if inputs else {}), **(columns or {})}
    table = {
        "seed": 1,
        "data": {"source": "table", "path": "x", "test_fraction": 0.1, "holdout_fraction": 0.1, **named},
        "model": {"name": "logistic"},
        "algorithm": {"name": "ifca", "clusters": clusters, "rounds": 40},
        "local": {"steps": 1, "batch_size": "all"},
        "red_team": {"every": 1, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 0.5},
        "defenses": NOISY,
    }
    config = parse_config({**table, **tables}, "test").toml()
    scale = a_scale(*(inputs or ("age",))) if scale is None else scale
    if models is None:
        models = torch.zeros(clusters, (scale.width + 1) * len(classes))
    risks = torch.full((len(models),), 0.5, dtype=torch.float64)
    return Offer(1, 0, config, models, risks, classes=classes, scale=scale)


def answer(offer: Offer, node: dict[str, object], question: str = "train") -> RecordDict:
    """What the server is sent."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7
    handler = {"train": client_app.train, "histograms": client_app.count, "votes": client_app.vote}[question]
    kind = question if question == "train" else f"query.{question}"
    message = Message(content=pack_offer(offer), dst_node_id=7, message_type=kind)
    return handler(message, Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={})).content


def ledger_of(node: dict[str, object]) -> Ledger:
    return Ledger.load(Path(str(node["state-dir"])) / "ledger.json")


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("age", [str(age) for age in range(15, 75, 4)]),
        ("dose", [str(dose / 10) for dose in range(0, 60, 4)]),
        ("ward", ["a", "b", "rare", "other"]),
        ("ill", [*CLASSES, "other"]),
    ],
)
def test_classes_without_a_value_do_not_tell_whether_a_column_has_it(tmp_path, label, values):
    """The answers to one question a value; two kinds of refusal were the column's set of values, at no charge."""
    node, inputs = a_node(tmp_path), [name for name in ("age", "dose") if name != label]
    offers = [an_offer(tuple(inputs), columns={"label": label}, classes=tuple({*values} - {value})) for value in values]
    refusals = {answer(offer, node).deflate() for offer in offers if label != "ill" or "other" in offer.classes}
    assert len(refusals) == 1
    assert unpack_refusal(answer(offers[0], node)).reason == REFUSED
    assert ledger_of(node) == Ledger()


QUESTIONS: dict[str, dict[str, Any]] = {
    "all inputs": {"inputs": ("age", "dose")},
    "one input": {"inputs": ("age",)},
    "a column with an empty cell": {"inputs": ("dose",)},
    "it is filled": {"inputs": ("dose",), "scale": a_scale("dose", fill=(0.0,))},
    "a word": {"inputs": ("ward",), "scale": a_scale("ward", words=(("rare",),))},
    "a word that the server has not": {"inputs": ("ward",), "scale": a_scale("ward", words=(("a", "b"),))},
    "words as numbers": {"inputs": ("ward",)},
    "numbers as words": {"inputs": ("age",), "scale": a_scale("age", words=(("71",),))},
    "words as numbers, filled": {"inputs": ("ward",), "scale": a_scale("ward", fill=(1.0,))},
    "a scale that overflows": {"inputs": ("age",), "scale": Standardizer(("age",), (70.0,), (1e-300,))},
    "an infinite scale": {"inputs": ("age",), "scale": Standardizer(("age",), (float("inf"),), (1.0,))},
    "a deviation of 0": {"inputs": ("age",), "scale": Standardizer(("age",), (71.0,), (0.0,))},
    "a word that fills and is none": {"inputs": ("ward",), "scale": a_scale("ward", words=(("a",),), fill=(9.0,))},
    "a class is missing": {"inputs": ("age",), "classes": ("no", "yes")},
    "a network of fewer classes": {
        "inputs": ("age",),
        "model": {"name": "logistic", "classes": 2},
        "models": torch.zeros(1, 4),
    },
    "a column that the policy does not name": {"inputs": ("age", "weight")},
    "another label": {"inputs": ("age",), "columns": {"label": "ward"}},
    "a model that is not finite": {"inputs": ("age",), "models": torch.full((1, 6), float("nan"))},
    "no noise": {"inputs": ("age",), "defenses": {}},
    "two models": {"inputs": ("age",), "clusters": 2},
    **{f"another split, {seed}": {"inputs": ("age",), "seed": seed} for seed in range(8)},
}


@pytest.mark.parametrize("kind", ["train", "histograms"])
def test_what_is_refused_and_charged_is_the_same_for_neighbouring_data(tmp_path, kind):
    """Any question whose refusal one record decides is an answer without noise."""
    outcomes = dict[str, tuple[object, ...]]()
    for number, (name, question) in enumerate(QUESTIONS.items()):
        seen = []
        for last in (ORDINARY, RARE):
            node = a_node(tmp_path / f"{number} {len(seen)}", last)
            refusal = unpack_refusal(answer(an_offer(**question), node, kind))
            ledger = ledger_of(node)
            seen.append((refusal, ledger.steps, ledger.answers))
        assert seen[0] == seen[1], name
        outcomes[name] = seen[0]
    answered = {name for name, (refusal, *_) in outcomes.items() if refusal is None}
    assert all((name in answered) == bool(steps or answers) for name, (_, steps, answers) in outcomes.items())
    assert {"all inputs", "words as numbers", "a scale that overflows", "another split, 3"} <= answered
    refused = {"a class is missing", "another label", "a deviation of 0", "a network of fewer classes"}
    assert not {*refused, "a model that is not finite"} & answered


def test_what_no_row_of_the_policys_reading_can_be_fails_for_every_question_alike(tmp_path):
    """A class or a kind of cell that the owner's policy does not know is the owner's mistake, and no answer."""
    for i, last in enumerate(("north,50,1.5,a,else", "north,x,1.5,a,no", "south,50,1.5,a,no")):
        node = a_node(tmp_path / str(i), last)
        offers = [an_offer(inputs) for inputs in (("age",), ("dose",), ("age", "dose"))]
        offers.append(an_offer(("dose",), classes=(*CLASSES, "else")))
        assert {answer(offer, node).deflate() for offer in offers} == {pack_reply(Refusal(REFUSED)).deflate()}
        assert ledger_of(node) == Ledger()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (COLUMNS, "policy needs 'classes'"),
        ('classes = ["no", "yes", "maybe"]', r"and \[columns\] for a table"),
        ('columns = ["clinic", "age"]', r"\[columns\] client = .*, label = .*, inputs = .* .got a list."),
        (COLUMNS + 'impute = "mean"', "'one_hot' and 'impute' are not allowed"),
        (COLUMNS.replace('"age"', '"ill"'), "'inputs' .*'ill'"),
    ],
)
def test_a_policy_by_which_refusals_would_tell_values_is_said_to_the_owner(tmp_path, policy, words):
    node = NodeSettings.read(a_node(tmp_path, policy=policy))
    for ask in (training_reply, histograms_reply):
        with pytest.raises(InputError, match=words):
            ask(an_offer(("age",)), node)
    assert ledger_of(a_node(tmp_path)) == Ledger()


def test_a_run_names_what_the_policy_names(tmp_path):
    policy = 'classes = ["no", "yes"]\n' + COLUMNS + 'group = "ward"\n'
    policy = policy.replace(', "ward"]', "]")
    node = a_node(tmp_path, ORDINARY, policy, **{"epsilon-budget": math.inf})
    path = Path(str(node["data-path"]))
    path.write_text(path.read_text().replace(",b,", ",a,"))
    node = NodeSettings.read(node)
    training_reply(an_offer(("dose",), columns={"group": "ward"}), node)
    for changes, words in (
        ({"inputs": ("age", "dose", "ward")}, "the server also names 'ward'"),
        ({"inputs": None}, "the server must name a table's inputs"),
        ({"columns": {"client": "ward"}}, "'columns.client' is 'clinic'; the server names 'ward'"),
        ({"columns": {"label": "dose"}}, "'columns.label' is 'ill'; the server names 'dose'"),
        ({"columns": {"group": "dose"}}, "'columns.group' is 'ward'; the server names 'dose'"),
        ({"classes": ("yes", "never")}, "'classes' have 'no'"),
    ):
        with pytest.raises(NotAllowedError, match=words):
            training_reply(an_offer(**{"inputs": ("age",), **changes}), node)


def test_how_often_a_column_has_a_value_does_not_move_the_budgets_refusal(tmp_path):
    """Whole rows are counted, and every row of the table: 39 have one of two wards, and none is there twice."""
    node = a_node(tmp_path)
    steps = set()
    for i, inputs in enumerate((("ward",), ("age",), ("age", "dose", "ward"))):
        for seed in (1, 2):
            node = a_node(tmp_path, **{"state-dir": str(tmp_path / f"{i} {seed}")})
            scale = a_scale(*inputs, words=tuple(("a",) if name == "ward" else () for name in inputs))
            assert unpack_refusal(answer(an_offer(inputs, scale=scale, seed=seed), node)) is None
            steps.add(ledger_of(node).steps)
    assert len(steps) == 1
    twice = a_node(tmp_path / "twice", "north,21,0.1,b,yes")
    assert unpack_refusal(answer(an_offer(("age",)), twice)) is None
    assert Ledger().epsilon(1e-5) < ledger_of(node).epsilon(1e-5) < ledger_of(twice).epsilon(1e-5)


def test_a_vote_does_not_look_at_the_data(tmp_path):
    node = a_node(tmp_path) | {"data-path": str(tmp_path / "nowhere.csv")}
    offer = an_offer(("age",), coordinator={"l2": 0.1, "vote_epsilon": 0.5})
    assert unpack_refusal(answer(offer, node, "votes")) is None
    assert ledger_of(node).answers == (("vote", 0.5, 1),)


def test_which_file_a_node_lacks_is_said_before_its_data_are_opened(tmp_path, monkeypatch):
    """Of a table that is not there."""
    node = a_node(tmp_path)
    nowhere = node | {"data-path": str(tmp_path / "nowhere.csv")}
    features = {"name": "logistic", "features": {"maps": ["pca"], "dimension": 1}}
    mapped = replace(an_offer(("age",), model=features), features="0" * 64)
    assert unpack_refusal(answer(mapped, nowhere)).reason == NO_FEATURES
    name = "network_with_a_body:network"
    module = types.ModuleType("network_with_a_body")
    module.network = lambda shape: torch.nn.Sequential(
        torch.nn.Linear(shape.inputs, 2).requires_grad_(False), torch.nn.Linear(2, shape.classes)
    )
    monkeypatch.setitem(sys.modules, "network_with_a_body", module)
    node, nowhere = node | {"allow-code": name}, nowhere | {"allow-code": name}
    server = Model(partial(module.network, VectorShape(1, 3)))
    offer = an_offer(("age",), models=torch.zeros(1, server.parameters), model={"name": name})
    frozen = {name: torch.zeros_like(tensor) for name, tensor in server.frozen.items()}
    offer = replace(offer, frozen=hash_of(frozen))
    assert unpack_refusal(answer(offer, nowhere)).reason == NO_FROZEN
    keep_features(NodeSettings.read(node).folder, FROZEN + offer.frozen, save(frozen))
    assert unpack_refusal(answer(offer, nowhere)).reason == REFUSED
    assert ledger_of(node) == Ledger()
    assert unpack_refusal(answer(offer, node)) is None


# --- after a charge ----------------------------------------------------------------------------------------------


def overflowing(above: float, clusters: int = 1) -> tuple[Standardizer, torch.Tensor]:
    """A scale, and models (K, P) of a dense network; the first model overflows only for ages ``above``."""
    model = create_model("mlp", VectorShape(1, 3), hidden=2)
    parts = {slot.name: torch.zeros(slot.shape) for slot in model.layout.slots}
    first, second = (name for name, part in parts.items() if part.dim() == 2)
    parts[first][0, 0], parts[second][0, 0] = 1e20, 1e25
    models = torch.zeros(clusters, model.parameters)
    models[0] = model.layout.pack(parts)
    return Standardizer(("age",), (above,), (1.0,)), models


@pytest.mark.parametrize("question", ["train", "histograms"])
def test_a_model_that_overflows_for_one_record_is_answered_as_without_it(tmp_path, question):
    """Each refusal told whether an age above a bound is there: its maximum in a few questions."""
    for last in (ORDINARY, RARE):
        node = a_node(tmp_path / last, last)
        scale, models = overflowing(above=60.0)
        reply = answer(an_offer(("age",), scale=scale, models=models, model=MLP), node, question)
        assert unpack_refusal(reply) is None
        assert ledger_of(node).stamp[0] == 1


def test_a_record_that_overflows_leaves_the_noise_of_an_update(tmp_path):
    scale, models = overflowing(above=60.0)
    offer = an_offer(("age",), scale=scale, models=models, model=MLP)
    update = training_reply(offer, NodeSettings.read(a_node(tmp_path)))
    assert (update.end != models[0]).float().mean() > 0.5, "1e20 and 1e25 are too large for the noise to be seen"


def test_a_loss_that_is_not_finite_is_the_largest_in_a_choice(tmp_path):
    scale, models = overflowing(above=60.0, clusters=2)
    sure = POLICY.replace("choice_epsilon = 1.0", "choice_epsilon = 60.0")
    for i, (given, expected) in enumerate(((models, 1), (models.flip(0), 0), (models[:1].repeat(2, 1), 0))):
        node = a_node(tmp_path / str(i), policy=sure, **{"epsilon-budget": 1e3})
        offer = an_offer(("age",), scale=scale, models=given, clusters=2, model=MLP)
        assert training_reply(offer, NodeSettings.read(node)).cluster == expected
        assert ledger_of(node).number_of("choice") == 1


def test_an_update_whose_numbers_overflow_is_no_move_and_a_line_in_the_log(tmp_path, caplog):
    """By a learning rate of the server's that makes the noise itself overflow."""
    # Of 50 steps of the node's own noise one overflows, but for once in ten million runs.
    offer = an_offer(("age",), local={"steps": 50, "batch_size": 20, "learning_rate": 3e38})
    update = training_reply(offer, NodeSettings.read(a_node(tmp_path)))
    assert torch.equal(update.end, offer.models[0])
    assert "an answer failed after its charge" in caplog.text


HERE = str(Path(__file__))
"""A file that there is."""


def node(config: dict[str, object]) -> NodeSettings:
    return NodeSettings.read({"partition-id": 0, **config})


def limits(values: dict[str, object]) -> Limits:
    return Limits(**values)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("read", "config", "words"),
    [
        (NodeSettings.read, {}, "exactly one of 'data-path' and 'partition-id'"),
        (NodeSettings.read, {"data-path": "x"}, "'client' is missing"),
        (node, {"data-path": "x"}, "exactly one of 'data-path' and 'partition-id'"),
        (node, {"partition-id": -1}, "at least 0"),
        (node, {"partion-id": 1}, "unknown key 'partion-id'; did you mean 'partition-id'"),
        (node, {"alpha": 0.5, "beta": 0.6}, "must sum to 1"),
        (node, {"threshold": 0.4}, "'threshold' must be at least 0.5"),
        (node, {"risk": "mine"}, "'server' or 'client'"),
        (node, {"noise": "x"}, "'secret' or 'seed'"),
        (node, {"client": "../etc"}, "'client' may have only letters"),
        (node, {"threads": 0}, "'threads' must be at least 1"),
        (node, {"noise": "seed", "epsilon-budget": 1.0}, "'noise' must be 'secret'"),
        (node, {"epsilon-budget": "much"}, "'epsilon-budget' must be a number"),
        (RunSettings.read, {"config": ""}, "'config' must be a TOML file"),
        (RunSettings.read, {"config": "nowhere.toml"}, r"a TOML file at the server \(got 'nowhere.toml'"),
        (RunSettings.read, {"config": HERE, "min-nodes": 0}, "'min-nodes' must be at least 1"),
        (RunSettings.read, {"config": HERE, "round-timeout": -1.0}, "'round-timeout' must be at least 0"),
        (limits, {"max_examples": 0}, "'max_examples' must be"),
        (limits, {"max_update_norm": 0.0}, "'max_update_norm' must be"),
        (Policy.read, Path("missing.toml"), "missing.toml: cannot be read"),
    ],
)
def test_a_wrong_value_is_one_sentence(read: Callable[[object], object], config, words):
    with pytest.raises(InputError, match=words):
        read(config)
