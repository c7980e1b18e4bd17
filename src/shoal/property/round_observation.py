"""What a property attack keeps of a round: features of simulated and of observed updates, and the truth."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RoundObservation:
    """One round as the attacker sees it, with the ground truth beside it.

    S simulated and A observed aggregated updates, each of one cluster's model, with F features. C of the observed ones
    hold a part of the victim's, and are given once more as they would have been in a round of the other kind.

    Args:
        round: the round's number.
        simulated_features: (S, F) float16.
        simulated_has_property: (S,) bool, whether examples with the property are in each simulated update.
        simulated_clusters: (S,) int64.
        features: (A, F) float16, of the round's aggregated updates.
        clusters: (A,) int64.
        has_property: (A,) bool, the truth: whether the victim trained that model on the property in this round.
        clients: (A,) int64, the number of clients that trained that model.
        swapped: (C,) int64, which of the A updates hold a part of the victim's.
        swapped_features: (C, F) float16, of these updates if the victim had trained on examples of the other kind, and
            all else had been the same.
        cosine: (A,) float64, of each update with the previous one of the same model; NaN where there was none.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import RoundObservation, classify_updates
        >>> has, zeros = torch.tensor([True, False] * 20), torch.zeros(40, dtype=torch.int64)
        >>> features = (torch.randn(40, 5, generator=shoal.Stream(0).generator()) + 3 * has[:, None]).half()
        >>> simulated, seen, nothing = (features, has, zeros), slice(0, 4), slice(0, 0)
        >>> observed = (features[seen], zeros[seen], has[seen], zeros[seen] + 5)
        >>> cosine = torch.full((4,), torch.nan, dtype=torch.float64)
        >>> observation = RoundObservation(1, *simulated, *observed, zeros[nothing], features[nothing], cosine)
        >>> rows = classify_updates(shoal.PropertyAttack(trees=10), [observation], shoal.Stream(0))
        >>> rows["round"].tolist(), rows["clients"].tolist(), observation.has_property.tolist()
        ([1, 1, 1, 1], [5, 5, 5, 5], [True, False, True, False])
    """

    round: int
    simulated_features: Tensor
    simulated_has_property: Tensor
    simulated_clusters: Tensor
    features: Tensor
    clusters: Tensor
    has_property: Tensor
    clients: Tensor
    swapped: Tensor
    swapped_features: Tensor
    cosine: Tensor
