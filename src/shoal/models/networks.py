"""Networks for images (B, C, H, W) in [0, 1] and for texts, with outputs (B, classes).

Max-pooling comes before ReLU: the order does not change the result, and ReLU has a quarter of the elements.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from shoal.core.errors import require


def _pool(images: Tensor) -> Tensor:
    # Tensors in oneDNN's own layout need sizes as pairs, and an explicit stride.
    return functional.relu(functional.max_pool2d(images, (2, 2), (2, 2)))


class MnistCNN(nn.Module):
    """The MNIST network of IFCA-MIR, appendix A.1: 50,186 parameters for 1x28x28 images and 10 classes."""

    onednn_layout = True
    """Only this network and `FacesCNN` are faster in oneDNN's layout, because of their pooling."""

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)
        self.output = nn.Linear(64 * (side // 4) ** 2, classes)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to outputs (B, classes)."""
        return self.output(_pool(self.second(_pool(self.first(images)))).flatten(1))


class _TwoConvolutions(nn.Module):
    """Two convolutions of 3x3, one pooling and a hidden layer, for square images."""

    def __init__(
        self, channels: int, side: int, classes: int, filters: tuple[int, int], hidden: int, padding: int
    ) -> None:
        super().__init__()
        first, second = filters
        self.first = nn.Conv2d(channels, first, 3, padding=padding)
        self.second = nn.Conv2d(first, second, 3, padding=padding)
        self.hidden = nn.Linear(second * ((side - 4 + 4 * padding) // 2) ** 2, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to outputs (B, classes)."""
        features = _pool(self.second(functional.relu(self.first(images))))
        return self.output(functional.relu(self.hidden(features.flatten(1))))


class FemnistCNN(_TwoConvolutions):
    """The FEMNIST network of IFCA-MIR, appendix A.1: two convolutions, one pooling, 128 hidden neurons.

    The appendix states no padding. Without padding, 28x28 images and 62 classes give 1,206,590 parameters. The option
    ``padding=1`` matches the padding of the MNIST network in the same appendix.

    Example:
        >>> from shoal.models import FemnistCNN
        >>> [sum(tensor.numel() for tensor in FemnistCNN(padding=padding).parameters()) for padding in (0, 1)]
        [1206590, 1632574]
    """

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 62, padding: int = 0) -> None:
        super().__init__(channels, side, classes, filters=(32, 64), hidden=128, padding=padding)


class DigitsCNN(_TwoConvolutions):
    """A small CNN for 8x8 digits: 16 and 32 filters of 3x3, one pooling, 64 hidden neurons."""

    def __init__(self, channels: int = 1, side: int = 8, classes: int = 10) -> None:
        super().__init__(channels, side, classes, filters=(16, 32), hidden=64, padding=1)


VGG_CONFIGURATIONS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    13: ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}
"""The numbers of filters of the convolutions in five blocks (Simonyan and Zisserman 2015, table 1: A, B and D)."""


class VGG(nn.Module):
    """The CIFAR-10 network of IFCA-MIR, appendix A.1, a VGG with three fully connected layers and a log-softmax.

    Args:
        depth: the number of layers with weights, 11, 13 or 16.
        norm: the normalisation, "batch" as in the paper, or "group" (32 groups), which does not mix examples.
    """

    def __init__(
        self, channels: int = 3, side: int = 32, classes: int = 10, depth: int = 11, norm: str = "batch"
    ) -> None:
        super().__init__()
        require(depth in VGG_CONFIGURATIONS, f"'depth' of VGG must be 11, 13 or 16 (got {depth})")
        layers: list[nn.Module] = []
        inputs = channels
        for block in VGG_CONFIGURATIONS[depth]:
            for outputs in block:
                layers += [
                    nn.Conv2d(inputs, outputs, 3, padding=1),
                    nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(32, outputs),
                    nn.ReLU(),
                ]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * (side // 32) ** 2, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to log-probabilities (B, classes)."""
        return functional.log_softmax(self.classifier(self.features(images).flatten(1)), dim=1)


class MLP(nn.Module):
    """A network with one hidden layer; 784-200-10 is the MNIST network of IFCA (Ghosh et al. 2020)."""

    input_layer = "hidden"

    def __init__(self, inputs: int = 784, hidden: int = 200, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) or vectors (B, inputs) to outputs (B, classes)."""
        return self.output(torch.relu(self.hidden(images.flatten(1))))


class Logistic(nn.Module):
    """Multinomial logistic regression."""

    input_layer = "output"

    def __init__(self, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        self.output = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) or vectors (B, inputs) to outputs (B, classes)."""
        return self.output(images.flatten(1))


class FacesCNN(nn.Module):
    """The face network of Melis et al. (S&P 2019), also used by Kim et al. (RAID 2023).

    The layers are three convolutions of 3x3 without padding, each with pooling, and 256 hidden neurons. The network has
    880,450 parameters for 3x62x47 images and 2 classes. Images need not be square, and need at least 22 pixels per
    side.
    """

    onednn_layout = True

    def __init__(
        self,
        channels: int = 3,
        height: int = 62,
        width: int = 47,
        classes: int = 2,
        filters: Sequence[int] = (32, 64, 128),
        hidden: int = 256,
    ) -> None:
        super().__init__()
        first, second, third = filters
        self.first = nn.Conv2d(channels, first, 3)
        self.second = nn.Conv2d(first, second, 3)
        self.third = nn.Conv2d(second, third, 3)
        for _ in filters:
            height, width = (height - 2) // 2, (width - 2) // 2
        self.hidden = nn.Linear(third * height * width, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to outputs (B, classes)."""
        features = _pool(self.third(_pool(self.second(_pool(self.first(images))))))
        return self.output(functional.relu(self.hidden(features.flatten(1))))


class ReviewGRU(nn.Module):
    """The review network of Kim et al. (RAID 2023): an embedding of size 100, a GRU of 128 units, and a linear layer.

    The GRU reads a text up to its last word, so a text's outputs do not depend on its padding; the authors' public code
    also reads the padding. Words are numbered from 1 to ``vocabulary``.

    Example:
        >>> import torch
        >>> from shoal.models import ReviewGRU
        >>> network = ReviewGRU(vocabulary=50, classes=5).eval()
        >>> alone, padded = network(torch.tensor([[7, 3]])), network(torch.tensor([[7, 3, 0, 0]]))
        >>> alone.shape, alone.allclose(padded)
        (torch.Size([1, 5]), True)
    """

    def __init__(self, vocabulary: int = 3000, classes: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary + 1, 100, padding_idx=0)
        self.gru = nn.GRU(100, 128, batch_first=True)
        self.output = nn.Linear(128, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Map word numbers (B, L) int64, with zeros only after a text's last word, to outputs (B, classes)."""
        lengths, order = (words > 0).sum(dim=1).sort(descending=True, stable=True)
        is_word = torch.arange(words.shape[1], device=words.device)[:, None] < lengths
        # The first words of all texts, longest text first, then their second words, and so on, without the padding.
        embedded = self.embedding(words[order].T[is_word])
        ((weight_in, weight_hidden, bias_in, bias_hidden),) = self.gru.all_weights
        counts = [count for count in is_word.sum(dim=1).tolist() if count]
        from_words = torch.addmm(bias_in, embedded, weight_in.T)
        hidden = _Recurrence.apply(from_words, weight_hidden, bias_hidden, counts, len(words))
        return self.output(hidden[order.argsort()])


class _Recurrence(torch.autograd.Function):
    """The hidden states (B, H) of B texts after their last words, longest text first, as `torch.nn.GRU` computes them.

        r, z = sigmoid(a_r + W_r h + b_r), sigmoid(a_z + W_z h + b_z)
        n = tanh(a_n + r * (W_n h + b_n))
        h' = n + z * (h - n)

    PyTorch's own GRU updates the weights' gradients after every word, and processes the padding. This function is
    faster: 8 ms instead of 14 for a step on 32 texts of 8 to 39 words, on one thread.

    Inputs: all T words' contributions a to the gates (T, 3H), in the order of `ReviewGRU.forward`; weight W (3H, H);
    bias b (3H,); the number of texts that have a word at each position; and B.
    """

    @staticmethod
    def forward(ctx: Any, from_words: Tensor, weight: Tensor, bias: Tensor, counts: list[int], texts: int) -> Tensor:  # noqa: ANN401
        units = weight.shape[1]
        hidden = from_words.new_zeros(texts, units)
        previous, new = from_words.new_empty(2, len(from_words), units)
        from_hidden = from_words.new_empty(len(from_words), 3 * units)
        gates = from_words.new_empty(len(from_words), 2 * units)
        start = 0
        for count in counts:
            now, state = slice(start, start + count), hidden[:count]
            previous[now] = state
            contribution = torch.addmm(bias, state, weight.T, out=from_hidden[now])
            torch.add(from_words[now, : 2 * units], contribution[:, : 2 * units], out=gates[now]).sigmoid_()
            reset, update = gates[now].chunk(2, dim=1)
            candidate = torch.addcmul(from_words[now, 2 * units :], reset, contribution[:, 2 * units :], out=new[now])
            torch.lerp(candidate.tanh_(), state, update, out=state)
            start += count
        ctx.save_for_backward(previous, new, from_hidden[:, 2 * units :], gates, weight)
        ctx.counts = counts
        return hidden

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        *gradients: Tensor,
    ) -> tuple[Tensor | None, ...]:
        previous, new, from_hidden, gates, weight = ctx.saved_tensors
        units = weight.shape[1]
        reset, update = gates.chunk(2, dim=1)
        # The derivatives of h' by the inputs of the gates, for all words at once.
        to_candidate = (1 - update) * (1 - new * new)
        derivatives = previous.new_empty(len(previous), 3, units)
        torch.mul(to_candidate * from_hidden, reset * (1 - reset), out=derivatives[:, 0])
        torch.mul(previous - new, update * (1 - update), out=derivatives[:, 1])
        torch.mul(to_candidate, reset, out=derivatives[:, 2])
        of_states = torch.empty_like(previous)
        gradient = gradients[0].clone()
        end = len(previous)
        for count in reversed(ctx.counts):
            now, of_state = slice(end - count, end), gradient[:count]
            of_states[now] = of_state
            of_gates = derivatives[now].mul_(of_state[:, None])
            of_state.mul_(update[now]).addmm_(of_gates.flatten(1), weight)
            end -= count
        of_hidden = derivatives.flatten(1)
        of_words = of_hidden.clone()
        torch.mul(of_states, to_candidate, out=of_words[:, 2 * units :])
        return of_words, of_hidden.T @ previous, of_hidden.sum(dim=0), None, None
