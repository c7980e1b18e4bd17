"""What is reconstructed of clients' updates from released models, as the keys of audit.json."""

from collections.abc import Iterable

import numpy as np

from shoal.attacks import UpdateScores
from shoal.attacks.updates.source_inference import client_groups
from shoal.audit.reconstruction_audit import audit_reconstruction
from shoal.core.errors import InputError
from shoal.engine import RoundUpdates
from shoal.metrics import mean_interval

RECONSTRUCTION = "reconstruction"
"""Its key in audit.json."""


def reconstruction_metrics(
    scores: UpdateScores, rounds: Iterable[RoundUpdates]
) -> tuple[dict[str, float], dict[str, str]]:
    """The keys and values of audit.json, over all clients and by group; or why there are none.

    Means over clients with intervals over them (Student's t), which take clients as independent: they are of the same
    moves. ``gain`` is the cosine minus that of the mean move, of each client.

    Args:
        scores: of the same rounds: how many records each client has, and of which group they are.
        rounds: recorded, in order.
    """
    owned = np.bincount(scores.client[scores.client >= 0], minlength=len(scores.clients))
    try:
        found = audit_reconstruction(rounds, dict(zip(scores.clients.tolist(), owned.tolist(), strict=True)))
    except InputError as error:
        return {}, {RECONSTRUCTION: str(error)}
    group = client_groups(scores)[np.searchsorted(scores.clients, found.clients.numpy())]
    flat = {"explained": found.explained, "rounds": float(found.rounds)}
    scopes = {"all": group >= 0, **{scores.groups[g]: group == g for g in np.unique(group[group >= 0])}}
    cosine, baseline = found.cosine.numpy(), found.baseline.numpy()
    for name, which in scopes.items():
        for metric, values in (("cosine", cosine), ("baseline", baseline), ("gain", cosine - baseline)):
            low, high = mean_interval(values[which])
            flat |= {f"{name}.{metric}": float(values[which].mean())}
            flat |= {f"{name}.{metric}.low": low, f"{name}.{metric}.high": high}
        flat |= {f"{name}.largest": float(cosine[which].max()), f"{name}.clients": float(which.sum())}
        flat |= {f"{name}.resolution": float(found.resolution.numpy()[which].mean())}
    return {f"{RECONSTRUCTION}.{key}": value for key, value in flat.items() if not np.isnan(value)}, {}
