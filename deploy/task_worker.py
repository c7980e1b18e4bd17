"""Answers a SuperNode's messages by the installed Shoal's ClientApp, whatever app the server sends.

Flower starts a program for each message, which unpacks the server's package and imports its code: whoever may start a
run runs code on every node. Beside ``flower-supernode --isolation process --port PORT``, on the same machine, run

    python deploy/task_worker.py 127.0.0.1:PORT

Of the server's package nothing is unpacked, imported or installed. Each message has a process of its own, a fork of one
that has PyTorch loaded, and the next one does not wait for it: Flower tries for two hours to get the contents of a
message whose run has ended. It needs `os.fork`, so Linux or macOS.

Flower has no public interface for this: the private modules below are those of version 1.42, and no other is accepted.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

FLOWER = "1.42"
if not version("flwr").startswith(f"{FLOWER}."):
    sys.exit(f"task_worker.py: Flower must be {FLOWER} (got {version('flwr')}): run pip install 'flwr=={FLOWER}.*'")

# What the forks share.
import opacus.accountants  # noqa: F401
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from shoal_flower.client import client_app
from shoal_flower.messages import REFUSED

LOG = logging.getLogger("shoal")

App = Callable[[Message, Context], Message]

_POLL = 0.1
"""Seconds from one look for a message to the next."""

_CLOCKS = 30.0
"""Seconds by which clocks may differ without a word."""


def work(address: str, app: App = client_app.app) -> None:
    """Answer the messages of the SuperNode at ``address``, HOST:PORT on this machine, until this process is ended."""
    client = _client(address)
    while True:
        task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if not task.HasField("task") or not task.token:
            time.sleep(_POLL)
        elif os.fork() == 0:
            _end(address, task.token, app)
        # Forks that have ended are let go.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _client(address: str, *interceptors: RuntimeTokenHttpInterceptor) -> RuntimeHttpClient:
    """A client of a SuperNode's Runtime API."""
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), *interceptors],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _answer(address: str, token: str, app: App) -> None:
    """Answer one message; the server's package, which comes with it, is left as it is."""
    start_parent_process_monitor(os.getppid())
    client = _client(address, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    message, context, _, _ = pull_task_input(client)
    _compare_clocks(message.metadata.created_at, message.metadata.ttl)
    try:
        reply, status = app(message, context), SubStatus.COMPLETED
    except Exception:
        LOG.exception("a message of the server could not be answered")
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, REFUSED)
        reply, status = Message(error, reply_to=message), SubStatus.FAILED
    push_message(client, reply, context)
    push_task_output(client, context, status, "")
    heartbeat.stop()
    client.close()


def _compare_clocks(sent: float, valid: float) -> None:
    """Warn where a message came that by this machine's clock was sent later or has expired, in seconds since 1970."""
    now = time.time()
    ahead, behind = now - sent - valid, sent - now
    if max(ahead, behind) > _CLOCKS:
        LOG.warning(
            "this machine's clock is %d seconds %s of the server's, which refuses signatures and replies for it; "
            "set it: timedatectl set-ntp true",
            max(ahead, behind),
            "ahead" if ahead > behind else "behind",
        )


def _end(address: str, token: str, app: App) -> None:
    """The fork's part: one message, and then the end of the process, whatever came of it."""
    code = 1
    try:
        _answer(address, token, app)
        code = 0
    except Exception:
        LOG.exception("a message of the server could not be answered")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Unforged(logging.Formatter):
    """Lines in whose text nobody can begin another one, or move a terminal's cursor: the server's words are in them."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).split("\n")
        return "\n    ".join("".join(sign if sign.isprintable() else " " for sign in line) for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="HOST:PORT", help="of the SuperNode's Runtime API")
    address = parser.parse_args(arguments).address
    lines = logging.StreamHandler()
    lines.setFormatter(_Unforged("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[lines])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    work(address)


if __name__ == "__main__":
    main()
