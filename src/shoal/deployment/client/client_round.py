"""A client's part of a run on several machines: it answers the server's messages, and keeps its own books.

Batches and the like come from the run's seed, so that a round is the simulator's. Noise must not: the server knows that
seed, and could subtract what it says. Whatever protects the client is drawn from its own machine's randomness instead,
anew for each answer, so that an offer that is made twice is not answered with the same noise (`NodeSettings.noise`).
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from filelock import FileLock

from shoal.attacks.queries.loss_histograms import client_histograms, discrete_laplace, own_risks
from shoal.config.schema import Config
from shoal.control.feedback import over_limit_answers
from shoal.core.atomic_files import PRIVATE, private_folder, write_text
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.content import most_copies
from shoal.defenses import DPSGD
from shoal.deployment.client.client_memory import ClientMemory
from shoal.deployment.client.ledger import LEDGER, Ledger
from shoal.deployment.client.node_data import Client, open_client
from shoal.deployment.client.policy import Policy
from shoal.deployment.flower_config import NodeSettings
from shoal.deployment.messages import NotAllowedError, Offer, parts_of
from shoal.engine import ClientUpdate, Engine, State, Training, client_round, client_trainings


def training_reply(offer: Offer, settings: NodeSettings, *, in_sum: bool = False) -> ClientUpdate:
    """A client's reply to an offer: its model, its cluster and its number of examples.

    One round at a time: a node may be given the next one before it has ended one that the server waits for no more, and
    what both spend must be in the ledger. ``in_sum``: the reply leaves the node in a secure sum alone.

    Raises:
        NotAllowedError: the node's policy or its budget does not allow the round.
        InputError: data that cannot be used, an older ledger than the server has seen, or training that diverged.
    """
    policy = Policy.read(settings.policy)
    with _opened(offer, settings, policy) as (client, training), FileLock(private_folder(settings.folder) / "lock"):
        ledger = Ledger.newest(settings.folder, offer.ledger)
        memory = ClientMemory.open(settings.folder, offer.config)
        state = memory.restore(_state(training, offer, client.config.seed))
        if settings.risk == "client":
            risks = own_risks(state.models, training.federation.clients, training.federation.holdout, training.engine)
            _write_risks(settings.folder, offer, risks.tolist())
            state = replace(state, risks=risks)
        # Before training, and so before it is known which model is trained: the dearest is charged.
        examples, models = int(training.federation.clients.sizes[0]), len(state.models)
        phases = client_trainings(training.algorithm, training.local).rounds
        trainings = [[training.local_of(state, k, phase) for phase in phases] for k in range(models)]
        everything = [local for of_model in trainings for local in of_model]
        policy.check_training(everything, examples, models, ledger, in_sum=in_sum)
        shares = parts_of(client.config.algorithm.value).choice == "shares"
        epsilon = None if shares else policy.choice_epsilon
        since = max(0, ledger.rounds + 1 - policy.choice_every)
        chosen = None if shares or models == 1 else memory.last_choice(since, models)
        copies = int(most_copies(training.federation.clients)[0])
        costs = [ledger.after(of_model, examples, copies=copies, in_sum=in_sum) for of_model in trainings]
        if models > 1 and chosen is None:
            costs = [cost.answered("choice", epsilon) for cost in costs]
        dearest = max(costs, key=lambda cost: cost.epsilon(policy.delta))
        _charge(ledger, dearest, policy, settings, f"round {offer.round}")
        if chosen is None and epsilon is not None and models > 1:
            chosen = _random_choice(training, state, epsilon, _protecting(client.config, settings))
            memory.save_choice(ledger.rounds, chosen)
        if chosen is None:
            update, after = client_round(training, state, count_best=shares)
            if models > 1:
                memory.save_choice(ledger.rounds, update.cluster)
        else:
            # Whichever of these the algorithm chooses, it trains that model.
            update, after = client_round(training, _repeated(state, chosen))
            update = replace(update, cluster=chosen)
            after = replace(after, assignment=torch.full_like(after.assignment, chosen))
        memory.save(after)
        return update


def histograms_reply(offer: Offer, settings: NodeSettings) -> np.ndarray:
    """A client's histograms (2, B) of the loss of the one model that is offered, with the run's noise.

    Raises:
        NotAllowedError: as `training_reply`.
        InputError: the client has no hold-out examples.
    """
    policy = Policy.read(settings.policy)
    with _opened(offer, settings, policy) as (client, training):
        federation, (model,) = training.federation, offer.models
        require(len(federation.holdout.indices) > 0, "the client has no hold-out examples for histograms")
        epsilon = client.config.red_team.histograms.epsilon
        _charge_answer("histogram", epsilon, offer, policy, settings)
        counts = client_histograms(model, federation.clients, federation.holdout, training.engine)
        if epsilon is not None:
            stream = _protecting(client.config, settings)("red team", offer.round, "histograms", "noise")
            seed = int(stream.seeds(federation.ids)[0])
            counts = counts + discrete_laplace(epsilon, counts.shape, np.random.default_rng(seed))
        return counts


def vote_reply(offer: Offer, settings: NodeSettings) -> bool:
    """Whether the risk of ``offer`` is above what the client tolerates, by randomised response if the run says so.

    Raises:
        NotAllowedError: as `training_reply`.
        InputError: the run has no coordinator.
    """
    client = open_client(offer.config, settings, offer.classes, offer.scale, offer.features, offer.frozen)
    section = client.config.coordinator
    require(section is not None, "the run has no coordinator, so there is no vote to answer")
    assert section is not None
    stream = _protecting(client.config, settings)("coordinator", offer.round)
    threshold, ids = client.federation.preferences.threshold, torch.tensor([offer.client])
    epsilon = section.coordinator().vote_epsilon
    _charge_answer("vote", epsilon, offer, Policy.read(settings.policy), settings)
    return bool(over_limit_answers(offer.risks, threshold, ids, epsilon, stream)[0])


def _charge_answer(
    kind: Literal["histogram", "vote"], epsilon: float | None, offer: Offer, policy: Policy, settings: NodeSettings
) -> None:
    """Charge an answer beside training before it is given; raises `NotAllowedError` where it is not to be given."""
    with FileLock(private_folder(settings.folder) / "lock"):
        ledger = Ledger.newest(settings.folder, offer.ledger)
        policy.check_answer(kind, epsilon, ledger)
        _charge(ledger, ledger.answered(kind, epsilon), policy, settings, f"a {kind} of round {offer.round}")


def _charge(before: Ledger, after: Ledger, policy: Policy, settings: NodeSettings, what: str) -> None:
    """Write down what is spent, unless it is above the budget."""
    epsilon, spent = after.epsilon(policy.delta), before.epsilon(policy.delta)
    if math.isinf(epsilon) and settings.epsilon_budget < math.inf:
        raise NotAllowedError(
            f"'epsilon-budget' is {settings.epsilon_budget:g}, and {what} has no finite epsilon: training needs "
            "DP-SGD, a choice among models the policy's 'choice_epsilon', a histogram or a vote the run's noise",
            "the client has a privacy budget, and what is asked has no finite epsilon",
        )
    if epsilon > settings.epsilon_budget:
        raise NotAllowedError(
            f"the privacy budget is spent: epsilon {spent:.3f} of {settings.epsilon_budget:g}, and {epsilon:.3f} after "
            f"{what}",
            "the client's privacy budget is spent",
        )
    after.save(settings.folder / LEDGER)


def _random_choice(training: Training, state: State, epsilon: float, stream: Stream) -> int:
    """The algorithm's choice among K models, randomised; see `Policy.choice_epsilon`."""
    one = torch.zeros(1, dtype=torch.int64)
    choice = int(training.algorithm.plan(state, training.cohort_of(state, one)).assignment[0])
    coins = np.random.default_rng(int(stream("choice", state.round).seeds(one)[0]))
    return randomised(choice, len(state.models), epsilon, coins)


