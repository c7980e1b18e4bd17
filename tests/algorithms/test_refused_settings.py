"""Settings, local trainings, bases and data that an algorithm cannot take are refused in one sentence."""

import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import DPSGD, Flooding, Mixup
from shoal.engine import Engine, LocalSGD, TorchOptimizer, Training
from shoal.models import Model, squared_error

WRONG = {
    shoal.APFL: {"alpha": [-0.1, 1.5]},
    shoal.CFL: {
        "eps1": [-0.1], "eps2": [-1.0], "gamma_max": [1.1], "linkage": ["ward"], "warm_up": [-1], "min_clients": [0],
        "min_examples": [-1], "sketch": [0], "walk": ["up"], "admission": [1.1, -1.1],
    },
    shoal.ClusterSizeFloor: {"min_clients": [0]},
    shoal.EarlyStopping: {"after": [-1]},
    shoal.FedAvgStart: {"fedavg_rounds": [0], "noise": [0.0]},
    shoal.FedRep: {"body_epochs": [0]},
    shoal.FedSoft: {"strength": [-0.1], "smoother": [1.5], "selection": [0], "start": ["x"]},
    shoal.GroupPrivacy: {"clusters": [0], "iterations": [0]},
    shoal.HypCluster: {
        "clusters": [0], "start": ["kmeans"], "candidates": [0], "optimizer": ["adamw"], "server_learning_rate": [0.0],
        "beta1": [1.0], "beta2": [-0.1], "tau": [0.0],
    },
    **{kind: {"clusters": [0]} for kind in (shoal.FedEM, shoal.FedRC, shoal.FeSEM, shoal.OneShotClustering)},
    shoal.IFCA: {"clusters": [0]},
    shoal.MRMTL: {"strength": [-0.1, float("nan"), "strong"]},
    shoal.PACFL: {"threshold": [0.0], "vectors": [0], "distance": ["x"], "linkage": ["ward"]},
    shoal.Pooling: {"share": [-0.1, 1.1, "much"]},
    shoal.PricedChoice: {"prices": [(float("inf"), 0.0)]},
}  # fmt: skip
CASES = [(kind, key, value) for kind, keys in WRONG.items() for key, values in keys.items() for value in values]


@pytest.mark.parametrize(("algorithm", "key", "value"), CASES, ids=str)
def test_a_setting_outside_its_range_is_refused(algorithm, key, value, toy_config):
    with pytest.raises(InputError, match=rf"^'{key}' must be [^\n]* \(got [^\n]*$"):
        algorithm(**{key: value})
    with pytest.raises(InputError, match=rf"'algorithm.{key}' must be [^\n]* \(got [^\n]*$"):
        toy_config(algorithm={"name": algorithm.name, "rounds": 1, key: value})


NOT_PLAIN = [LocalSGD(momentum=0.5), LocalSGD(clip_norm=1.0), LocalSGD(optimizer=TorchOptimizer("Adam"))]
PRIVATE = LocalSGD(gradient_privacy=DPSGD(1.0, 1.0))
WITH_RISKS, LOCAL = 1, LocalSGD(steps=2, batch_size=4, learning_rate=0.1)

CHECKED = [
    *((each, local, 0, rf"^{each.title} needs plain SGD")
      for each in (shoal.Scaffold(), shoal.APFL(), shoal.PerFedAvg()) for local in NOT_PLAIN),
    (shoal.FedRep(), LocalSGD(epochs=1), 0, r"'body_epochs', 1 \(got 1\)$"),
    (shoal.FedRep(), LocalSGD(steps=4), 0, r"\(got steps = 4\)$"),
    (shoal.FedRep(), LocalSGD(epochs=2, share=0.5), 0, "'share_of_steps' must be 1 with FedRep"),
    *((each, LOCAL, 0, rf"'red_team.every' .* {each.title}")
      for each in (shoal.IFCAWithinLimit(), shoal.RiskAwareChoice(), shoal.IFCAMIR())),
    (shoal.ClusterSizeFloor(shoal.IFCAMIR()), LOCAL, 0, "'red_team.every' .* IFCA-MIR"),
    *((shoal.RiskAwareChoice(base), LOCAL, WITH_RISKS, "^RiskAwareChoice's 'base'")
      for base in (shoal.IFCAMIR(), shoal.PricedChoice(shoal.IFCAMIR()), shoal.RiskAwareChoice())),
    *((shoal.ClusterSizeFloor(base), LOCAL, WITH_RISKS,
       "^ClusterSizeFloor's 'base'")
      for base in (shoal.FedAvg(), shoal.FedProx(shoal.IFCA()), shoal.Ditto(shoal.IFCAMIR()), shoal.ClusterSizeFloor(),
                   shoal.FedSoft(), shoal.FedEM(), shoal.FedRC())),
    *((shoal.FedOpt(base), LOCAL, 0, r"^FedOpt's 'base' .*\(got CFL\)$")
      for base in (shoal.CFL(), shoal.FedProx(shoal.CFL(), 0.1), shoal.Pooling(shoal.CFL()))),
    *((kind(shoal.EarlyStopping(shoal.RDPCFL(), 3)), LOCAL, 0,
       r"^\w+'s 'base' .*\(got RDPCFL\)$")
      for kind in (shoal.FedAvgStart, shoal.OneShotStart)),
    *((kind(local=LocalSGD(epochs=9)), PRIVATE, 0, "^'algorithm.local' ")
      for kind in (shoal.OneShotClustering, shoal.OneShotStart, shoal.FeSEM)),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "local", "risk_period", "sentence"), CHECKED, ids=str)
