"""Measurements of a finished training: accuracy, fairness and exposure.

The decorator `measurement` turns a function into a user-defined metric.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import nan
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks import LossThreshold
from shoal.audit.final_attacks import ByAttack, FinalAttacks, attack_name, exposure_of_clients
from shoal.audit.model_scores import Membership, ModelScores, Predictions, is_personal, mixes_of_non_members
from shoal.audit.record_table import RecordTable, measure, strongest
from shoal.audit.red_team import RedTeam
from shoal.core.formats import one_line
from shoal.data import Federation
from shoal.data.names import EVERYBODY
from shoal.data.preferences import View
from shoal.engine import DeployedModels, State, Training
from shoal.metrics import (
    MembershipMetrics,
    Metric,
    adjusted_rand_index,
    exceeds_threshold,
    fairness,
    gap_accuracy,
    is_migrated,
)
from shoal.metrics.intervals import Floats
from shoal.metrics.summary import Metrics, Summary, accuracy_key
from shoal.models import ModelMetric, accuracy

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FinishedTraining:
    """A finished training, with the deployed models and the attacks on these models.

    Args:
        training: the training, with the federation and the engine.
        losses: each client's mean training loss under the client's model, (N,).
        members: the clients that trained each deployed model.
        tables: further tables that measurements produce, by file name.
    """

    state: State
    training: Training
    red_team: RedTeam
    deployed: DeployedModels
    losses: Tensor
    members: Membership
    attacks: FinalAttacks
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    __repr__ = one_line

    @property
    def federation(self) -> Federation:
        """The clients, groups and test examples."""
        return self.training.federation

    @property
    def predictions(self) -> Predictions:
        """The deployed models' metrics and classes."""
        return self.attacks.predictions

    @property
    def metric(self) -> ModelMetric:
        """The metric reported as accuracy."""
        return self.training.engine.model.metric_for(self.federation.classes)

    @cached_property
    def records(self) -> RecordTable:
        """The configured attack's scores of each deployed model's members and non-members.

        The non-members are test examples, weighted to the members' groups and labels.
        """
        scores = self.attacks.configured[0]
        return RecordTable.join([scores.of_model(s) for s in range(len(scores.margins))])

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The table `clients.csv`, with one row per client."""
        federation, model, shares = self.federation, self.deployed.model.numpy(), self.federation.group_shares.numpy()
        group = [EVERYBODY] * len(federation) if federation.row_groups else federation.group.tolist()
        preferences, exposures = federation.preferences, self.exposures
        view = np.array(preferences.views(self.attacks.view))
        own = pd.concat([exposures[name][view == name] for name in exposures]).sort_index()
        threshold, mia = preferences.threshold.numpy(), own.pop("mia").to_numpy()
        columns = {
            "client": federation.ids.numpy(),
            "group": [federation.groups[g] if isinstance(g, int) else g for g in group],
            "cluster": self.deployed.assignment.numpy(),
            "examples": federation.clients.sizes.numpy(),
            "threshold": threshold,
            "alpha": preferences.alpha.numpy(),
            "beta": preferences.beta.numpy(),
            "loss": self.losses.numpy(),
            # The metric may be infinite where the share is 0.
            "accuracy": np.where(shares > 0, shares * self.predictions.test[model], 0.0).sum(axis=1),
            "mia": mia,
            "violated": exceeds_threshold(mia, threshold),
            "train_accuracy": self.predictions.training,
            "threshold_drawn": int(preferences.drawn),
        }
        columns |= {str(name): column.to_numpy() for name, column in own.items()}
        if preferences.view is not None:
            columns["view"] = view
        if federation.names is not None:
            columns["name"] = list(federation.names)
        return pd.DataFrame(columns)

    @cached_property
    def exposures(self) -> dict[View, pd.DataFrame]:
        """The columns of `exposure_of_clients` and ``mia``, for the run's view and the views in clients' limits."""
        federation, trainers, model = self.federation, self.members.trainers.numpy(), self.deployed.model.numpy()
        views: list[View] = [self.attacks.view, *federation.preferences.views(self.attacks.view)]
        by_model: dict[View, Sequence[ByAttack]] = {
            view: [*self.attacks.measured("model", view).values()] for view in dict.fromkeys(views)
        }
        return {
            view: pd.DataFrame(exposure_of_clients(attacks, trainers, federation)).assign(
                mia=self._accuracy_of_models(view, attacks)[model]
            )
            for view, attacks in by_model.items()
        }

    def _accuracy_of_models(self, view: View, by_model: Sequence[ByAttack]) -> Floats:
        """Return the balanced accuracy on each deployed model, (S,), by the configured or the strongest attack."""
        if self.attacks.records_of(view) is None:
            scores = self.attacks.configured[0]
            return np.array([measure(scores.of_model(s)).accuracy for s in range(len(scores.margins))])
        return np.array([by_attack[strongest(by_attack)[0]].accuracy for by_attack in by_model])


@runtime_checkable
class Measurement(Protocol):
    """A function that measures one or more metrics of a finished training; see `measurement`."""

    @property
    def name(self) -> str:
        """The key in `summary.json`, or the common prefix of several keys."""
        ...

    @property
    def title(self) -> str:
        """The title in tables."""
        ...

    def measure(self, finished: FinishedTraining, /) -> Summary:
        """Measure metrics of the whole run, per group or per cluster; `summary.json` omits NaN metrics."""
        ...


@dataclass(frozen=True)
class _Function:
    """A `Measurement` made from a function."""

    name: str
    title: str
    measure: Callable[[FinishedTraining], Summary]
    metrics: tuple[Metric, ...] = ()


def measurement(
    name: str, title: str, *metrics: Metric
) -> Callable[[Callable[[FinishedTraining], Summary]], Measurement]:
    """Turn a function of a finished training into a `Measurement`.

    Args:
        name: the key in `summary.json`, or the common prefix of several keys.
        metrics: the heading of each key in tables. The default is one heading made from ``name`` and ``title``.

    Example:
        >>> from shoal.audit import measurement
        >>> from shoal.metrics.summary import Summary
        >>> @measurement("worst_client", "Accuracy of the worst client")
        ... def worst_client(finished):
        ...     return Summary(overall={"worst_client": float(finished.clients["accuracy"].min())})
        ...
        >>> worst_client.title
        'Accuracy of the worst client'
    """
    return lambda function: _Function(name, title, function, metrics)


def declared_metrics(measurements: Sequence[object]) -> tuple[Metric, ...]:
    """Return the table headings that measurements declare."""
    shown: list[Metric] = []
    for measurement in measurements:
        alone = (Metric(measurement.name, measurement.title),) if isinstance(measurement, Measurement) else ()
        shown += getattr(measurement, "metrics", ()) or alone
    return tuple(shown)


@measurement("accuracy", "Accuracy")
def client_accuracy(finished: FinishedTraining) -> Summary:
    """Measure accuracies, cluster sizes, the agreement of clusters with groups, and exceeded limits."""
    federation, clients, metric = finished.federation, finished.clients, finished.metric
    group, cluster = federation.group.numpy(), clients["cluster"].to_numpy()
    exposure = finished.exposures[finished.attacks.view]["exposure"]
    overall = {f"{name}.overall": value for name, value in _accuracies(clients, metric).items() if name != "gap"}
    own = federation.preferences.views(finished.attacks.view)
    if others := sum(view != finished.attacks.view for view in own):
        overall["limits_of_other_views"] = others
    overall |= {
        "violations.total": int(clients["violated"].sum()),
        "exceeded.total": int(clients["exceeded"].sum()),
        "thresholds_drawn": int(clients["threshold_drawn"].sum()),
    }
    if not federation.row_groups:
        overall |= {
            "migrated": int(is_migrated(cluster, group).sum()),
            "adjusted_rand_index": adjusted_rand_index(cluster, group),
        }
    shares, by_group, predictions = federation.group_shares.numpy(), dict[str, Metrics](), finished.predictions
    for g in federation.groups_with_clients:
        holders = shares[:, g] > 0
        inside = clients[holders].assign(
            accuracy=predictions.test[finished.deployed.model.numpy()[holders], g],
            train_accuracy=predictions.training_by_group[holders, g],
        )
        by_group[federation.groups[g]] = {
            **_accuracies(inside, metric, shares[holders, g]),
            "violations": int(inside["violated"].sum()),
            "exceeded": int(inside["exceeded"].sum()),
            "exposure": _mean(exposure[inside.index], shares[holders, g]),
        }
    clusters = {k: clients[cluster == k] for k in range(len(finished.state.models))}
    by_cluster = {
        k: {"clients": len(inside), "examples": int(inside["examples"].sum()), **_accuracies(inside, metric)}
        for k, inside in clusters.items()
    }
    return Summary(overall=overall, by_group=by_group, by_cluster=by_cluster)


def _mean(values: pd.Series, weight: Floats | None = None) -> float:
    """Return the weighted mean of the values that are not NaN."""
    known, weights = values.notna(), pd.Series(1.0 if weight is None else weight, values.index)
    return float((values[known] * weights[known]).sum() / weights[known].sum()) if known.any() else nan


def _accuracies(clients: pd.DataFrame, metric: ModelMetric, weight: Floats | None = None) -> dict[str, float]:
    """Return the clients' mean accuracies on their groups' test examples and on their own training examples.

    For metrics other than `accuracy`, the gap is not an attack's accuracy, and is NaN.
    """
    test, train = _mean(clients["accuracy"], weight), _mean(clients["train_accuracy"], weight)
    return {"accuracy": test, "train_accuracy": train, "gap": gap_accuracy(train, test) if metric is accuracy else nan}


@measurement("fairness", "Fairness")
def group_fairness(finished: FinishedTraining) -> Summary:
    """Measure fairness between groups and the accuracy of a constant prediction; a regression has neither."""
    if finished.federation.classes is None:
        return Summary()
    # A fraction of examples is comparable only with accuracies.
    guess = _most_frequent_class(finished.federation) if finished.metric is accuracy else {}
    return Summary(overall=_differences(finished), by_group=guess)


def _differences(finished: FinishedTraining) -> Metrics:
    """Measure fairness on each group's test examples; a model has the weight of its users in the group."""
    test, predicted = finished.federation.test, finished.predictions.predicted
    shares, model = finished.federation.group_shares.numpy(), finished.deployed.model.numpy()
    assert predicted is not None
    columns: tuple[list[NDArray], ...] = ([], [], [], [])
    for g in finished.federation.groups_with_clients:
        rows = (test.group == g).numpy()
        # With personal models, each column has N M / G rows, so its values have few bits.
        actual = test.y.cpu().to(predicted.dtype).numpy()[rows]
        for k in np.unique(model[shares[:, g] > 0]):
            share = np.broadcast_to(shares[model == k, g].sum() / shares[:, g].sum(), len(actual))
            number = np.broadcast_to(np.int32(g), len(actual))
            for column, part in zip(columns, (predicted[k].numpy()[rows], actual, number, share), strict=True):
                column.append(part)
    differences = fairness(*map(np.concatenate, columns))
    return {f"fairness.{name}": value for name, value in asdict(differences).items()}


