"""The attacked records of a run, and attacks that use no matrix of reference scores.

The attacks are fitted on shadow models, read predicted labels, or follow a record's loss over the rounds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from shoal.attacks import (
    Gap,
    LossTrajectory,
    MembershipAttack,
    OtherClusters,
    Population,
    Query,
    ReferenceScores,
    SiteInference,
    augmentation_votes,
    boundary_distance,
)
from shoal.attacks.scores.stack import FOLDS, Regression, Stack
from shoal.audit import AuditRecords, reference_thresholds
from shoal.audit.attacked_records import threshold_cells
from shoal.audit.final_attacks import attack_name
from shoal.audit.model_scores import is_personal
from shoal.audit.record_table import CLIENT, RecordTable
from shoal.core.errors import require
from shoal.data import Federation
from shoal.data.swap_pairs import held_out_examples
from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun, FederationScores

LABEL_ATTACKS = ("label-only", "boundary-distance")
"""The keys of the label-only attacks in audit.json."""

MAX_INPUTS = 4096
"""The largest number of values per image for the boundary-distance attack, which sends 20 noisy queries."""

MOST_SITES = 100
"""The largest number of clients for site inference; the time grows with the square of this number."""

_UsedModel = tuple[int, Tensor, Tensor]
"""A model's cluster, its parameters (P,), and the records to attack with the model, (m,) int64."""


def records_of_run(
    attacked: AttackedRun, target: FederationScores, references: Sequence[FederationScores], engine: Engine
) -> AuditRecords:
    """Return the records with the user's client names, and with scores of the run and of the reference federations."""
    paired, federation = attacked.records, attacked.simulation.federation
    client = paired.client
    names = _client_names(federation)
    owners = [names[i] for i in client.tolist()]
    members = _names(federation, "clients", federation.clients.indices[paired.entry])
    rows = paired.test if paired.source == "test" else federation.holdout.indices[paired.test]
    non_members = _names(federation, paired.source, rows)
    personal = {OtherClusters.name: "clients use models of their own"} if target.personal else {}
    return AuditRecords(
        scores=join_scores(target, references, client),
        record=np.array(_unique([*members, *non_members], owners), dtype=object),
        client=np.array(owners, dtype=object),
        group=np.array([federation.groups[g] for g in paired.group.tolist()], dtype=object),
        # With personal models, no cluster model trained on the record.
        all_models=None if target.personal else attacked.all_models(engine).numpy(),
        further=attacks_without_references(attacked, target.model, engine),
        omitted=left_out(attacked) | personal,
        notes=attacked.notes,
        pair=np.tile(np.arange(len(paired)), 2),
    )


def join_scores(attacked: FederationScores, references: Sequence[FederationScores], client: Tensor) -> ReferenceScores:
    """Join the scores of the attacked federation and of R reference federations.

    Args:
        client: the client's position of each record, (2 Q,).
    """
    return ReferenceScores(
        score=attacked.score.numpy(),
        member=attacked.member.numpy(),
        reference=_columns([scores.score for scores in references], attacked.score),
        reference_member=_columns([scores.member for scores in references], attacked.member),
        model=attacked.model[client].numpy(),
        population=_population(attacked, references),
    )


def _columns(columns: Sequence[Tensor], like: Tensor) -> NDArray:
    """Stack R vectors (M,) into columns (M, R); without vectors, return (M, 0) with the type of ``like``."""
    return (torch.stack(list(columns), dim=1) if columns else like.new_empty(len(like), 0)).numpy()


def _population(attacked: FederationScores, references: Sequence[FederationScores]) -> Population | None:
    """Return the further examples' scores by each attacked model in use, and by the model that most of its clients use
    in each reference federation.
    """
    if not attacked.population.numel():
        return None
    score, reference, model = [], [], []
    for k in attacked.model.unique().tolist():
        users = attacked.model == k
        score.append(attacked.population[k])
        same = [scores.population[int(scores.model[users].mode().values)] for scores in references]
        reference.append(_columns(same, score[-1]))
        model.append(torch.full_like(score[-1], k, dtype=torch.int64))
    return Population(torch.cat(score).numpy(), np.concatenate(reference), torch.cat(model).numpy())


