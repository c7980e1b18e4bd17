"""Every command of docs/deployment.md is run: real programs on loopback, with the page's paths and ports exchanged."""

import configparser
import csv
import json
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import processes
import pytest
from processes import FRONT, NGINX, Programs, free_port, listens, wait_until

from shoal_flower.client.policy import Ledger
from wire_federation import rows_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Three machines from nothing") : PAGE.index("## As services")]
KEEPER = "deploy/keep-running "
PROGRAMS = ("flower-superlink", "nginx", "flower-supernode", "python deploy/task_worker.py")
"""Programs that go on until they are ended, each behind the keeper."""

INSTALLS = ("git clone", "python3 -m venv", "pip install", "export")
"""Commands that make the environment in which the tests run."""


def commands(text: str) -> list[str]:
    """The commands in the indented blocks of some text, without comments, each on one line."""
    lines = [
        line[4:]
        for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.M).splitlines()
        if line[:4] == " " * 4
    ]
    joined = re.sub(r"\\\n +", "", "\n".join(lines))
    return [re.sub(r" {2,}#.*", "", line) for line in joined.splitlines()]


def toml_after(words: str) -> str:
    """The block of TOML that follows some words of the page."""
    return re.search(r"```toml\n(.*?)```", PAGE[PAGE.index(words) :], flags=re.DOTALL)[1]


