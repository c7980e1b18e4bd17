"""Flower: FedAvg by its simulation engine, one Ray worker a core.

Runs in an environment that has flwr[simulation]. Ray's workers start during the round for warming up. Memory is that
of this process and of Ray's, each at its own peak; pages that they share count once for each.

    python benchmarks/systems/flower_side.py fedavg-cnn --random-data
"""

import os
from collections.abc import Iterable

# Read when the libraries are imported: a benchmark reports to nobody.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import flower_app
import torch
from clock import Clock, family, peak_mib, tell
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import build
from work import chosen, parser


def main() -> None:
    """Play the rounds and print the JSON; memory is that of this process and of all of Ray's."""
    arguments = parser(__doc__ or "", threads=0).parse_args()
    work = chosen(arguments)
    clock = Clock(arguments.began, cpu=lambda: sum(family().values()))
    peaks: dict[int, float] = {}

    class Timed(FedAvg):
        """FedAvg that stamps its rounds."""

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            """The round's messages; the first round begins when there are clients to send them to."""
            messages = super().configure_train(server_round, arrays, config, grid)
            if server_round == 1:
                clock.start()
            return messages

        def aggregate_train(
            self, server_round: int, replies: list[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            """The average, and a lap."""
            replies = list(replies)
            failed = sum(reply.has_error() for reply in replies)
            assert len(replies) - failed == work.clients, f"{len(replies) - failed} of {work.clients} clients answered"
            averaged = super().aggregate_train(server_round, replies)
            clock.lap()
            peaks.update({process: peak_mib(process) for process in family()})
            return averaged

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        config = {
            "work": arguments.work,
            "data": "" if arguments.data is None else str(arguments.data.resolve()),
            "random": arguments.random_data,
            "clients": work.clients,
            "examples": work.examples,
        }
        arrays = ArrayRecord(build(work).state_dict())
        strategy = Timed(fraction_evaluate=0.0, min_available_nodes=work.clients)
        strategy.start(grid, arrays, num_rounds=arguments.rounds + 1, train_config=ConfigRecord(config))

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    if arguments.threads:
        backend["init_args"] = {"num_cpus": arguments.threads}
    run_simulation(server, flower_app.APP, num_supernodes=work.clients, backend_config=backend)
    tell(
        "flower",
        arguments.work,
        work.images,
        clock,
        peak_mib=sum(peaks.values()),
        processes=len(peaks),
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main()
