"""What docs/batch-norm.md says: how batch norms are averaged, and FedBN, in which they stay with their clients."""

import copy

import pytest
import torch
from torch import nn

import shoal
from experiment_scripts import experiment_script
from plain_training import CLOSE, batches, played
from shoal.algorithms import FedAvg, FedBN, FedOpt
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model
from shoal.runs.run import simulate

LOCAL = LocalSGD(epochs=2, batch_size=3, learning_rate=0.1)
STATISTICS = ("1.running_mean", "1.running_var")


@pytest.fixture
def model():
    return Model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)))


@pytest.fixture
def federation(build):
    """Clients with different numbers of examples, none of whose last batches has one alone."""
    return build(sizes=(9, 12, 6, 12, 6, 9))


def trained_by_pytorch(network, federation, i, number):
    """A client's network after its local training, by modules of PyTorch in training mode."""
    network = copy.deepcopy(network).train()
    optimizer = torch.optim.SGD(network.parameters(), LOCAL.learning_rate)
    for batch in batches(federation, i, LOCAL, number):
        x, y = batch[0], batch[1]
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.state_dict()


def mean_of(states, weights, name):
    total = sum(weight * state[name] for weight, state in zip(weights, states, strict=True))
    return total / sum(weights)


@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_scale_shift_and_running_statistics_are_averaged_by_the_same_weights(model, federation, weighting):
    states, _, _ = played(model, federation, FedAvg(weighting), LOCAL, rounds=2)
    network = model.network()
    network.load_state_dict(model.state_dict(states[0].models[0]))
    sizes = federation.clients.sizes.double().tolist() if weighting == "examples" else [1.0] * len(federation)
    for number in (1, 2):
        ends = [trained_by_pytorch(network, federation, i, number) for i in range(len(federation))]
        merged = {name: mean_of(ends, sizes, name) for name in ends[0] if "num_batches" not in name}
        network.load_state_dict(merged, strict=False)
        server = model.state_dict(states[number].models[0])
        for name, tensor in merged.items():
            torch.testing.assert_close(server[name], tensor.float(), **CLOSE)
    # Not the first client's, and not those of a network that never saw an example.
    for name in STATISTICS:
        assert not torch.allclose(server[name], ends[0][name], atol=1e-3)
        assert not torch.allclose(server[name], model.network().state_dict()[name], atol=1e-2)


def test_statistics_take_the_mean_and_not_the_servers_adaptive_step(model, federation):
    def after(algorithm):
        states, _, _ = played(model, federation, algorithm, LOCAL, rounds=1)
        return model.state_dict(states[1].models[0])

    plain, adaptive = after(FedAvg()), after(FedOpt(FedAvg(), learning_rate=1.0))
    assert not torch.allclose(plain["2.weight"], adaptive["2.weight"], atol=1e-2)
    for name in STATISTICS:
        torch.testing.assert_close(adaptive[name], plain[name])
    assert (adaptive["1.running_var"] > 0).all()


def test_dp_sgd_refuses_batch_norm_and_takes_group_norm(federation):
    private = [shoal.DPSGD(max_grad_norm=1.0, noise_multiplier=1.0)]

    def run(norm):
        network = Model(lambda: nn.Sequential(nn.Flatten(), norm(), nn.Linear(36, 3)))
        team = shoal.RedTeam(every=0, attack=shoal.Gap())
        return simulate(federation, network, FedAvg(), LOCAL, rounds=1, defenses=private, red_team=team)

    with pytest.raises(InputError, match="mixes the examples of a batch"):
        run(lambda: nn.BatchNorm1d(36))
    with pytest.raises(InputError, match=r"\(InstanceNorm1d\) has running statistics.*track_running_stats=False"):
        run(lambda: nn.InstanceNorm1d(36, track_running_stats=True))
    assert run(lambda: nn.GroupNorm(6, 36)).summary["epsilon"] > 0


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedbn_averages_all_but_the_batch_norms_which_stay_as_their_clients_trained_them(
    model, federation, participation
):
    states, reports, deployed = played(model, federation, FedBN(), LOCAL, participation=participation)
    start = model.network()
    start.load_state_dict(model.state_dict(states[0].models[0]))
    kept = {name: tensor.clone() for name, tensor in start.state_dict().items() if name.startswith("1.")}
    own, shared = [dict(kept) for _ in range(len(federation))], {}
    for number, report in enumerate(reports, start=1):
        ends = []
        for i in report.cohort.tolist():
            network = copy.deepcopy(start)
            network.load_state_dict({**shared, **own[i]}, strict=False)
            ends.append(trained_by_pytorch(network, federation, i, number))
            own[i] = {name: ends[-1][name].clone() for name in kept}
        sizes = federation.clients.sizes[report.cohort].double().tolist()
        shared = {name: mean_of(ends, sizes, name).float() for name in ("2.weight", "2.bias")}
    rows = deployed.models.tensor()
    for i in range(len(federation)):
        used = model.state_dict(rows[i])
        for name, tensor in {**shared, **own[i]}.items():
            if "num_batches" not in name:
                torch.testing.assert_close(used[name], tensor, **CLOSE)


def test_batch_norms_of_fedbn_are_not_sent(model, federation):
    with Engine(model) as engine:
        training = Training(engine.prepare(federation), FedBN(), LOCAL, engine, Stream(5), record_every=1)
        _, report = training.round(training.start())
    mine = FedBN().own_mask(model.layout)
    assert int(mine.sum()) == 4 * 36
    assert not report.updates.updates[:, mine].any(), "the server reads its own values there"
    assert report.updates.updates[:, ~mine].any()


def test_a_network_without_batch_norm_is_refused_or_names_its_layers(mlp, federation):
    with pytest.raises(InputError, match="FedBN needs a network with batch norm"):
        simulate(federation, mlp, FedBN(), LOCAL, rounds=1)
    with pytest.raises(InputError, match="'head' must be 'last' or a layer"):
        simulate(federation, mlp, FedBN("heads"), LOCAL, rounds=1)
    assert int(FedBN("last").own_mask(mlp.layout).sum()) == 8 * 3 + 3


def test_where_devices_differ_fedbn_is_ahead_of_averaged_batch_norms():
    """The page's federation, one seed, fewer rounds."""
    example = experiment_script("algorithms/batch_norm")
    devices, local = example.federation(0), LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
    team = shoal.RedTeam(every=0, attack=shoal.Gap())

    def accuracy(algorithm):
        network = Model(example.network(lambda: nn.BatchNorm1d(40)))
        run = simulate(devices, network, algorithm, local, rounds=4, red_team=team)
        return run.summary["accuracy.overall"]

    assert accuracy(FedBN()) > accuracy(FedAvg()) + 0.05
