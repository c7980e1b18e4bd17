"""The records of a run whose membership is asked, with the scores of its models and of reference federations."""

from collections.abc import Sequence

import numpy as np

from shoal.attacks import OtherClusters
from shoal.data import Federation
from shoal.engine import Engine
from shoal.simulation.attacked_records import AuditRecords
from shoal.simulation.attacks_without_references import attacks_without_references, left_out
from shoal.simulation.reference_federations import AttackedRun, FederationScores, join_scores


def records_of_run(
    attacked: AttackedRun, target: FederationScores, references: Sequence[FederationScores], engine: Engine
) -> AuditRecords:
    """The records with their names: where each lies among the clients' examples or in the test set.

    Args:
        attacked: the run.
        target: its own scores.
        references: the scores of its reference federations.
        engine: with its network.
    """
    paired, federation = attacked.records, attacked.simulation.federation
    client = paired.client
    names = _client_names(federation)
    personal = {OtherClusters.name: "clients use models of their own"} if target.personal else {}
    places = [*(f"client-{i}" for i in paired.entry.tolist()), *(f"test-{i}" for i in paired.test.tolist())]
    return AuditRecords(
        scores=join_scores(target, references, client),
        record=np.array(places, dtype=object),
        client=np.array([names[i] for i in client.tolist()], dtype=object),
        group=np.array([federation.groups[g] for g in federation.group[client].tolist()], dtype=object),
        # Of a model of one's own no cluster's model is the one that trained on the record.
        all_models=None if target.personal else attacked.all_models(engine).numpy(),
        further=attacks_without_references(attacked, target.model, target.member, engine),
        omitted=left_out(attacked) | personal,
    )


def _client_names(federation: Federation) -> list[str]:
    return [str(i) for i in federation.ids.tolist()] if federation.names is None else list(federation.names)
