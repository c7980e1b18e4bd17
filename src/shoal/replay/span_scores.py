"""The span attacks on the first rounds of a federation: of the server on updates, of a client on the models' moves."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms import MRMTL, FedOpt, FedSoft, Pooling, Scaffold
from shoal.algorithms.wrapper import with_bases
from shoal.attacks import Candidates, Knowledge, ModelSpan, OwnedRecords, ServerOptimizer, SpanScores, UpdateSpan
from shoal.attacks.scores.stack import Stack
from shoal.attacks.span.record_scores import calibrated
from shoal.attacks.updates.update_scores import NOBODY
from shoal.audit.reference_records import AttackScores
from shoal.audit.update_audit import ScoredUpdates
from shoal.core.errors import InputError, require
from shoal.core.representation import one_line
from shoal.defenses import LaplaceNoise
from shoal.engine import Engine, RoundUpdates, State, Training
from shoal.metrics.intervals import Ints
from shoal.replay.first_rounds import MAX_BYTES, ROUNDS, FirstRounds

SPANS = (ModelSpan(), UpdateSpan())
"""The span attacks that an audit asks."""

SPAN_NAMES = tuple(attack.name for attack in SPANS)

SpansOfRun = tuple[dict[str, AttackScores], dict[str, str]]
"""The scores of span attacks by name, and why others could not be asked."""

TOO_LARGE = f"the updates of one round take more than {MAX_BYTES / 1e6:,.0f} MB of memory"
"""Why an attack on updates is left out."""


@dataclass(frozen=True, eq=False)
class CandidateRecords:
    """M records whose membership is asked, and Z of which the attacker knows that nobody trained on them.

    Args:
        client: (M,) int64, the id of the client that each belongs or would belong to.
        x: inputs (M, ...).
        y: labels (M,), or targets of a regression.
        group: (M,) int64, whose distribution each follows.
        known, known_y, known_group: inputs (Z, ...), labels and groups of the others.
    """

    client: Tensor
    x: Tensor
    y: Tensor
    group: Tensor
    known: Tensor
    known_y: Tensor
    known_group: Tensor
    __repr__ = one_line

    def candidates(self, row: Tensor | None = None) -> Candidates:
        """The records for an attack, of one client each by ``row`` (M,); strata are groups, then groups with labels."""
        if not len(self.known):
            return Candidates(self.x, row=row)
        strata = [self.group[:, None], self.known_group[:, None]]
        if not self.y.is_floating_point():
            classes = 1 + int(max(self.y.max(), self.known_y.max()))
            labels = (self.y[:, None], self.known_y[:, None])
            strata = [torch.cat([of, of * classes + label], dim=1) for of, label in zip(strata, labels, strict=True)]
        of_x, of_known = strata
        return Candidates(self.x, self.known, of_x, of_known, row, self.y, self.known_y)


def span_scores(
    seen: FirstRounds,
    asked: CandidateRecords,
    engine: Engine,
    knowledge: Knowledge,
    names: Collection[str] = SPAN_NAMES,
) -> SpansOfRun:
    """The scores (M,) of each of `SPANS` of these ``names`` that can be asked, by its name, and why others cannot.

    A record is asked of its own client's updates, and of the moves of every cluster's model, as whoever does not know
    its cluster would. It has no score (NaN) where its client sent nothing in these rounds.
    """
    scores, omitted = dict[str, AttackScores](), dict[str, str]()
    attacks: tuple[Callable[[], AttackScores], ...] = (
        lambda: _of_models(seen, asked, engine, knowledge),
        lambda: _of_updates(seen, asked, engine, knowledge),
    )
    for attack, score in zip(SPANS, attacks, strict=True):
        if attack.name not in names:
            continue
        if not bool(torch.isin(asked.client, seen.senders).any()):
            omitted[attack.name] = "no client of an attacked record sent an update in the first rounds"
        elif attack.view == "server" and not seen.updates:
            omitted[attack.name] = TOO_LARGE
        else:
            try:
                found = score()
            except InputError as error:
                omitted[attack.name] = str(error)
                continue
            seen_scores = found.score[~np.isnan(found.score)]
            # An attack that says nothing must not decide.
            if len(seen_scores) and seen_scores.min() == seen_scores.max():
                omitted[attack.name] = "says the same of every record: noise hides what was trained on"
            else:
                scores[attack.name] = found
    return scores, omitted


def spans_to_repeat(found: Mapping[str, AttackScores], references: int) -> tuple[str, ...]:
    """The names of the span attacks that are asked of reference federations too, where a `Stack` of attacks reads them.

    A stack needs several federations. An attack that is exact of every record needs no stack: no regression on what
    others say can be right more often.
    """
    if references < Stack.least:
        return ()
    asked = {name: ~np.isnan(scores.score) for name, scores in found.items()}
    exact = {name for name, scores in found.items() if scores.exact is not None and scores.exact[asked[name]].all()}
    return tuple(name for name in found if name not in exact)


def _of_updates(seen: FirstRounds, asked: CandidateRecords, engine: Engine, knowledge: Knowledge) -> AttackScores:
    clients = torch.cat([updates.clients for updates in seen.updates]).unique()
    sent = torch.isin(asked.client, clients)
    row = torch.where(sent, torch.searchsorted(clients, asked.client), -1)
    found = UpdateSpan().score(seen.updates, asked.candidates(row), engine, knowledge)
    columns = np.arange(len(row))
    score, threshold = (np.where(sent, values[row, columns], np.nan) for values in (found.score, found.threshold))
    return AttackScores(UpdateSpan.view, score, threshold, exact=found.exact[row])


def _of_models(seen: FirstRounds, asked: CandidateRecords, engine: Engine, knowledge: Knowledge) -> AttackScores:
    candidates = asked.candidates()
    scores = largest(ModelSpan().score(seen.moves(), candidates, engine, knowledge, seen.first), candidates)
    unseen = ~torch.isin(asked.client, seen.senders).numpy()
    scores.score[unseen], scores.threshold[unseen] = np.nan, np.nan
    return scores


def spans_of_updates(
    rounds: Iterable[RoundUpdates], records: OwnedRecords, clients: Ints, engine: Engine, knowledge: Knowledge
) -> tuple[list[ScoredUpdates], dict[str, str]]:
    """The span attacks on recorded rounds, each record asked of every client, and why one cannot be asked.

    The attacker knows every second record that nobody trained on; these set thresholds and have no score (NaN). The
    first `ROUNDS` updates of each client are read, as far as they fit into memory. The moves of models are those of the
    first rounds that follow each other.

    Args:
        rounds: recorded updates, in order.
        records: M records.
        clients: (N,) their ids, of `UpdateScores`.
        engine: of the model that was trained.
        knowledge: of training.
    """
    kept, models, first = _kept(rounds)
    nobody = torch.nonzero(records.client == NOBODY).flatten()
    kind = records.group[nobody] * (int(records.label.max()) + 1) + records.label[nobody]
    known = nobody[torch.argsort(kind, stable=True)[1::2]]
    columns = torch.nonzero(~torch.isin(torch.arange(len(records)), known)).flatten()
    x, y, group = (
        [of[part.to(of.device)] for part in (columns, known)] for of in (records.x, records.y.cpu(), records.group)
    )
    candidates = CandidateRecords(
        records.client[columns], x[0], y[0], group[0], known=x[1], known_y=y[1], known_group=group[1]
    ).candidates()

    def of_models() -> tuple[Ints, AttackScores]:
        require(len(models) > 1, "needs the models of rounds that follow each other")
        found = ModelSpan().score(torch.stack(models), candidates, engine, knowledge, first)
        return np.arange(len(clients)), largest(found, candidates)

    def of_updates() -> tuple[Ints, SpanScores]:
        require(bool(kept), TOO_LARGE)
        senders = torch.cat([updates.clients for updates in kept]).unique().numpy()
        return np.searchsorted(clients, senders), UpdateSpan().score(kept, candidates, engine, knowledge)

    scored, omitted = list[ScoredUpdates](), dict[str, str]()
    for attack, score in zip(SPANS, (of_models, of_updates), strict=True):
        try:
            rows, found = score()
        except InputError as error:
            omitted[attack.name] = str(error)
            continue
        values, threshold = np.full((2, len(clients), len(records)), np.nan)
        exact = np.zeros(values.shape, dtype=np.bool_)
        places = np.ix_(rows, columns.numpy())
        values[places], threshold[places] = found.score, found.threshold
        # Of models it is said of each record, of updates of each client.
        exact[places] = found.exact if isinstance(found, AttackScores) else found.exact[:, None]
        scored.append(ScoredUpdates(attack.name, attack.title, attack.view, values, threshold, exact))
    return scored, omitted


def _kept(rounds: Iterable[RoundUpdates]) -> tuple[list[RoundUpdates], list[Tensor], int]:
    """The rounds with the first updates of each client, and the models before the first rounds that follow each other,
    with the number of the first of these.
    """
    room, times = MAX_BYTES, Counter[int]()
    kept, models, first = list[RoundUpdates](), list[Tensor](), 1
    for updates in rounds:
        if not models:
            first = updates.round
        if updates.round == first + len(models) <= first + ROUNDS and (
            not models or updates.models.shape == models[0].shape
        ):
            models.append(updates.models)
        times.update(updates.clients.tolist())
        early = torch.tensor([times[client] <= ROUNDS for client in updates.clients.tolist()], dtype=torch.bool)
        room -= 4 * int(early.sum()) * updates.updates.shape[1]
        if room >= 0 and bool(early.any()):
            of_early = {name: getattr(updates, name)[early] for name in ("clients", "assignment", "updates")}
            kept.append(replace(updates, **of_early))
    return kept, models, first


def largest(found: SpanScores, candidates: Candidates) -> AttackScores:
    """The largest of each record's scores by K models, its threshold, and whether that model's span is exact.

    Scores of different models are compared by how far they are from those of known non-members, in standard deviations;
    of residuals it is their number of digits that is compared, since exact ones have five more than others. The largest
    of several scores exceeds a threshold more often than one does: where spans are not exact, thresholds are of the
    largest scores of the known ones.

    Args:
        found: the scores of ``candidates``.
        candidates: that were asked. Without known non-members they are compared by themselves.
    """
    of_model = np.flatnonzero(~np.isnan(found.score).all(axis=1))
    judged = ~np.isnan(found.known[of_model]).any(axis=0)
    values, cuts, known = (table[of_model] for table in (found.score, found.threshold, found.known[:, judged]))
    known = known if known.shape[1] else values
    if not found.noisy:
        values, cuts, known = (-np.log10(np.maximum(-table, 1e-8)) for table in (values, cuts, known))
    centre, width = known.mean(axis=1, keepdims=True), np.maximum(known.std(axis=1, keepdims=True), 1e-12)
    values, cuts, known = ((table - centre) / width for table in (values, cuts, known))
    exact, (strata, of_known) = found.exact[of_model], candidates.strata
    if (~exact).sum() > 1 and judged.any():
        cuts[~exact] = calibrated(known[~exact].max(axis=0), of_known[judged], strata, ModelSpan().false_alarms)
    best, columns = values.argmax(axis=0), np.arange(values.shape[1])
    return AttackScores(ModelSpan.view, values[best, columns], cuts[best, columns], exact=exact[best])


def knowledge_of(training: Training, state: State) -> Knowledge:
    """What everybody in a federation knows of how it trains from ``state`` on.

    Under a coordinator, whose directives differ between clusters and rounds, it is the first model's directives then.
    """
    sizes, parts = training.federation.clients.sizes.unique(), [*with_bases(training.algorithm)]
    optimizer = next((part for part in parts if isinstance(part, FedOpt)), None)
    noise = training.client_filter if isinstance(training.client_filter, LaplaceNoise) else LaplaceNoise(0.0)
    return Knowledge(
        local=training.local_of(replace(state, round=0), 0),
        examples=int(sizes) if len(sizes) == 1 else None,
        clients=len(training.federation),
        noise=0.0 if noise.epsilon is None else training.engine.model.layout.size**0.5 / noise.epsilon,
        relative_noise=noise.noise_multiplier or 0.0,
        server=None
        if optimizer is None
        else ServerOptimizer(
            optimizer.optimizer, optimizer.learning_rate, optimizer.beta1, optimizer.beta2, optimizer.tau
        ),
        pooling=next((part.share for part in parts if isinstance(part, Pooling)), 0.0),
        cohort=len(training.cohort(state.round + 1)),
        control_variates=any(isinstance(part, Scaffold) for part in parts),
        continued=any(
            isinstance(part, MRMTL) or (isinstance(part, FedSoft) and part.start == "personal") for part in parts
        ),
        dtype=training.engine.dtype,
    )