def test_what_an_algorithm_cannot_work_with_is_refused_before_the_run(algorithm, local, risk_period, sentence):
    with pytest.raises(InputError, match=sentence):
        algorithm.check(local, risk_period)


@pytest.mark.parametrize(
    ("algorithm", "local", "risk_period"),
    [
        (shoal.FedProx(shoal.ClusterSizeFloor()), LOCAL, 0), (shoal.RiskAwareChoice(), LOCAL, WITH_RISKS),
        (shoal.FedRep(), LocalSGD(epochs=2), 0), (shoal.OneShotClustering(), PRIVATE, 0),
        (shoal.OneShotStart(), PRIVATE, 0), (shoal.FeSEM(), PRIVATE, 0),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_near_to_it_is_not(algorithm, local, risk_period):
    algorithm.check(local, risk_period)


IN_A_ROUND = [
    *((shoal.FedProx(base, 0.1), {}, sentence) for base, sentence in (
        (shoal.Scaffold(), "linear term in its local steps"), (shoal.PerFedAvg(), "^step_rule cannot be combined"))),
    *((rule(base), {}, f"^{rule.__name__}'s 'base'")
      for rule in (shoal.CoordinateMedian, shoal.TrimmedMean, shoal.MultiKrum)
      for base in (shoal.FedSoft(2), shoal.FedEM(), shoal.CFL(), shoal.Scaffold())),
    *((shoal.FedEM(2), {"defenses": (each,)}, "remove") for each in (DPSGD(1.0, 0.5), Mixup(0.4), Flooding(0.3))),
    (shoal.RDPCFL(4), {"participation": 0.5}, r"^R-DPCFL .*\(got \d\)$"),
    *((kind(7), {}, r"'clusters' .* 6 \(got 7\)")
      for kind in (shoal.FeSEM, shoal.OneShotClustering)),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "options", "sentence"), IN_A_ROUND, ids=str)
def test_what_an_algorithm_cannot_train_is_refused(play, algorithm, options, sentence):
    with pytest.raises(InputError, match=sentence):
        play(algorithm, rounds=1, training=options)


IMAGES = (torch.rand(6, 4), torch.arange(6) % 3)
LINEAR, NORMED = (lambda: nn.Linear(4, 3)), (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))


@pytest.mark.parametrize(
    ("algorithm", "data", "model", "sentence"),
    [
        (shoal.FedRC(2), (IMAGES[0], torch.rand(6, 1)), Model(lambda: nn.Linear(4, 1), loss=squared_error),
         "^FedRC needs labels that are classes"),
        (shoal.PACFL(), (torch.randint(0, 9, (6, 4)), IMAGES[1]), Model(LINEAR),
         r"^PACFL .*\(got texts\)$"),
        (shoal.ServerStart(), IMAGES, Model(LINEAR), "^'server-start' "),
        (shoal.ServerOnly(), IMAGES, Model(LINEAR), "^'server-only' "),
        *((each, IMAGES, Model(NORMED), "without batch norm and frozen layers$")
          for each in (shoal.APFL(), shoal.PerFedAvg())),
    ],
    ids=lambda each: getattr(each, "name", ""),
)  # fmt: skip
def test_data_and_networks_that_an_algorithm_cannot_take_are_refused(algorithm, data, model, sentence):
    task = {"classes": 3} if data[1].dim() == 1 else {"task": "regression"}
    federation = Federation.from_tensors([data] * 2, test=data, **task)
    with Engine(model, threads=1) as engine, pytest.raises(InputError, match=sentence):
        Training(federation, algorithm, LOCAL, engine, Stream(0)).start()
