"""Runs a node's ClientApp in forks of one process that has PyTorch loaded, instead of a new program for each message.

Flower starts a program for each message, which loads PyTorch and Shoal anew: seconds a round on a machine that is not
idle. Beside ``flower-supernode --isolation process --port PORT``, on the same machine, run

    python -m shoal.deployment.client.task_worker 127.0.0.1:PORT

Each message still has a process of its own, and the next one does not wait for it: Flower tries for two hours to get
the contents of a message whose run has ended. It needs `os.fork`, so Linux or macOS.
"""

import argparse
import contextlib
import os
import signal
import sys
import time

# What the forks share.
import opacus.accountants  # noqa: F401
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

import shoal.deployment.client.client_app  # noqa: F401

_POLL = 0.1
"""Seconds from one look for a message to the next."""


def work(address: str) -> None:
    """Run the tasks of the SuperNode at ``address``, HOST:PORT on this machine, until this process is ended."""
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    while True:
        task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if not task.HasField("task") or not task.token:
            time.sleep(_POLL)
        elif os.fork() == 0:
            _run(address, task.token)
        # Forks that have ended are let go.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _run(address: str, token: str) -> None:
    """The fork's part: one message, and then the end of the process, whatever came of it."""
    code: object = 1
    try:
        run_clientapp(runtime_api_address=address, token=token, insecure=True, parent_pid=os.getppid())
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="HOST:PORT", help="of the SuperNode's Runtime API")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    work(parser.parse_args().address)
