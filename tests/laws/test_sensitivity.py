"""The sensitivity that a stated epsilon assumes, measured for every algorithm, kind of noise and final training.

A run is replayed without one record, both times with no noise: the difference in what a view sees is the sensitivity.
A third run replaces each draw of noise by a known vector, which tells how much of each draw a view sees. The network's
loss is linear, so both are exact, and a view sees one Gaussian mechanism. Its ``mu`` is the length, in standard
deviations, of the shortest noise that makes up for the record. Steps on all examples have an exact stated ``mu`` too,
and no view may see more. A data-dependent term without noise has an infinite ``mu``.

The idea, a replay with the noise held: arXiv:2602.17454.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from every_algorithm import ALGORITHMS
from linear_training import MODEL, Kept
from shoal import defenses
from shoal.algorithms.wrapper import with_bases
from shoal.attacks import Gap
from shoal.audit import RedTeam
from shoal.core.errors import InputError
from shoal.data import Federation
from shoal.defenses import accounting
from shoal.engine import ClientTrainings, Engine, LocalSGD
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.rounds import training as training_module
from shoal.simulation.measure import PrivacyBudget
from shoal.simulation.simulation import Simulation

SIZES, CLIENT, OTHER, RECORD, ROUNDS = (12,) * 4, 3, 0, 5, 2
AT_CLIENTS = shoal.DPSGD(0.5, 2.0), LocalSGD(epochs=2, batch_size="all", learning_rate=0.1)
IN_SUMS = shoal.DPSGD(0.5, 2.0, noise="sum", min_clients=4), LocalSGD(epochs=1, batch_size="all", learning_rate=0.1)
SUMMED = (
    shoal.FedAvg, shoal.FedAvgStart, shoal.FedOpt, shoal.HypCluster, shoal.IFCA, shoal.IFCAMIR, shoal.IFCAWithinLimit,
    shoal.Pooling, shoal.PricedChoice, shoal.PrivateMeans, shoal.RiskAwareChoice, shoal.ClusterSizeFloor,
    shoal.ServerStart, shoal.SharedBody,
)  # fmt: skip
"""Algorithms whose clients send one update, which is averaged."""

NEVER_DUE = RedTeam(every=ROUNDS + 1, attack=Gap())
PARAMETERS, SMALL = MODEL.layout.size, 1 / 256
"""Draws are small, so that nobody chooses another model."""

Seen = tuple[Tensor, list[Tensor]]
"""What moved (R, P) without the record, and for each tensor of the network the part (R, D) of each draw in it."""


def without(federation: Federation, copies: int = 1) -> Federation:
    """The federation with zeros in place of a record and of the copies after it: their gradients are 0."""
    x = federation.clients.x.clone()
    x[federation.clients.indices_of(CLIENT)[RECORD : RECORD + copies]] = 0.0
    return replace(federation, clients=replace(federation.clients, x=x))


def with_copies(federation: Federation, copies: int) -> Federation:
    x, y = federation.clients.x.clone(), federation.clients.y.clone()
    rows = federation.clients.indices_of(CLIENT)[RECORD : RECORD + copies]
    x[rows], y[rows] = x[rows[0]].clone(), y[rows[0]].clone()
    return replace(federation, clients=replace(federation.clients, x=x, y=y))


@dataclass
class Noise:
    """Counts the draws of local steps, and replaces draw d: by nothing, or on each ``apart``-th parameter from d on."""

    apart: int = 0
    draws: int = 0

    @contextmanager
    def instead(self) -> Iterator[None]:
        step = BoundNetwork.private_step

        def replayed(*given: Any, **more: Any) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "randn", self.drawn)
                step(*given, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoundNetwork, "private_step", replayed)
            yield

    def drawn(self, size: int, **_: Any) -> Tensor:
        noise = torch.zeros(size)
        if self.apart:
            noise[self.draws :: self.apart] = SMALL
        self.draws += 1
        return noise


@dataclass
class Replay:
    """A run, and what is seen of it, as moves from models that are known before (R, P)."""

    training: Kept
    noise: Noise
    senders: Tensor
    choices: Tensor
    sent: Tensor
    sums: Tensor
    used: Tensor
    state: Any

    @staticmethod
    def of(simulation: Simulation, engine: Engine, apart: int = 0) -> "Replay":
        plain, noise = simulation.on(engine), Noise(apart)
        training = Kept(**{name: value for name, value in vars(plain).items() if not name.startswith("_")})
        reports, sums = [], []
        with noise.instead():
            state = training.start()
            for after, report in training.rounds(state, ROUNDS):
                reports.append(report)
                sums.append(training.aggregates[-1].models - state.models)
                state = after
            deployed, _ = training.deployed_models(state)
        # Clients that use a model of the clusters reveal no more than it does.
        owners = () if deployed.models is state.models else range(len(SIZES))
        own = [deployed.models[int(deployed.model[i])] - state.models[deployed.assignment[i]] for i in owners]
        return Replay(
            training,
            noise,
            torch.cat([report.updates.clients for report in reports]),
            torch.cat([report.assignment for report in reports]),
            torch.cat([report.updates.updates for report in reports]),
            torch.cat(sums),
            torch.stack(own) if own else torch.empty(0, PARAMETERS),
            state,
        )


def mu(seen: Seen) -> float:
    """The length of the shortest draws that make up for the record; infinite where none do."""
    found = []
    for slot, parts in zip(MODEL.layout.slots, seen[1], strict=True):
        moved, part = seen[0][:, slot.start : slot.start + slot.size].double(), parts.double()
        if float(moved.norm()) < 1e-6:
            continue
        draws = torch.linalg.pinv(part, rtol=1e-3) @ moved
        covered = float((part @ draws - moved).norm()) < 1e-2 * float(moved.norm())
        found.append(float(draws.norm()) if covered else math.inf)
    return math.hypot(*found)


def mus(
    algorithm: Any, setting: tuple[shoal.DPSGD, LocalSGD], federation: Federation, other: Federation, *defenses: Any
) -> dict[str, tuple[float, float]]:
    """The measured and the stated ``mu`` of each view."""
    rule, local = setting
    further = {"rounds": ROUNDS, "red_team": NEVER_DUE, "record_updates": 1, "defenses": [rule, *defenses]}
    one, two = (Simulation(each, MODEL, algorithm, local, **further) for each in (federation, other))
    with Engine(MODEL, threads=1) as engine:
        base, changed = Replay.of(one, engine), Replay.of(two, engine)
        count = max(1, base.noise.draws)
        traced = Replay.of(one, engine, count)
        finished: Any = SimpleNamespace(
            training=base.training, federation=federation, state=base.state, clients={}, red_team=RedTeam(every=0)
        )
        stated = PrivacyBudget().measure(finished).overall
    assert base.noise.draws == changed.noise.draws == traced.noise.draws <= PARAMETERS / 2

    def seen(name: str) -> Seen:
        plain, moved, drawn = (getattr(each, name) for each in (base, changed, traced))
        parts, scaled = [], (drawn - plain) / SMALL
        for slot in MODEL.layout.slots:
            places = torch.arange(slot.start, slot.start + slot.size)
            parts.append(torch.stack([scaled[:, places[places % count == d]].mean(dim=1) for d in range(count)], dim=1))
        return moved - plain, parts

    sent, sums, used = map(seen, ("sent", "sums", "used"))
    whole = together(sent, used)
    if rule.noise == "client":
        return {"epsilon": (mu(whole), stated["epsilon"])}
    # The law excludes clients that choose another model: no epsilon covers it.
    assert base.choices.equal(changed.choices)
    assert base.choices.equal(traced.choices)
    models = together(sums, used)
    # A client knows its own draws; in each round every client has one.
    of_round = torch.arange(count) // len(SIZES) == torch.arange(ROUNDS)[:, None]
    own = [((parts[base.senders == OTHER].abs() > 1e-6) & of_round).any(dim=0) for parts in sent[1]]
    known = models[0], [parts * ~mine for parts, mine in zip(models[1], own, strict=True)]
    views = {"outsider": models, "client": known, "server": whole}
    return {view: (mu(of_view), stated[f"epsilon.{view}"]) for view, of_view in views.items()}


def together(one: Seen, two: Seen) -> Seen:
    return torch.cat([one[0], two[0]]), [torch.cat(parts) for parts in zip(one[1], two[1], strict=True)]


@pytest.fixture(autouse=True)
def _exact_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accountants that state ``mu``; a step on a part of the examples counts as one on all, which it is if it has
    the record."""
    composed = lambda history, *_: math.sqrt(sum(steps / noise**2 for noise, _, steps in history))  # noqa: E731
    monkeypatch.setattr(accounting, "composed_epsilon", composed)
    monkeypatch.setattr(accounting, "gaussian_epsilon", lambda mu, delta: mu)


