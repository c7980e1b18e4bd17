"""Attacks on an audit's records without reference federations: fitted on shadow models, or by labels alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from shoal.attacks import Gap, MembershipAttack, Query, augmentation_votes, boundary_distance
from shoal.audit import reference_thresholds
from shoal.audit.attack_metrics import attack_key
from shoal.audit.members import is_personal
from shoal.audit.records import OUTSIDER, AttackScores, threshold_cells
from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun

LABEL_ATTACKS = ("label-only", "boundary-distance")
"""The keys in audit.json of the attacks that need labels alone."""

MOST_INPUTS = 4096
"""Numbers of an image, at most, for the distance to the boundary to be asked: 20 queries with noise on all of them."""

_Used = tuple[int, Tensor, Tensor]
"""The cluster of a model, its parameters (P,), and the records that are asked of it (m,) int64."""


def attacks_without_references(attacked: AttackedRun, model: Tensor, engine: Engine) -> dict[str, AttackScores]:
    """The run's own attack, the gap attack, and of images the two by labels alone; by their keys in audit.json.

    Args:
        attacked: the run.
        model: (N,) int64, the model of each client; see `FederationScores.model`.
        engine: with the run's network.
    """
    federation, own = attacked.simulation.federation, attacked.simulation.red_team.attack
    used = list(_models_in_use(attacked, model))
    found = {attack_key(own): _fitted(attacked, own, used, engine)}
    if federation.classes is None:
        return found
    found["gap"] = _fitted(attacked, Gap(), used, engine)
    client = attacked.records.client
    cells = threshold_cells(federation.group[client].numpy(), model[client].numpy())
    none = np.empty((len(client), 0), dtype=bool)
    for key in LABEL_ATTACKS:
        if key in left_out(attacked):
            continue
        scores = _by_label(key, attacked, used, engine).numpy()
        thresholds = reference_thresholds(scores, None, none, *cells)
        found[key] = AttackScores(OUTSIDER, scores, scores - thresholds)
    return found


def left_out(attacked: AttackedRun) -> dict[str, str]:
    """The attacks by labels alone that are not asked of these records, by their keys, and why."""
    federation = attacked.simulation.federation
    shape = tuple(federation.clients.x.shape[1:])
    if federation.classes is None:
        return dict.fromkeys(LABEL_ATTACKS, "needs classes")
    if len(shape) != 3:
        return dict.fromkeys(LABEL_ATTACKS, "changes images; the records are not images")
    if prod(shape) > MOST_INPUTS:
        return {
            "boundary-distance": f"is asked of images of at most {MOST_INPUTS:,} numbers; these have {prod(shape):,}"
        }
    return {}


def _fitted(attacked: AttackedRun, attack: MembershipAttack, used: Sequence[_Used], engine: Engine) -> AttackScores:
    """An attack that is fitted on shadow models of each cluster."""
    training, state = attacked.simulation.on(engine), attacked.state
    team, local = replace(attacked.simulation.red_team, attack=attack), training.local_of_clusters(state)
    # The streams of the attack at the end of the run, so that it is the same attack.
    fitted, shadows = team.fit(state, training.federation, engine, local, training.stream("final", "attack"))
    records = attacked.records
    x, (scores, margins) = records.federation.clients.x, torch.empty(2, 2 * len(records), dtype=torch.float64)
    for k, parameters, inside in used:
        rows, of_reference = records.rows_on_device(inside), shadows[k].reference
        query = Query.unseen(
            engine.outputs(parameters, x, rows).cpu(),
            records.labels[inside],
            None if of_reference is None else of_reference.evaluate(x, rows, engine),
            engine.model.loss,
        )
        scores[inside] = torch.from_numpy(fitted[k].score(query))
        margins[inside] = scores[inside] - fitted[k].threshold
    return AttackScores(OUTSIDER, scores.numpy(), margins.numpy())


def _by_label(key: str, attacked: AttackedRun, used: Sequence[_Used], engine: Engine) -> Tensor:
    """(2 Q,) float64: how many changed copies of each record get its label, or how much noise changes its label."""
    clients, scores = attacked.records.federation.clients, torch.empty(2 * len(attacked.records), dtype=torch.float64)
    for _, parameters, inside in used:
        rows = attacked.records.rows_on_device(inside)
        if key == "label-only":
            scores[inside] = augmentation_votes(engine, parameters, clients.x, clients.y, rows).double()
        else:
            noise = attacked.stream(key)
            scores[inside] = boundary_distance(engine, parameters, clients.x, clients.y, rows, noise)
    return scores


def _models_in_use(attacked: AttackedRun, model: Tensor) -> Iterator[_Used]:
    """The models that records are asked of."""
    deployed = attacked.deployed
    of_record, personal = model[attacked.records.client], is_personal(deployed)
    for s in of_record.unique().tolist():
        k = int(deployed.assignment[s]) if personal else s
        yield k, deployed.models[s], torch.nonzero(of_record == s).flatten()