def _most_frequent_class(federation: Federation) -> Mapping[str, Metrics]:
    """Return the accuracy per group of always predicting the most frequent class of the group's training examples."""
    test, labels, clients = federation.test, federation.test.y.cpu(), federation.clients
    trained, trained_group = clients.y.cpu()[clients.indices], federation.groups_of("clients")
    shares = {}
    for g in federation.groups_with_clients:
        of_group = labels[test.group == g]
        if len(of_group):
            guess = trained[trained_group == g].bincount().argmax()
            # Python's quotient has 53 bits, PyTorch's only 24.
            share = int((of_group == guess).sum()) / len(of_group)
            shares[federation.groups[g]] = {"most_frequent_class": share, "test_examples": len(of_group)}
    return shares


@measurement("mia", "Exposure of groups")
def group_exposure(finished: FinishedTraining) -> Summary:
    """Attack each group's training examples, with several choices of non-members.

    The configured attack decides a group's exposure. If the run has reference models, the `strongest` attack decides,
    and all attacks' accuracies are reported.
    """
    federation, attacks = finished.federation, finished.attacks
    if federation.classes is None:
        _warn_of_one_answer(attacks.configured[0], federation)
    by_group = {g: _of_group(g, attacks, federation) for g in federation.groups_with_clients}
    if attacks.records_of(attacks.view) is not None:
        decided = attacks.measured("group", attacks.view)
        by_group = {g: {**metrics, **_decided(decided[g])} for g, metrics in by_group.items()}
    return Summary(by_group={federation.groups[g]: metrics for g, metrics in by_group.items()})


