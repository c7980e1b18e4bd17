"""A client's answers to the server's messages, each charged to the client's privacy ledger.

Batches are drawn from the run's seed, as in the simulator. Noise comes from the machine's randomness, because the
server knows the seed and could subtract the noise (`NodeSettings.noise`).

An answer has a fixed order: the policy checks the offer, the node reads its data, and the ledger is charged. After a
charge of finite epsilon, an error must not depend on the data, because such an error would reveal data without noise.
If training overflows, the reply contains the received model.
"""

import hashlib
import json
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialize

from shoal.attacks.queries.loss_histograms import EDGES, client_histograms, discrete_laplace, own_risks
from shoal.config.schema import Config
from shoal.control.coordinator import over_limit_answers
from shoal.core.atomic_files import PRIVATE, private_folder, write_bytes, write_text
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.content import most_copies
from shoal.defenses import DPSGD
from shoal.engine import ClientUpdate, ClientVectors, Engine, State, Tensors, Training, client_round, client_trainings
from shoal_flower.client.node_data import AskedRun, Client, asked_run, open_client
from shoal_flower.client.policy import LEDGER, Ledger, Policy
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import NotAllowedError, Offer, parts_of

_KEPT = 2
"""The number of rounds in a client's memory: the last round, and the round before in case the server resumes there."""


@dataclass(frozen=True)
class ClientMemory:
    """A client's memory between rounds of a run: the algorithm's tensors, the personal model, and the last choice."""

    folder: Path

    @staticmethod
    def open(state_dir: Path, config: str) -> "ClientMemory":
        """Open the memory of the run with this configuration, in a folder under ``state_dir``."""
        return ClientMemory(state_dir / f"run-{hashlib.sha256(config.encode()).hexdigest()[:16]}")

    def restore(self, state: State) -> State:
        """Return ``state`` with the client's saved tensors of the latest round up to ``state.round``."""
        tensors = self._last(state.round)
        clients = {name: tensors.get(f"clients/{name}", value) for name, value in state.clients.items()}
        personal = {
            name: ClientVectors.same(tensors[f"personal/{name}"][0], 1) if f"personal/{name}" in tensors else rows
            for name, rows in state.personal.items()
        }
        return replace(
            state, clients=clients, personal=personal, assignment=tensors.get("assignment", state.assignment)
        )

    def save(self, state: State) -> None:
        """Save the client's tensors after a round, and delete the tensors of older rounds."""
        tensors = {f"clients/{name}": tensor.contiguous() for name, tensor in state.clients.items()}
        tensors |= {f"personal/{name}": rows.tensor().contiguous() for name, rows in state.personal.items()}
        if not tensors:
            return
        tensors["assignment"] = state.assignment.contiguous()
        private_folder(self.folder)
        write_bytes(self.folder / f"round-{state.round:06d}.safetensors", serialize(tensors), mode=PRIVATE)
        for path in self._files()[_KEPT:]:
            path.unlink()

    def last_choice(self, since: int, models: int) -> int | None:
        """Return the client's last choice of a model.

        The result is None if the choice is older than round ``since`` of the ledger, or not below ``models``.
        """
        path = self.folder / "choice.json"
        rounds, chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else (-1, 0)
        return chosen if rounds >= since and chosen < models else None

    def save_choice(self, rounds: int, chosen: int) -> None:
        """Save a choice, with the number of ``rounds`` in the ledger before the choice."""
        private_folder(self.folder)
        write_text(self.folder / "choice.json", json.dumps([rounds, chosen]), mode=PRIVATE)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.safetensors"), reverse=True)

    def _last(self, number: int) -> Tensors:
        """Return the tensors in the newest intact file up to round ``number``; empty without such a file."""
        for path in self._files():
            if int(path.stem.rpartition("-")[2]) <= number:
                try:
                    return parse(path.read_bytes())
                except (SafetensorError, ValueError):
                    continue
        return {}


LOG = logging.getLogger("shoal")

_Answer = TypeVar("_Answer")


