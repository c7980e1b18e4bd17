"""CFL: FedAvg until clusters are divided, the true groups afterwards, and who walks where in the tree."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn

from relabelled import FOUR, FULL, LINEAR, TWO, ari, relabelled, trained
from shoal.algorithms import CFL, FedProx, Pooling
from shoal.algorithms.clusters.cfl import ParameterTree, UpdateSketch, bipartition
from shoal.core.randomness import Stream
from shoal.engine import Engine, State, Training
from shoal.runs.result import load
from shoal.runs.run import run

SPLITS = CFL(eps1=0.25, eps2=0.4)


@pytest.fixture(scope="module")
def four() -> list[State]:
    """The rounds of four groups that CFL finds."""
    return trained(relabelled(FOUR), SPLITS, 30)


@pytest.mark.parametrize(("least", "clusters"), [(1, 2), (2, 1)])
def test_a_cluster_of_two_clients_is_divided_where_parts_may_be_of_one(play, build, least, clusters):
    """Which the authors' notebook does not do."""
    two = build().take(torch.tensor([0, 3]))
    (*_, last), _ = play(CFL(eps1=1e9, eps2=0.0, min_clients=least), rounds=1, federation=two)
    assert len(last.models) == clusters


@pytest.mark.parametrize("linkage", ["single", "complete"])
@pytest.mark.parametrize("sketch", [4096, 12])
def test_two_groups_are_found_exactly(linkage, sketch):
    states = trained(relabelled(TWO), replace(SPLITS, linkage=linkage, sketch=sketch), 20)
    assert [len(each.models) for each in states[::20]] == [1, 2]
    assert ari(states[-1], TWO) == 1


def test_four_groups_are_found_by_a_second_level_of_splits(four):
    """Parts of a part are clients, not positions in it, which the official code takes for clients."""
    sizes = [len(each.models) for each in four]
    assert sorted(set(sizes)) == [1, 2, 3, 4] or sorted(set(sizes)) == [1, 2, 4]
    first = four[sizes.index(2)]
    assert ari(first, [group // 2 for group in FOUR]) == 1, "the first split parts those who agree on nothing"
    assert ari(four[-1], FOUR) == 1
    assert sizes[-5:] == [4] * 5


def test_single_linkage_makes_the_largest_similarity_across_parts_as_small_as_any_parts_do():
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        directions = nn.functional.normalize(torch.randn(7, 3, generator=draw, dtype=torch.float64), dim=1)
        cosines = directions @ directions.T
        others = [torch.tensor((False, *each)) for each in product((False, True), repeat=6) if any(each)]
        least = min(float(cosines[~second][:, second].max()) for second in others)
        found = bipartition(cosines, "single")
        assert float(cosines[~found][:, found].max()) == pytest.approx(least)


def test_complete_linkage_is_another_rule():
    """A chain of four and one that is a little further from its end: only single linkage keeps the chain."""
    at = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.1])
    similarity = (1 - (at[:, None] - at).abs() / 5).double()
    assert bipartition(similarity, "single").tolist() == [False, False, False, False, True]
    assert bipartition(similarity, "complete").tolist() != [False, False, False, False, True]


def test_a_newcomer_walks_the_tree_and_moves_nothing_on_its_way(four):
    federation, settled = relabelled(FOUR), four[-1]
    depth = {}
    for client, group in ((2, 3), (7, 1)):
        node = settled.clients["cfl.node"].clone()
        node[client] = 0
        new = replace(settled, assignment=settled.assignment.clone(), clients={"cfl.node": node})
        states = trained(federation, SPLITS, 4, new)
        same = settled.assignment[FOUR.index(group)]
        assert states[-1].assignment[client] == same
        depth[client] = next(i for i, each in enumerate(states) if not walks(each, client))
        assert depth[client] == 2, "two levels of splits, one a round"
        with Engine(LINEAR, threads=1) as engine:
            training = Training(federation, SPLITS, FULL, engine, Stream(3))
            plan = SPLITS.plan(new, training.cohort_of(new, torch.arange(12)))
        (local,) = plan.trainings
        assert torch.equal(
            local.initial_params[local.init_index[client]], ParameterTree.from_tensors(settled.server).models[0]
        )
        assert local.weights[:, client].tolist() == [0.0] * 4
        assert int(states[1].trained[client].max()) == settled.round, "walking trains no model"


def sent_to_a_newcomer(four: list[State], group: int, algorithm: CFL, rounds: int = 4) -> tuple[list, list[State]]:
    """What a client of ``group`` that joins is sent in each round, and the states after them."""
    with Engine(LINEAR, threads=1) as engine:
        training = Training(engine.prepare(relabelled([*FOUR, group])), algorithm, FULL, engine, Stream(3))
        states, sent = [training.with_newcomers(four[-1])], []
        assert states[0].assignment.tolist() == [*four[-1].assignment.tolist(), -1]
        assert states[0].trained.shape == (13, 4)
        for _ in range(rounds):
            (planned,) = algorithm.plan(states[-1], training.cohort_of(states[-1], torch.arange(13))).trainings
            sent.append(planned.initial_params[planned.init_index[12]])
            states.append(training.round(states[-1])[0])
    return sent, states


