"""A simulation of the app on this machine: python run.py."""

from client_app import app as client_app
from flwr.simulation import run_simulation
from server_app import app as server_app
from task import CLIENTS

if __name__ == "__main__":
    run_simulation(server_app, client_app, num_supernodes=CLIENTS)