def training_reply(offer: Offer, settings: NodeSettings, *, in_sum: bool = False) -> ClientUpdate:
    """Return a client's reply to an offer: its model, its cluster and its number of examples.

    A lock allows one round at a time, because the server may begin a round before a slow node has finished the previous
    round.

    Raises:
        NotAllowedError: the node's policy, budget or ledger does not allow the round.
        InputError: the data are unusable, or training diverged.
    """
    policy = Policy.read(settings.policy)
    policy.check_question("train", "to train")
    run = _requested_run(offer, settings, policy)
    config, clusters, training = run.config, len(offer.models), _training(run, settings)
    offered = State(offer.round - 1, offer.models, offer.risks, torch.full((1,), -1), directives=dict(offer.directives))
    phases = client_trainings(training.algorithm, training.local).rounds
    # The charge comes before the choice, so it covers the most expensive model.
    trainings = [[training.local_of(offered, k, phase) for phase in phases] for k in range(clusters)]
    everything = [local for of_model in trainings for local in of_model]
    with FileLock(private_folder(settings.folder) / "lock"):
        ledger = Ledger.newest(settings.folder, offer.ledger)
        policy.check_training(everything, clusters, ledger, in_sum=in_sum)
        with _open_training(run, training, offer.client, policy) as (client, training):
            examples = int(training.federation.clients.sizes[0])
            policy.check_examples(everything, examples)
            shares = parts_of(config.algorithm.value).choice == "shares"
            epsilon = None if shares else policy.choice_epsilon
            memory = ClientMemory.open(settings.folder, offer.config)
            since = max(0, ledger.rounds + 1 - policy.choice_every)
            chosen = None if shares or clusters == 1 else memory.last_choice(since, clusters)
            copies = client.copies or int(most_copies(training.federation.clients)[0])
            costs = [ledger.after_training(of_model, examples, copies=copies, in_sum=in_sum) for of_model in trainings]
            if clusters > 1 and chosen is None:
                costs = [cost.after_answer("choice", epsilon) for cost in costs]
            dearest = max(costs, key=lambda cost: cost.epsilon(policy.delta))
            _charge(ledger, dearest, policy, settings, f"round {offer.round}")
            finite = math.isfinite(dearest.epsilon(policy.delta))
            state = _safe_answer(lambda: memory.restore(_state(training, offer, config.seed)), offered, finite=finite)
            fresh = clusters > 1 and chosen is None and not shares
            if settings.risk == "client" or (fresh and epsilon is not None):
                choice = _safe_answer(lambda: _choice(training, state, offer, settings), 0, finite=finite)
                if fresh:
                    coins = _noise_stream(config, settings)("choice", offer.round).numpy()
                    chosen = choice if epsilon is None else randomised_response(choice, clusters, epsilon, coins)
                    memory.save_choice(ledger.rounds, chosen)
            # All models are now the chosen one, whichever index the algorithm picks.
            state, cluster = (state, 0) if chosen is None else (_with_one_model(state, chosen), chosen)
            best = torch.tensor([examples]) if shares else None
            unmoved = ClientUpdate(cluster, examples, offer.models[cluster].clone(), best)
            update, after = _safe_answer(
                lambda: _finite_round(training, state, count_best=shares),
                (unmoved, replace(state, round=offer.round)),
                finite=finite,
            )
            if chosen is not None:
                update = replace(update, cluster=chosen)
                after = replace(after, assignment=torch.full_like(after.assignment, chosen))
            elif clusters > 1:
                memory.save_choice(ledger.rounds, update.cluster)
            memory.save(after)
            return update


def histograms_reply(offer: Offer, settings: NodeSettings) -> np.ndarray:
    """Return a client's histograms (2, B) of losses on the offered model, with the run's noise.

    Raises:
        NotAllowedError: the node's policy, budget or ledger does not allow the histograms.
        InputError: the client has no hold-out examples.
    """
    policy = Policy.read(settings.policy)
    policy.check_question("histogram", "for a histogram")
    run, (model,) = _requested_run(offer, settings, policy), offer.models
    epsilon = run.config.red_team.histograms.epsilon
    _charge_answer("histogram", epsilon, offer, policy, settings)
    with _open_training(run, _training(run, settings), offer.client, policy) as (_, training):
        federation = training.federation
        require(len(federation.holdout.indices) > 0, "the client has no hold-out examples for histograms")
        parts, nothing = (federation.clients, federation.holdout, training.engine), np.zeros((2, len(EDGES) + 1))
        counts = _safe_answer(lambda: client_histograms(model, *parts), nothing, finite=epsilon is not None)
        if epsilon is not None:
            stream = _noise_stream(run.config, settings)("red team", offer.round, "histograms", "noise")
            seed = int(stream.seeds(federation.ids)[0])
            counts = counts + discrete_laplace(epsilon, counts.shape, np.random.default_rng(seed))
        return counts