def _repeated(state: State, chosen: int) -> State:
    """``state`` with the model ``chosen`` in the place of every model."""
    same = torch.full((len(state.models),), chosen)
    directives = {name: values[same] for name, values in state.directives.items()}
    return replace(state, models=state.models[same], risks=state.risks[same], directives=directives)


def randomised(choice: int, choices: int, epsilon: float, coins: np.random.Generator) -> int:
    """The choice with probability ``e^epsilon / (e^epsilon + K - 1)``, otherwise any other of the K ``choices``.

    >>> randomised(1, 3, 50.0, np.random.default_rng(0))
    1
    """
    if coins.random() < 1 / (1 + (choices - 1) * math.exp(-epsilon)):
        return choice
    return (choice + int(coins.integers(1, choices))) % choices


@contextmanager
def _opened(offer: Offer, settings: NodeSettings, policy: Policy) -> Iterator[tuple[Client, Training]]:
    """The node's client, and its training on an engine that is closed afterwards."""
    client = open_client(offer.config, settings, offer.classes, offer.scale, offer.features, offer.frozen)
    config, setup = client.config, client.setup
    policy.check_run(config, setup.model.parameters, int(client.federation.clients.sizes[0]))
    algorithm = parts_of(config.algorithm.value).client
    backend = None if config.engine.backend == "auto" else config.engine.backend
    steered = () if config.coordinator is None else (config.coordinator.coordinator(),)
    with Engine(
        setup.model, threads=settings.threads, precision=config.engine.chosen_precision(), backend=backend
    ) as engine:
        require(
            offer.models.dim() == 2 and offer.models.shape[1] == setup.model.parameters,
            f"the server's models have {offer.models.shape[-1]} numbers, this network {setup.model.parameters}",
        )
        training = Training(
            federation=replace(engine.prepare(client.federation), ids=torch.tensor([offer.client])),
            algorithm=algorithm,
            local=setup.local,
            engine=engine,
            stream=_protecting(config, settings) if _noisy(client) else Stream(config.seed),
            client_filter=setup.client_filter,
            defenses=(*setup.defenses, *steered),
        )
        yield client, training


