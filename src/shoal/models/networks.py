"""Networks of images (B, C, H, W) in [0, 1], which return outputs (B, classes): those of the papers, and small ones.

Max-pooling before ReLU is the same function as ReLU before max-pooling, on a quarter of the elements.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.core.errors import require


def _pool(images: Tensor) -> Tensor:
    # Tensors in oneDNN's own layout need sizes as pairs, and an explicit stride.
    return functional.relu(functional.max_pool2d(images, (2, 2), (2, 2)))


class MnistCNN(nn.Module):
    """The MNIST network of IFCA-MIR, appendix A.1: 50,186 parameters for 1x28x28 images and 10 classes."""

    onednn_layout = True
    """Pooling is a fifth of this network's time in PyTorch's layouts; but for `FacesCNN`, the others gain nothing."""

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)
        self.output = nn.Linear(64 * (side // 4) ** 2, classes)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to outputs (B, classes)."""
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
        """Images (B, C, H, W) to outputs (B, classes)."""
        features = _pool(self.second(functional.relu(self.first(images))))
        return self.output(functional.relu(self.hidden(features.flatten(1))))


class FemnistCNN(_TwoConvolutions):
    """The FEMNIST network of IFCA-MIR, appendix A.1: two convolutions, one pooling, 128 hidden neurons.

    The appendix states no padding. Without it (the default of `torch.nn.Conv2d`) images of 28x28 leave the
    convolutions as 24x24 and the pooling as 12x12: 1,206,590 parameters for 62 classes. The MNIST network of
    the same appendix states output sizes that need padding, so ``padding=1`` is offered as the other reading.

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
"""Convolutions of each of the five blocks (Simonyan and Zisserman 2015, table 1: A, B and D)."""


class VGG(nn.Module):
    """The CIFAR-10 network of IFCA-MIR, appendix A.1: VGG with three fully connected layers and a log-softmax.

    Args:
        depth: 11, 13 or 16.
        norm: "batch" as in the paper, or "group" (32 groups), which unlike batch norm does not mix the examples.
    """

    def __init__(
        self, channels: int = 3, side: int = 32, classes: int = 10, depth: int = 11, norm: str = "batch"
    ) -> None:
        super().__init__()
        require(depth in VGG_CONFIGURATIONS, f"VGG has depth 11, 13 or 16; got {depth}")
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
        """Images (B, C, H, W) to outputs (B, classes)."""
        return functional.log_softmax(self.classifier(self.features(images).flatten(1)), dim=1)


class MLP(nn.Module):
    """One hidden layer; 784-200-10 is the MNIST network of IFCA (Ghosh et al. 2020)."""

    input_layer = "hidden"

    def __init__(self, inputs: int = 784, hidden: int = 200, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to outputs (B, classes)."""
        return self.output(torch.relu(self.hidden(images.flatten(1))))


class Logistic(nn.Module):
    """Multinomial logistic regression."""

    input_layer = "output"

    def __init__(self, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        self.output = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to outputs (B, classes)."""
        return self.output(images.flatten(1))


class FacesCNN(nn.Module):
    """The face network of Melis et al. (S&P 2019), which Kim et al. (RAID 2023) take over: three convolutions of
    3x3 without padding, each pooled, and 256 hidden neurons; 880,450 parameters for 3x62x47 images and 2 classes.

    Images need not be square; both sides are at least 22 pixels.
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
        """Images (B, C, H, W) to outputs (B, classes)."""
        features = _pool(self.third(_pool(self.second(_pool(self.first(images))))))
        return self.output(functional.relu(self.hidden(features.flatten(1))))