def refuses(algorithm: Any, setting: tuple[shoal.DPSGD, LocalSGD]) -> bool:
    """Whether an algorithm refuses these steps; `test_privacy` says which should."""
    rule, local = setting
    try:
        algorithm.check(replace(local, gradient_privacy=rule), 1)
    except InputError:
        return True
    return False


@pytest.mark.parametrize("setting", [AT_CLIENTS, IN_SUMS], ids=["noise at clients", "noise in sums"])
@pytest.mark.parametrize("tuned", [False, True], ids=["", "tuned"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_no_view_sees_more_of_a_record_than_the_stated_epsilon_assumes(algorithm, setting, tuned, build):
    federation, run = build(SIZES), shoal.FineTuning(algorithm) if tuned else algorithm
    try:
        found = mus(run, setting, federation, without(federation))
    except InputError:
        in_sums, summed = setting is IN_SUMS, all(isinstance(each, SUMMED) for each in with_bases(run))
        assert refuses(run, setting) or (in_sums and not summed)
        return
    for view, (measured, stated) in found.items():
        assert measured <= stated * (1 + 1e-3), view


DEFENSES = [
    (shoal.L2(0.5), ()),
    (shoal.ShorterTraining(0.5), ()),
    (shoal.Dropout(0.5), ()),
    (shoal.Augmentation(), ()),
    (shoal.Augmentation(multiplicity=2), ()),
    (shoal.NormClipping(1e-3), (IN_SUMS,)),
    (shoal.LaplaceNoise(epsilon=10.0), (IN_SUMS,)),
]
"""Defences beside DP-SGD, which refuses those with an objective of their own, and the settings that refuse them."""


@pytest.mark.parametrize("setting", [AT_CLIENTS, IN_SUMS], ids=["noise at clients", "noise in sums"])
@pytest.mark.parametrize(("defense", "refused"), DEFENSES, ids=repr)
def test_no_defence_shows_more_of_a_record_than_the_stated_epsilon_assumes(defense, refused, setting, build):
    federation = build(SIZES)
    algorithm = shoal.FedAvg() if setting is IN_SUMS else shoal.FineTuning()
    if setting in refused:
        with pytest.raises(InputError):
            mus(algorithm, setting, federation, without(federation), defense)
        return
    for view, (measured, stated) in mus(algorithm, setting, federation, without(federation), defense).items():
        assert 0 < measured <= stated * (1 + 1e-3), view


def test_defences_cover_every_defence():
    kinds = {each for each in defenses.DEFENSES.values() if not hasattr(each, "objective")}
    assert {type(defense) for defense, _ in DEFENSES} | {shoal.DPSGD} == kinds


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [(shoal.FedAvg(), AT_CLIENTS), (shoal.FineTuning(shoal.Ditto()), AT_CLIENTS), (shoal.FedAvg(), IN_SUMS)],
    ids=["noise at clients", "twice a round and tuned", "noise in sums"],
)
@pytest.mark.parametrize("copies", [1, 3])
def test_what_is_stated_is_what_views_see(algorithm, setting, copies, build):
    federation = with_copies(build(SIZES), copies)
    for measured, stated in mus(algorithm, setting, federation, without(federation, copies)).values():
        assert 0.99 * stated < measured <= stated * (1 + 1e-3)


class UncheckedFedSoft(shoal.FedSoft):
    def check(self, local, risk_period):
        pass


class UncountedDitto(shoal.Ditto):
    def client_trainings(self, local):
        return ClientTrainings((local,))


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [(shoal.FineTuning(), IN_SUMS), (UncheckedFedSoft(), AT_CLIENTS), (UncountedDitto(), AT_CLIENTS)],
    ids=["a final share of noise", "importances without noise", "a second training"],
)
def test_the_law_finds_known_faults(algorithm, setting, build, monkeypatch):
    monkeypatch.setattr(accounting, "check_sums", lambda *_: None)
    monkeypatch.setattr(training_module, "require_counted_trainings", lambda *_, **__: None)
    federation = build(SIZES)
    found = mus(algorithm, setting, federation, without(federation)).values()
    assert all(measured > 1.2 * stated for measured, stated in found)
