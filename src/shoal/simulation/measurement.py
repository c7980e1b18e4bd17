"""The final models measured: accuracy, exposure, fairness and clustering, overall, by group and by cluster."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from shoal.audit import MembershipAudit, RedTeam, canary_metrics, membership_metrics, one_group_mix
from shoal.audit.attack_metrics import attacks_on_records
from shoal.audit.exposure import exposure_of_clients
from shoal.audit.final_attacks import attack_final_models
from shoal.audit.members import Membership, is_personal
from shoal.audit.predictions import Answers
from shoal.audit.records import AttackedRecords
from shoal.audit.repeated_attacks import refit_metrics
from shoal.core.randomness import Stream
from shoal.data import Canaries, Federation
from shoal.defenses import accounting
from shoal.engine import Deployed, State, Training
from shoal.metrics import adjusted_rand_index, exceeds_threshold, fairness, gap_accuracy, is_migrated
from shoal.metrics.summary import Metrics, Summary
from shoal.models import Metric, accuracy
from shoal.simulation.coordination import accountable_trainings, coordinator_summary
from shoal.simulation.main_task import main_task_metrics
from shoal.simulation.outcome import Outcome

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Final:
    """The end of a run with what measuring it needs."""

    federation: Federation
    models: int
    deployed: Deployed
    losses: Tensor
    """(N,), of each client's model on all its training examples."""
    answers: Answers
    """Of the deployed models."""
    metric: Metric
    """What is reported as accuracy."""

    @property
    def cluster(self) -> NDArray[np.int64]:
        """(N,), each client's cluster."""
        return self.deployed.assignment.numpy()

    @property
    def model(self) -> NDArray[np.int64]:
        """(N,), the index of the deployed model that each client uses."""
        return self.deployed.model.numpy()


def measure(
    state: State,
    training: Training,
    red_team: RedTeam,
    stream: Stream,
    rows: Sequence[Mapping[str, float]],
    *,
    member_rounds: int,
    first_round: int = 1,
    canaries: Canaries | None = None,
    references: AttackedRecords | None = None,
) -> Outcome:
    """Measure the final ``state``: every client chooses among the final models, and these are attacked.

    Members of a model are the clients that trained it, not those that choose it at the end.

    Args:
        training: that led to ``state``.
        red_team: its attack is measured.
        rows: the rows of `rounds.csv`.
        member_rounds: how many rounds before a model's last training somebody who trained it still is a member.
        first_round: the number of the first round; epsilon is of the rounds from it on.
        canaries: of the federation; None: none.
        references: records of the run, with what attacks by reference federations say of them; then the strongest of
            all attacks decides how exposed a model is. None: there are none.
    """
    federation, engine = training.federation, training.engine
    deployed, losses = training.deployed(state)
    members = Membership.of_deployed(state, deployed, member_rounds)
    attacked = attack_final_models(
        state, deployed, training, red_team, stream, members=members, member_rounds=member_rounds
    )
    answers, audit = attacked.answers, attacked.configured.audits[0]
    by_loss = None if attacked.by_loss is None else attacked.by_loss.audits[0]
    if federation.classes is None:
        _warn_of_one_answer(audit, federation)
    metric = engine.model.metric_for(federation.classes)
    final = _Final(federation, len(state.models), deployed, losses, answers, metric)
    judged_by = None
    if references is not None:
        judged_by = attacks_on_records(references, federation.groups, attacked.by_key)
    every_attack = attacked.by_attack if judged_by is None else judged_by
    exposure = exposure_of_clients(every_attack, members.trainers.numpy(), federation)
    clients = _clients(final, membership_metrics.of_models(audit, judged_by)).assign(**exposure)
    if federation.names is not None:
        clients = clients.assign(name=list(federation.names))
    summary = (
        _of_clients(final, clients)
        | _of_classes(final)
        | membership_metrics.of_groups(audit, by_loss, federation, judged_by)
        # Clients with models of their own are attacked on those, and the clusters' models by the configured attack.
        | membership_metrics.of_clusters(
            attacked.shared.audits[0], state.risks, None if is_personal(deployed) else judged_by
        )
        | refit_metrics(attacked.configured, attacked.shared, federation)
        | coordinator_summary(state)
        | _of_shadow_models(red_team, state, federation, used=attacked.used_shadow_models)
    )
    if references is not None:
        summary |= Summary(overall={"references": references.records.scores.references})
    if answers.outputs is not None:
        summary |= Summary(overall=main_task_metrics(answers.outputs, final.model, federation))
    summary |= _of_privacy(training, state, first_round, clients)
    table = None
    if canaries is not None and len(canaries):
        table = canary_metrics.table_of_canaries(canaries, federation, deployed.models, members.latest, engine)
        summary |= canary_metrics.canary_summary(table, summary.overall.get("delta", canary_metrics.DELTA))
        clients = clients.assign(**canary_metrics.canaries_of_clients(table, federation))
    rounds, roc = pd.DataFrame(list(rows)), membership_metrics.roc_curves(audit, federation)
    return Outcome(summary=summary, clients=clients, rounds=rounds, roc=roc, state=state, canaries=table)


