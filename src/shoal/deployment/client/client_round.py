"""A client's part of a run on several machines: it answers the server's messages, and keeps its own books.

Batches and the like come from the run's seed, so that a round is the simulator's. Noise must not: the server knows that
seed, and could subtract what it says. Whatever protects the client is drawn from its own machine's randomness instead,
anew for each answer, so that an offer that is made twice is not answered with the same noise (`NodeSettings.noise`).
"""

import csv
import io
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from shoal.attacks.queries.loss_histograms import client_histograms, discrete_laplace, own_risks
from shoal.config.schema import Config
from shoal.control.feedback import over_limit_answers
from shoal.core.atomic_files import write_text
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD
from shoal.deployment.client.client_memory import ClientMemory, remembered
from shoal.deployment.client.ledger import Ledger
from shoal.deployment.client.node_data import Client, open_client
from shoal.deployment.client.node_settings import NodeSettings
from shoal.deployment.messages import Offer, Refusal
from shoal.deployment.supported import at_client, choice_of
from shoal.engine import ClientUpdate, Engine, State, Training, client_round, client_trainings

LOG = logging.getLogger("shoal")


def respond(offer: Offer, settings: NodeSettings) -> ClientUpdate | Refusal:
    """What a client replies to an offer: its model, its cluster and its number of examples, or why it does not train.

    One round at a time: a node may be given the next one before it has ended one that the server waits for no more, and
    what both spend must be in the ledger.

    Raises:
        InputError: data that cannot be used, or training that diverged.
    """
    with _opened(offer, settings) as (client, training), FileLock(settings.state_dir / "lock"):
        ledger_path = settings.state_dir / "ledger.json"
        ledger = Ledger.load(ledger_path)
        memory = ClientMemory.of(settings.state_dir, offer.config)
        state = _state(training, offer, memory, client.config.seed)
        if settings.risk == "client":
            risks = own_risks(state.models, training.federation.clients, training.federation.holdout, training.engine)
            _write_risks(settings.state_dir, offer, risks.tolist())
            state = replace(state, risks=risks)
        algorithm = client.config.algorithm.value
        # Before training, and so before it is known which model is trained: the dearest is charged.
        examples = int(training.federation.clients.sizes[0])
        trained = client_trainings(training.algorithm, training.local).rounds
        costs = [
            ledger.after_round([training.local_of(state, k, each) for each in trained], examples)
            for k in range(len(state.models))
        ]
        charged = max(costs, key=lambda each: each.epsilon)
        if charged.epsilon > settings.epsilon_budget:
            LOG.warning(
                "the privacy budget is spent: epsilon %.3f of %g, and %.3f after round %d",
                ledger.epsilon, settings.epsilon_budget, charged.epsilon, offer.round,
            )  # fmt: skip
            return Refusal("the client's privacy budget is spent")
        charged.save(ledger_path)
        update, after = client_round(training, state, count_best=choice_of(algorithm) == "shares")
        memory.save(offer.round, after)
        return update


def respond_histograms(offer: Offer, settings: NodeSettings) -> np.ndarray:
    """A client's histograms (2, B) of the loss of the one model that is offered, with the run's noise.

    Raises:
        InputError: the client has no hold-out examples.
    """
    with _opened(offer, settings) as (client, training):
        federation, (model,) = training.federation, offer.models
        require(len(federation.holdout.indices) > 0, "the client has no hold-out examples for histograms")
        counts = client_histograms(model, federation.clients, federation.holdout, training.engine)
        epsilon = client.config.red_team.histograms.epsilon
        if epsilon is not None:
            stream = _protecting(client.config, settings)("red team", offer.round, "histograms", "noise")
            seed = int(stream.seeds(federation.ids)[0])
            counts = counts + discrete_laplace(epsilon, counts.shape, np.random.default_rng(seed))
        return counts


def respond_vote(offer: Offer, settings: NodeSettings) -> bool:
    """Whether the risk of ``offer`` is above what the client tolerates; by randomised response if the run says so."""
    client = open_client(offer.config, settings, offer.classes, offer.scale)
    section = client.config.coordinator
    require(section is not None, "the run has no coordinator, whom a client would answer")
    assert section is not None
    stream = _protecting(client.config, settings)("coordinator", offer.round)
    threshold, ids = client.federation.preferences.threshold, torch.tensor([offer.client])
    epsilon = section.coordinator().vote_epsilon
    return bool(over_limit_answers(offer.risks, threshold, ids, epsilon, stream)[0])


@contextmanager
def _opened(offer: Offer, settings: NodeSettings) -> Iterator[tuple[Client, Training]]:
    """The node's client, and its training on an engine that is closed afterwards."""
    client = open_client(offer.config, settings, offer.classes, offer.scale)
    config, setup = client.config, client.setup
    choice_of(config.algorithm.value)
    backend = None if config.engine.backend == "auto" else config.engine.backend
    with Engine(setup.model, threads=settings.threads, precision=config.engine.precision, backend=backend) as engine:
        federation = replace(engine.prepare(client.federation), ids=torch.tensor([offer.client]))
        require(
            offer.models.dim() == 2 and offer.models.shape[1] == setup.model.parameters,
            f"the server's models have {offer.models.shape[-1]} numbers, this network {setup.model.parameters}",
        )
        steered = () if config.coordinator is None else (config.coordinator.coordinator(),)
        yield (
            client,
            Training(
                federation=federation,
                algorithm=at_client(config.algorithm.value),
                local=setup.local,
                engine=engine,
                stream=_protecting(config, settings) if _noisy(client) else Stream(config.seed),
                client_filter=setup.client_filter,
                defenses=(*setup.defenses, *steered),
            ),
        )


def _protecting(config: Config, settings: NodeSettings) -> Stream:
    """The stream of the numbers that protect a client; see `NodeSettings.noise`."""
    return Stream(secrets.randbits(128) if settings.noise == "secret" else config.seed)


def _noisy(client: Client) -> bool:
    """Whether the client's training or its update has noise, or may be told to; batches are then its secret too."""
    steered, setup = client.config.coordinator, client.setup
    told = steered is not None and steered.dp_sgd is not None
    return told or setup.client_filter is not None or any(isinstance(each, DPSGD) for each in setup.defenses)


def _state(training: Training, offer: Offer, memory: ClientMemory, seed: int) -> State:
    """The state of a federation of this client alone before the round: what was offered, and what it remembers."""
    clusters = len(offer.models)
    # As many clients as models, all of them this one, since algorithms refuse to begin with fewer.
    crowd = training.federation.take(torch.zeros(clusters, dtype=torch.int64))
    # By the run's seed, as all clients: a stream of the client's own is for its batches and noise.
    first = replace(training, federation=crowd, stream=Stream(seed)).start()
    one = torch.zeros(1, dtype=torch.int64)
    state = replace(
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
    return remembered(state, memory.before(offer.round))


def _write_risks(folder: Path, offer: Offer, own: Sequence[float]) -> None:
    """Add a round's own estimates beside the server's to the client's ``risks.csv``, each round once."""
    path = folder / "risks.csv"
    kept: list[list[str]] = []
    if path.exists():
        kept = [row for row in csv.reader(path.read_text().splitlines()[1:]) if int(row[0]) < offer.round]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["round", "model", "own", "server"])
    writer.writerows(kept)
    for k, (mine, server) in enumerate(zip(own, offer.risks.tolist(), strict=True)):
        writer.writerow([offer.round, k, f"{mine:.6f}", f"{server:.6f}"])
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, out.getvalue())
