"""What came out of a run: the summary, a row a client, a row a round and cluster, and the ROC curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.attacks import LossThreshold, MembershipAudit, ModelOutputs, RedTeam, evaluate_models
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import accounting
from shoal.engine import State, Training
from shoal.metrics import MembershipMetrics, adjusted_rand_index, exceeds_threshold, fairness, gap_accuracy, is_migrated
from shoal.simulation import membership_metrics, property_metrics
from shoal.simulation.compatibility import private_rule
from shoal.simulation.result import Result, Summary, known


@dataclass(frozen=True, eq=False)
class _Final:
    """The end of a run with what measuring it needs."""

    federation: Federation
    state: State
    observed: ModelOutputs
    audit: MembershipAudit
    test_right: Tensor
    """(K, M) bool, whether each model classifies each test example rightly."""

    @property
    def assignment(self) -> np.ndarray:
        return self.state.assignment.numpy()

    def test_accuracy(self) -> np.ndarray:
        """(K, G), each model on each group's test examples."""
        groups = range(len(self.federation.groups))
        columns = [self.test_right[:, self.federation.test.group == g].double().mean(dim=1) for g in groups]
        return torch.stack(columns, dim=1).numpy()

    def train_accuracy(self) -> np.ndarray:
        """(N,), each client's chosen model on its own training examples."""
        right = (self.observed.members.argmax(dim=1) == self.observed.labels).double()
        total = torch.zeros(len(self.federation), dtype=torch.float64).index_add_(0, self.observed.owner, right)
        return (total / self.federation.clients.sizes).numpy()


def measure(
    state: State, training: Training, red_team: RedTeam, stream: Stream, rows: Sequence[Mapping[str, float]]
) -> Result:
    """Measure the final ``state``: every client chooses among the final models, and these are attacked.

    Args:
        state: after the last round.
        training: what led there.
        red_team: whose attack is measured.
        stream: of this measurement.
        rows: the rows of `rounds.csv`.
    """
    federation, engine = training.federation, training.engine
    deployed, losses = training.deployed(state)
    assignment = deployed.assignment
    state = replace(state, assignment=assignment)
    attacks, records = red_team.fit(state, federation, engine, training.local_of_clusters(state), stream("attack"))
    observed = evaluate_models(state.models, assignment, federation, engine, records)
    final = _Final(
        federation=federation,
        state=state,
        observed=observed,
        audit=MembershipAudit.of(observed, attacks),
        test_right=observed.test.argmax(dim=2) == observed.test_labels,
    )
    exposure = [final.audit.of_cluster(k, federation) for k in range(len(state.models))]
    clients = _clients(final, losses, np.array([each.accuracy for each in exposure]))
    if all(len(each) for each in records):
        thresholds = [LossThreshold().fit(each, stream("loss threshold", k)) for k, each in enumerate(records)]
        by_loss = MembershipAudit.of(observed, thresholds)
    else:
        by_loss = None
    summary = _accuracy(final, clients) | membership_metrics.of_groups(final.audit, by_loss, federation)
    summary |= membership_metrics.of_clusters(final.audit, exposure, state.risks, federation) | _clusters(
        final, clients, exposure
    )
    if federation.property_schedule is not None:
        summary |= property_metrics.main_task_metrics(observed.test, final.assignment, federation)
    rule = private_rule(training.local_of(state, 0))
    if rule is not None:
        cohorts = [training.cohort(number) for number in range(1, state.round + 1)]
        spent = accounting.of_federation(federation, cohorts, training.local_of(state, 0), rule).numpy()
        clients = clients.assign(epsilon=spent)
        # Without noise nothing is guaranteed, and infinity is no number of JSON.
        summary |= {"epsilon": float(spent.max()) if np.isfinite(spent).all() else float("nan"), "delta": rule.delta}
    return Result(
        summary=known(summary),
        clients=clients,
        rounds=pd.DataFrame(list(rows)),
        roc=membership_metrics.curves(final.audit, federation),
        state=state,
    )


def _clients(final: _Final, losses: Tensor, exposure: np.ndarray) -> pd.DataFrame:
    federation, assignment = final.federation, final.assignment
    threshold = federation.preferences.threshold.numpy()
    return pd.DataFrame(
        {
            "client": federation.ids.numpy(),
            "group": [federation.groups[g] for g in federation.group.tolist()],
            "cluster": assignment,
            "examples": federation.clients.sizes.numpy(),
            "threshold": threshold,
            "alpha": federation.preferences.alpha.numpy(),
            "beta": federation.preferences.beta.numpy(),
            "loss": losses.numpy(),
            "accuracy": final.test_accuracy()[assignment, federation.group.numpy()],
            "mia": exposure[assignment],
            "violated": exceeds_threshold(exposure[assignment], threshold),
            "train_accuracy": final.train_accuracy(),
        }
    )


def _accuracy(final: _Final, clients: pd.DataFrame) -> Summary:
    """Accuracies are means over clients, each on its own group's test examples or its own training examples."""
    summary: Summary = {
        "accuracy.overall": float(clients["accuracy"].mean()),
        "train_accuracy.overall": float(clients["train_accuracy"].mean()),
    }
    for name in (final.federation.groups[g] for g in final.federation.groups_with_clients):
        theirs = clients[clients["group"] == name]
        test, train = float(theirs["accuracy"].mean()), float(theirs["train_accuracy"].mean())
        summary |= {
            f"accuracy.{name}": test,
            f"train_accuracy.{name}": train,
            f"gap.{name}": gap_accuracy(train, test),
        }
    return summary | _fairness(final)


def _fairness(final: _Final) -> Summary:
    """Each group's test examples, predicted by each model in the measure that the group's clients chose it."""
    test, group, assignment = final.federation.test, final.federation.group.numpy(), final.assignment
    labels, predictions, of_group, weights = [], [], [], []
    for g in final.federation.groups_with_clients:
        rows = (test.group == g).numpy()
        for k in np.unique(assignment[group == g]):
            predicted = final.observed.test[k].argmax(dim=1).numpy()[rows]
            labels.append(test.y.cpu().numpy()[rows])
            predictions.append(predicted)
            of_group.append(np.full(len(predicted), g))
            weights.append(np.full(len(predicted), float((assignment[group == g] == k).mean())))
    found = fairness(*(np.concatenate(each) for each in (predictions, labels, of_group, weights)))
    return {
        "fairness.demographic_parity": found.demographic_parity,
        "fairness.equal_opportunity": found.equal_opportunity,
        "fairness.equalized_odds": found.equalized_odds,
    }


def _clusters(final: _Final, clients: pd.DataFrame, exposure: Sequence[MembershipMetrics]) -> Summary:
    group, assignment = final.federation.group.numpy(), final.assignment
    summary: Summary = {
        "violations.total": int(clients["violated"].sum()),
        "migrated": int(is_migrated(assignment, group).sum()),
        "adjusted_rand_index": adjusted_rand_index(assignment, group),
    }
    for name in (final.federation.groups[g] for g in final.federation.groups_with_clients):
        summary[f"violations.{name}"] = int(clients.loc[clients["group"] == name, "violated"].sum())
    for k in range(len(exposure)):
        inside = clients[clients["cluster"] == k]
        test, train = float(inside["accuracy"].mean()), float(inside["train_accuracy"].mean())
        summary |= {
            f"clusters.{k}.clients": len(inside),
            f"clusters.{k}.examples": int(inside["examples"].sum()),
            f"clusters.{k}.accuracy": test,
            f"clusters.{k}.train_accuracy": train,
            f"clusters.{k}.gap": gap_accuracy(train, test),
        }
    return summary