def _of_privacy(training: Training, state: State, first_round: int, clients: pd.DataFrame) -> Summary:
    """What differential privacy guarantees where local steps are private; adds the column "epsilon" to ``clients``."""
    trainings = accountable_trainings(training, state)
    if trainings is None:
        LOG.warning("no epsilon is stated, since a coordinator decided how private local steps were")
        return Summary()
    rule = accounting.private_rule(trainings.rounds[0])
    if rule is None:
        return Summary()
    cohorts = [training.cohort(number) for number in range(first_round, state.round + 1)]
    spent_by = accounting.of_federation(training.federation, cohorts, trainings, rule, first_round)
    clients["epsilon"] = spent_by.numpy()
    spent = float(clients["epsilon"].max())
    # Without noise nothing is guaranteed, and infinity is no number of JSON.
    return Summary(overall={"epsilon": spent if np.isfinite(spent) else float("nan"), "delta": rule.delta})


def _warn_of_one_answer(audit: MembershipAudit, federation: Federation) -> None:
    """Say for which groups an attack gives every example the same answer, and so measures nothing.

    Losses without a bound lead to that: a few shadow models that fit badly move the mean loss beyond all others.
    """
    same = []
    for g in federation.groups_with_clients:
        margins, _, _ = audit.group_scores(g, one_group_mix(g, federation))
        if (margins > 0).all() or (margins <= 0).all():
            same.append(federation.groups[g])
    if same:
        LOG.warning(
            "the attack's threshold lies beyond all examples of %s, so its balanced accuracy is 0.5 whatever models "
            "give away; the AUC (mia_auc) needs no threshold",
            ", ".join(same),
        )


def _of_shadow_models(red_team: RedTeam, state: State, federation: Federation, *, used: bool) -> Summary:
    """How many examples each cluster's shadow models train on, which half the shadow set limits."""
    if not used:
        return Summary()
    sizes = {k: red_team.shadow_models.size_of(state, federation, k) for k in range(len(state.models))}
    examples = {k: int(federation.clients.sizes[state.assignment == k].sum()) for k in sizes}
    small = [str(k) for k in sizes if red_team.shadow_models.size == "cluster" and sizes[k] < examples[k]]
    if small:
        LOG.warning(
            "the shadow set is too small for cluster %s: shadow models train on half of it, fewer examples than the "
            "cluster has, so its risk and exposure are estimated as if it were smaller",
            ", ".join(small),
        )
    return Summary(by_cluster={k: {"shadow_examples": size} for k, size in sizes.items()})


def _clients(final: _Final, of_models: NDArray[np.float64]) -> pd.DataFrame:
    """One row per client; ``of_models`` (S,) is the balanced accuracy on each model."""
    federation, group = final.federation, final.federation.group
    threshold, mia = federation.preferences.threshold.numpy(), of_models[final.model]
    return pd.DataFrame(
        {
            "client": federation.ids.numpy(),
            "group": [federation.groups[g] for g in group.tolist()],
            "cluster": final.cluster,
            "examples": federation.clients.sizes.numpy(),
            "threshold": threshold,
            "alpha": federation.preferences.alpha.numpy(),
            "beta": federation.preferences.beta.numpy(),
            "loss": final.losses.numpy(),
            "accuracy": final.answers.test[final.model, group.numpy()],
            "mia": mia,
            "violated": exceeds_threshold(mia, threshold),
            "train_accuracy": final.answers.training,
            "threshold_drawn": int(federation.preferences.drawn),
        }
    )