def _protecting(config: Config, settings: NodeSettings) -> Stream:
    """The stream of the numbers that protect a client; see `NodeSettings.noise`."""
    return Stream(secrets.randbits(128) if settings.noise == "secret" else config.seed)


def _noisy(client: Client) -> bool:
    """Whether the client's training or its update has noise, or may be given some; batches are then its secret too."""
    coordinator, setup = client.config.coordinator, client.setup
    steered = coordinator is not None and coordinator.dp_sgd is not None
    return steered or setup.client_filter is not None or any(isinstance(rule, DPSGD) for rule in setup.defenses)


def _state(training: Training, offer: Offer, seed: int) -> State:
    """The state of a federation of this client alone before the round, as a client begins that remembers nothing."""
    clusters = len(offer.models)
    # As many clients as models, all of them this one, since algorithms refuse to begin with fewer.
    crowd = training.federation.take(torch.zeros(clusters, dtype=torch.int64))
    # By the run's seed, as all clients: a stream of the client's own is for its batches and noise.
    first = replace(training, federation=crowd, stream=Stream(seed)).start()
    one = torch.zeros(1, dtype=torch.int64)
    return replace(
        first,
        round=offer.round - 1,
        models=offer.models,
        risks=offer.risks,
        directives=dict(offer.directives),
        assignment=first.assignment[:1],
        clients={name: rows[:1] for name, rows in first.clients.items()},
        personal={name: type(rows).same(rows[one][0], 1) for name, rows in first.personal.items()},
        trained=torch.zeros(1, clusters, dtype=torch.int64),
    )


def _write_risks(folder: Path, offer: Offer, risks: Sequence[float]) -> None:
    """Add the client's estimates and the server's to the client's ``risks.csv``, where each round stands once."""
    path = folder / "risks.csv"
    rows = pd.DataFrame(
        {"round": offer.round, "model": range(len(risks)), "own": risks, "server": offer.risks.tolist()}
    )
    if path.exists():
        earlier = pd.read_csv(path)
        rows = pd.concat([earlier[earlier["round"] < offer.round], rows])
    write_text(path, rows.to_csv(index=False, float_format="%.6f"), mode=PRIVATE)
