"""What the Python API says to values that it cannot use: one sentence each, and never another exception or silence.

Files and the command line have tables of their own: `tests/config/test_config.py`, `tests/cli/test_app.py`.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

from full_simulation import simulate_with
from shoal import (
    DPSGD,
    IFCA,
    IFCAMIR,
    L2,
    Dropout,
    Engine,
    Examples,
    FedAvg,
    Federation,
    FedOpt,
    FedProx,
    Gap,
    Group,
    InputError,
    LaplaceNoise,
    LocalSGD,
    Model,
    NormClipping,
    Redraw,
    RedTeam,
    Shape,
    Stream,
    VectorShape,
    audit_records,
    audit_run,
    audit_scores,
    audit_trace,
    create_model,
    load,
    load_dataset,
    read_config,
    run,
    squared_error,
)
from shoal.attacks import LiRA
from shoal.models import cross_entropy

DRAW = torch.Generator().manual_seed(0)
CLIENTS = [(torch.rand(12, 5, generator=DRAW), torch.arange(12) % 3) for _ in range(4)]
X, Y = CLIENTS[0]
TEST = (torch.rand(30, 5, generator=DRAW), torch.arange(30) % 3)
NAMES = ["a", "a", "b", "b"]
SHARED = nn.Linear(5, 3)


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.5, self.training)


def linear():
    return nn.Linear(5, 3)


def federation(clients=CLIENTS, test=TEST, **settings):
    return Federation.from_tensors(clients, test=test, **settings)


def simulated(**changes):
    settings = {
        "federation": federation(),
        "model": Model(linear),
        "algorithm": FedAvg(),
        "local": LocalSGD(learning_rate=0.1),
        "rounds": 1,
    }
    return simulate_with(**settings | changes)


def with_labels(labels):
    return federation([(X, labels), *CLIENTS[1:]])


def with_inputs(x):
    return federation([(x, Y), *CLIENTS[1:]])


def regression(labels=Y, **settings):
    settings = {"test": TEST, "shadow": TEST} | settings
    return federation([(X, Y), (X, labels)], task="regression", **settings)


def two_targets():
    given = (X, X[:, :2])
    return Federation.from_tensors([given], test=given, shadow=given, task="regression")


def regressed(build=lambda: nn.Linear(5, 1), loss=squared_error, federation=None, **settings):
    return simulated(federation=federation or regression(), model=Model(build, loss), **settings)


def looking_loss(x, y):
    return nn.functional.gaussian_nll_loss(x, y, x**2, reduction="none").mean(1)


def with_model(build, **settings):
    return simulated(model=Model(build, **settings))


ran = cache(simulated)


def local(**settings):
    return LocalSGD(**{"learning_rate": 0.1} | settings)


FEDERATIONS = {
    "no clients": (lambda: federation([]), "one client (got none)"),
    "None": (lambda: federation(None), "'clients' must be a list of pairs (x, y), one per client (got None)"),
    "a number": (lambda: federation(3), "'clients' must be a list of pairs (x, y), one per client (got 3)"),
    "a dict": (lambda: federation({"a": CLIENTS[0]}), "'clients' must be a list of pairs (x, y), one per client"),
    "one client alone": (lambda: federation(CLIENTS[0]), "client 0 must be a pair (x, y)"),
    "inputs alone": (lambda: federation([x for x, _ in CLIENTS]), "client 0 must be a pair (x, y)"),
    "triples": (lambda: federation([(x, y, y) for x, y in CLIENTS]), "must be a pair (x, y), a torch.utils.data"),
    "an empty client": (lambda: federation([CLIENTS[0], (X[:0], Y[:0])]), "client 1 has no examples"),
    "empty lists": (lambda: federation([([], [])]), "client 0 has no examples"),
    "another shape": (lambda: federation([CLIENTS[0], (X[:, :2], Y)]), "client 1 must have shape (5,), like client"),
    "fewer labels": (lambda: with_labels(Y[:3]), "12 examples and 3 labels)"),
    "labels of names": (lambda: with_labels(["a"] * 12), "12 such as 'a')"),
    "numpy names": (lambda: with_labels(np.array(["a"] * 12)), "the labels of client 0 must be numbers"),
    "labels None": (lambda: with_labels(None), "the labels of client 0 must be numbers"),
    "fractional labels": (lambda: with_labels(Y + 0.5), "client 0 must be integers from 0 (got torch.float32 such as"),
    "labels NaN": (lambda: with_labels(Y * float("nan")), "the labels of client 0 must be integers from 0"),
    "two columns of labels": (lambda: with_labels(torch.stack([Y, Y], 1)), "per example (got shape (12, 2))"),
    "one label": (lambda: with_labels(torch.tensor(1)), "per example (got shape ())"),
    "a negative label": (lambda: with_labels(Y - 1), "client 0 must be from 0 to 2 (got -1)"),
    "sparse": (lambda: with_inputs(X.to_sparse()), "to_dense() in PyTorch or toarray() in SciPy"),
    "sparse of SciPy": (lambda: with_inputs(csr_matrix(X.numpy())), "client 0 must be dense arrays (got csr_matrix)"),
    "sparse labels": (lambda: with_labels(Y.to_sparse()), "client 0 must be dense arrays (got Tensor)"),
    "ragged lists": (lambda: with_inputs([[1.0], [1.0, 2.0]]), "client 0 must hold numeric items of equal shape (got"),
    "inputs of text": (lambda: with_inputs(["hello"] * 12), "the inputs of client 0 must be numbers"),
    "no features": (lambda: federation([(X[:, :0], Y)]), "'clients' must have at least one number per example (got"),
    "a network without inputs": (lambda: VectorShape(0, 3), "'inputs' must be an integer, at least 1 (got 0)"),
    "a billion classes": (lambda: federation(classes=10**9), "'classes' must be at most 1,000,000 (got 1000000000)"),
    "a billion outputs": (lambda: Shape(1, 8, 8, 10**9), "'classes' must be an integer from 1 to 1,000,000"),
    "a label of nine digits": (lambda: with_labels(Y + 123456789), "'clients' must be below 1,000,000 (got 123456791)"),
    "one input": (lambda: with_inputs(1.0), "client 0 must have one row per example (got one number)"),
    "complex inputs": (lambda: with_inputs(X.to(torch.complex64)), "must be real numbers"),
    "inputs NaN": (lambda: with_inputs(X * float("nan")), "in 12 of 12 examples)"),
    "inputs inf": (lambda: with_inputs(X / 0), "12 examples)"),
    "inf and -inf": (lambda: with_inputs((X - 0.5) / 0), "client 0 must be finite (got NaN or infinity in 12 of 12"),
    "test NaN": (lambda: federation(test=(TEST[0] / 0, TEST[1])), "the test set must be finite (got NaN or infinity"),
    "shadow NaN": (lambda: federation(shadow=(TEST[0] / 0, TEST[1])), "the shadow set must be finite (got NaN or"),
    "test None": (lambda: federation(test=None), "the test set must be a pair (x, y)"),
    "test inputs": (lambda: federation(test=TEST[0]), "the test set must be a pair (x, y)"),
    "test empty": (lambda: federation(test=(X[:0], Y[:0])), "the test set has no examples"),
    "test label": (lambda: federation(test=(X, Y + 1)), "the labels of the test set must be from 0 to 2 (got 3)"),
    "holdout of fewer": (lambda: federation(holdout=CLIENTS[:2]), "'holdout' must have one (x, y) for each of 4"),
    "holdout label": (lambda: federation(holdout=[(X, Y + 1)] * 4), "client 0 must be from 0 to 2 (got 3)"),
    "fewer groups": (lambda: federation(groups=["a"]), "'groups' must have 4 names (got 1)"),
    "group codes": (lambda: federation(groups=torch.zeros(4)), "'groups' must be a list of names"),
    "numpy codes": (lambda: federation(groups=np.zeros(4)), "'groups' must be a list of names"),
    "a word of groups": (lambda: federation(groups="aabb"), "'groups' must be a list of names"),
    "groups of numbers": (lambda: federation(groups=[1, 1, 2, 2]), "group's name must be a string (got 1)"),
    "groups of None": (lambda: federation(groups=[None] * 4), "None)"),
    "overall": (lambda: federation(groups=["overall"] * 4), "'overall' cannot be a group's name; overall and total"),
    "total": (lambda: federation(groups=["total"] * 4), "'total' cannot be a group's name"),
    "all": (lambda: federation(groups=["all", "all", "b", "b"]), "'all' cannot be the name of one of several groups"),
    "no name": (lambda: federation(groups=[""] * 4), "'' cannot be a group's name"),
    "a path": (lambda: federation(groups=["../x"] * 4), "'../x')"),
    "a line break": (lambda: federation(groups=["a\nb"] * 4), "be printable, without '/' and '\\' (got 'a\\nb')"),
    "groups, plain test": (lambda: federation(groups=NAMES), "'test' must be Examples(x, y, groups) in a federation"),
    "test codes": (
        lambda: federation(groups=NAMES, test=Examples(*TEST, torch.zeros(30))),
        "the groups of the test set must be a list of names",
    ),
    "fewer test groups": (
        lambda: federation(groups=NAMES, test=Examples(*TEST, ["a"] * 3)),
        "30 names (got 3)",
    ),
    "a group without test": (
        lambda: federation(groups=NAMES, test=Examples(*TEST, ["a"] * 30)),
        "examples of each group (got none of 'b')",
    ),
    "an unknown test group": (
        lambda: federation(groups=["north", "south"] * 2, test=Examples(*TEST, ["north", "soth"] * 15)),
        "'soth', but no client is in this group",
    ),
    "a task": (lambda: federation(task="regresion"), "'task' must be 'classification' or 'regression' (got"),
    "no task": (lambda: federation(task=None), "'task' must be 'classification' or 'regression' (got None)"),
    "classes of a regression": (lambda: regression(classes=3), "a regression (got 3)"),
    "target NaN": (lambda: regression(Y / 0), "12 examples)"),
    "test target NaN": (
        lambda: regression(test=(X, Y.float().where(Y > 0, torch.nan))),
        "12 examples)",
    ),
    "holdout target NaN": (lambda: regression(holdout=[(X, Y), (X, Y / 0)]), "client 1 must be finite (got NaN or"),
    "more targets": (lambda: regression(X[:, :2]), "client 1 must have shape (1,), like client 0's (got (2,))"),
    "more test targets": (lambda: regression(test=(X, X)), "client 0's (got (5,))"),
    "targets of pictures": (lambda: regression(torch.rand(12, 2, 2)), "client 1 must have shape (m,) or (m, d) (got"),
    "complex targets": (lambda: regression(Y.to(torch.complex64)), "client 1 must be real numbers (got"),
    "words as targets": (lambda: regression(["a"] * 12), "12 such as 'a')"),
    "threshold 2": (lambda: federation(threshold=2.0), "'threshold' must be in [0.5, 1] (got 2)"),
    "threshold NaN": (lambda: federation(threshold=float("nan")), "'threshold' must be in [0.5, 1]"),
    "threshold text": (lambda: federation(threshold="high"), "'threshold' must be a number, or 4 numbers, one per"),
    "threshold None": (lambda: federation(threshold=None), "'threshold' must be a number, or 4 numbers, one per"),
    "two thresholds": (lambda: federation(threshold=[0.5, 0.6]), "'threshold' must be one number or 4 numbers, one"),
    "beta -1": (lambda: federation(beta=-1), "'beta' must be in [0, 1] (got -1)"),
    "classes 0": (lambda: federation(classes=0), "'classes' must be at least 1 (got 0"),
    "classes 2.5": (lambda: federation(classes=2.5), "'classes' must be an integer, such as 10 (got 2.5"),
    "classes 2": (lambda: federation(classes=2), "client 0 must be from 0 to 1 (got 2)"),
    "share 2": (lambda: Group("a", 2.0), "'share' must be at most 1 (got 2.0"),
    "rotation reversed": (lambda: Group("a", 1.0, rotation=(50, 25)), "'rotation' must be [low, high] with low"),
    "an unknown source": (lambda: load_dataset("digit"), "'digit')"),
}

MODELS = {
    "a module": (lambda: simulated(model=SHARED), "'model' must be a Model, such as Model(MyNetwork)"),
    "a class": (lambda: simulated(model=nn.Linear), "'model' must be a Model"),
    "a function": (lambda: simulated(model=linear), "'model' must be a Model"),
    "None": (lambda: simulated(model=None), "'model' must be a Model"),
    "Model of a module": (lambda: Model(SHARED), "Model's build must be a class or function (got a network)"),
    "Model of a number": (lambda: Model(3), "Model's build must be a class or function (got 3)"),
    "arguments": (lambda: Model(nn.Linear), "'in_features', 'out_features')"),
    "one network": (lambda: with_model(lambda: SHARED), "new network in each call (got the same network twice)"),
    "no network": (lambda: with_model(lambda: None), "torch.nn.Module (got NoneType)"),
    "lazy": (lambda: with_model(lambda: nn.LazyLinear(3)), "LazyLinear) is lazy and has no size yet"),
    "no parameters": (lambda: with_model(nn.Identity), "the network must have at least one trainable parameter (got"),
    "frozen": (lambda: with_model(lambda: linear().requires_grad_(False)), "the network must have at least one"),
    "other inputs": (lambda: with_model(lambda: nn.Linear(7, 3)), "model cannot process a batch of 2 examples of"),
    "few outputs": (lambda: with_model(lambda: nn.Linear(5, 2)), "the model must have at least 3 outputs per example"),
    "a tuple": (lambda: with_model(lambda: nn.LSTM(5, 3)), "network must return one tensor (examples, classes) (got"),
    "functional dropout": (lambda: with_model(FunctionalDropout), "draws from PyTorch's global generator"),
    "feature dropout": (
        lambda: with_model(lambda: nn.Sequential(linear(), nn.AlphaDropout())),
        "layer '1' (AlphaDropout) draws from PyTorch's global generator",
    ),
    "recurrent dropout": (
        lambda: with_model(lambda: nn.Sequential(nn.GRU(5, 3, num_layers=2, dropout=0.5))),
        "layer '0' (GRU) draws from PyTorch's global generator",
    ),
    "random slopes": (
        lambda: with_model(lambda: nn.Sequential(linear(), nn.RReLU())),
        "layer '1' (RReLU) draws from PyTorch's global generator",
    ),
    "mean loss": (lambda: with_model(linear, loss=nn.CrossEntropyLoss()), "one value per example, shape (2,) for 2"),
    "no loss": (lambda: with_model(linear, loss=lambda *_: None), "per example, shape (2,) for 2 examples (got"),
    "a loss of others": (lambda: with_model(linear, loss=lambda x, _: x @ x), "be computed from the network's outputs"),
    "a number as loss": (lambda: Model(linear, 3), "Model's loss must be a function of outputs and labels (got 3)"),
    "a name as metric": (lambda: Model(linear, metric="r2"), "a Model's metric must be a function of outputs and"),
    "a mean metric": (lambda: with_model(linear, metric=lambda x, _: x.mean()), "metric must return one value per"),
    "a metric of others": (lambda: with_model(linear, metric=lambda x, _: x @ x), "metric cannot be computed from the"),
    "no loss of a regression": (lambda: regressed(loss=cross_entropy), "a regression"),
    "flat outputs of a regression": (
        lambda: regressed(lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))),
        "outputs of shape ())",
    ),
    "few outputs of a regression": (lambda: regressed(federation=two_targets()), "2 outputs per example (got outputs"),
    "more outputs than squares": (lambda: regressed(lambda: nn.Linear(5, 3)), "be computed from the network's outputs"),
    "a cumulative norm": (
        lambda: with_model(lambda: nn.Sequential(linear(), nn.BatchNorm1d(3, momentum=None))),
        "layer '1' must be a number (got None)",
    ),
    "unknown": (lambda: create_model("mnistcnn", Shape(1, 28, 28, 10)), "'mnistcnn')"),
    "norm of an MLP": (lambda: create_model("mlp", Shape(1, 28, 28, 10), norm="group"), "'mlp' has no key 'norm'"),
    "hidden of a CNN": (
        lambda: create_model("mnist-cnn", Shape(1, 28, 28, 10), hidden=5),
        "'mnist-cnn' has no key 'hidden'",
    ),
    "norm layers of DP": (
        lambda: simulated(model=Model(lambda: nn.Sequential(linear(), nn.BatchNorm1d(3))), defenses=[DPSGD(1.0, 1.0)]),
        "layer '1' (BatchNorm1d) mixes the examples of a batch",
    ),
}

SIMULATIONS = {
    "no federation": (
        lambda: simulated(federation=None),
        "'federation' must be a Federation, such as from Federation.from",
    ),
    "clients": (lambda: simulated(federation=CLIENTS), "'federation' must be a Federation"),
    "the class FedAvg": (lambda: simulated(algorithm=FedAvg), "'algorithm' must be"),
    "a name": (lambda: simulated(algorithm="fedavg"), "'algorithm': str lacks"),
    "no algorithm": (lambda: simulated(algorithm=None), "'algorithm': NoneType lacks"),
    "a loss that looks at its values": (
        lambda: regressed(loss=looking_loss, backend="vmap"),
        "use backend='loop' (PyTorch says: ",
    ),
    "shadow models of a regression": (lambda: regressed(red_team=RedTeam()), "ShadowModelAttack needs"),
    "gap of a regression": (
        lambda: regressed(red_team=RedTeam(every=0, attack=Gap())),
        "Gap needs a classification",
    ),
    "a regression without a shadow set": (
        lambda: regressed(federation=regression(shadow=None)),
        "shadow set of at least 2 examples",
    ),
    "references 1.5": (
        lambda: simulated(reference_federations=1.5),
        "'reference_federations' must be an integer",
    ),
    "no red team": (lambda: simulated(algorithm=IFCAMIR()), "'red_team.every' must be at least 1"),
    "more clusters": (
        lambda: simulated(algorithm=IFCA(9)),
        "'clusters' must be at most the number of clients, 4 (got 9)",
    ),
    "gradient averaging": (
        lambda: simulated(algorithm=IFCA(averaging="gradient")),
        "'local.steps' must be 1",
    ),
    "rounds 0": (lambda: simulated(rounds=0), "'rounds' must be at least 1 (got 0"),
    "rounds 2.5": (lambda: simulated(rounds=2.5), "'rounds' must be an integer, such as 30 (got 2.5"),
    "rounds '3'": (lambda: simulated(rounds="3"), "'rounds' must be an integer, such as 30 (got '3'"),
    "rounds True": (lambda: simulated(rounds=True), "'rounds' must be an integer, such as 30 (got True"),
    "rounds None": (lambda: simulated(rounds=None), "'rounds' must be an integer, such as 30 (got None"),
    "member_rounds 0": (lambda: simulated(member_rounds=0), "'member_rounds' must be at least 1 (got 0"),
    "member_rounds '5'": (lambda: simulated(member_rounds="5"), "'member_rounds' must be an integer, such as 5"),
    "seed 1.5": (lambda: simulated(seed=1.5), "'seed' must be an integer, such as 0 (got 1.5"),
    "seed -1": (lambda: simulated(seed=-1), "'seed' must be at least 0 (got -1"),
    "seed 'a'": (lambda: simulated(seed="a"), "'seed' must be an integer, such as 0 (got 'a'"),
    "participation 2": (lambda: simulated(participation=2), "'participation' must be in [0, 1] (got 2)"),
    "participation NaN": (lambda: simulated(participation=float("nan")), "'participation' must be a number in [0, 1]"),
    "out 3": (lambda: simulated(out=3), "'out' must be a path, such as 'runs/mine' (got 3"),
    "malicious 'x'": (lambda: simulated(malicious_clients="x"), "'malicious_clients' must be a MaliciousClients"),
    "participation '1'": (lambda: simulated(participation="1"), "'participation' must be a number in [0, 1] (got '1')"),
    "fp16": (lambda: simulated(precision="fp16"), "'precision' must be 'fp32' or 'bf16' (got 'fp16'"),
    "tpu": (
        lambda: simulated(device="tpu"),
        "'device' must be 'cpu', 'cuda' or a numbered GPU such as 'cuda:1' (got 'tpu')",
    ),
    "mps": (lambda: simulated(device="mps"), "such as 'cuda:1' (got 'mps'"),
    "meta": (lambda: simulated(device=torch.device("meta")), "'device' must be a string (got device"),
    "backend x": (lambda: simulated(backend="x"), "'backend' must be 'auto', 'loop' or 'vmap' (got 'x'"),
    "vmap of dropout": (
        lambda: simulated(model=Model(lambda: nn.Sequential(nn.Dropout(0.5), linear())), backend="vmap"),
        "backend 'vmap' cannot train dropout; use 'loop'",
    ),
    "threads 0": (lambda: simulated(threads=0), "'threads' must be at least 1 (got 0"),
    "a million threads": (lambda: Engine(Model(linear), threads=10**6), "'threads' must be at most 1024"),
    "threads '2'": (lambda: simulated(threads="2"), "'threads' must be an integer (got '2'"),
    "local None": (lambda: simulated(local=None), "'local' must be a LocalSGD, such as LocalSGD(epochs=1) (got None"),
    "local of a dict": (lambda: simulated(local={"epochs": 1}), "'local' must be a LocalSGD"),
    "the class LocalSGD": (lambda: simulated(local=LocalSGD), "got the class LocalSGD"),
    "the class RedTeam": (lambda: simulated(red_team=RedTeam), "'red_team' must be a RedTeam, such as"),
    "red team of a name": (lambda: simulated(red_team="shadow"), "'red_team' must be a RedTeam"),
    "no shadow set": (lambda: simulated(red_team=RedTeam(every=1)), "shadow set of at least 2 examples"),
    "a defence alone": (lambda: simulated(defenses=L2(0.1)), "'defenses' must be a list of defences, such as [L2"),
    "the class L2": (lambda: simulated(defenses=[L2]), "'defenses' must contain only defences, such as L2(0.01) (got"),
    "defences of names": (lambda: simulated(defenses=["l2"]), "'defenses' must contain only defences, such as"),
    "duplicates": (lambda: simulated(duplicates="drop"), "'duplicates' must be 'keep' or 'leave-out'"),
    "an algorithm as an attack": (
        lambda: simulated(attacks=[FedAvg()]),
        "'attacks' must hold a ReferenceAttack",
    ),
    "an attack's class among attacks": (lambda: simulated(attacks=[LiRA]), "'attacks' must hold instances"),
    "an attack twice": (lambda: simulated(attacks=[LiRA()]), "(got 'lira' twice)"),
    "watch 3": (lambda: simulated(watch=3), "'watch' must be a function or a tracker, such as TensorBoard() (got 3)"),
    "a learning rate that diverges": (
        lambda: simulated(
            model=Model(lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))),
            local=local(learning_rate=1e30, epochs=9),
        ),
        "lower 'learning_rate'",
    ),
}

SETTINGS = {
    "clusters 2.5": (lambda: IFCA(2.5), "'clusters' must be an integer or 'auto' (got 2.5"),
    "clusters '2'": (lambda: IFCA("2"), "'clusters' must be an integer or 'auto' (got '2'"),
    "averaging": (lambda: IFCA(averaging="gradients"), "'averaging' must be 'model' or 'gradient' (got 'gradients'"),
    "a choice": (lambda: IFCA(choose_by="some"), "'choose_by' must be 'all' or 'batch' (got 'some'"),
    "shares above 1": (lambda: IFCA(redraw=Redraw(share=0.9)), "'redraw.share' times 'clusters' must be at most 1"),
    "the class as a base": (lambda: FedOpt(FedAvg), "'base' must be"),
    "a name as a base": (lambda: FedProx("fedavg"), "'base' must be an instance of Algorithm (got 'fedavg'"),
    "mu -1": (lambda: FedProx(FedAvg(), mu=-1), "'mu' must be at least 0 (got -1"),
    "learning rate NaN": (lambda: local(learning_rate=float("nan")), "'learning_rate' must be"),
    "batch 2.5": (lambda: local(batch_size=2.5), "'batch_size' must be an integer or 'all' (got 2.5"),
    "epochs 0": (lambda: local(epochs=0), "'epochs' must be at least 1 (got 0"),
    "epochs 1.5": (lambda: local(epochs=1.5), "'epochs' must be an integer (got 1.5"),
    "epochs and steps": (lambda: local(epochs=1, steps=1), "epochs and steps"),
    "momentum 1": (lambda: local(momentum=1.0), "'momentum' must be below 1 (got 1.0"),
    "an optimizer's name": (lambda: local(optimizer="adam"), "'optimizer' must be an instance of TorchOptimizer"),
    "an optimizer's class": (lambda: local(optimizer=torch.optim.Adam), "'optimizer' must be an instance of Torch"),
    "estimator x": (lambda: RedTeam(estimator="x"), "'relative-histogram' or 'audit' (got 'x'"),
    "every 1.5": (lambda: RedTeam(every=1.5), "'every' must be an integer (got 1.5"),
    "an attack's name": (lambda: RedTeam(attack="shokri"), "'attack' must be an instance of MembershipAttack"),
    "an attack's class": (lambda: RedTeam(attack=Gap), "'attack' must be"),
    "norm -1": (lambda: DPSGD(max_grad_norm=-1, noise_multiplier=1), "'max_grad_norm' must be at least 1e-06 (got -1"),
    "noise -1": (lambda: DPSGD(1.0, -1), "'noise_multiplier' must be at least 0 (got -1"),
    "accountant": (lambda: DPSGD(1.0, 1.0, accountant="x"), "'accountant' must be 'rdp' or 'prv' (got 'x'"),
    "delta 2": (lambda: DPSGD(1.0, 1.0, delta=2), "'delta' must be below 1 (got 2"),
    "dropout 1": (lambda: Dropout(1.0), "'rate' must be below 1 (got 1.0"),
    "L2 -1": (lambda: L2(-1), "'penalty' must be at least 0 (got -1"),
    "norm 0": (lambda: NormClipping(0), "'max_norm' must be above 0 (got 0"),
    "two scales": (lambda: LaplaceNoise(1.0, 1.0), "exactly one of 'noise_multiplier' and 'epsilon' (got 2)"),
    "no scale": (LaplaceNoise, "exactly one of 'noise_multiplier' and 'epsilon' (got 0)"),
    "noise of epsilon 0": (lambda: LaplaceNoise(epsilon=0), "'epsilon' must be above 0 (got 0"),
    "a missing file": (lambda: read_config("nowhere.toml"), "nowhere.toml: cannot be read: No such file or directory"),
}

PATH = "must be a path, such as 'runs/mine' (got"

RUNS = {
    "references '4'": (lambda: ran().audit(references="4"), "'references' must be an integer, such as 16 (got '4'"),
    "references 2.0": (lambda: ran().audit(references=2.0), "'references' must be an integer, such as 16 (got 2.0"),
    "references -1": (lambda: audit_run("nowhere", references=-1), "'references' must be at least 0 (got -1"),
    "an audit of None": (lambda: audit_run(None), f"'run' {PATH} None)"),
    "an audit into 3": (lambda: ran().audit(3, references=0), f"'out' {PATH} 3)"),
    "scores None": (lambda: audit_scores(None), f"'path' {PATH} None)"),
    "a trace of 3": (lambda: audit_trace(3), f"'trace' {PATH} 3)"),
    "a run of a file": (lambda: run("x.toml", "out"), "'config' must be a Config, such as read_config"),
    "a config of None": (lambda: read_config(None), f"'path' {PATH} None)"),
    "save None": (lambda: ran().save(None), f"'directory' {PATH} None)"),
    "save ''": (lambda: ran().save(""), f"'directory' {PATH} '')"),
    "save 0": (lambda: ran().save("a\0b"), "path without null bytes (got 'a\\x00b')"),
    "report None": (lambda: ran().report(None), f"'path' {PATH} None)"),
    "load 3": (lambda: load(3), f"'directory' {PATH} 3)"),
    "load nowhere": (lambda: load("nowhere"), "nowhere: is not a finished run"),
    "megabytes": (
        lambda: simulated(record_updates=1, out="never", max_megabytes="x"),
        "'max_megabytes' must be an integer, such as 1000 (got 'x'",
    ),
    "changes of numbers": (lambda: read_config("pyproject.toml", [3]), "'changes' must be a str, such as"),
    "no data set": (lambda: load_dataset(None), "'None')"),
    "a folder of data": (lambda: load_dataset("mnist", data_dir=3), f"'data_dir' {PATH} 3)"),
    "a shape of None": (lambda: create_model("mlp", None), "'shape' must be a Shape, VectorShape or TextShape"),
    "a watch": (lambda: ran().audit(references=1, watch=3), "'watch' must be a function (got 3)"),
    "records None": (lambda: audit_records(None, Stream(0)), "'records' must be an AuditRecords, such as"),
    "an engine of a network": (lambda: Engine(SHARED), "'model' must be a Model, such as Model(MyNetwork)"),
    "a stream of text": (lambda: Stream("0"), "'seed' must be an integer, such as 0 (got '0'"),
}

TABLES = {"runs": RUNS, "federation": FEDERATIONS, "model": MODELS, "simulation": SIMULATIONS, "settings": SETTINGS}
CASES = [
    pytest.param(make, words, id=f"{table}: {name}")
    for table, cases in TABLES.items()
    for name, (make, words) in cases.items()
]


@pytest.mark.parametrize(("make", "words"), CASES)
def test_is_one_sentence(make, words):
    with pytest.raises(InputError) as error:
        make()
    sentence = str(error.value)
    assert words in sentence
    assert "\n" not in sentence


def test_a_network_that_was_edited_after_its_run_is_one_sentence():
    sizes = [8]
    model = Model(lambda: nn.Sequential(nn.Linear(5, sizes[0]), nn.ReLU(), nn.Linear(sizes[0], 3)))
    result = simulated(model=model)
    sizes[0] = 4
    with pytest.raises(InputError, match=r"'0\.weight' must have the shape \(8, 5\), as in the first network \(got"):
        result.audit(references=1)


def test_dropout_of_pytorch_is_seeded():
    """As if the network had `SeededDropout`: any number of threads gives the same bits, another seed others."""
    build = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))  # noqa: E731
    one, two = (simulated(model=Model(build), threads=threads, rounds=2) for threads in (1, 2))
    assert torch.equal(one.state.models, two.state.models)
    without = simulated(model=Model(lambda: nn.Sequential(*[build()[i] for i in (0, 1, 3)])), rounds=2)
    assert not torch.equal(one.state.models, without.state.models)


def test_numpy_s_numbers_are_taken_as_python_s():
    given = {"rounds": 1, "seed": 3, "participation": 0.5, "member_rounds": 2, "threads": 1}
    one = simulated(**given)
    types = {int: np.int64, float: np.float32}
    other = simulated(**{name: types[type(value)](value) for name, value in given.items()})
    assert torch.equal(one.state.models, other.state.models)
    assert one.description == other.description
    assert Stream(np.int64(3)) == Stream(3)
    assert Stream(np.int64(3)).key() == Stream(3).key()
    whole = federation(classes=np.int64(3), threshold=np.float32(0.5), beta=np.int64(0))
    assert torch.equal(simulated(federation=whole, **given).state.models, one.state.models)


def test_what_is_accepted_in_several_forms():
    plain = simulated().state.models
    assert torch.equal(simulated(defenses=[]).state.models, simulated(defenses=()).state.models)
    whole = federation([(x.double().numpy(), y.tolist()) for x, y in CLIENTS])
    assert torch.equal(simulated(federation=replace(whole)).state.models, plain)