def _of_group(g: int, attacks: FinalAttacks, federation: Federation) -> Metrics:
    scores, by_loss = attacks.configured[0], attacks.fits.get(attack_name(LossThreshold()), [None])[0]
    same_group, population = (measure(scores.of_group(g, mix)) for mix in mixes_of_non_members(g, federation).values())
    metrics = _attack_metrics(same_group) | _attack_metrics(population, "_population") | _interval("mia", same_group)
    metrics |= {"members": same_group.members, "non_members": same_group.non_members}
    if by_loss is not None:
        threshold = measure(by_loss.of_group(g))
        metrics |= {"loss_threshold": threshold.accuracy, "loss_threshold_auc": threshold.auc}
        metrics |= _interval("loss_threshold", threshold)
    for other, name in enumerate(federation.groups):
        if other != g:
            mix = np.eye(len(federation.groups))[other]
            against = measure(scores.of_group(g, mix))
            metrics |= {f"mia_against_{name}": against.accuracy, f"mia_auc_against_{name}": against.auc}
            if by_loss is not None:
                metrics[f"loss_threshold_against_{name}"] = measure(by_loss.of_group(g, mix)).accuracy
    return metrics


def _decided(attacks: ByAttack) -> Metrics:
    """Return the metrics of the strongest attack on a group, and every attack's accuracy."""
    name, low = strongest(attacks)
    best = attacks[name]
    metrics = _attack_metrics(best) | {"mia_low": low, "mia_high": best.high}
    metrics |= {"members": best.members, "non_members": best.non_members}
    return metrics | {accuracy_key(name): metrics.accuracy for name, metrics in attacks.items()}


