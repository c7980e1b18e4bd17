"""The records of a run whose membership is asked, with the scores of its models and of reference federations."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from shoal.attacks import OtherClusters
from shoal.audit.records import AuditRecords
from shoal.data import Federation
from shoal.engine import Engine
from shoal.replay.attacks_without_references import attacks_without_references, left_out
from shoal.replay.reference_federations import AttackedRun, FederationScores, join_scores


def records_of_run(
    attacked: AttackedRun, target: FederationScores, references: Sequence[FederationScores], engine: Engine
) -> AuditRecords:
    """The records, named as the user has them.

    Args:
        attacked: the run.
        target: its own scores.
        references: the scores of its reference federations.
        engine: with its network.
    """
    paired, federation = attacked.records, attacked.simulation.federation
    client = paired.client
    names = _client_names(federation)
    owners = [names[i] for i in client.tolist()]
    members = _names(federation, "clients", federation.clients.indices[paired.entry])
    rows = paired.test if paired.source == "test" else federation.holdout.indices[paired.test]
    others = _names(federation, paired.source, rows)
    personal = {OtherClusters.name: "clients use models of their own"} if target.personal else {}
    return AuditRecords(
        scores=join_scores(target, references, client),
        record=np.array(_unique([*members, *others], owners), dtype=object),
        client=np.array(owners, dtype=object),
        group=np.array([federation.groups[g] for g in federation.group[client].tolist()], dtype=object),
        # Of a model of one's own no cluster's model is the one that trained on the record.
        all_models=None if target.personal else attacked.all_models(engine).numpy(),
        further=attacks_without_references(attacked, target.model, engine),
        omitted=left_out(attacked) | personal,
        notes=attacked.notes,
        pair=np.tile(np.arange(len(paired)), 2),
    )


def _client_names(federation: Federation) -> list[str]:
    return [str(i) for i in federation.ids.tolist()] if federation.names is None else list(federation.names)


def _names(federation: Federation, part: str, rows: Tensor) -> list[str]:
    """What the user calls the examples in these rows of a part of the federation."""
    name_of = federation.origins.get(part, (part + "-{}").format)
    return [name_of(row) for row in rows.tolist()]


def _unique(names: list[str], owners: list[str]) -> list[str]:
    """The names; where several records have one, as with images that every group has, with the client of each."""
    times = Counter(names)
    return [f"{name} of {owner}" if times[name] > 1 else name for name, owner in zip(names, owners, strict=True)]
