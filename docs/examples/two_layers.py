"""A network: two linear layers with a tanh between them."""

from torch import Tensor, nn

from shoal import Shape


class TwoLayers(nn.Module):
    """From images (B, C, H, W) to outputs (B, classes).

    Args:
        shape: of the data: channels, height, width, classes.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.hidden = nn.Linear(shape.inputs, 16)
        self.output = nn.Linear(16, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs before softmax."""
        return self.output(self.hidden(images.flatten(1)).tanh())
