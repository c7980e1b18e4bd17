"""Settings at which one algorithm is another: bit for bit, or up to rounding."""

from dataclasses import replace

import pytest
import torch

from shoal.algorithms import (
    CFL,
    IFCA,
    IFCAMIR,
    MRMTL,
    PACFL,
    EarlyStopping,
    FedAvg,
    FedEM,
    FedOpt,
    FedProx,
    FedRC,
    FedSoft,
    FeSEM,
    GroupPrivacy,
    HypCluster,
    IFCAWithinLimit,
    LocalOnly,
    OneShotClustering,
    PerFedAvg,
    Pooling,
    PricedChoice,
    RiskAwareChoice,
    Scaffold,
    SharedBody,
    TrimmedMean,
)
from shoal.engine import LocalSGD

DIVIDED = CFL(eps1=1e9, eps2=0.0)
BY_EXAMPLES = IFCA(2, weighting="examples")
ONE_STEP = LocalSGD(steps=1, batch_size="all", learning_rate=0.2)
MOMENTUM = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
RISKS = (0.9, 0.6, 0.7)

EXACT = [
    *((replace(DIVIDED, **never), FedAvg(), {}) for never in (
        {"eps1": 0.0}, {"eps2": 1e9}, {"gamma_max": 1.0}, {"warm_up": 9})),
    (PACFL(90.1), FedAvg(), {}),
    (IFCA(1, weighting="examples"), FedAvg(), {}),
    (IFCAMIR(), IFCA(2), {"beta": 0.0, "risks": RISKS[:2]}),
    *((FedProx(base, mu=0.0), base, {}) for base in (FedAvg(), IFCA(2))),
    *((FedOpt(base, "sgd", 1.0, 0.0), base, {}) for base in (FedAvg(), IFCA(2))),
    *((PricedChoice(base, price), base, {"risks": RISKS[:2]})
      for base in (IFCAMIR(), IFCA(2, choose_by="batch")) for price in ((), (0.0, 0.0))),
    (PricedChoice(FedAvg(), (3.0,)), FedAvg(), {}),
    *((IFCAWithinLimit(base), base, {"threshold": 1.0, "risks": RISKS[: base.clusters]})
      for base in (IFCA(3), IFCA(2, choose_by="batch", weighting="examples"))),
    *((RiskAwareChoice(IFCA(3)), IFCAMIR(IFCA(3)), {"beta": beta, "risks": RISKS}) for beta in (0.0, 0.4, 1.0)),
    *((RiskAwareChoice(base), base, {"beta": 0.0, "risks": RISKS}) for base in (
        IFCA(3), HypCluster(3), HypCluster(3, "farthest-first"), FedSoft(3, 0.5), FedEM(3), FedRC(3))),
    *((RiskAwareChoice(base), base, {"beta": 0.0}) for base in (FedAvg(),)),
    *((FedEM(1), FedAvg(), {"local": local, "participation": 0.5}) for local in (ONE_STEP, MOMENTUM)),
    (SharedBody(FedAvg()), FedAvg(), {}),
    (Pooling(FedAvg(), 1.0), FedAvg(), {}),
    (EarlyStopping(IFCA(2)), IFCA(2), {}),
    *((MRMTL(0.0), LocalOnly(), {"local": local, "participation": 0.5}) for local in (ONE_STEP, MOMENTUM)),
]  # fmt: skip
CLOSE = [
    (HypCluster(3), IFCA(3), {"sizes": (8,) * 6}),
    (HypCluster(), BY_EXAMPLES, {}),
    (GroupPrivacy(2), IFCA(2), {}),
    (GroupPrivacy(1), IFCA(1), {}),
    (OneShotClustering(1), FedAvg(), {}),
    (FeSEM(1), FedAvg("equal"), {}),
    (TrimmedMean(IFCA(2), trim=0.0), IFCA(2), {}),
    (MRMTL(0.7), FedProx(FedAvg("equal"), 0.7), {"rounds": 1}),
    (Scaffold(), FedAvg("equal"), {"rounds": 1}),
    (PerFedAvg(1e-9), FedAvg("equal"), {"local": ONE_STEP}),
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
        (DIVIDED, FedAvg(), {}),
        (FedProx(mu=0.5), FedAvg(), {}),
        (PricedChoice(IFCA(2), (0.0, 5.0)), IFCA(2), {}),
        (BY_EXAMPLES, IFCA(2), {}),
        (HypCluster(), IFCA(2), {}),
        (RiskAwareChoice(IFCA(3)), IFCA(3), {"beta": 1.0, "risks": RISKS}),
        (PerFedAvg(0.5), FedAvg("equal"), {"local": ONE_STEP}),
        (MRMTL(0.5), LocalOnly(), {}),
    ],
    ids=str,
)
def test_elsewhere_it_is_not(play, build, algorithm, other, options):
    given = dict(options)
    federation = build(**{key: given.pop(key) for key in ("beta",) if key in given})
    one, two = (play(each, federation=federation, **given)[0][-1] for each in (algorithm, other))
    assert one.models.shape != two.models.shape or not torch.allclose(one.models, two.models, rtol=1e-4, atol=1e-6)