def attacks_without_references(attacked: AttackedRun, model: Tensor, engine: Engine) -> dict[str, RecordTable]:
    """Return the scores of the attacks that need no reference federation, by key of audit.json.

    The attacks are the configured attack and the gap attack, and two label-only attacks on images.

    Args:
        model: one model per client, (N,); see `FederationScores.model`.
    """
    federation, configured = attacked.simulation.federation, attacked.simulation.red_team.attack
    used = list(_models_in_use(attacked, model))
    answers = {attack_name(configured): _fitted(attacked, configured, used, engine)}
    if federation.classes is None:
        return answers
    answers["gap"] = _fitted(attacked, Gap(), used, engine)
    client = attacked.records.client
    cells = threshold_cells(attacked.records.group.numpy(), model[client].numpy())
    none = np.empty((len(client), 0), dtype=bool)
    for key in [key for key in LABEL_ATTACKS if key not in left_out(attacked)]:
        scores = _by_label(key, attacked, used, engine).numpy()
        thresholds = reference_thresholds(scores, None, none, *cells)
        answers[key] = RecordTable.from_columns(scores, threshold=thresholds)
    return answers


def left_out(attacked: AttackedRun) -> dict[str, str]:
    """Return the label-only attacks that cannot attack these records, by key of audit.json, with the reasons."""
    federation = attacked.simulation.federation
    shape = tuple(federation.clients.x.shape[1:])
    if federation.classes is None:
        return dict.fromkeys(LABEL_ATTACKS, "needs classes")
    if len(shape) != 3:
        return dict.fromkeys(LABEL_ATTACKS, "needs images")
    if prod(shape) > MAX_INPUTS:
        return {"boundary-distance": f"needs images of at most {MAX_INPUTS:,} numbers (got {prod(shape):,})"}
    return {}


def _fitted(attacked: AttackedRun, attack: MembershipAttack, used: Sequence[_UsedModel], engine: Engine) -> RecordTable:
    """Fit an attack on each cluster's shadow models, and score the records."""
    training, state = attacked.simulation.on(engine), attacked.state
    if training.presence is not None:
        present = training.present(state.round)
        training, state = training.take(present), state.take(present)
    team, local = replace(attacked.simulation.red_team, attack=attack), training.local_of_clusters(state)
    # The stream is that of the run's own final attack, so both attacks are equal.
    fitted, shadows = team.fit(state, training.federation, engine, local, training.stream("final", "attack"))
    records = attacked.records
    x, (scores, thresholds) = records.federation.clients.x, torch.empty(2, 2 * len(records), dtype=torch.float64)
    for k, parameters, inside in used:
        rows, of_reference = records.rows_on_device(inside), shadows[k].reference
        query = Query.offline(
            engine.outputs(parameters, x, rows).cpu(),
            records.labels[inside],
            None if of_reference is None else of_reference.evaluate(x, rows, engine),
            engine.model.loss,
        )
        scores[inside] = torch.from_numpy(fitted[k].score(query))
        thresholds[inside] = fitted[k].threshold
    return RecordTable.from_columns(scores.numpy(), threshold=thresholds.numpy())


def _by_label(key: str, attacked: AttackedRun, used: Sequence[_UsedModel], engine: Engine) -> Tensor:
    """Return the label-only or boundary-distance attack's score of each record, (2 Q,) float64."""
    clients, scores = attacked.records.federation.clients, torch.empty(2 * len(attacked.records), dtype=torch.float64)
    for _, parameters, inside in used:
        rows = attacked.records.rows_on_device(inside)
        if key == "label-only":
            scores[inside] = augmentation_votes(engine, parameters, clients.x, clients.y, rows).double()
        else:
            noise = attacked.stream(key)
            scores[inside] = boundary_distance(engine, parameters, clients.x, clients.y, rows, noise)
    return scores


def _models_in_use(attacked: AttackedRun, model: Tensor) -> Iterator[_UsedModel]:
    """Yield the models that score records."""
    deployed = attacked.deployed
    of_record, personal = model[attacked.records.client], is_personal(deployed)
    for s in of_record.unique().tolist():
        k = int(deployed.assignment[s]) if personal else s
        yield k, deployed.models[s], torch.nonzero(of_record == s).flatten()


