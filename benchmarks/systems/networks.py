"""The works' networks in plain PyTorch, for the sides that have no Shoal."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from work import CLASSES, Work


class CNN(nn.Module):
    """Shoal's "mnist-cnn": conv 1-32, conv 32-64 (3x3, padded), each with ReLU and 2x2 pooling, linear 3136-10.

    Args:
        layout: "nchw" and "channels-last" write ReLU before pooling, as most people do; "pooled" is channels last
            with pooling first, the same function on a quarter of the numbers; "onednn" is the latter in oneDNN's
            own layout.
    """

    def __init__(self, layout: str = "nchw") -> None:
        super().__init__()
        self.layout = layout
        self.first = nn.Conv2d(1, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)
        self.output = nn.Linear(3136, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 1, 28, 28) to outputs (B, 10)."""
        features = images.to_mkldnn() if self.layout == "onednn" else images
        for convolution in (self.first, self.second):
            features = self._activated(convolution(features))
        if self.layout == "onednn":
            features = features.to_dense()
        return self.output(features.flatten(1))

    def _activated(self, features: Tensor) -> Tensor:
        # oneDNN's pooling wants both sides of the window spelt out.
        if self.layout in {"pooled", "onednn"}:
            return functional.relu(functional.max_pool2d(features, (2, 2), (2, 2)))
        return functional.max_pool2d(functional.relu(features), 2)


class LeNet(nn.Sequential):
    """Conv 3-6 and 6-16 (5x5), each with ReLU and 2x2 pooling, linear 120-84-10: 62,006 parameters on 3x32x32."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 6), (6, 16)):
            layers += [nn.Conv2d(inputs, outputs, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        for inputs, outputs in ((400, 120), (120, 84)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers, nn.Linear(84, CLASSES))


class VGG11(nn.Sequential):
    """Shoal's "vgg11" with batch norm, for 3x32x32 images."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        inputs = 3
        for block in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for outputs in block:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        for outputs in (512, 512):
            layers += [nn.Flatten(), nn.Linear(512, outputs), nn.ReLU()]
        super().__init__(*layers, nn.Linear(512, CLASSES))


def build(work: Work, layout: str = "nchw", seed: int = 0) -> nn.Module:
    """The network of a work, with PyTorch's own initial parameters."""
    torch.manual_seed(seed)
    match work.network:
        case "cnn":
            return CNN(layout)
        case "vgg11":
            return VGG11()
        case "lenet":
            return LeNet()
        case _:
            channels, height, width = work.shape
            inputs = channels * height * width
            return nn.Sequential(
                nn.Flatten(), nn.Linear(inputs, work.hidden), nn.ReLU(), nn.Linear(work.hidden, CLASSES)
            )
