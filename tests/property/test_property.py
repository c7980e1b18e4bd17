"""Property inference: what is simulated, what is seen, what the forest makes of it, and who is not disturbed by it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from full_simulation import simulate_with
from property_rounds import LOCAL, played as all_of
from shoal.algorithms import CFL, IFCA, IFCAMIR, FedAvg
from shoal.attacks import LossThreshold, ShadowModels
from shoal.audit import RedTeam
from shoal.core.errors import InputError
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.defenses import NormClipping
from shoal.engine import Engine, MaliciousTraining, Training
from shoal.models import Model
from shoal.property import PropertyAttack, active_property_attacker, classify_updates, extract_features
from shoal.property.simulated_updates import Auxiliary, aggregated_updates, local_updates
from shoal.property.update_table import property_summary

ALGORITHMS = [FedAvg(), IFCA(2, choose_by="batch"), IFCAMIR(IFCA(2))]
RED_TEAM = RedTeam(every=3, attack=LossThreshold(), shadow_models=ShadowModels(number=2))


def played(*asked, threads=2, **settings):
    """The states of all rounds, and what the attack saw."""
    states, _, observations = all_of(*asked, engine={"threads": threads}, risk_estimator=RED_TEAM, **settings)
    return states, observations


def same(one, other):
    return all(
        torch.equal(a.models, b.models) and torch.equal(a.assignment, b.assignment)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_watching_changes_nothing(model, federation, algorithm):
    alone, _ = played(model, federation, algorithm)
    attack = PropertyAttack(simulated_clients=3, remove_own_update=True, property_fractions=(1.0, 0.5))
    watched, observations = played(model, federation, algorithm, attack=attack)
    assert same(alone, watched)
    assert sum(len(seen.features) for seen in observations) > 0


def test_property_attack_skips_rounds_that_change_the_number_of_models(mlp, federation):
    states, observations = played(mlp, federation, CFL(eps1=9.0, eps2=0.01, warm_up=2), attack=PropertyAttack())
    counts = [len(seen.models) for seen in states]
    assert counts[2] < counts[3], "nothing was divided"
    for before, after, seen in zip(counts, counts[1:], observations, strict=False):
        assert (len(seen.clusters) == 0) == (before != after)


def test_threads_change_no_bit_of_what_is_seen(cnn, federation):
    one, two = (played(cnn, federation, IFCA(2), attack=PropertyAttack(), threads=n)[1] for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert all(
            torch.equal(x, y) for x, y in zip(list(vars(a).values())[1:-1], list(vars(b).values())[1:-1], strict=True)
        )


def test_observed_updates_are_differences_of_models(mlp, federation):
    attack = PropertyAttack(remove_own_update=False)
    states, observations = played(mlp, federation, IFCA(2, choose_by="batch"), attack=attack)
    for before, after, seen in zip(states, states[1:], observations, strict=False):
        updates = (after.models - before.models)[seen.clusters]
        assert torch.equal(seen.features, extract_features(mlp.layout, updates))
    both = [seen for seen in observations if len(seen.clusters) == 2]
    earlier, later = both[0], next(seen for seen in both if seen.round == both[0].round + 1)
    moves = [states[e.round].models - states[e.round - 1].models for e in (earlier, later)]
    expected = nn.functional.cosine_similarity(moves[0].double(), moves[1].double())
    assert torch.allclose(later.cosine, expected)


def test_observations_hold_the_truth_of_the_victim_s_round_and_model(mlp, federation):
    states, observations = played(mlp, federation, IFCA(3, choose_by="batch"), attack=PropertyAttack(), rounds=9)
    victim, attacker = federation.schedule.victim, federation.schedule.attacker
    for after, seen in zip(states[1:], observations, strict=True):
        chosen = after.assignment
        for k, present, clients in zip(seen.clusters, seen.has_property, seen.clients, strict=True):
            assert bool(present) == (after.round % 3 == 0 and chosen[victim] == k)
            assert int(clients) == int((chosen == k).sum())
        trained_by_others = chosen[torch.arange(6) != attacker].unique()
        assert torch.equal(seen.clusters, trained_by_others)


def test_a_client_that_sees_only_its_own_model_sees_no_other(mlp, federation):
    states, observations = played(mlp, federation, IFCA(2), attack=PropertyAttack(visible_models="own"))
    for after, seen in zip(states[1:], observations, strict=True):
        trained = int(after.assignment[federation.schedule.attacker])
        assert set(seen.simulated_clusters.tolist()) == {trained}
        assert set(seen.clusters.tolist()) <= {trained}


def test_simulations_come_every_so_many_rounds_after_the_warm_up(mlp, federation):
    attack = PropertyAttack(simulate_every=2, warm_up=1, simulated_updates=5)
    _, observations = played(mlp, federation, FedAvg(), attack=attack)
    assert [len(seen.simulated_features) for seen in observations] == [0, 10, 0, 10, 0, 10]
    assert [len(seen.features) for seen in observations] == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("clients", "models", "size"), [(10, 1, 9), (10, 3, 2), (20, 3, 5), (3, 3, 1)])
def test_an_aggregate_has_as_many_updates_as_other_clients_train_a_model_on_average(clients, models, size):
    assert PropertyAttack().aggregate_size(clients, models) == size
    assert PropertyAttack(aggregate_of=4).aggregate_size(clients, models) == 4


def test_a_simulated_update_is_what_sgd_makes_of_its_batch(mlp, federation):
    auxiliary = Auxiliary.from_attacker(federation)
    row = mlp.init(Stream(2))
    with Engine(mlp) as engine:
        updates = local_updates(row, auxiliary, [1.0, 0.0], size=8, local=LOCAL, engine=engine, stream=Stream(9))
    generator = Stream(9)("examples").generator()
    network = mlp.network()
    for update, pool in zip(updates, (auxiliary.with_property, auxiliary.without_property), strict=True):
        rows = pool[torch.randperm(len(pool), generator=generator)[:8]]
        network.load_state_dict(mlp.state_dict(row))
        network.zero_grad()
        nn.functional.cross_entropy(network(federation.clients.x[rows]), federation.clients.y[rows]).backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        assert torch.allclose(update, -0.1 * mlp.layout.pack(gradients), atol=1e-6)


def test_an_aggregated_update_is_a_mean_with_one_holder_or_none():
    held, rest = torch.eye(3, 8), torch.eye(5, 8).roll(3, dims=1)
    made = aggregated_updates(held, rest, size=4, count=6, stream=Stream(0))
    assert torch.allclose(made.sum(dim=1), torch.ones(12))
    assert torch.equal((made > 0).sum(dim=1), torch.full((12,), 4))
    assert torch.equal((made[:, :3] > 0).sum(dim=1), torch.tensor([1] * 6 + [0] * 6))
    assert torch.equal(made[:3, :3].argmax(dim=1), torch.arange(3)), "each holder takes part"


def test_features_are_the_largest_changes_of_rows_and_kernels():
    shapes = {
        "kernels": (4, 3, 2, 2),
        "many kernels": (80, 64, 1, 1),
        "matrix": (5, 6),
        "wide matrix": (2, 2_501),
        "bias": (7,),
    }
    named = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(i))
        for i, (name, shape) in enumerate(shapes.items())
    }
    layout = Layout.from_tensors(named, {"mean": torch.ones(9, 9)})
    row = layout.pack(named | {"mean": torch.ones(9, 9)})
    expected = torch.cat(
        [
            named["kernels"].abs().amax(dim=(2, 3)).flatten(),
            named["matrix"].abs().flatten(),
            named["wide matrix"].abs().amax(dim=1),
        ]
    )
    features = extract_features(layout, torch.stack([row, -5 * row, 0 * row])).float()
    assert torch.allclose(features[0], expected / expected.norm(), atol=1e-3)
    assert torch.equal(features[0], features[1]), "size and sign of a step say nothing"
    assert not features[2].any()


def test_the_forest_finds_the_property_and_its_control_does_not(mlp, federation):
    attack = PropertyAttack(simulated_updates=8)
    _, observations = played(mlp, federation, IFCA(2, choose_by="batch"), attack=attack, rounds=45)
    figures = property_summary(
        classify_updates(observations, Stream(1), forests=attack.forests, trees=attack.trees)
    ).overall
    assert figures["property.positives"] == 15
    # 15 updates with the property among 90 or fewer: an AUC at chance has a standard deviation of 0.08.
    assert figures["property.auc"] > 0.5 + 3 * 0.08
    assert figures["property.auc_control"] == pytest.approx(0.5, abs=3 * 0.08)


def test_per_cluster_forests_score_their_own_cluster_alone(mlp, federation):
    single, several = PropertyAttack(trees=20), PropertyAttack(trees=20, forests="per-cluster")
    _, observations = played(mlp, federation, IFCA(2, choose_by="batch"), attack=single, rounds=30)
    scored = [
        classify_updates(observations, Stream(1), forests=attack.forests, trees=attack.trees)
        for attack in (single, several)
    ]
    assert scored[0]["present"].equals(scored[1]["present"])
    assert not scored[0]["score"].equals(scored[1]["score"])
    one_model = [
        replace(
            seen,
            **{
                name: tensor[seen.simulated_clusters == 0]
                for name, tensor in vars(seen).items()
                if name.startswith("simulated_")
            },
        )
        for seen in observations
    ]
    blind = classify_updates(one_model, Stream(1), forests="per-cluster", trees=20)
    assert bool(blind.loc[blind["cluster"] == 1, "score"].isna().all()), "nothing was learned of model 1"
    learned = blind["cluster"] == 0
    assert blind.loc[learned, "score"].notna().all()


def test_an_active_attacker_changes_training_and_remembers(mlp, federation):
    malicious_client = active_property_attacker(mlp, federation, alpha=0.5, gamma=1.0)
    honest, active = (
        played(mlp, federation, IFCA(2), malicious_clients=attacker)[0] for attacker in (None, malicious_client)
    )
    assert not torch.allclose(honest[1].models, active[1].models)
    trained = active[1].assignment[federation.schedule.attacker]
    moved = (active[1].adversary["head"] != active[0].adversary["head"]).any(dim=1)
    assert moved.tolist() == [k == trained for k in range(2)]


def test_the_two_losses_are_weighed_as_in_the_paper(mlp, federation):
    """Equation 1, against a network with two heads by hand."""
    malicious_client = active_property_attacker(mlp, federation, alpha=0.7, gamma=3.0)
    schedule = federation.schedule
    with Engine(mlp) as engine:
        training = Training(
            engine.prepare(federation), FedAvg(), LOCAL, engine, Stream(5), malicious_clients=malicious_client
        )
        state = training.start()
        shards = federation.clients.take(torch.tensor([schedule.attacker]))
        randomness = LOCAL.randomness(shards, torch.tensor([schedule.attacker]), Stream(4))
        sent, adversary = malicious_client.train(
            MaliciousTraining(state, 0, malicious_client.client, shards, randomness, LOCAL, engine)
        )
    rows = shards.indices_of(0)[randomness.orders[0, 0, :8]]
    network = mlp.network()
    network.load_state_dict(mlp.state_dict(state.models[0]))
    head = nn.Linear(8, 2)
    initial = state.adversary["head"][0]
    weight, bias = initial[:16].reshape(2, 8), initial[16:]
    head.load_state_dict({"weight": weight, "bias": bias})
    hidden = torch.relu(network.hidden(federation.clients.x[rows].flatten(1)))
    main = nn.functional.cross_entropy(network.output(hidden), federation.clients.y[rows])
    head_loss = nn.functional.cross_entropy(head(hidden), schedule.has_property[rows].long())
    (0.7 * main + 0.3 * head_loss).backward()
    gradients = mlp.layout.pack({name: parameter.grad for name, parameter in network.named_parameters()})
    assert torch.allclose(sent, state.models[0] - 3.0 * 0.1 * gradients, atol=1e-5)
    learned = torch.cat([(weight - 0.1 * head.weight.grad).flatten(), bias - 0.1 * head.bias.grad])
    assert torch.allclose(adversary["head"][0], learned, atol=1e-6)


def test_a_head_that_is_not_trained_stays_as_initialised(mlp, federation):
    malicious_client = active_property_attacker(mlp, federation, alpha=0.5, gamma=1.0, train_head=False)
    states, _ = played(mlp, federation, FedAvg(), malicious_clients=malicious_client)
    assert torch.equal(states[0].adversary["head"], states[-1].adversary["head"])


def test_the_order_of_clients_means_nothing_to_an_active_attack(mlp, federation):
    malicious_client = active_property_attacker(mlp, federation, alpha=0.5, gamma=5.0)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    plain, _ = played(mlp, federation, IFCA(2), malicious_clients=malicious_client)
    permuted, _ = played(mlp, federation.take(order), IFCA(2), malicious_clients=malicious_client)
    assert torch.allclose(plain[-1].models, permuted[-1].models, atol=1e-6)
    assert torch.equal(plain[-1].assignment[order], permuted[-1].assignment)


def test_test_examples_can_be_known_too(federation):
    few, more = (
        PropertyAttack().auxiliary_examples(federation),
        PropertyAttack(auxiliary="attacker+test").auxiliary_examples(federation),
    )
    test = federation.schedule.test_has_property
    assert len(more.with_property) == len(few.with_property) + int(test.sum())
    assert len(more.without_property) == int((~test).sum())
    for examples in (few, more):
        corner = examples.x[:, 0, 0, 4]
        assert bool((corner[examples.with_property] == 1).all())
        assert bool((corner[examples.without_property] < 1).all())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"property_fractions": (0.0,)}, "'property_fractions' must be above 0"),
        ({"property_fractions": ()}, "'property_fractions' must be not empty"),
        ({"visible_models": "some"}, r"'visible_models' must be 'all' or 'own' \(got 'some'"),
    ],
)
def test_wrong_settings_are_one_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        PropertyAttack(**wrong)


def test_without_a_holder_there_is_nothing_to_attack(mlp, build, federation):
    with pytest.raises(InputError, match=r"Federation\.schedule"):
        PropertyAttack().auxiliary_examples(build())
    with pytest.raises(InputError, match=r"Federation\.schedule"):
        active_property_attacker(mlp, build(), alpha=0.5, gamma=1.0)
    with pytest.raises(InputError, match=r"torch\.nn\.Linear"):
        active_property_attacker(Model(lambda: nn.Conv2d(1, 1, 1)), federation, alpha=0.5, gamma=1.0)


def test_in_memory_as_on_disk(mlp, federation):
    """`simulate` takes the attack and the malicious clients, and its defences apply to both."""
    result = simulate_with(
        federation,
        mlp,
        IFCA(2, choose_by="batch"),
        LOCAL,
        rounds=12,
        round_attack=PropertyAttack(trees=10),
        malicious_clients=active_property_attacker(mlp, federation, alpha=0.5, gamma=5.0),
        defenses=[NormClipping(0.05)],
    )
    assert result.updates is not None
    assert result.summary.overall["property.updates"] == len(result.updates)
    assert 0 <= result.summary.overall["property.auc"] <= 1
