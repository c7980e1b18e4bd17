"""What a stranger and a foreign app can reach: Flower's real programs behind nginx, on loopback."""

import json
import os

import pytest
from certificates import make_certificates
from processes import NGINX, Loopback, status, wait_until

from forked_programs import ForkedPrograms
from shoal.core.errors import ShoalError

pytestmark = pytest.mark.skipif(
    NGINX is None and "CI" not in os.environ, reason="needs nginx: apt-get install nginx-light"
)

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "foreign"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "foreign:server"
clientapp = "foreign:client"
[tool.flwr.app.config]
where = ""
"""

CODE = """
import json
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from shoal_flower.server.exchange import Exchange

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    where = Path(context.run_config["where"])
    where.joinpath("server-ran").touch()
    exchange = Exchange(grid)
    while len(nodes := exchange.connected()) < 2:
        exchange.pause()
    answers = {}
    for question in ("identify", "steal"):
        messages = {node: RecordDict() for node in nodes}
        for answer in exchange.ask(question, messages, set(nodes), 90.0, "1"):
            known = answer.content is not None and "client" in answer.content
            said = answer.content["client"]["name"] if known else answer.error
            answers.setdefault(question, []).append(said)
    where.joinpath("unfinished").write_text(json.dumps(answers))
    where.joinpath("unfinished").rename(where / "answers.json")

@client.query("identify")
@client.query("steal")
def steal(message, context):
    where = Path(context.run_config["where"])
    where.joinpath(f"client-ran-{context.node_config['partition-id']}").touch()
    return Message(content=RecordDict(), reply_to=message)
"""

BEHIND_OTHER_DOORS = [
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "//v1/control/start-run",
    "/health",
    "/",
]


@pytest.mark.processes
def test_a_stranger_is_refused_and_a_pinned_node_runs_no_code_of_the_servers(tmp_path, forks):
    keys, app, where = tmp_path / "keys", tmp_path / "app", tmp_path / "where"
    for folder in (app, where):
        folder.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "foreign.py").write_text(CODE)
    make_certificates(keys, nodes=3)
    authority = keys / "ca.crt"
    with ForkedPrograms(tmp_path, forks) as programs:
        loopback = Loopback(programs, keys)
        loopback.start_server()
        loopback.start_front()
        for i, apps in enumerate(("forks", "programs")):
            loopback.register(keys / f"node-{i}.pub")
            loopback.start_node(f"node-{i}", {"partition-id": i}, key=keys / f"node-{i}", apps=apps)
        loopback.start_node("stranger", {"partition-id": 2}, key=keys / "node-2", apps="none")
        for path in BEHIND_OTHER_DOORS:
            assert status(loopback.door, path, authority) == 403, path
        assert status(loopback.door, "/v1/fleet/get-run", authority, body=None) == 403, "by GET"
        assert status(loopback.door, "/v1/fleet/push-object", authority, bytes(17 << 20)) == 413, "a large body"
        assert status(loopback.door, "/v1/fleet/register-node", authority) == 401, "unsigned"
        # As the stranger's own computer has it: the certificate of the authority, and the address that nodes have.
        table = f'[superlink.door]\naddress = "{loopback.door}"\nroot-certificates = "{authority}"\n'
        with (programs.home / "config.toml").open("a") as file:
            file.write(table)
        run = ["flwr", "run", ".", "door", "--run-config", f'where="{where}"']
        for command in (["flwr", "supernode", "register", str(keys / "node-2.pub"), "door"], run):
            with pytest.raises(ShoalError, match="Status/403"):
                programs.call(command, app)
        assert not list(where.iterdir())
        # Whoever is on the server may start runs; what they may not is to run code on a pinned node.
        loopback.run(app, {"where": where})
        wait_until((where / "answers.json").exists, 180, "the foreign app's answers")
        assert "SuperNode ID" not in programs.log("stranger")
    answers = json.loads((where / "answers.json").read_text())
    assert answers["identify"].count("partition-0") == 1
    assert answers["steal"].count("the client refuses; its own log says why") == 1
    assert {path.name for path in where.iterdir()} == {"answers.json", "server-ran", "client-ran-1"}
