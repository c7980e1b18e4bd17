"""The ServerApp: Flower's grid and run configuration to `shoal.deployment.server.server_run`."""

import json
import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from shoal.core.atomic_files import write_text
from shoal.deployment.server.exchange import FlowerExchange
from shoal.deployment.server.run_settings import RunSettings
from shoal.deployment.server.server_rounds import Progress
from shoal.deployment.server.server_run import serve

LOG = logging.getLogger("shoal")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured federation with the nodes of ``grid``."""
    settings = RunSettings.read(context.run_config)

    def show(progress: Progress) -> None:
        if settings.out.is_dir():
            write_text(settings.out / "progress.json", json.dumps(vars(progress)) + "\n")

    try:
        serve(FlowerExchange(grid), settings, show)
    except Exception as error:
        LOG.error("%s", error)
        if settings.out.is_dir():
            write_text(settings.out / "progress.json", json.dumps({"error": str(error)}) + "\n")
        raise