def write_table(path: Path, clinics: list[str], rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(50, 10, rows), draw.normal(1, 0.5, rows)
    ill = ["yes" if value > 0 else "no" for value in age - 50 + 8 * (dose - 1)]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["clinic", "age", "dose", "ill"])
        table.writerows(zip(clinics * (rows // len(clinics)), age.round(4), dose.round(4), ill, strict=True))


def test_what_is_installed_is_what_the_project_has():
    install, trial = [command for command in commands(SECTION) if command.startswith("pip install")]
    assert install == "pip install -c constraints.txt -e . -e packages/shoal-flower"
    assert (ROOT / "constraints.txt").is_file()
    assert trial == "pip install -c constraints.txt trustme"
    shoal, flower = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        for folder in ("", "packages/shoal-flower")
    )
    brings = (flower["dependencies"], shoal["optional-dependencies"]["dev"])
    assert [any("trustme" in package for package in packages) for packages in brings] == [False, True]
    assert flower["version"] == shoal["version"]
    assert f"shoal=={shoal['version']}" in flower["dependencies"]
    assert [command.split()[0] for command in commands(SECTION) if command.startswith(INSTALLS)] == [
        "git", "python3", "pip", "export", "pip"
    ]  # fmt: skip


@pytest.mark.processes
@pytest.mark.skipif(NGINX is None and "CI" not in os.environ, reason="needs nginx: apt-get install nginx-light")
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_the_commands_make_a_federation_whose_budget_is_enough(tmp_path, monkeypatch):  # noqa: PLR0915
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    # As a reader's shell: the page does not say that Flower must not install.
    usual = processes.environment
    clean = lambda home: {k: v for k, v in usual(home).items() if "DEPENDENCY" not in k}  # noqa: E731
    monkeypatch.setattr(processes, "environment", clean)
    ports = {name: free_port() for name in ("superlink", "front", "north", "south")}
    for folder in ("federation", "data", "etc", "var"):
        (tmp_path / folder).mkdir()
    for name, clinics, rows in (("server", ["one", "two"], 400), ("north", ["north"], 500), ("south", ["south"], 500)):
        write_table(tmp_path / "data" / f"{name}.csv", clinics, rows, seed=len(name))
    front = FRONT.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{ports['superlink']}")
    (tmp_path / "front.conf").write_text(front.replace("listen 8443", f"listen 127.0.0.1:{ports['front']}"))
    places = {
        KEEPER: f"{ROOT}/{KEEPER}",
        "deploy/task_worker.py": f"{ROOT}/deploy/task_worker.py",
        "cp deploy/nginx.conf": f"cp {tmp_path}/front.conf",
        "-e error.log": "-e error.log" + " -g 'user root;'" * (os.geteuid() == 0),
        "/home/me/federation": f"{tmp_path}/federation",
        "/var/lib/shoal": f"{tmp_path}/var",
        "/etc/shoal": f"{tmp_path}/etc",
        "/data/": f"{tmp_path}/data/",
        "server:8443": f"localhost:{ports['front']}",
        "127.0.0.1:8000": f"127.0.0.1:{ports['superlink']}",
        "--port 8000": f"--port {ports['superlink']}",
        "9094": str(ports["north"]),
    }

    def here(text: str) -> str:
        for old, new in places.items():
            text = text.replace(old, new)
        return text

    run = here(toml_after("`/home/me/federation/federation.toml`"))
    assert "rounds = 40\n" in run
    (tmp_path / "federation" / "federation.toml").write_text(run.replace("rounds = 40\n", "rounds = 2\n"))
    (tmp_path / "etc" / "policy.toml").write_text(here(toml_after("## A node's own policy")))
    monkeypatch.chdir(ROOT)
    listed = ""
    with Programs(tmp_path) as programs:
        (programs.home / "config.toml").write_text(here(toml_after("a connection in `~/.flwr/config.toml`")))
        for command in commands(SECTION):
            if command.startswith(INSTALLS):
                continue
            if command.startswith(KEEPER):
                nodes, kept = [here(command)], command.removeprefix(KEEPER)
                if kept.startswith(PROGRAMS[2:]):
                    south = nodes[0].replace("north", "south").replace(str(ports["north"]), str(ports["south"]))
                    nodes.append(south)
                for i, program in enumerate(nodes):
                    name = f"{kept.split()[0]}-{'task-' * ('task_worker' in program)}{i}"
                    programs.start(name, ["bash", "-c", f"exec {program}"])
                port = {PROGRAMS[0]: "superlink", PROGRAMS[1]: "front"}.get(kept.split()[0])
                if port:
                    wait_until(lambda port=port: listens(ports[port]), 120, command)
                continue
            said = programs.call(["bash", "-c", here(command)], ROOT, seconds=300)
            if command.startswith("flwr run"):
                assert "Successfully started run" in said
                out = tmp_path / "federation" / "runs" / "first"
                wait_until((out / "summary.json").exists, 150, f"the run's end: {said}")
            if command.startswith("flwr list"):
                listed = said
        assert "Installed: [" not in programs.log("flower-superlink-0"), "Flower has installed something"
    assert json.loads(listed)["success"] is True
    events = {row["kind"] for row in rows_of(out / "events.csv")}
    assert events == {"joined"}
    members = rows_of(out / "clients.csv")
    assert [(row["name"], row["rounds"]) for row in members] == [("north", "2"), ("south", "2")]
    # What the page says of the budget, from the ledger of two rounds with one choice.
    said = re.search(
        r"on (\d+) rows, noise 2, and four .*?epsilon of (\d+\.\d) at delta 1e-5, within its (\d+\.\d)", PAGE, re.DOTALL
    )
    rows, epsilon, budget = int(said[1]), float(said[2]), float(said[3])
    assert {int(row["examples"]) for row in members} == {rows}
    ledger = Ledger.load(tmp_path / "var" / "north" / "ledger.json")
    assert (ledger.rounds, ledger.answers) == (2, (("choice", 1.0, 1),))
    whole = replace(
        ledger,
        steps=tuple((noise, rate, 20 * count) for noise, rate, count in ledger.steps),
        answers=(("choice", 1.0, 4),),
    )
    assert round(whole.epsilon(1e-5), 1) == epsilon <= budget
    ((noise, rate, count),) = whole.steps
    more = replace(whole, steps=((noise, rate, count + count // 40),), answers=(("choice", 1.0, 5),))
    assert more.epsilon(1e-5) > budget
    assert f"epsilon-budget={budget}" in SECTION


UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_service_runs_a_program_of_the_page_as_a_user_without_rights(path):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read_string(re.sub(r"\\\n\s*", "", path.read_text()))
    service = unit["Service"]
    assert (service["User"], service["NoNewPrivileges"], service["ProtectSystem"]) == ("shoal", "yes", "strict")
    program = next(word for word in PROGRAMS if word.rpartition("/")[2] in service["ExecStart"])
    stated = next(command for command in commands(SECTION) if command.startswith(KEEPER + program))
    flags = lambda text: set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", text))  # noqa: E731
    assert flags(service["ExecStart"]) == flags(stated)
    assert path.name in PAGE
    # A node that was killed is refused for a minute: no limit of restarts gives it up.
    assert (service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    if program == "flower-supernode":
        assert "--isolation process" in service["ExecStart"]


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_services(tmp_path):
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    # Before 254 it ignores these, and says so.
    later = r"Restart(Steps|MaxDelaySec)=.*\n" if int(re.findall(r"\d+", version)[0]) < 254 else "$^"
    for path in UNITS:
        text = re.sub(r"/opt/shoal/bin/\S+|/usr/sbin/nginx", "/bin/true", re.sub(later, "", path.read_text()))
        (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_container_file_copies_what_there_is():
    text = (ROOT / "deploy" / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, flags=re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()[:-1]), line
    assert "USER shoal" in text
