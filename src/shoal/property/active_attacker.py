"""An active property attacker: a malicious client that trains the models to encode the property.

Source: Melis et al. 2019, arXiv:1805.04049, section V-B (multi-task loss); Kim et al., RAID 2023, equation 1 and
Algorithm 2, line 6 (scale-up).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import MaliciousTraining, State, Tensors
from shoal.models import Loss, Model, cross_entropy
from shoal.property.property_federation import schedule_of

HEAD_OUTPUTS = 2
"""The number of outputs for the property: one for examples without the property and one for examples with it."""


@dataclass(frozen=True, eq=False)
class ActivePropertyAttacker:
    """A malicious client that trains on the main task and on the property.

    The client sends the weights ``start + gamma * (end - start)``. The property head adds `HEAD_OUTPUTS` outputs to the
    last layer. The attacker keeps one head per model between rounds. Implements the engine's protocol
    `MaliciousClients`.

    Args:
        model: the network with the property head, and the loss on both tasks; see `active_property_attacker`.
        labels: the labels of the clients' training examples, (M,) int64. An example with the property has its main
            label plus the number of classes.
        gamma: the factor on the update, above 0 (the paper: 5 or 10).
        train_head: whether the property head is trained. In Melis et al.'s published code, the property head keeps its
            initial weights.

    Raises:
        InputError: ``gamma`` is not above 0.
    """

    client: int
    model: Model
    plain: Model
    labels: Tensor
    gamma: float = 1.0
    train_head: bool = True
    __repr__ = one_line

    def __post_init__(self) -> None:
        require(self.gamma > 0, f"'gamma' must be above 0 (got {self.gamma:g})")

    @property
    def clients(self) -> Tensor:
        """The attacker's id, (1,) int64."""
        return torch.tensor([self.client])

    def start(self, state: State, stream: Stream) -> Tensors:
        """Return the models' initial property heads as "head", (models, weights per head)."""
        initial = (self.model.layout.views(self.model.init(stream("head", k))) for k in range(len(state.models)))
        return {"head": torch.stack([self._head(named) for named in initial])}

    def train(self, request: MaliciousTraining) -> tuple[Tensor, Tensors]:
        """Train the cluster's model and property head; return the scaled model (P,) and all heads."""
        state, cluster, start = request.state, request.cluster, request.start
        heads = state.adversary["head"].clone()
        require(
            len(heads) == len(state.models),
            "an active property attack needs a constant number of models",
        )
        both = replace(request.shards, y=self.labels.to(request.shards.y.device))
        # The attacker minimises its own loss, whatever objective the other clients have.
        local = replace(request.local, objective=None)
        begin = self._with_head(start, heads[cluster])
        end = request.engine.train_other_model(self.model, begin, both, request.randomness, local)
        named = self.model.layout.views(end)
        if self.train_head:
            heads[cluster] = self._head(named)
        for name in self._extended():
            named[name] = named[name][:-HEAD_OUTPUTS]
        update = self.plain.layout.pack(named) - start
        # Weights alone: scaled running variances of batch norm could become negative.
        update[: self.plain.layout.trainable] *= self.gamma
        return start + update, {"head": heads}

    def _with_head(self, plain: Tensor, head: Tensor) -> Tensor:
        """Return the parameters (P',) of `model` from parameters of `plain` (P,) and a head (H,)."""
        named = self.plain.layout.views(plain)
        parts = head.split([HEAD_OUTPUTS * named[name][0].numel() for name in self._extended()])
        for name, part in zip(self._extended(), parts, strict=True):
            named[name] = torch.cat([named[name], part.reshape(HEAD_OUTPUTS, *named[name].shape[1:])])
        return self.model.layout.pack(named)

    def _head(self, named: dict[str, Tensor]) -> Tensor:
        return torch.cat([named[name][-HEAD_OUTPUTS:].flatten() for name in self._extended()])

    def _extended(self) -> list[str]:
        """List the names of the tensors that the head enlarges: the last layer's weight and bias."""
        plain = {slot.name: slot.shape for slot in self.plain.layout.slots}
        return [slot.name for slot in self.model.layout.slots if slot.shape != plain[slot.name]]


def active_property_attacker(
    model: Model, federation: Federation, *, alpha: float, gamma: float, train_head: bool = True
) -> ActivePropertyAttacker:
    """Create an active attacker that minimises ``alpha * main loss + (1 - alpha) * property loss``.

    Args:
        alpha: the weight of the main loss, in [0, 1] (the paper: 0.9).
        gamma, train_head: see `ActivePropertyAttacker`.

    Raises:
        InputError: the federation has no property schedule, the network does not end with a linear layer, or a value is
            outside its allowed range.

    Example:
        >>> import shoal
        >>> plan = shoal.PropertyPartition(shoal.Partition(4, 40, test_examples=40), min_examples=4)
        >>> digits = shoal.load_dataset("digits", task="class/thick")
        >>> preferences = shoal.draw_preferences(4, (0.5, 0.8), 0.0, shoal.Stream(0))
        >>> federation = shoal.partition_by_property(digits, plan, preferences, shoal.Stream(0))
        >>> model = shoal.create_model("logistic", shoal.Shape(1, 8, 8, 10))
        >>> attacker = shoal.active_property_attacker(model, federation, alpha=0.9, gamma=5.0)
        >>> model.network().output.out_features, attacker.model.network().output.out_features
        (10, 12)
        >>> int(attacker.labels.max())
        19
    """
    require(0 <= alpha <= 1, f"'alpha' must be in [0, 1] (got {alpha:g})")
    schedule = schedule_of(federation)
    require(
        federation.classes is not None,
        "an active property attack needs a classification task",
    )
    classes = _last_layer(model.network()).out_features
    return ActivePropertyAttacker(
        client=schedule.attacker,
        model=replace(
            model,
            build=partial(_build_with_head, model.build),
            loss=partial(_multi_task_loss, model.loss, classes, alpha),
        ),
        plain=model,
        labels=federation.clients.y.cpu() + classes * schedule.has_property.long(),
        gamma=gamma,
        train_head=train_head,
    )


def _multi_task_loss(loss: Loss, classes: int, alpha: float, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss (B,) for outputs (B, C + HEAD_OUTPUTS) and labels (B,) as in `ActivePropertyAttacker.labels`."""
    main = loss(outputs[:, :classes], labels % classes)
    return alpha * main + (1 - alpha) * cross_entropy(outputs[:, classes:], labels // classes)


def _last_layer(network: nn.Module) -> nn.Linear:
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    require(bool(layers), "an active property attack needs a network that ends with a torch.nn.Linear layer")
    return layers[-1]


def _build_with_head(build: Callable[[], nn.Module]) -> nn.Module:
    network = build()
    last = _last_layer(network)
    larger = nn.Linear(last.in_features, last.out_features + HEAD_OUTPUTS, bias=last.bias is not None)
    # In place, to keep the hooks that the layer has (dropout).
    last.out_features, last.weight, last.bias = larger.out_features, larger.weight, larger.bias
    return network
