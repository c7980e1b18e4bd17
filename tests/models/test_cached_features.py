"""What frozen first layers compute, kept: the same training as computing it each time."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import shoal
from shoal import IFCA, Federation, LocalSGD, Model, Stream
from shoal.core.errors import InputError
from shoal.models.cached_features import frozen_prefix
from shoal.simulation.simulation import with_features

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)


def frozen_body(*layers: nn.Module) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        body = [nn.Flatten(), nn.Linear(36, 20)] if not layers else [*layers]
    return [layer.requires_grad_(False) for layer in body]


def dense() -> nn.Module:
    return nn.Sequential(*frozen_body(), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 3))


def convolutions() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        body = [nn.Conv2d(1, 4, 3), nn.ReLU()]
    return nn.Sequential(*frozen_body(*body), nn.AvgPool2d(2), nn.Conv2d(4, 5, 2), nn.Flatten(), nn.Linear(5, 3))


class Pair(nn.Module):
    """A body and a head by name."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(20, 3), nn.Sequential(*frozen_body())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Crossed(Pair):
    """What is not its head of its body."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) + x.flatten(1)[:, :3]


BUILDS = {"dense": dense, "convolutions": convolutions, "pair": Pair}


@pytest.fixture(scope="module")
def federation() -> Federation:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, 1, 6, 6, generator=draw) for size in (9, 6, 7, 8, 12, 20)]
    *clients, test, shadow = [(x, x[:, 0, 0, :3].argmax(dim=1)) for x in inputs]
    return Federation.from_tensors(clients, test=test, shadow=shadow, classes=3)


def simulation(federation: Federation, model: Model, **more) -> shoal.Simulation:
    return shoal.Simulation(federation, model, more.pop("algorithm", IFCA(clusters=2)), LOCAL, rounds=3, **more)


def fit(federation: Federation, model: Model, out=None, engine=None, **more) -> shoal.Result:
    settings = shoal.EngineSettings(backend="loop") if engine is None else engine
    return shoal.Run(simulation(federation, model, **more), out, settings).train()


@pytest.mark.parametrize("build", BUILDS)
def test_training_is_that_on_features_computed_each_time(federation, build):
    """A layer may give other last bits to other numbers of inputs at once."""
    kept, anew = (fit(federation, Model(BUILDS[build], cache_features=cached)) for cached in (True, False))
    assert torch.equal(kept.state.assignment, anew.state.assignment)
    assert {*kept.models[0]} == {*anew.models[0]} == {*BUILDS[build]().state_dict()}
    for k, tensors in anew.models.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(kept.models[k][name], tensor, rtol=1e-5, atol=1e-6)
    assert kept.summary.overall["accuracy.overall"] == anew.summary.overall["accuracy.overall"]


def test_training_is_to_the_last_bit_that_on_the_features_as_a_data_set(federation):
    """Computed in parts of 64, whatever is trained on, on any number of threads, in memory or in a file."""
    model = Model(dense, cache_features=True)
    results = [fit(federation, model), fit(federation, model, engine=shoal.EngineSettings(threads=1, backend="loop"))]
    results += [fit(federation, Model(dense, cache_features=True, cache_megabytes=0))]
    prefix = frozen_prefix(model, federation.clients.x)
    results += [fit(federation.mapped(lambda x: prefix.mapped(x, threads=3)), prefix.rest(model))]
    for result in results[1:]:
        assert torch.equal(result.state.models, results[0].state.models)


def test_features_are_computed_once_and_may_lie_in_a_file(federation):
    calls = []

    class Watched(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return super().forward(x)

    model = Model(lambda: nn.Sequential(Watched(), *frozen_body()[1:], nn.Linear(20, 3)), cache_features=True)
    made = simulation(federation, model)
    calls.clear()
    mapped = with_features(made)
    assert sum(calls) < 100
    again = sum(calls)
    assert with_features(mapped) is mapped
    shoal.Run(mapped).train()
    assert sum(calls) == again
    assert mapped.setup.model.structure()[0].in_features == 20
    for on_disk in (False, True):
        kept = frozen_prefix(model, federation.clients.x).mapped(federation.clients.x, threads=2, on_disk=on_disk)
        assert torch.equal(kept, mapped.federation.clients.x)


def test_what_is_saved_and_audited_is_the_whole_network(federation, tmp_path):
    model = Model(dense, cache_features=True)
    result = fit(federation, model, tmp_path / "run")
    own = {f"{k}.{i}.{name}" for k in (0, 1) for i in (3, 5) for name in ("weight", "bias")}
    assert {*load_file(tmp_path / "run" / "models.safetensors")} == own | {"frozen.1.weight", "frozen.1.bias"}
    network = dense()
    network.load_state_dict(shoal.load(tmp_path / "run").models[0])
    x = federation.test.x
    with shoal.Engine(Model(dense)) as engine:
        torch.testing.assert_close(engine.outputs(result.state.models[0], x), network(x).detach())
    audit = result.audit(references=2)
    plain = fit(federation, Model(dense)).audit(references=2)
    exposure = ["attack", "scope", "name", "accuracy"]
    of_inputs = plain.attacks["attack"].isin({"label-only", "boundary-distance"})
    assert audit.attacks[exposure].equals(plain.attacks.loc[~of_inputs, exposure].reset_index(drop=True))
    assert audit.omitted["label-only"] == "changes inputs, of which 'cache_features' keeps the features alone"
    start = result.start()
    assert torch.equal(start.fitted(Model(dense)).state.models, result.state.models)


def test_a_run_resumes_with_and_without_kept_features_to_the_same_rows(federation, tmp_path):
    shorter = shoal.Simulation(federation, Model(dense, cache_features=True), IFCA(clusters=2), LOCAL, rounds=2)
    settings = shoal.EngineSettings(backend="loop")
    shoal.Run(shorter, tmp_path / "run", settings).train()
    whole = fit(federation, Model(dense, cache_features=True))
    resumed = shoal.Run(simulation(federation, Model(dense, cache_features=True)), tmp_path / "run", settings)
    assert torch.equal(resumed.train(resume=True).state.models, whole.state.models)


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 20).requires_grad_(False), nn.Linear(20, 3))


def statistics() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(1).requires_grad_(False), nn.Flatten(), nn.Linear(36, 3))


def trained() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Linear(20, 3).requires_grad_(False))


REFUSED = {
    "dropout": (dropout, "its first layer '1' (Dropout) has dropout"),
    "statistics": (statistics, "its first layer '0' (BatchNorm2d) has batch statistics"),
    "trained": (trained, "its first layer '1' (Linear) is trained"),
    "a class": (lambda: shoal.models.MLP(36, 5, 3), "needs a network that is a torch.nn.Seq"),
    "crossed": (Crossed, "does not compute head(body(x))"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_with_its_reason(federation, case):
    build, sentence = REFUSED[case]
    with pytest.raises(InputError) as raised:
        simulation(federation, Model(build, cache_features=True))
    assert sentence.replace("Dropout)", "SeededDropout)") in str(raised.value)


def test_what_changes_inputs_is_refused(federation):
    model = Model(convolutions, cache_features=True)
    with pytest.raises(InputError, match=r"augmentation transforms images .* cached features are not"):
        simulation(federation, model, defenses=[shoal.Augmentation()])
    with pytest.raises(InputError, match="'cache_features' keeps no mixtures' features"):
        simulation(federation, model, defenses=[shoal.Mixup(0.5)])
    with pytest.raises(InputError, match="leave one out"):
        simulation(federation, model, features=shoal.Features(("pca",), dimension=3))
    with pytest.raises(InputError, match="asks for copies of inputs, of which 'cache_features'"):
        fit(federation, model).audit(references=2, queries=4)


@pytest.mark.parametrize("build", ["dense", "convolutions"])
def test_defences_act_on_the_layers_that_are_left(federation, build):
    model = Model(BUILDS[build], cache_features=True)
    for defense in (shoal.DPSGD(1.0, 1.0), shoal.Dropout(0.5)):
        kept = fit(federation, model, defenses=[defense])
        anew = fit(federation, Model(BUILDS[build]), defenses=[defense])
        torch.testing.assert_close(kept.state.models, anew.state.models, rtol=1e-4, atol=1e-5)


def test_random_starts_are_those_of_the_whole_network(federation):
    model = Model(dense, cache_features=True)
    rest = frozen_prefix(model, federation.clients.x).rest(model)
    assert torch.equal(rest.init(Stream(3)), model.init(Stream(3)))
    assert rest.frozen_hash == model.frozen_hash != ""
