"""Feedback to the server of each cluster: the share of members over their limit, and the accuracy of their model."""

import math

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import Engine, State
from shoal.models.model import NegativeLoss, accuracy


def over_limit_shares(
    risks: Tensor,
    assignment: Tensor,
    federation: Federation,
    epsilon: float | None,
    stream: Stream,
    known: Tensor | None = None,
) -> Tensor:
    """The share (K,) of each model's members who answer that its risk is above the threshold they tolerate; NaN of a
    model without members.

    Thresholds stay with the clients: each answers one bit. With ``epsilon`` it is by randomised response (Warner 1965),
    true with probability p = e^epsilon / (1 + e^epsilon), which is epsilon-differentially private per estimate; the
    server corrects the share s that it receives to (s - (1 - p)) / (2 p - 1), kept in [0, 1].

    Args:
        risks: (K,), as reported to clients.
        assignment: (N,) each client's model; -1: none, and no answer.
        federation: the clients.
        epsilon: of randomised response; None: true answers.
        stream: of the flipped answers.
        known: (N,), what each client's model certainly risks, whatever is estimated; NaN: nothing is known. None: of
            no client.
    """
    asked = torch.nonzero(assignment >= 0).flatten()
    model = assignment[asked]
    thresholds, ids = federation.preferences.threshold[asked], federation.ids[asked]
    risk = risks[model] if known is None else torch.fmax(risks[model], known[asked])
    answers = over_limit_answers(risk, thresholds, ids, epsilon, stream)
    return shares_of_answers(answers, model, len(risks), epsilon)


def over_limit_answers(risks: Tensor, thresholds: Tensor, ids: Tensor, epsilon: float | None, stream: Stream) -> Tensor:
    """The clients' part of `over_limit_shares`: the answers (n,) bool of clients with ``ids`` (n,) to the reported
    risks (n,) of their models and the thresholds (n,) that they tolerate.
    """
    coins = stream("answers").seeds(ids).double() / 2**63
    return (risks > thresholds) ^ (coins < _flip_probability(epsilon))


def shares_of_answers(answers: Tensor, model: Tensor, clusters: int, epsilon: float | None) -> Tensor:
    """The server's part of `over_limit_shares`: from the ``answers`` (n,) of the clients of ``model`` (n,) to (K,)."""
    flipped = _flip_probability(epsilon)
    members = torch.bincount(model, minlength=clusters).double()
    positive = torch.zeros(clusters, dtype=torch.float64).index_add_(0, model, answers.double())
    return ((positive / members - flipped) / (1 - 2 * flipped)).clamp(0, 1)


def _flip_probability(epsilon: float | None) -> float:
    """The probability of an answer that is not true."""
    return 0.0 if epsilon is None else 1 / (1 + math.exp(epsilon))


def utilities(state: State, federation: Federation, engine: Engine) -> tuple[Tensor, Tensor]:
    """Accuracy of each model for its members, and its standard error, (K,) float64 each; NaN without members.

    It is measured on the hold-out examples of its members, who send counts, or where clients have none on the server's
    shadow set. In a regression it is minus the mean loss.
    """
    metric = NegativeLoss(engine.model.loss) if federation.classes is None else accuracy
    values, errors = [], []
    for k, model in enumerate(state.models):
        held = federation.holdout.take(torch.nonzero(state.assignment == k).flatten())
        if len(held.indices):
            rows = held.indices.to(held.y.device)
            outputs, labels = engine.outputs(model, held.x, rows).cpu(), held.y[rows].cpu()
        elif bool((state.assignment == k).any()) and len(federation.shadow):
            outputs, labels = engine.outputs(model, federation.shadow.x).cpu(), federation.shadow.y.cpu()
        else:
            values.append(math.nan)
            errors.append(math.nan)
            continue
        of_examples = metric(outputs, labels).double()
        values.append(float(of_examples.mean()))
        errors.append(float(of_examples.std(correction=0)) / math.sqrt(len(of_examples)))
    return torch.tensor(values, dtype=torch.float64), torch.tensor(errors, dtype=torch.float64)
