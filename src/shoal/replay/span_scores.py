"""The span and joint attacks on a federation's rounds: the server attacks updates, a client attacks models."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from shoal.algorithms import MRMTL, FedOpt, FedSoft, Pooling, Scaffold
from shoal.algorithms.wrapper import with_bases
from shoal.attacks import (
    Candidates,
    Knowledge,
    ModelJoint,
    ModelSpan,
    ServerOptimizer,
    SpanScores,
    UpdateJoint,
    UpdateSpan,
)
from shoal.attacks.scores.stack import Stack
from shoal.attacks.span.layer_scores import calibrate_scores
from shoal.audit.record_table import RecordTable
from shoal.core.errors import InputError
from shoal.defenses import LaplaceNoise
from shoal.engine import Engine, State, Training
from shoal.metrics.intervals import Floats
from shoal.replay.first_rounds import MAX_BYTES, FirstRounds

SPANS = (ModelSpan(), UpdateSpan())
"""The span attacks of an audit."""

JOINTS = (ModelJoint(), UpdateJoint())
"""The joint attacks of an audit, used if the same view's span attack is not exact."""

SPAN_NAMES = tuple(attack.name for attack in SPANS)
JOINT_NAMES = tuple(attack.name for attack in JOINTS)


class SpansOfRun(NamedTuple):
    """The attacks on a run's rounds.

    Args:
        scores: the scores of the possible attacks, by attack name.
        omitted: the reasons for missing attacks, by attack name.
        notes: caveats about the attacks, in sentences without a full stop.
        repeat: the names of the attacks to repeat on reference federations.
    """

    scores: Mapping[str, RecordTable]
    omitted: Mapping[str, str]
    notes: tuple[str, ...] = ()
    repeat: tuple[str, ...] = ()


TOO_LARGE = f"the updates of one round take more than {MAX_BYTES / 1e6:,.0f} MB of memory"
"""The reason for missing attacks on updates."""


def on_list(asked: Candidates, further: Candidates | None) -> Candidates:
    """Return the attacked records, followed by the other candidates of a joint attack."""
    names = ("x", "y", "client", "examples")
    columns = [[getattr(part, name) for part in (asked, further) if part is not None] for name in names]
    return Candidates(**{name: torch.cat(parts) for name, parts in zip(names, columns, strict=True)})


def span_scores(
    seen: FirstRounds,
    asked: Candidates | None,
    engine: Engine,
    knowledge: Knowledge,
    names: Collection[str] = SPAN_NAMES,
    listed: Mapping[str, Candidates] | None = None,
) -> SpansOfRun:
    """Return the scores (M,) of each possible attack in ``names``, and the reasons for missing attacks.

    The span attack tests a record on the changes of every cluster's model, because the attacker does not know the
    client's cluster. The joint attack knows which clients trained which model. A record has the score NaN if its client
    sent no update in the attacked rounds.

    Args:
        asked: the attacked records, or ``None`` without records.
        names: the names of attacks in `SPANS` and `JOINTS`.
        listed: the further candidates of each joint attack, by attack name: the clients' other examples and further
            non-members.
    """
    chosen = [attack for attack in (*SPANS, *JOINTS) if attack.name in names]
    if asked is None or asked.client is None or not bool(torch.isin(asked.client, seen.senders).any()):
        reason = "no client of an attacked record sent an update in the first rounds"
        return SpansOfRun({}, {attack.name: reason for attack in chosen})
    scores, omitted, more = dict[str, RecordTable](), dict[str, str](), listed or {}
    attacks: dict[str, Callable[[], RecordTable]] = {
        ModelSpan.name: lambda: _of_models(seen, asked, engine, knowledge),
        UpdateSpan.name: lambda: _of_updates(seen, asked, engine, knowledge),
        ModelJoint.name: lambda: _of_list(
            asked,
            ModelJoint(),
            lambda whole: ModelJoint().score(seen.moves(), seen.weights(), whole, engine, knowledge, seen.first),
            more,
        ),
        UpdateJoint.name: lambda: _of_list(
            asked, UpdateJoint(), lambda whole: UpdateJoint().score(seen.updates, whole, engine, knowledge), more
        ),
    }
    for attack in chosen:
        if attack.view == "server" and not seen.updates:
            omitted[attack.name] = TOO_LARGE
        else:
            try:
                found = attacks[attack.name]()
            except InputError as error:
                omitted[attack.name] = str(error)
                continue
            seen_scores = found.score[~np.isnan(found.score)]
            # An attack without information must not decide.
            if len(seen_scores) and seen_scores.min() == seen_scores.max():
                omitted[attack.name] = "gives every record the same score: noise hides the training records"
            else:
                scores[attack.name] = found
    return SpansOfRun(scores, omitted)