def vote_reply(offer: Offer, settings: NodeSettings) -> bool:
    """Return whether the offered risk exceeds the client's limit, by randomised response if the run requires it.

    Raises:
        NotAllowedError: the node's policy, budget or ledger does not allow the vote.
        InputError: the run has no coordinator.
    """
    policy = Policy.read(settings.policy)
    policy.check_question("vote", "for a vote")
    run = _requested_run(offer, settings, policy)
    section = run.config.coordinator
    require(section is not None, "a vote needs a run with [coordinator]")
    assert section is not None
    epsilon = section.coordinator().vote_epsilon
    _charge_answer("vote", epsilon, offer, policy, settings)
    stream = _noise_stream(run.config, settings)("coordinator", offer.round)
    threshold, ids = run.preferences.threshold, torch.tensor([offer.client])
    return bool(over_limit_answers(offer.risks, threshold, ids, epsilon, stream)[0])


def _charge_answer(
    kind: Literal["histogram", "vote"], epsilon: float | None, offer: Offer, policy: Policy, settings: NodeSettings
) -> None:
    """Charge the ledger for a histogram or vote in advance, or raise `NotAllowedError`."""
    with FileLock(private_folder(settings.folder) / "lock"):
        ledger = Ledger.newest(settings.folder, offer.ledger)
        policy.check_answer(kind, epsilon, ledger)
        _charge(ledger, ledger.after_answer(kind, epsilon), policy, settings, f"a {kind} of round {offer.round}")


def _charge(before: Ledger, after: Ledger, policy: Policy, settings: NodeSettings, what: str) -> None:
    """Write the ledger ``after`` an answer, or raise `NotAllowedError` if it exceeds the budget."""
    epsilon, spent = after.epsilon(policy.delta), before.epsilon(policy.delta)
    if math.isinf(epsilon) and settings.epsilon_budget < math.inf:
        raise NotAllowedError(
            f"'epsilon-budget' is {settings.epsilon_budget:g}, but {what} has infinite epsilon; use DP-SGD, the "
            "policy's 'choice_epsilon', and noise in histograms and votes"
        )
    if epsilon > settings.epsilon_budget:
        raise NotAllowedError(
            f"the privacy budget of epsilon {settings.epsilon_budget:g} is spent: {spent:.3f} before and {epsilon:.3f} "
            f"after {what}"
        )
    after.save(settings.folder / LEDGER)


def _safe_answer(answer: Callable[[], _Answer], otherwise: _Answer, *, finite: bool) -> _Answer:
    """Return the ``answer``, or ``otherwise`` if the answer fails after a charge of ``finite`` epsilon."""
    try:
        return answer()
    except Exception:
        if not finite:
            raise
        LOG.exception("an answer failed after its charge; the server receives a neutral answer")
        return otherwise


def _choice(training: Training, state: State, offer: Offer, settings: NodeSettings) -> int:
    """Return the algorithm's choice of a model; with ``risk = "client"``, the client estimates the risks."""
    if settings.risk == "client":
        risks = own_risks(state.models, training.federation.clients, training.federation.holdout, training.engine)
        _write_risks(settings.folder, offer, risks.tolist())
        state = replace(state, risks=risks)
    one = torch.zeros(1, dtype=torch.int64)
    return int(training.algorithm.plan(state, training.cohort_of(state, one)).assignment[0])


def _finite_round(training: Training, state: State, *, count_best: bool) -> tuple[ClientUpdate, State]:
    update, after = client_round(training, state, count_best=count_best)
    require(bool(torch.isfinite(update.end).all()), "the trained model has NaN or infinite numbers")
    return update, after


