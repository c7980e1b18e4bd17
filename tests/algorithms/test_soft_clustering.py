"""Algorithms in which clients belong to several clusters: against plain loops over clients, and in their limits."""

from dataclasses import replace

import pytest
import torch

from plain_training import CLOSE, losses_of, played, sgd
from shoal.algorithms import IFCA, FedEM, FedRC, FedSoft
from shoal.algorithms.clusters.fedem import mixture_outputs
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import Augmentation
from shoal.engine import ClusterRound, Engine, LocalSGD, Training, client_updates

LOCAL = LocalSGD(steps=2, batch_size="all", learning_rate=0.1)
ROUNDS = 3


def trained(model, federation, algorithm, **options):
    return played(model, federation, algorithm, LOCAL, seed=8, **options)[0]


def examples(federation, i):
    """All examples of client i."""
    mine = federation.clients.indices_of(i)
    return federation.clients.x[mine], federation.clients.y[mine]


def copies(build) -> Federation:
    """Clients with copies of one example each: all copies have the lowest loss under the same model."""
    clients = build().clients
    pairs = [
        (clients.x[row][None].repeat(size, 1, 1, 1), clients.y[row].repeat(size))
        for row, size in zip(clients.indices[clients.offsets[:-1]], (3, 4, 2, 5, 3, 4), strict=True)
    ]
    return Federation.from_tensors(pairs, test=pairs[0], classes=3)


# --- FedSoft -------------------------------------------------------------------------------------------------------


def test_fedsoft_with_importances_of_0_and_1_and_no_pull_is_ifca_bit_for_bit(model, build):
    federation = copies(build)
    limit = FedSoft(3, strength=0.0, smoother=0.0, start="clusters")
    soft, hard = (trained(model, federation, each) for each in (limit, IFCA(3, weighting="examples")))
    assert len(hard[-1].assignment.unique()) > 1, "a single cluster would show nothing"
    for own, other in zip(soft, hard, strict=True):
        assert torch.equal(own.models, other.models)
        assert torch.equal(own.assignment, other.assignment)
    # On examples that differ, importances are no longer 0 and 1.
    mixed, one = (trained(model, build(), each)[-1] for each in (limit, IFCA(3, weighting="examples")))
    assert not torch.allclose(mixed.models, one.models, **CLOSE)


@pytest.mark.parametrize("start", ["personal", "clusters"])
def test_fedsoft_is_each_client_s_sgd_pulled_to_all_clusters(model, build, start):
    federation, strength, smoother = build(), 0.7, 0.01
    states = trained(model, federation, FedSoft(3, strength, smoother, start=start))
    centres, sizes = states[0].models, federation.clients.sizes
    personal = list(states[0].personal["fedsoft"].tensor())
    for _ in range(ROUNDS):
        importances = []
        for i in range(len(federation)):
            best = torch.stack([losses_of(model, c, examples(federation, i)) for c in centres]).argmin(dim=0).tolist()
            importances.append([best.count(k) / len(best) or smoother for k in range(3)])
            u = torch.tensor(importances[-1])

            def pull(w, u=u, centres=centres):
                return strength / 2 * sum(share * (w - c).square().sum() for share, c in zip(u, centres, strict=True))

            begin = personal[i] if start == "personal" else (u / u.sum()) @ centres
            personal[i] = sgd(model, begin, [examples(federation, i)] * 2, LOCAL, pull=pull)
        points = torch.tensor(importances).T * sizes
        centres = (points / points.sum(dim=1, keepdim=True)) @ torch.stack(personal)
    torch.testing.assert_close(states[-1].models, centres, **CLOSE)
    torch.testing.assert_close(states[-1].personal["fedsoft"].tensor(), torch.stack(personal), **CLOSE)
    assert states[-1].assignment.tolist() == torch.tensor(importances).argmax(dim=1).tolist()


