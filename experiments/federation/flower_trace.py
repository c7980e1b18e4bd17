"""A Flower app in plain PyTorch whose server writes a trace of what it sees: ten clients with twenty digits each.

python experiments/federation/flower_trace.py runs/flower-trace
shoal audit --trace runs/flower-trace
"""

import sys
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import nn

# ruff: noqa: ANN001, ANN003, ANN201, ANN204
CLIENTS, IMAGES, ROUNDS = 10, 20, 2
DIGITS, LABELS = load_digits(return_X_y=True)
X, Y = torch.tensor(DIGITS / 16, dtype=torch.float32), torch.tensor(LABELS)
OWNER = np.where(np.arange(len(Y)) < CLIENTS * IMAGES, np.arange(len(Y)) // IMAGES, -1)

ABOUT = """classes = 10
shape = [64]
every = 1
model = {name = "mlp", hidden = 40}
local = {epochs = 3, batch_size = 10, learning_rate = 0.1}
"""


def network():
    return nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))


class Client(NumPyClient):
    def __init__(self, number):
        self.number, self.x, self.y = number, X[number == OWNER], Y[number == OWNER]

    def fit(self, parameters, _):
        net = network()
        names = net.state_dict()
        net.load_state_dict(dict(zip(names, map(torch.tensor, parameters), strict=True)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in torch.randperm(len(self.y)).repeat(3).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(self.x[batch]), self.y[batch]).backward()
            optimizer.step()
        return [tensor.numpy() for tensor in net.state_dict().values()], len(self.y), {"client": self.number}


class Traced(FedAvg):
    def __init__(self, folder, **settings):
        super().__init__(**settings)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "trace.toml").write_text(ABOUT)
        np.savez(self.folder / "records.npz", x=X.numpy(), y=Y.numpy(), client=OWNER)

    def configure_fit(self, server_round, parameters, client_manager):
        self.before = flat(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        clients = np.array([result.metrics["client"] for _, result in results])
        sent = np.stack([flat(result.parameters) for _, result in results])
        path = self.folder / f"round-{server_round:04d}.npz"
        np.savez(path, clients=clients, models=self.before, parameters=sent)
        return super().aggregate_fit(server_round, results, failures)


def flat(parameters):
    return np.concatenate([array.ravel() for array in parameters_to_ndarrays(parameters)]).astype(np.float32)


def strategy(folder):
    begin = ndarrays_to_parameters([tensor.numpy() for tensor in network().state_dict().values()])
    return Traced(folder, initial_parameters=begin, fraction_evaluate=0.0, min_available_clients=CLIENTS)


def client(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


if __name__ == "__main__":
    out = sys.argv[1]
    server = ServerApp(
        server_fn=lambda _: ServerAppComponents(strategy=strategy(out), config=ServerConfig(num_rounds=ROUNDS))
    )
    run_simulation(server, ClientApp(client_fn=client), num_supernodes=CLIENTS)