def _attack_metrics(measured: MembershipMetrics, non_members: str = "") -> dict[str, float]:
    """Return an attack's metrics by key; ``non_members`` is the key's suffix for the kind of non-members."""
    return {
        f"mia{non_members}": measured.accuracy,
        **({} if non_members else {"mia_null_high": measured.null_high}),
        f"mia{non_members}_auc": measured.auc,
        f"tpr_at_fpr_0.01{non_members}": measured.tpr_at_1_percent_fpr,
        f"tpr_at_fpr_0.001{non_members}": measured.tpr_at_01_percent_fpr,
    }


def _interval(metric: str, measured: MembershipMetrics) -> dict[str, float]:
    """Return the ends of a 95 % interval; their keys begin with ``metric``."""
    return {f"{metric}_low": measured.low, f"{metric}_high": measured.high}


def _warn_of_one_answer(scores: ModelScores, federation: Federation) -> None:
    """Warn of groups whose examples all get the same prediction from an attack, which then measures nothing.

    Unbounded losses cause this, because a few badly fitted shadow models raise the mean loss above all other losses.
    """
    same = []
    for g in federation.groups_with_clients:
        margins = scores.of_group(g).score
        if (margins > 0).all() or (margins <= 0).all():
            same.append(federation.groups[g])
    if same:
        LOG.warning(
            "the attack's threshold lies beyond all examples of %s, so its balanced accuracy is 0.5; "
            "use the AUC (mia_auc), which needs no threshold",
            ", ".join(same),
        )


@measurement("mia", "Exposure of models")
def model_exposure(finished: FinishedTraining) -> Summary:
    """Attack each cluster's model, and report the red team's last risk estimate.

    Non-members have the groups and labels of the members. If clients have personal models, only the configured attack
    is used on the clusters' models.
    """
    attacks, clusters = finished.attacks, dict[int, Metrics]()
    configured = attacks.records_of(attacks.view) is None or is_personal(finished.deployed)
    by_model = {} if configured else attacks.measured("model", attacks.view)
    for k, risk in enumerate(finished.state.risks.tolist()):
        same_mix = measure(attacks.shared[0].of_model(k)) if configured else by_model[k][strongest(by_model[k])[0]]
        population = measure(attacks.shared[0].of_model(k, population=True))
        clusters[k] = {**_attack_metrics(same_mix), **_attack_metrics(population, "_population"), "risk": risk}
    return Summary(by_cluster=clusters)


@measurement("mia_mean", "Exposure over new shadow models")
def repeated_attacks(finished: FinishedTraining) -> Summary:
    """Compute the mean and standard deviation of ``mia`` over the configured attack's fits, by group and by cluster.

    A run with one fit has neither metric.
    """
    deployed, shared, federation = finished.attacks.configured, finished.attacks.shared, finished.federation
    if len(deployed) == 1:
        return Summary()

    def over(fits: Iterable[RecordTable]) -> Metrics:
        accuracies = [measure(records).accuracy for records in fits]
        return {"mia_mean": float(np.mean(accuracies)), "mia_spread": float(np.std(accuracies, ddof=1))}

    groups, clusters = federation.groups_with_clients, range(len(shared[0].margins))
    return Summary(
        by_group={federation.groups[g]: over(fit.of_group(g) for fit in deployed) for g in groups},
        by_cluster={k: over(fit.of_model(k) for fit in shared) for k in clusters},
    )


@measurement("shadow_examples", "Examples per shadow model")
def shadow_examples(finished: FinishedTraining) -> Summary:
    """Report the number of training examples per shadow model, by cluster."""
    if finished.red_team.attack.needs == "nothing":
        return Summary()
    state, federation, shadows = finished.state, finished.federation, finished.red_team.shadow_models
    sizes = {k: shadows.size_of(state, federation, k) for k in range(len(state.models))}
    examples = {k: int(federation.clients.sizes[state.assignment == k].sum()) for k in sizes}
    small = [str(k) for k in sizes if shadows.size == "cluster" and sizes[k] < examples[k]]
    if small:
        LOG.warning(
            "cluster %s: the server has too few examples for shadow models of the cluster's size, so the estimated "
            "exposure is that of a smaller cluster; give the server more examples, or run shoal audit",
            ", ".join(small),
        )
    return Summary(by_cluster={k: {"shadow_examples": size} for k, size in sizes.items()})


@measurement("references", "Reference models")
def reference_models(finished: FinishedTraining) -> Summary:
    """Report the number of reference models, if any."""
    references = finished.attacks.references
    return Summary(overall={"references": references.references} if references and references.references else {})