def test_fedsoft_s_personal_models_persist_and_are_what_clients_use(mlp, build):
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), FedSoft(2), LOCAL, engine, Stream(8), participation=0.5)
        state = training.start()
        for after, report in training.rounds(state, 3):
            own, before = after.personal["fedsoft"].tensor(), state.personal["fedsoft"].tensor()
            assert sorted(torch.nonzero((own != before).any(dim=1)).flatten().tolist()) == sorted(
                report.cohort.tolist()
            )
            state = after
        deployed, _ = training.deployed_models(state)
    assert torch.equal(deployed.models.tensor(), state.personal["fedsoft"].tensor())


def test_fedsoft_draws_clients_for_each_cluster_by_importance(mlp, build):
    with Engine(mlp, threads=1) as engine:
        algorithm = FedSoft(2, selection=2)
        training = Training(build(), algorithm, LOCAL, engine, Stream(8))
        state = training.start()
        cohort = training.cohort_of(state, torch.arange(6))
        # The examples of clients 0 to 2 are won by cluster 0, those of the others by cluster 1.
        first = torch.where((cohort.owners < 3)[:, None], torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
        certain = replace(algorithm, smoother=0.0)
        weights = [
            certain.plan(state, replace(cohort, stream=Stream(seed), example_scores=lambda _: first.double()))
            .trainings[0]
            .weights
            for seed in range(20)
        ]
        after, report = training.round(state)
    for each in weights:
        assert sorted(each[0].tolist()) == sorted(each[1].tolist()) == [0, 0, 0, 0, 0.5, 0.5]
        assert not each[0, 3:].any()
        assert not each[1, :3].any()
    assert (torch.stack(weights).sum(dim=0)[[0, 1], [1, 4]] > 0).all()
    assert len({tuple(each.flatten().tolist()) for each in weights}) > 1
    (training_,) = report.plan.trainings
    moved = (after.personal["fedsoft"].tensor() != state.personal["fedsoft"].tensor()).any(dim=1)
    assert torch.equal(moved[report.cohort], training_.weights.any(dim=0))
    assert 2 <= int(moved.sum()) <= 4


def test_a_cluster_that_wins_no_example_of_fedsoft_counts_as_the_smoother(mlp, build):
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), FedSoft(2, smoother=0.25), LOCAL, engine, Stream(8))
        state = training.start()
        cohort = training.cohort_of(state, torch.arange(6))
        none = torch.tensor([0.0, 1.0]).double().expand(len(cohort.labels), 2)
        plan = FedSoft(2, smoother=0.25).plan(state, replace(cohort, example_scores=lambda _: none))
    (training_,) = plan.trainings
    # 1 + 0.25, not normalised again; and every cluster's weights are the shares of examples.
    assert training_.linear_term.strength.tolist() == pytest.approx([0.1 * 1.25] * 6)
    torch.testing.assert_close(training_.weights[1], cohort.sizes.double() / cohort.sizes.sum())
    assert plan.losses.tolist() == [[0.0, 1.0]] * 6


# --- FedEM and FedRC -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedem", "fedrc"])
def test_a_mixture_is_each_client_s_weighted_sgd(model, build, name):
    """The E step by Bayes' rule with plain probabilities, one example after another."""
    federation, sizes = build(), build().clients.sizes
    algorithm = FedEM(3) if name == "fedem" else FedRC(3)
    states = trained(model, federation, algorithm)
    models = states[0].models
    pi = torch.full((len(federation), 3), 1 / 3).double()
    shares = torch.full((3, 3), 1 / 3).double()  # Of model and label.
    for _ in range(ROUNDS):
        ends, sums = [[], [], []], torch.zeros(3, 3).double()
        for i in range(len(federation)):
            x, labels = examples(federation, i)
            losses = torch.stack([losses_of(model, m, (x, labels)) for m in models], dim=1).detach()
            chance = (-losses.double()).exp()
            odds = pi[i] * chance / (shares[:, labels].T if name == "fedrc" else 1)
            q = odds / odds.sum(dim=1, keepdim=True)
            pi[i] = q.mean(dim=0)
            for m in range(3):
                ends[m].append(sgd(model, models[m], [(x, labels)] * 2, LOCAL, weights=q[:, m].float()))
                for label, part in zip(labels.tolist(), q[:, m], strict=True):
                    sums[m, label] += part
        shares = sums / sums.sum(dim=1, keepdim=True)
        models = torch.stack([(sizes[:, None] * torch.stack(each)).sum(dim=0) / sizes.sum() for each in ends])
    torch.testing.assert_close(states[-1].models, models, **CLOSE)
    torch.testing.assert_close(states[-1].clients["fedem.weights"], pi, rtol=1e-4, atol=1e-5)
    assert states[-1].assignment.tolist() == pi.argmax(dim=1).tolist()
    if name == "fedrc":
        torch.testing.assert_close(states[-1].server["fedrc.label_shares"], shares, rtol=1e-4, atol=1e-5)


