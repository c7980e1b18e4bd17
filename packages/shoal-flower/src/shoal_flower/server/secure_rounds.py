"""The server's rounds by secure sums: the server learns the sum over each cluster, and records it in ``sums.csv``."""

import csv
import logging
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np
import torch

from shoal.attacks.queries.loss_histograms import EDGES, cross_fitted_accuracy
from shoal.audit import RedTeam
from shoal.audit.red_team import fill_unknown
from shoal.config.schema import Config
from shoal.core.atomic_files import open_to_append, write_text
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import Federation, Shards
from shoal.defenses import accounting
from shoal.engine import Engine, LocalSGD, RiskEstimate, RoundPlan, State, Training, summed_round
from shoal.metrics.intervals import Estimate, Floats
from shoal_flower.messages import Offer
from shoal_flower.secure_sums.contributions import (
    HISTOGRAMS,
    check_summable,
    models_digest,
    numbers_of,
    offer_digest,
    summed_histograms,
    summed_update,
)
from shoal_flower.secure_sums.coordinated_sum import ClusterSums, CoordinatedSum
from shoal_flower.secure_sums.primitives import KnownKeys
from shoal_flower.secure_sums.protocol_messages import (
    Answer,
    Delivery,
    Question,
    RefusedError,
    Session,
    SumKind,
    may_be_compared,
    pack_question,
    unpack_answer,
)
from shoal_flower.server.server_rounds import NAMES, Progress, Server
from shoal_flower.wire_codec import pack_models, pack_offer, unpack_refusal

LOG = logging.getLogger("shoal")

COLUMNS = ("round", "kind", "cluster", "clients", "opened", "examples", "norm")


