"""The server."""

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from task import CLIENTS, Net

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.1, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=2, train_config=ConfigRecord({"lr": 0.1}))
