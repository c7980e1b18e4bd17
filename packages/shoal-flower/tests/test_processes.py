"""Programs end with everything that they started, and phone nobody."""

import dataclasses
import os
import re
import signal
import stat
import sys
import time
import tomllib
from pathlib import Path

import pytest
from processes import (
    APP,
    KEEP_RUNNING,
    Programs,
    descendants,
    environment,
    free_port,
    listens,
    node_config,
    wait_until,
)

from shoal.core.errors import InputError, ShoalError
from shoal_flower.flower_config import RunSettings


def alive(process: int) -> bool:
    path = Path(f"/proc/{process}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc, to see processes")
@pytest.mark.parametrize("killed", [False, True])
def test_children_of_programs_end_with_them_also_in_a_group_of_their_own(tmp_path, killed):
    code = "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
    with Programs(tmp_path) as programs:
        programs.start("parent", [sys.executable, "-c", code])
        parent = programs.running["parent"].pid
        wait_until(lambda: len(descendants({parent})) == 1, 30, "no child")
        (child,) = descendants({parent})
        assert alive(child)
        if killed:
            programs.kill("parent")
            wait_until(lambda: not alive(child), 30, "the child goes on")
    wait_until(lambda: not alive(child), 30, "the child goes on")
    assert not alive(parent)


def test_no_program_sends_telemetry_or_looks_for_updates_or_installs(tmp_path):
    expected = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(tmp_path),
    }
    assert expected.items() <= environment(tmp_path).items()


@pytest.mark.processes
def test_files_that_a_program_saves_are_in_its_folder(tmp_path):
    with Programs(tmp_path) as programs:
        programs.start("saves", [sys.executable, "-c", "open('final_model.pt', 'w')"])
        programs.running["saves"].wait(60)
    assert (tmp_path / "final_model.pt").exists()


FAILS_TWICE = """
import pathlib, signal, sys, time
runs = pathlib.Path("runs")
runs.write_text(runs.read_text() + "run " if runs.exists() else "run ")
if runs.read_text().count("run") < 3:
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: runs.write_text(runs.read_text() + "ended ") and sys.exit())
runs.write_text(runs.read_text() + "ready ")
time.sleep(300)
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_kept_program_is_started_again_and_ends_once_with_its_keeper(tmp_path, number):
    with Programs(tmp_path) as programs:
        programs.start("kept", [str(KEEP_RUNNING), sys.executable, "-c", FAILS_TWICE])
        keeper = programs.running["kept"]
        wait_until(lambda: "ready" in _text(tmp_path / "runs"), 60, "the third run")
        # As Ctrl-C does, which a terminal sends to a whole group.
        os.killpg(keeper.pid, number)
        assert keeper.wait(30) == 128 + number
        assert _text(tmp_path / "runs") == "run run run ready ended "
        said = programs.log("kept")
    assert [int(code) for code in re.findall(r"ended with exit code (\d+); it starts again", said)] == [7, 7]
    pauses = [float(pause) for pause in re.findall(r"again in (\d+) s", said)]
    assert pauses == [1, 2]


@pytest.mark.processes
def test_a_keeper_does_not_try_again_what_cannot_be_started(tmp_path):
    with Programs(tmp_path) as programs, pytest.raises(ShoalError, match="no-such-program: cannot be started"):
        programs.call([str(KEEP_RUNNING), "no-such-program"], tmp_path)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.processes
def test_a_program_that_fails_says_so(tmp_path):
    with Programs(tmp_path) as programs:
        assert programs.call([sys.executable, "-c", "print(6 * 7)"], tmp_path) == "42\n"
        with pytest.raises(ShoalError, match=r"failed: .*broken"):
            programs.call([sys.executable, "-c", "import sys; sys.exit('broken')"], tmp_path)
        with pytest.raises(ShoalError, match=r"did not end within 0\.1 seconds"):
            programs.call([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, seconds=0.1)


def test_what_never_holds_is_not_waited_for_forever():
    began = time.monotonic()
    with pytest.raises(ShoalError, match="a miracle: not within 0 seconds"):
        wait_until(lambda: False, 0, "a miracle", poll=0.01)
    assert time.monotonic() - began < 30


def test_the_app_has_the_settings_of_a_run_and_nothing_to_install():
    app = tomllib.loads((APP / "pyproject.toml").read_text())
    config = app["tool"]["flwr"]["app"]["config"]
    # Flower takes no setting that the app has not named; a state folder is for its simulation.
    fields = {field.name.replace("_", "-"): field.default for field in dataclasses.fields(RunSettings)}
    assert set(config) == {*fields, "state-dir"}
    assert all(value == fields[key] for key, value in config.items() if isinstance(value, int | float))
    assert app["project"]["dependencies"] == []


def test_a_node_config_is_as_flower_reads_it():
    config = node_config({"partition-id": 1, "state-dir": Path("/s"), "beta": 0.5})
    assert config == 'partition-id=1 state-dir="/s" beta=0.5'
    assert not listens(free_port())


def test_certificates_are_of_the_authority_and_keys_are_their_owners_alone(tmp_path):
    from certificates import main, make_certificates  # noqa: PLC0415
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key  # noqa: PLC0415

    folder = tmp_path / "keys"
    assert main([str(folder), "--nodes", "2", "--host", "server"]) == 0
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "server"]
    keys = [folder / "server.key", folder / "node-0", folder / "node-1"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    public = [load_ssh_public_key((folder / f"node-{i}.pub").read_bytes()).public_numbers() for i in range(2)]
    assert public[0] != public[1]
    assert main([str(folder)]) == 2
    with pytest.raises(InputError, match="'--nodes' must be at least 1"):
        make_certificates(tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()