def is_exact(scores: RecordTable | None) -> bool:
    """Return whether an attack is exact on every scored record."""
    return scores is not None and bool(scores.exact[~np.isnan(scores.score)].all())


def joints_to_ask(found: Mapping[str, RecordTable]) -> tuple[str, ...]:
    """Return the names of the joint attacks for views whose span attack is not exact on every record."""
    return tuple(joint.name for span, joint in zip(SPANS, JOINTS, strict=True) if not is_exact(found.get(span.name)))


def spans_to_repeat(spans: SpansOfRun, references: int) -> tuple[str, ...]:
    """Return the names of the span attacks to repeat on reference federations, for a `Stack` of attacks.

    A stack of attacks needs several reference federations. An attack that is exact on every record needs no stack.
    """
    if references < Stack.least:
        return ()
    return tuple(name for name in spans.repeat if name in spans.scores and not is_exact(spans.scores[name]))


def _of_list(
    asked: Candidates,
    attack: ModelJoint | UpdateJoint,
    score: Callable[[Candidates], tuple[Floats, Floats]],
    listed: Mapping[str, Candidates],
) -> RecordTable:
    """Return a joint attack's scores; the threshold calls half of each group's records members, as in the pairs."""
    assert asked.stratum is not None
    found = score(on_list(asked, listed.get(attack.name)))[0][: len(asked.x)]
    group = asked.stratum[:, 0].numpy()
    threshold = np.full(len(found), np.nan)
    for value in np.unique(group):
        rows = (group == value) & ~np.isnan(found)
        threshold[rows] = np.median(found[rows]) if rows.any() else np.nan
    return RecordTable.from_columns(found, threshold=threshold, view=attack.view)


def _of_updates(seen: FirstRounds, asked: Candidates, engine: Engine, knowledge: Knowledge) -> RecordTable:
    clients = torch.cat([updates.clients for updates in seen.updates]).unique()
    assert asked.client is not None
    sent = torch.isin(asked.client, clients)
    row = torch.where(sent, torch.searchsorted(clients, asked.client), -1)
    found = UpdateSpan().score(seen.updates, replace(asked, row=row), engine, knowledge)
    columns = np.arange(len(row))
    score, threshold = (np.where(sent, values[row, columns], np.nan) for values in (found.score, found.threshold))
    return RecordTable.from_columns(score, threshold=threshold, view=UpdateSpan.view, exact=found.exact[row])


def _of_models(seen: FirstRounds, asked: Candidates, engine: Engine, knowledge: Knowledge) -> RecordTable:
    assert asked.client is not None
    found = largest(ModelSpan().score(seen.moves(), asked, engine, knowledge, seen.first), asked)
    sent = torch.isin(asked.client, seen.senders).numpy()
    score, threshold = (np.where(sent, values, np.nan) for values in (found.score, found.threshold))
    return replace(found, score=score, threshold=threshold)


def largest(found: SpanScores, candidates: Candidates) -> RecordTable:
    """Return each record's largest score over K models, its threshold, and whether that model's span is exact.

    Scores of different models are compared by their distance from the scores of known non-members, in standard
    deviations. Residuals are compared by their logarithms, because exact residuals are five orders of magnitude smaller
    than inexact residuals. If several spans are not exact, the models' thresholds are fitted to the largest scores of
    known non-members.

    Args:
        candidates: the attacked records, which replace known non-members in the comparison if none are known.
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
        cuts[~exact] = calibrate_scores(known[~exact].max(axis=0), of_known[judged], strata, ModelSpan().false_alarms)
    best, columns = values.argmax(axis=0), np.arange(values.shape[1])
    score, threshold = values[best, columns], cuts[best, columns]
    return RecordTable.from_columns(score, threshold=threshold, view=ModelSpan.view, exact=exact[best])


def knowledge_of(training: Training, state: State) -> Knowledge:
    """Return the attacker's knowledge of a federation's training from ``state`` on.

    With a coordinator, the local settings of the first model in the next round count as known.
    """
    sizes, parts = training.federation.clients.sizes.unique(), [*with_bases(training.algorithm)]
    local = training.local_of(replace(state, round=0), 0)
    # Restore the decay over rounds, which `local_of` fixed for one round.
    local = replace(local, decay=local.round_decay, round_decay=1.0, rounds_done=0)
    optimizer = next((part for part in parts if isinstance(part, FedOpt)), None)
    noise = training.client_filter if isinstance(training.client_filter, LaplaceNoise) else LaplaceNoise(0.0)
    return Knowledge(
        local=local,
        examples=int(sizes) if len(sizes) == 1 else None,
        clients=len(training.present(state.round + 1)),
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