def trajectory_attack(attacked: FederationScores, references: Sequence[FederationScores]) -> RecordTable | None:
    """Fit a regression of membership on losses over rounds, or return None if a federation has no trajectory."""
    if not references or not all(len(scores.trajectory) == len(attacked.trajectory) > 0 for scores in references):
        return None
    losses = [_losses(scores.trajectory) for scores in references]
    members = [scores.member.numpy() for scores in references]

    def fitted(federations: Sequence[int]) -> Regression:
        chosen = [losses[r] for r in federations], [members[r] for r in federations]
        return LossTrajectory().fit(*map(np.concatenate, chosen))

    # The federation that trained on opposite records may be in the fit: the regression does not identify records.
    everyone, parts = range(len(losses)), np.array_split(np.arange(len(losses)), min(FOLDS, len(losses)))
    reference = np.empty((len(losses[0]), len(losses)))
    # Few federations have no cross-validation: some may lack members, and stacks need more federations.
    for part in parts if len(losses) >= Stack.least else []:
        others = fitted([r for r in everyone if r not in part])
        reference[:, part] = np.stack([others.score(losses[r]) for r in part], axis=1)
    attack = fitted(everyone)
    scores = attack.score(_losses(attacked.trajectory))
    known = reference if len(losses) >= Stack.least else None
    return RecordTable.from_columns(scores, threshold=attack.threshold, view=CLIENT, reference=known)


def site_figures(attacked: AttackedRun, engine: Engine) -> dict[str, float]:
    """Return the figures of `SiteInference` on held-out examples, by key of audit.json.

    The attack covers the `MOST_SITES` clients with the most held-out examples.

    Raises:
        InputError: the task is a regression, or the clients of the held-out examples are unknown.
    """
    federation, deployed = attacked.simulation.federation, attacked.deployed
    held_out, _, within = held_out_examples(federation)
    require(federation.classes is not None, "site inference needs a classification task; remove '--site'")
    said = within == "client" and held_out.client is not None
    require(said, "site inference needs held-out examples of each client; remove '--site'")
    assert held_out.client is not None
    asked = torch.nonzero(held_out.client >= 0).flatten()
    counts = torch.bincount(torch.searchsorted(federation.ids, held_out.client[asked]))
    largest = federation.ids[counts.argsort(descending=True, stable=True)[:MOST_SITES]]
    asked = asked[torch.isin(held_out.client[asked], largest)]
    site = torch.searchsorted(federation.ids, held_out.client[asked])
    held_out = held_out.take(asked.to(held_out.y.device))
    model, outputs = deployed.model[site], list[Tensor]()
    order = torch.argsort(model, stable=True)
    for s in model.unique().tolist():
        rows = torch.nonzero(model == s).flatten().to(held_out.y.device)
        outputs.append(engine.outputs(deployed.models[s], held_out.x, rows).cpu())
    found = SiteInference().guess(
        torch.cat(outputs).double().numpy(), held_out.y.cpu()[order].numpy(), site[order].numpy()
    )
    figures = {"accuracy": found.outputs.accuracy, "low": found.outputs.low, "high": found.outputs.high}
    figures |= {"clients": len(site.unique())}
    figures |= {"chance": found.outputs.chance, "gain": found.gain, "gain.low": found.low, "gain.high": found.high}
    return {f"{SiteInference.name}.{key}": value for key, value in figures.items() if not np.isnan(value)}


def _losses(trajectory: Tensor) -> np.ndarray:
    """Convert logit-scaled confidences (T, 2 Q) into cross-entropies (2 Q, T) in nats."""
    return softplus(-trajectory).T.numpy()


def _client_names(federation: Federation) -> list[str]:
    return [str(i) for i in federation.ids.tolist()] if federation.names is None else list(federation.names)


def _names(federation: Federation, part: str, rows: Tensor) -> list[str]:
    """Return the user's names for the examples ``rows`` of ``part``."""
    name_of = federation.origins.get(part, (part + "-{}").format)
    return [name_of(row) for row in rows.tolist()]


def _unique(names: list[str], owners: list[str]) -> list[str]:
    """Return the names, and add the client's name to names that several records share."""
    times = Counter(names)
    return [f"{name} of {owner}" if times[name] > 1 else name for name, owner in zip(names, owners, strict=True)]