def _with_one_model(state: State, chosen: int) -> State:
    """Return ``state`` with all models replaced by the model ``chosen``."""
    same = torch.full((len(state.models),), chosen)
    directives = {name: values[same] for name, values in state.directives.items()}
    return replace(state, models=state.models[same], risks=state.risks[same], directives=directives)


def randomised_response(choice: int, choices: int, epsilon: float, coins: np.random.Generator) -> int:
    """Return the choice with probability ``e^epsilon / (e^epsilon + K - 1)``, otherwise another of K ``choices``.

    >>> randomised_response(1, 3, 50.0, np.random.default_rng(0))
    1
    """
    if coins.random() < 1 / (1 + (choices - 1) * math.exp(-epsilon)):
        return choice
    return (choice + int(coins.integers(1, choices))) % choices


def _requested_run(offer: Offer, settings: NodeSettings, policy: Policy) -> AskedRun:
    numbers = (offer.models, offer.risks, *offer.directives.values())
    require(all(bool(torch.isfinite(part).all()) for part in numbers), "the server's offer has NaN or infinite numbers")
    run = asked_run(offer.config, settings, offer.classes, offer.scale, offer.features, offer.frozen)
    parameters = run.setup.model.parameters
    policy.check_run(run.config, parameters, offer.classes, settings)
    require(
        offer.models.dim() == 2 and offer.models.shape[1] == parameters,
        f"the server's models must have {parameters} parameters (got {offer.models.shape[-1]})",
    )
    return run


def _training(run: AskedRun, settings: NodeSettings) -> Training:
    config, setup = run.config, run.setup
    steered = () if config.coordinator is None else (config.coordinator.coordinator(),)
    later: Any = None
    return Training(
        federation=later,
        algorithm=parts_of(config.algorithm.value).client,
        local=setup.local,
        engine=later,
        stream=_noise_stream(config, settings) if _has_noise(run) else Stream(config.seed),
        client_filter=setup.client_filter,
        defenses=(*setup.defenses, *steered),
    )


@contextmanager
def _open_training(run: AskedRun, training: Training, number: int, policy: Policy) -> Iterator[tuple[Client, Training]]:
    """Yield the node's client with the id ``number``, and its ``training`` with an open engine."""
    client = open_client(run, columns=policy.columns, own_classes=policy.classes)
    config = client.config
    backend = None if config.engine.backend == "auto" else config.engine.backend
    with Engine(
        client.setup.model, threads=run.node.threads, precision=config.engine.precision, backend=backend
    ) as engine:
        federation = replace(engine.prepare(client.federation), ids=torch.tensor([number]))
        yield client, replace(training, federation=federation, engine=engine)


def _noise_stream(config: Config, settings: NodeSettings) -> Stream:
    return Stream(secrets.randbits(128) if settings.noise == "secret" else config.seed)


def _has_noise(run: AskedRun) -> bool:
    """Return whether the client's training or update may have noise; batches are then secret too."""
    coordinator, setup = run.config.coordinator, run.setup
    steered = coordinator is not None and coordinator.dp_sgd is not None
    return steered or setup.client_filter is not None or any(isinstance(rule, DPSGD) for rule in setup.defenses)


def _state(training: Training, offer: Offer, seed: int) -> State:
    """Return the state before the round for this client alone, without the client's memory."""
    clusters = len(offer.models)
    # Algorithms need at least as many clients as models, so the crowd consists of copies of this client.
    crowd = training.federation.take(torch.zeros(clusters, dtype=torch.int64))
    # Initial values come from the run's seed; the client's own stream is for batches and noise.
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
    """Add the estimates of the client and the server to the client's ``risks.csv``, once per round."""
    path = folder / "risks.csv"
    rows = pd.DataFrame(
        {"round": offer.round, "model": range(len(risks)), "own": risks, "server": offer.risks.tolist()}
    )
    if path.exists():
        earlier = pd.read_csv(path)
        rows = pd.concat([earlier[earlier["round"] < offer.round], rows])
    write_text(path, rows.to_csv(index=False, float_format="%.6f"), mode=PRIVATE)
