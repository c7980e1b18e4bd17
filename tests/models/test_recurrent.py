"""The network of texts against PyTorch's own GRU, text by text."""

import pytest
import torch
from torch import Tensor

from shoal.core.randomness import Stream, seed_libraries
from shoal.models import Model, ReviewGRU, TextShape, create_model

TEXTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9], [7, 9, 3], [2, 3, 8]]


def padded(texts: list[list[int]], width: int = 0) -> Tensor:
    width = max(width, *map(len, texts))
    return torch.tensor([text + [0] * (width - len(text)) for text in texts])


@pytest.fixture
def network() -> ReviewGRU:
    with seed_libraries(Stream(3)):
        return ReviewGRU(10, 4).double()


def alone(network: ReviewGRU, text: list[int]) -> Tensor:
    """The reference: PyTorch's GRU over one text without padding, and the linear layer on its last hidden state."""
    outputs, _ = network.gru(network.embedding(torch.tensor([text])))
    return network.output(outputs[0, -1])


def test_each_text_is_read_as_pytorch_s_gru_reads_it_alone_and_unpadded(network):
    outputs = network(padded(TEXTS, 12))
    torch.testing.assert_close(outputs, torch.stack([alone(network, text) for text in TEXTS]))


def test_gradients_are_those_of_pytorch_s_gru(network):
    labels = torch.tensor([0, 1, 2, 3, 0])
    loss = torch.nn.functional.cross_entropy
    parameters = list(network.parameters())
    ours = torch.autograd.grad(loss(network(padded(TEXTS, 9)), labels), parameters)
    twin = torch.stack([alone(network, text) for text in TEXTS])
    theirs = torch.autograd.grad(loss(twin, labels), parameters)
    for name, a, b in zip(dict(network.named_parameters()), ours, theirs, strict=True):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b)


def test_padding_other_texts_and_order_do_not_matter(network):
    outputs = network(padded(TEXTS))
    torch.testing.assert_close(network(padded(TEXTS, 40)), outputs)
    torch.testing.assert_close(network(padded(TEXTS[::-1])).flip(0), outputs)
    torch.testing.assert_close(network(padded(TEXTS[:2])), outputs[:2])


def test_a_text_without_words_gives_the_output_of_nothing_read(network):
    outputs = network(torch.tensor([[0, 0], [1, 2]]))
    torch.testing.assert_close(outputs[0], network.output.bias)
    torch.testing.assert_close(network(torch.zeros(1, 5, dtype=torch.int64))[0], network.output.bias)
    assert network(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 4)


def test_the_embedding_of_padding_never_learns(network):
    (gradient,) = torch.autograd.grad(network(padded(TEXTS)).sum(), [network.embedding.weight])
    assert torch.equal(gradient[0], torch.zeros(100, dtype=torch.float64))
    assert (gradient[[7, 8, 9]].abs().sum(dim=1) > 0).all()


def test_gru_has_the_parameters_counted_by_hand():
    """Words by 100, three gates of 128 on 100 and on 128 with two biases, and 128 by classes."""
    expected = 3001 * 100 + 3 * 128 * (100 + 128 + 2) + 5 * (128 + 1)
    assert create_model("gru", TextShape(3000, 5)).parameters == expected
    assert [slot.name for slot in Model(ReviewGRU).layout.slots] == [
        "embedding.weight",
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
        "gru.bias_ih_l0",
        "gru.bias_hh_l0",
        "output.weight",
        "output.bias",
    ]
