"""Settings outside their range are refused in one sentence, which names the argument, or the key of a configuration."""

import pytest

from shoal.algorithms import (
    APFL,
    CFL,
    IFCA,
    MRMTL,
    PACFL,
    ClusterSizeFloor,
    EarlyStopping,
    FedAvgStart,
    FedEM,
    FedRC,
    FedRep,
    FedSoft,
    FeSEM,
    GroupPrivacy,
    HypCluster,
    OneShotClustering,
    Pooling,
    PricedChoice,
)
from shoal.core.errors import InputError

WRONG = [
    (APFL, "alpha", [-0.1, 1.5]),
    (CFL, "eps1", [-0.1]), (CFL, "eps2", [-1.0]), (CFL, "gamma_max", [1.1]), (CFL, "linkage", ["ward"]),
    (CFL, "warm_up", [-1]), (CFL, "min_clients", [0]), (CFL, "min_examples", [-1]), (CFL, "sketch", [0]),
    (CFL, "walk", ["up"]), (CFL, "admission", [1.1, -1.1]),
    (EarlyStopping, "after", [-1]),
    (FedAvgStart, "fedavg_rounds", [0]), (FedAvgStart, "noise", [0.0]),
    (FedEM, "clusters", [0]), (FedRC, "clusters", [0]), (FeSEM, "clusters", [0]), (OneShotClustering, "clusters", [0]),
    (FedRep, "body_epochs", [0]),
    (FedSoft, "strength", [-0.1]), (FedSoft, "smoother", [1.5]), (FedSoft, "selection", [0]), (FedSoft, "start", ["x"]),
    (GroupPrivacy, "clusters", [0]), (GroupPrivacy, "iterations", [0]),
    (HypCluster, "clusters", [0]), (HypCluster, "start", ["kmeans"]), (HypCluster, "candidates", [0]),
    (HypCluster, "optimizer", ["adamw"]), (HypCluster, "server_learning_rate", [0.0]), (HypCluster, "beta1", [1.0]),
    (HypCluster, "beta2", [-0.1]), (HypCluster, "tau", [0.0]),
    (IFCA, "clusters", [0]),
    (MRMTL, "strength", [-0.1, float("nan"), "strong"]),
    (PACFL, "threshold", [0.0]), (PACFL, "vectors", [0]), (PACFL, "distance", ["x"]), (PACFL, "linkage", ["ward"]),
    (Pooling, "share", [-0.1, 1.1, "much"]),
    (PricedChoice, "prices", [(float("inf"), 0.0)]),
    (ClusterSizeFloor, "min_clients", [0]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "key", "value"), [(kind, key, value) for kind, key, values in WRONG for value in values], ids=str
)
def test_a_setting_outside_its_range_is_refused(algorithm, key, value, toy_config):
    with pytest.raises(InputError, match=rf"^'{key}' must be [^\n]*; got [^\n]*$"):
        algorithm(**{key: value})
    with pytest.raises(InputError, match=rf"'algorithm.{key}' must be [^\n]*; got [^\n]*$"):
        toy_config(algorithm={"name": algorithm.name, "rounds": 1, key: value})
