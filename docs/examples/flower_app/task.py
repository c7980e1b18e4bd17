"""The network, the data and the training: ten clients with twenty handwritten digits each."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

CLIENTS, IMAGES = 10, 20


class Net(nn.Module):
    """A network of one hidden layer."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 40)
        self.output = nn.Linear(40, 10)

    def forward(self, x):
        """The outputs (B, 10) for digits (B, 64)."""
        return self.output(torch.relu(self.hidden(x)))


def load_data(partition_id):
    """A client's digits as a loader of batches with "img" and "label"; number CLIENTS has those of nobody."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    first = partition_id * IMAGES
    rows = order[first : first + IMAGES] if partition_id < CLIENTS else order[first:]
    digits = [{"img": torch.tensor(x[row] / 16, dtype=torch.float32), "label": int(y[row])} for row in rows]
    return DataLoader(digits, batch_size=10, shuffle=True)


def train(net, loader, epochs, rate):
    """Descend the loss in batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch["img"]), batch["label"]).backward()
            optimizer.step()


def test(net, loader):
    """The accuracy."""
    with torch.no_grad():
        right = sum(int((net(batch["img"]).argmax(dim=1) == batch["label"]).sum()) for batch in loader)
    return right / len(loader.dataset)
