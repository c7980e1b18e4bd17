"""What labels alone say of membership and of a record's owner: the baseline of attacks on updates.

    python experiments/attacks/labels_alone.py

An update tells how many examples of each label a client has. Printed: the AUC of that number as a score of membership
against records of all labels (30 examples of ten labels a client), and how often it names a record's owner on the
digits of `digits.toml`, mean and standard deviation over its seeds. Nothing is trained.
"""

from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from shoal.config.build import build
from shoal.sweeps import read_sweep


def membership_auc() -> float:
    """The AUC over 10,000 clients."""
    own = np.random.default_rng(0).multinomial(30, [0.1] * 10, size=10_000)  # examples of each label
    members, others = np.repeat(own.ravel(), own.ravel()), own.ravel()
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.mean() - (len(members) + 1) / 2) / len(others))


def owners() -> np.ndarray:
    """(seeds, 2): how often the client with most records of a label, or of label and group, is the owner."""
    rows = []
    sweep = read_sweep(Path(__file__).parent / "digits.toml")
    for run in sweep.runs[:5]:  # the seeds; all settings have these examples
        federation = build(run.config)[1].federation
        clients, owner = federation.clients, federation.clients.owners()
        label, group = clients.y[clients.indices], federation.group[owner]
        count = np.zeros((2, len(federation), 10))
        np.add.at(count, (group, owner, label), 1)
        rows.append([count.sum(axis=0).max(axis=0).sum(), count.max(axis=1).sum()] / count.sum())
    return np.array(rows)


def main() -> None:
    print(f"AUC of membership by labels alone: {membership_auc():.3f}")
    for name, values in zip(("labels", "labels and group"), owners().T, strict=True):
        print(f"owner by {name}: {values.mean():.3f} ± {values.std(ddof=1):.3f}")


if __name__ == "__main__":
    main()