def _accuracies(clients: pd.DataFrame, metric: Metric) -> dict[str, float]:
    """Means over clients, each on its own group's test examples and on its own training examples.

    The gap is the balanced accuracy of an attack only where the metric is the share of examples that are right.
    """
    test, train = float(clients["accuracy"].mean()), float(clients["train_accuracy"].mean())
    gap = gap_accuracy(train, test) if metric is accuracy else float("nan")
    return {"accuracy": test, "train_accuracy": train, "gap": gap}


def _of_clients(final: _Final, clients: pd.DataFrame) -> Summary:
    """Accuracies and sizes, how clusters relate to groups, and whose threshold is exceeded."""
    federation, everyone = final.federation, _accuracies(clients, final.metric)
    group = federation.group.numpy()
    present = set(clients["group"].unique())
    groups = {name: clients[clients["group"] == name] for name in federation.groups if name in present}
    clusters = {k: clients[clients["cluster"] == k] for k in range(final.models)}
    return Summary(
        overall={f"{name}.overall": everyone[name] for name in ("accuracy", "train_accuracy")}
        | {
            "violations.total": int(clients["violated"].sum()),
            "exceeded.total": int(clients["exceeded"].sum()),
            "thresholds_drawn": int(clients["threshold_drawn"].sum()),
            "migrated": int(is_migrated(final.cluster, group).sum()),
            "adjusted_rand_index": adjusted_rand_index(final.cluster, group),
        },
        by_group={
            name: {
                **_accuracies(inside, final.metric),
                "violations": int(inside["violated"].sum()),
                "exceeded": int(inside["exceeded"].sum()),
                "exposure": float(inside["exposure"].mean()),
            }
            for name, inside in groups.items()
        },
        by_cluster={
            k: {"clients": len(inside), "examples": int(inside["examples"].sum())} | _accuracies(inside, final.metric)
            for k, inside in clusters.items()
        },
    )


def _of_classes(final: _Final) -> Summary:
    """What only a classification has: fairness, and how frequent the most frequent of a group's test examples is."""
    if final.federation.classes is None:
        return Summary()
    # A share of examples, which says nothing beside another metric than accuracy.
    guess = _most_frequent_class(final.federation) if final.metric is accuracy else {}
    return Summary(overall=_fairness(final), by_group=guess)


def _fairness(final: _Final) -> Metrics:
    """On each group's test examples, predicted by each model, weighted by the share of the group that uses it."""
    test, group, predicted = final.federation.test, final.federation.group.numpy(), final.answers.predicted
    assert predicted is not None
    labels, predictions, groups, weights = [], [], [], []
    for g in final.federation.groups_with_clients:
        rows = (test.group == g).numpy()
        # With a model for each client there are N M / G of each kind: few bits, and repeated when they are joined.
        actual = test.y.cpu().to(predicted.dtype).numpy()[rows]
        for k in np.unique(final.model[group == g]):
            labels.append(actual)
            predictions.append(predicted[k].numpy()[rows])
            groups.append(np.broadcast_to(np.int32(g), len(actual)))
            weights.append(np.broadcast_to(float((final.model[group == g] == k).mean()), len(actual)))
    differences = fairness(*(np.concatenate(each) for each in (predictions, labels, groups, weights)))
    return {f"fairness.{name}": value for name, value in asdict(differences).items()}


def _most_frequent_class(federation: Federation) -> Mapping[str, Metrics]:
    """The share of a class among each group's test examples: of the most frequent one of its training examples.

    It is the accuracy of always naming that class. The most frequent class of the test examples would be so by chance.
    """
    test, labels, clients = federation.test, federation.test.y.cpu(), federation.clients
    trained, trained_group = clients.y.cpu()[clients.indices], federation.group[clients.owners()]
    shares = {}
    for g in federation.groups_with_clients:
        own = labels[test.group == g]
        if len(own):
            guess = trained[trained_group == g].bincount().argmax()
            # Divided as whole numbers of Python: PyTorch's quotient has 24 bits, and an accuracy has 53.
            share = int((own == guess).sum()) / len(own)
            shares[federation.groups[g]] = {"most_frequent_class": share, "test_examples": len(own)}
    return shares
