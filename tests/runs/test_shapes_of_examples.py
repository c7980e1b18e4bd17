"""Examples of other shapes than one input and one label: packed into one tensor, taken apart by network and loss."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from full_simulation import simulate_with
from shoal import IFCA, FedAvg, Federation, LocalSGD, LossThreshold, Model, RedTeam, ShadowModels, simulate
from shoal.core.errors import InputError

LOCAL = LocalSGD(batch_size=4, learning_rate=0.2)
TEAM = RedTeam(every=1, attack=LossThreshold(), shadow_models=ShadowModels(number=1))
NONE = -100
"""The label of a token that is padding."""


class Tagger(nn.Module):
    """A label for each token: words (B, T) -> (B, T, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.embedding(words))


def tokens_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of a text's tokens, but for padding."""
    losses = functional.cross_entropy(outputs.movedim(-1, 1), labels.long(), reduction="none", ignore_index=NONE)
    return losses.sum(dim=1) / (labels != NONE).sum(dim=1)


def tokens_accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The share of a text's tokens that are right, but for padding."""
    return (outputs.argmax(dim=-1) == labels).sum(dim=1) / (labels != NONE).sum(dim=1)


def texts(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Texts of 1 to 5 words, with a label for each."""
    draw = torch.Generator().manual_seed(seed)
    words = [torch.randint(1, 9, (1 + i % 5,), generator=draw) for i in range(count)]
    return [(each, each % 3) for each in words]


def padded(given: list[tuple[Tensor, Tensor]], more: int = 0) -> tuple[Tensor, Tensor]:
    x = pad_sequence([words for words, _ in given], batch_first=True)
    y = pad_sequence([labels for _, labels in given], batch_first=True, padding_value=NONE)
    return functional.pad(x, (0, more)), functional.pad(y, (0, more), value=NONE)


def tagged(more: int) -> Federation:
    clients = [padded(texts(size, size), more) for size in (10, 15)]
    return Federation.from_tensors(
        clients, test=padded(texts(20, 0), more), shadow=padded(texts(20, 1), more), task="regression"
    )


def test_texts_with_a_label_for_each_token_are_trained_and_attacked_whatever_their_padding():
    model = Model(Tagger, tokens_loss, tokens_accuracy)
    results = [simulate(tagged(more), model, IFCA(2), LOCAL, rounds=3, red_team=TEAM) for more in (0, 2)]
    torch.testing.assert_close(results[0].state.models, results[1].state.models)
    assert 1 / 3 < results[0].summary.overall["accuracy.overall"] <= 1


def test_an_example_may_have_several_labels_at_once():
    def labels(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] > 0, x[:, 1] > 0, x.sum(dim=1) > 0], dim=1)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(dim=1)

    def share(outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs > 0) == labels).float().mean(dim=1)

    draw = torch.Generator().manual_seed(0)
    sets = [(x, labels(x)) for x in (torch.randn(size, 2, generator=draw) for size in (20, 15, 30, 20))]
    federation = Federation.from_tensors(sets[:2], test=sets[2], shadow=sets[3], task="regression")
    model = Model(lambda: nn.Linear(2, 3), loss, share)
    results = [
        simulate_with(federation, model, FedAvg(), LOCAL, rounds=10, red_team=TEAM, backend=backend)
        for backend in ("loop", "vmap")
    ]
    torch.testing.assert_close(results[0].state.models, results[1].state.models)
    assert results[0].summary.overall["accuracy.overall"] > 0.8


class Both(nn.Module):
    """Measurements and a word, in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.measured, self.embedding = nn.Linear(4, 3), nn.Embedding(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.measured(x[:, :4]) + self.embedding(x[:, 4].long())


def test_several_inputs_are_packed_into_one_tensor():
    x = torch.cat([torch.ones(6, 4), torch.arange(6.0)[:, None]], dim=1)
    given = (x, torch.arange(6) % 3)
    federation = Federation.from_tensors([given, given], test=given)
    assert simulate(federation, Model(Both), FedAvg(), LOCAL, rounds=1).engine.backend == "loop"


X, Y = torch.ones(3, 4), torch.tensor([0, 1, 0])
PACKED = r"torch\.cat\(\[a, b\], dim=1\), and split x in the network"
PADDED = "torch.nn.utils.rnn.pad_sequence"


class Items(torch.utils.data.Dataset):
    def __init__(self, items: list) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (((X, X), Y), PACKED),
        (({"ids": X, "mask": X}, Y), PACKED),
        ((X, X, Y), PACKED),
        ({"input_ids": X, "labels": Y}, PACKED),
        (Items([{"input_ids": x, "labels": y} for x, y in zip(X, Y, strict=True)]), PACKED),
        (Items([((x, x), y) for x, y in zip(X, Y, strict=True)]), PACKED),
        (Items([({"ids": x}, y) for x, y in zip(X, Y, strict=True)]), PACKED),
        (
            DataLoader([{"ids": x, "mask": x, "label": 0} for x in X]),
            "'ids', 'mask', 'label'",
        ),
        (DataLoader([(x, x, 0) for x in X]), r"list of 3\)"),
        (DataLoader([]), "client 0 is a data loader without batches"),
        (([[1, 2], [3], [4, 5, 6]], Y), PADDED),
        (([words for words, _ in texts(3, 0)], Y), PADDED),
        ((torch.nested.nested_tensor([torch.ones(n) for n in (1, 2, 3)], layout=torch.jagged), Y), PADDED),
        (Items(texts(3, 0)), PADDED),
        ((X, [[1, 2], [3], [4, 5, 6]]), PADDED),
        (
            (X, torch.ones(3, 2)),
            "task='regression'",
        ),
    ],
)
def test_other_examples_are_refused_with_what_to_do(given, words):
    with pytest.raises(InputError, match=words) as refused:
        Federation.from_tensors([given], test=(X, Y))
    assert "\n" not in str(refused.value)