def test_fedrc_does_not_prefer_a_model_for_having_seen_more_of_a_label(mlp, build):
    """Two models that know the prior of labels alone: FedEM tells clients apart by their labels, FedRC does not."""
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), FedRC(2), LOCAL, engine, Stream(8))
        shares = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]).double()
        state = replace(training.start(), server={"fedrc.label_shares": shares})
        cohort = training.cohort_of(state, torch.arange(6))
        blind = replace(cohort, example_scores=lambda _: -shares[:, cohort.labels].log().T)
        q = {each.name: torch.stack([t.example_weights for t in each.plan(state, blind).trainings])
             for each in (FedEM(2), FedRC(2))}  # fmt: skip
    torch.testing.assert_close(q["fedrc"], torch.full_like(q["fedrc"], 0.5))
    assert q["fedem"][0][cohort.labels == 0].tolist() == pytest.approx([8 / 9] * int((cohort.labels == 0).sum()))


@pytest.mark.parametrize("algorithm", [FedEM(2), FedRC(2)], ids=repr)
def test_clients_of_a_mixture_are_members_of_all_models_and_use_the_heaviest(mlp, build, algorithm):
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), algorithm, LOCAL, engine, Stream(8), record_every=1)
        before = training.start()
        after, report = training.round(before)
        deployed, _ = training.deployed_models(after)
        again = [each for i in range(6) for each in client_updates(training, before, report, i)]
        final = algorithm.plan(after, training.final_cohort(after))
    assert after.trainers(1).all()
    assert torch.equal(deployed.model, final.assignment)
    # Every client sends an update for each model, which are recorded and computed again as what they are.
    assert report.updates.assignment.tolist() == [0] * 6 + [1] * 6
    moved = torch.zeros_like(before.models).double()
    for k, weight, update in again:
        moved[k] += weight * update
    torch.testing.assert_close((before.models + moved).float(), after.models, **CLOSE)


def test_a_mixture_s_directives_are_those_of_the_model_that_is_trained(mlp, build):
    class OnlyFirst:
        def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
            return local if at.cluster == 0 else replace(local, learning_rate=1e-12)

    first, *_, last = trained(mlp, build(), FedEM(2), defenses=(OnlyFirst(),))
    assert (last.models[0] - first.models[0]).norm() > 0.01
    assert (last.models[1] - first.models[1]).norm() < 1e-6


def test_augmentation_and_weights_of_examples_go_together(cnn, build):
    plain, turned = (trained(cnn, build(), FedEM(2), defenses=each)[-1] for each in ((), (Augmentation(20.0, 1.0),)))
    assert torch.isfinite(turned.models).all()
    assert not torch.allclose(plain.models, turned.models, **CLOSE)


def test_the_mixture_of_probabilities_is_what_a_client_predicts():
    outputs = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    pi = torch.tensor([0.5, 0.3, 0.2])
    expected = sum(weight * each.softmax(dim=1) for weight, each in zip(pi, outputs, strict=True))
    torch.testing.assert_close(mixture_outputs(outputs, pi).exp(), expected)
    assert torch.equal(mixture_outputs(outputs, torch.tensor([0.0, 1.0, 0.0])), outputs[1].log_softmax(dim=1))