@dataclass
class SecureRounds:
    """The rounds of a run by secure sums.

    The server does not know the clients of a cluster. The first n rows of the server's state represent the n clients of
    a round's sums, ordered by cluster, each with the cluster's mean number of examples.

    Args:
        means: the mean number of examples per client of each cluster, from the cluster's last revealed sum.
        last: the digest of the models in the last sum of updates, and the sum's members.
    """

    server: Server
    config: Config
    run: str = field(default_factory=lambda: secrets.token_hex(16))
    means: dict[int, float] = field(default_factory=dict)
    last: tuple[str, tuple[str, ...]] = ("", ())

    def __post_init__(self) -> None:
        if self.log.exists():
            for row in csv.DictReader(self.log.read_text(encoding="utf-8").splitlines()):
                if row["kind"] == "train" and row["opened"] == "1":
                    self.means[int(row["cluster"])] = int(row["examples"]) / int(row["clients"])
        else:
            write_text(self.log, ",".join(COLUMNS) + "\n")

    @property
    def log(self) -> Path:
        """The file of all sums that the server has seen."""
        return self.server.attendance.settings.out / "sums.csv"

    def federation(self, federation: Federation, state: State | None) -> Federation:
        """Return ``federation`` with numbers of examples from `means`."""
        if state is None:
            return federation
        sizes = torch.tensor([round(self.means.get(k, 0.0)) for k in state.assignment.tolist()], dtype=torch.int64)
        sizes = torch.cat([sizes, sizes.new_zeros(len(federation) - len(sizes))])
        nobody = torch.zeros(int(sizes.sum()), dtype=torch.int64)
        clients = federation.clients
        return replace(federation, clients=Shards.from_indices(clients.x, clients.y, nobody, sizes))

    def round(self, training: Training, state: State) -> tuple[State, RoundPlan]:
        """Run one round with the connected clients of its cohort, up to the estimate of risks.

        Raises:
            InputError: no sum was revealed in several consecutive rounds.
        """
        filtered = training.update_filter is not None
        require(not filtered, "[secure_aggregation] does not allow defences that change single updates")
        number, clusters = state.round + 1, len(state.models)
        cohort = [i for i in training.cohort(number).tolist() if self.server.members[i].node is not None]
        width, attendance = state.models.shape[1] + 1, self.server.attendance
        moves, counts, summed = torch.zeros(state.models.shape, dtype=torch.float64), [0] * clusters, False
        try:
            asked, sums = self._sum("train", number, cohort, state, width)
            for k, block in sums.blocks.items():
                members = int(sums.counts[k])
                try:
                    examples, moves[k] = summed_update(block, members, self.config, asked)
                except RefusedError as error:
                    attendance.events.add(number, "rejected", "all", None, f"the sum of cluster {k}: {error}")
                    continue
                counts[k], self.means[k] = members, examples / members
            known = {k: (self.means[k] * count, float(moves[k].norm())) for k, count in enumerate(counts) if count}
            self._write(number, "train", sums.counts.tolist(), known)
            for member in self.server.members:
                member.trained += member.name in sums.members
            summed = True
        except RefusedError as error:
            attendance.events.add(number, "failed", "all", None, str(error))
        attendance.end_round(number, merged=summed, otherwise="too few clients took part for a sum")
        assignment = torch.repeat_interleave(torch.arange(clusters), torch.tensor(counts))
        totals = [(round(self.means[k] * count), count) for k, count in enumerate(counts) if count]
        sizes = torch.tensor([(total + i) // count for total, count in totals for i in range(count)], dtype=torch.int64)
        after, plan = summed_round(training, state, assignment, sizes, moves)
        if len(assignment):
            nobody = torch.full((len(state.assignment) - len(assignment),), -1)
            after = replace(after, assignment=torch.cat([assignment, nobody]))
        return after, plan

    def histograms(self, state: State) -> dict[int, Floats]:
        """Return the histograms (2, 2, B) of each cluster whose two halves are revealed."""
        everybody = [i for i, member in enumerate(self.server.members) if member.node is not None and member.trained]
        try:
            _, sums = self._sum("histograms", state.round, everybody, state, 2 * (len(EDGES) + 1))
        except RefusedError as error:
            self.server.attendance.events.add(state.round, "failed", "all", None, f"histograms: {error}")
            return {}
        halves = {k: summed_histograms(block) for k, block in sums.blocks.items()}
        both = [k for k in range(len(state.models)) if {2 * k, 2 * k + 1} <= halves.keys()]
        counts = {k: np.stack([halves[2 * k], halves[2 * k + 1]]) for k in both}
        clients = sums.counts.reshape(-1, 2).sum(axis=1).tolist()
        self._write(state.round, "histograms", clients, {k: (float(part.sum()), 0.0) for k, part in counts.items()})
        return counts

    def epsilons(self) -> dict[str, float]:
        """Return ``epsilon`` and ``epsilon.<view>`` of the updates, or an empty mapping without noise in sums.

        The values hold for the client in the most sums and for records without copies, because the server cannot count
        copies. In the server's view, the attacker sees sums and may know one client's fraction of the noise.
        """
        rule = self.config.defenses.dp_sgd
        if rule is None or rule.noise != "sum":
            return {}
        rounds = torch.tensor([max(client.trained for client in self.server.attendance.roster.clients)])
        by_view = accounting.epsilons_by_view(rule, rounds, secure=True)
        values = {f"epsilon.{view}": float(epsilons.max()) for view, epsilons in by_view.items()}
        values = {"epsilon": values["epsilon.client"], **values, "delta": rule.delta}
        return {name: value for name, value in values.items() if isfinite(value)}

    def _sum(self, kind: SumKind, number: int, cohort: list[int], state: State, length: int) -> tuple[int, ClusterSums]:
        """Return the number of clients that began, and the sums over ``cohort``, or raise `RefusedError`."""
        server, section, began = self.server, check_summable(self.config), 0
        names = {server.members[i].name: i for i in cohort if not server.members[i].culprit}
        digest = models_digest(state.models)
        if kind == "histograms" or digest == self.last[0]:
            names = {name: names[name] for name in comparable(list(names), self.last[1], section.min_clients)}
        offers = {
            i: server.offer(number, server.members[i], state.models, state.risks, state.directives)
            for i in names.values()
        }

        def form(clients: int) -> tuple[int, np.dtype]:
            nonlocal began
            began = clients
            return length, HISTOGRAMS if kind == "histograms" else numbers_of(self.config, clients).dtype

        def reject(name: str, reason: str) -> None:
            server.attendance.discard(number, server.members[names[name]], "rejected", reason)

        if not names:
            raise RefusedError("no client is connected")
        offered = offer_digest(next(iter(offers.values())))
        session, clusters = Session(self.run, number, kind), len(state.models) * (2 if kind == "histograms" else 1)
        ask = partial(self._ask, names, offers)
        summing = CoordinatedSum(session, server.config, clusters, form, section.threshold, offered, ask, reject)
        known = KnownKeys.load(server.attendance.settings.out / "node-keys", fixed=False)
        try:
            sums = summing.run(list(names), known, section.min_clients)
        finally:
            for name in summing.culprits:
                server.members[names[name]].culprit = True
            if kind == "train" and summing.members:
                self.last = digest, summing.members
        return began, sums

    def _ask(
        self, names: Mapping[str, int], offers: Mapping[int, Offer], questions: Mapping[str, Question]
    ) -> Iterator[tuple[str, Answer, bytes]]:
        """Yield the answers in time to ``questions``, by name, and record missing answers."""
        attendance, members, shared = self.server.attendance, self.server.members, next(iter(offers.values()))
        positions, number = {names[name]: question for name, question in questions.items()}, shared.round
        models = pack_models(shared.models)
        messages = {
            i: pack_question(question, pack_offer(offers[i], models) if isinstance(question, Delivery) else None)
            for i, question in positions.items()
        }
        attendance.wait_for_some(positions)
        silent = set(positions)
        # Nobody knows which model a client trains, so a live view shows only the clients without an answer.
        self.server.watch(Progress(number, len(positions), 0, tuple(sorted(questions)[:NAMES]), {}))
        for i, answer in attendance.ask("secure", messages, number):
            silent.discard(i)
            member, question = members[i], positions[i]
            if answer.content is None:
                attendance.discard(number, member, answer.kind, answer.error)
            elif (refusal := unpack_refusal(answer.content)) is not None:
                attendance.discard(number, member, "refused", f"{question.stage}: {refusal.reason}")
            else:
                try:
                    yield member.name, *unpack_answer(answer.content, question)
                except RefusedError as error:
                    attendance.discard(number, member, "rejected", f"{question.stage}: {error}")
        for i in sorted(silent):
            reason = f"no reply by the deadline of '{positions[i].stage}' in round {number}"
            attendance.discard(number, members[i], "missed", reason)

    def _write(
        self, number: int, kind: SumKind, counts: Sequence[int], opened: Mapping[int, tuple[float, float]]
    ) -> None:
        with open_to_append(self.log) as file:
            for k, clients in enumerate(counts):
                examples, norm = opened.get(k, (0.0, 0.0))
                row = [number, kind, k, clients, int(k in opened), round(examples), f"{norm:.6g}"]
                csv.writer(file, lineterminator="\n").writerow(row)


@dataclass(frozen=True)
class SecureHistograms:
    """A `RiskEstimator` from sums of histograms over each half of a cluster's clients."""

    rounds: SecureRounds
    team: RedTeam

    @property
    def every(self) -> int:
        """The number of rounds between estimates."""
        return self.team.every

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """Estimate the risk of each cluster whose sums are revealed, keeping other clusters' risks."""
        del federation, engine, local, stream
        sums, half = self.rounds.histograms(state), np.arange(2)
        total = np.zeros((2, len(EDGES) + 1))
        everything = sum((counts.sum(axis=0) for counts in sums.values()), total)
        estimates = [
            cross_fitted_accuracy(sums[k], half, everything - sums[k].sum(axis=0)) if k in sums else Estimate()
            for k in range(len(state.models))
        ]
        return fill_unknown(estimates, state)


def comparable(names: Sequence[str], last: Collection[str], least: int) -> list[str]:
    """Choose the clients of ``names`` for another sum over the models of the last sum.

    Some clients are left out, because clients refuse a sum whose members differ from the last sum's members by fewer
    than ``least`` clients.

    Args:
        last: the members of the last sum over the same models.
        least: the smallest allowed difference, as a number of clients.

    Raises:
        RefusedError: too few clients remain for the sum.

    >>> comparable("abcdef", "abcdef", 3), comparable("abcdefg", "abcdef", 3), comparable("abcde", "abcdef", 3)
    (['a', 'b', 'c', 'd', 'e', 'f'], ['a', 'b', 'c', 'd', 'e', 'f'], ['a', 'b', 'c'])
    """
    if not last or may_be_compared(names, last, least):
        return list(names)
    both, apart = [name for name in names if name in last], len({*names} ^ {*last})
    if len(both) == len(last):
        return both
    surplus = set(both[len(both) - least + apart :])
    left = [name for name in names if name not in surplus]
    if len(left) < max(least, 2):
        raise RefusedError(
            f"the clients differ by {apart} from those of the last sum over the same models, and must differ by at "
            f"least {least}; nothing is asked"
        )
    return left
