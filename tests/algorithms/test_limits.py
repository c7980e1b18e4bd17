"""Settings at which one algorithm is another: bit for bit, or up to rounding."""

from dataclasses import replace

import pytest
import torch

import shoal
from shoal.engine import LocalSGD

DIVIDED = shoal.CFL(eps1=1e9, eps2=0.0)
BY_EXAMPLES = shoal.IFCA(2, weighting="examples")
ONE_STEP = LocalSGD(steps=1, batch_size="all", learning_rate=0.2)
MOMENTUM = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
RISKS = (0.9, 0.6, 0.7)

EXACT = [
    *((replace(DIVIDED, **never), shoal.FedAvg(), {}) for never in (
        {"eps1": 0.0}, {"eps2": 1e9}, {"gamma_max": 1.0}, {"warm_up": 9})),
    (shoal.PACFL(90.1), shoal.FedAvg(), {}),
    (shoal.IFCA(1, weighting="examples"), shoal.FedAvg(), {}),
    (shoal.IFCAMIR(), shoal.IFCA(2), {"beta": 0.0, "risks": RISKS[:2]}),
    *((shoal.FedProx(base, mu=0.0), base, {}) for base in (shoal.FedAvg(), shoal.IFCA(2))),
    *((shoal.FedOpt(base, "sgd", 1.0, 0.0), base, {}) for base in (shoal.FedAvg(), shoal.IFCA(2))),
    *((shoal.PricedChoice(base, price), base, {"risks": RISKS[:2]})
      for base in (shoal.IFCAMIR(), shoal.IFCA(2, choose_by="batch")) for price in ((), (0.0, 0.0))),
    (shoal.PricedChoice(shoal.FedAvg(), (3.0,)), shoal.FedAvg(), {}),
    *((shoal.IFCAWithinLimit(base), base, {"threshold": 1.0, "risks": RISKS[: base.clusters]})
      for base in (shoal.IFCA(3), shoal.IFCA(2, choose_by="batch", weighting="examples"))),
    *((shoal.RiskAwareChoice(shoal.IFCA(3)), shoal.IFCAMIR(shoal.IFCA(3)), {"beta": beta, "risks": RISKS})
      for beta in (0.0, 0.4, 1.0)),
    *((shoal.RiskAwareChoice(base), base, {"beta": 0.0, "risks": RISKS}) for base in (
        shoal.IFCA(3), shoal.HypCluster(3), shoal.HypCluster(3, "farthest-first"), shoal.FedSoft(3, 0.5),
        shoal.FedEM(3), shoal.FedRC(3))),
    *((shoal.RiskAwareChoice(base), base, {"beta": 0.0}) for base in (shoal.FedAvg(),)),
    *((shoal.FedEM(1), shoal.FedAvg(), {"local": local, "participation": 0.5}) for local in (ONE_STEP, MOMENTUM)),
    (shoal.SharedBody(shoal.FedAvg()), shoal.FedAvg(), {}),
    (shoal.Pooling(shoal.FedAvg(), 1.0), shoal.FedAvg(), {}),
    (shoal.EarlyStopping(shoal.IFCA(2)), shoal.IFCA(2), {}),
    *((shoal.MRMTL(0.0), shoal.LocalOnly(), {"local": local, "participation": 0.5}) for local in (ONE_STEP, MOMENTUM)),
]  # fmt: skip
CLOSE = [
    (shoal.HypCluster(3), shoal.IFCA(3), {"sizes": (8,) * 6}),
    (shoal.HypCluster(), BY_EXAMPLES, {}),
    (shoal.GroupPrivacy(2), shoal.IFCA(2), {}),
    (shoal.GroupPrivacy(1), shoal.IFCA(1), {}),
    (shoal.OneShotClustering(1), shoal.FedAvg(), {}),
    (shoal.FeSEM(1), shoal.FedAvg("equal"), {}),
    (shoal.TrimmedMean(shoal.IFCA(2), trim=0.0), shoal.IFCA(2), {}),
    (shoal.MRMTL(0.7), shoal.FedProx(shoal.FedAvg("equal"), 0.7), {"rounds": 1}),
    (shoal.Scaffold(), shoal.FedAvg("equal"), {"rounds": 1}),
    (shoal.PerFedAvg(1e-9), shoal.FedAvg("equal"), {"local": ONE_STEP}),
]


@pytest.mark.parametrize(
    ("algorithm", "other", "options", "exact"),
    [(*each, True) for each in EXACT] + [(*each, False) for each in CLOSE],
    ids=str,
)
def test_one_algorithm_is_another_in_a_limit(play, build, algorithm, other, options, exact):
    given = dict(options)
    federation = build(**{key: given.pop(key) for key in ("sizes", "threshold", "beta") if key in given})
    given["training"] = {"participation": given.pop("participation", 1.0)}
    played = [play(each, federation=federation, **given) for each in (algorithm, other)]
    rtol, atol = (0.0, 0.0) if exact else (1e-4, 1e-6)
    for one, two in zip(*(states[1:] for states, _ in played), strict=True):
        assert torch.equal(one.assignment, two.assignment)
        if bool(two.trained.any()):  # Local training moves no model of the server.
            torch.testing.assert_close(one.models, two.models, rtol=rtol, atol=atol)
            assert torch.equal(one.trained, two.trained)
        for name in one.personal.keys() & two.personal.keys():
            assert torch.equal(one.personal[name].tensor(), two.personal[name].tensor())
        for name in one.clients.keys() & two.clients.keys():
            assert torch.equal(one.clients[name], two.clients[name])
    for one, two in zip(*(reports for _, reports in played), strict=True):
        assert not exact or one.losses is None or two.losses is None or torch.equal(one.losses, two.losses)


@pytest.mark.parametrize(
    ("algorithm", "other", "options"),
    [
        (DIVIDED, shoal.FedAvg(), {}),
        (shoal.FedProx(mu=0.5), shoal.FedAvg(), {}),
        (shoal.PricedChoice(shoal.IFCA(2), (0.0, 5.0)), shoal.IFCA(2), {}),
        (BY_EXAMPLES, shoal.IFCA(2), {}),
        (shoal.HypCluster(), shoal.IFCA(2), {}),
        (shoal.RiskAwareChoice(shoal.IFCA(3)), shoal.IFCA(3), {"beta": 1.0, "risks": RISKS}),
        (shoal.PerFedAvg(0.5), shoal.FedAvg("equal"), {"local": ONE_STEP}),
        (shoal.MRMTL(0.5), shoal.LocalOnly(), {}),
    ],
    ids=str,
)
def test_elsewhere_it_is_not(play, build, algorithm, other, options):
    given = dict(options)
    federation = build(**{key: given.pop(key) for key in ("beta",) if key in given})
    one, two = (play(each, federation=federation, **given)[0][-1] for each in (algorithm, other))
    assert one.models.shape != two.models.shape or not torch.allclose(one.models, two.models, rtol=1e-4, atol=1e-6)
