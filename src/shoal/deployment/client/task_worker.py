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
from types import FrameType

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
    """Run what the SuperNode at ``address``, HOST:PORT on this machine, has to do, until this process is ended."""
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    while True:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.HasField("task") and found.token:
            if os.fork() == 0:
                _run(address, found.token)
        else:
            time.sleep(_POLL)
        _reap()


def _reap() -> None:
    """Let go of the forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run(address: str, token: str) -> None:
    """The fork's part: one message, and then the end of the process, whatever came of it."""
    parent = os.getppid()
    try:
        run_clientapp(runtime_api_address=address, token=token, insecure=True, parent_pid=parent)
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 1
    except BaseException:
        code = 1
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="HOST:PORT", help="of the SuperNode's Runtime API")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    work(given.address)