@pytest.mark.parametrize("group", [0, 1, 2, 3])
def test_at_once_a_newcomer_is_sent_no_model_between_the_first_split_and_its_cluster_s(four, group):
    tree = ParameterTree.from_tensors(four[-1].server)
    sent, states = sent_to_a_newcomer(four, group, replace(SPLITS, walk="at-once"))
    assert torch.equal(sent[0], tree.models[0])
    for model, state in zip(sent[1:], states[1:], strict=False):
        assert torch.equal(model, state.models[state.assignment[12]])
    assert states[-1].assignment[12] == states[-1].assignment[FOUR.index(group)]
    stepwise, _ = sent_to_a_newcomer(four, group, SPLITS)
    assert not torch.equal(stepwise[1], sent[1])


def test_a_client_below_admission_stays_at_its_node_and_moves_no_model(four):
    tree = ParameterTree.from_tensors(four[-1].server)
    for walk in ("stepwise", "at-once"):
        sent, states = sent_to_a_newcomer(four, 2, replace(SPLITS, admission=1.0, walk=walk))
        assert all(torch.equal(model, tree.models[0]) for model in sent)
        assert all(state.clients["cfl.node"][12] == 0 for state in states)
    admitted, _ = sent_to_a_newcomer(four, 2, replace(SPLITS, admission=0.3))
    everyone, _ = sent_to_a_newcomer(four, 2, SPLITS)
    assert all(torch.equal(one, other) for one, other in zip(admitted, everyone, strict=True))


def test_admission_compares_with_the_most_similar_client():
    none = torch.zeros(0, dtype=torch.int64)
    tree = ParameterTree(none, none.new_zeros(1), torch.zeros(0, 2), torch.zeros(0, 2), none)
    updates = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    tree = tree.divide(0, torch.zeros(2), updates, torch.tensor([False, False, True]))
    newcomers, root = torch.tensor([[0.0, 5.0], [-0.6, -0.8], [1.0, 0.0]]), torch.zeros(3, dtype=torch.int64)
    assert tree.below(root, newcomers, 0.6).tolist() == [1, 2, 1]
    assert tree.below(root, newcomers, 0.61).tolist() == [0, 0, 1]
    assert tree.below(root, newcomers).tolist() == [1, 2, 1]


def walks(state: State, client: int) -> bool:
    return int(ParameterTree.from_tensors(state.server).split_of(state.clients["cfl.node"][[client]])) >= 0


def test_absent_clients_reach_their_groups():
    *_, state = trained(relabelled(FOUR), SPLITS, 60, participation=0.7)
    assert len(state.models) == 4
    assert ari(state, FOUR) == 1


def test_parts_inherit_what_is_said_of_their_cluster(four):
    sizes = [len(each.models) for each in four]
    before = four[sizes.index(2) - 1]
    risk, strength = torch.tensor([0.7], dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64)
    told = replace(before, risks=risk, directives={"l2": strength})
    after = trained(relabelled(FOUR), SPLITS, 1, told)[-1]
    assert after.risks.tolist() == [0.7, 0.7]
    assert after.directives["l2"].tolist() == [0.3, 0.3]
    assert torch.equal(after.models[0], after.models[1])
    assert (after.trained == after.round).all(), "everybody trained what both parts go on with"
    later = trained(relabelled(FOUR), SPLITS, 1, after)[-1]
    assert ((later.trained == later.round).sum(dim=1) == 1).all()
    assert not torch.equal(later.models[0], later.models[1])
    larger = [int((after.assignment == k).sum()) for k in range(2)]
    assert larger[0] >= larger[1]


def test_a_run_whose_clusters_are_divided_has_all_its_files(toy_config, tmp_path):
    algorithm = {"name": "cfl", "rounds": 4, "eps1": 9.0, "eps2": 0.01, "warm_up": 1}
    result = load(run(toy_config(algorithm=algorithm), tmp_path / "run"))
    clusters = result.rounds.groupby("round")["cluster"].nunique()
    assert clusters[1] == 1
    assert clusters[4] == len(result.models) > 1
    assert f"clusters.{len(result.models) - 1}.risk" in json.loads((tmp_path / "run" / "summary.json").read_text())
    result.report(tmp_path / "page.html")
    assert "cluster" in (tmp_path / "page.html").read_text()


def test_parts_have_at_least_min_clients_and_min_examples():
    alone = [0, 0, 0, 0, 2]
    found = {
        key: len(trained(relabelled(alone), replace(SPLITS, **{key: value}), 12)[-1].models)
        for key, value in (("min_clients", 2), ("min_examples", 41), ("sketch", 4096))
    }
    assert found == {"min_clients": 1, "min_examples": 1, "sketch": 2}


@pytest.mark.parametrize("wrapped", [FedProx(SPLITS, 0.01), Pooling(SPLITS, 0.1)], ids=repr)
def test_other_wrappers_go_on_with_new_clusters(wrapped):
    *_, state = trained(relabelled(TWO), wrapped, 20)
    assert ari(state, TWO) == 1


def test_a_sketch_keeps_cosines():
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(1, 20_000, generator=draw)
    updates = common + torch.randn(30, 20_000, generator=draw)
    # A few entries of great weight, as layers have them, must not decide which buckets are full.
    updates[:, :200] *= 10
    sketch = UpdateSketch.draw(20_000, 1024, Stream(0))
    short = sketch.project(updates)
    assert short.shape == (30, 1024)
    error = nn.functional.normalize(short, dim=1) @ nn.functional.normalize(short, dim=1).T
    error = error - nn.functional.normalize(updates, dim=1) @ nn.functional.normalize(updates, dim=1).T
    off = error[torch.triu_indices(30, 30, 1).unbind()]
    assert float(off.square().mean().sqrt()) < 2 * (2 / 1024) ** 0.5
    assert torch.equal(UpdateSketch.draw(100, 100, Stream(0)).project(updates[:, :100]), updates[:, :100])
