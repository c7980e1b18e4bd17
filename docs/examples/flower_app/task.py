"""The network, the data and the training: ten clients with twenty handwritten digits each."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
    """The digits of a client; number CLIENTS has those of nobody."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    first = partition_id * IMAGES
    rows = order[first : first + IMAGES] if partition_id < CLIENTS else order[first:]
    return TensorDataset(torch.tensor(x[rows] / 16, dtype=torch.float32), torch.tensor(y[rows]))


def train(net, data, epochs, rate):
    """Descend the loss in batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=10, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()


def test(net, data):
    """The accuracy."""
    x, y = data.tensors
    with torch.no_grad():
        return float((net(x).argmax(dim=1) == y).float().mean())
