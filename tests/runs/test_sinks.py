"""Trackers: what is logged is what the files have, once, and a tracker that fails ends no training."""

from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from shoal.cli.app import main
from shoal.core.errors import InputError
from shoal.runs.result import load
from shoal.runs.run import run
from shoal.runs.sinks import LoggedRun, TensorBoard, _EventFile


@dataclass
class Memory:
    """A tracker that keeps what it is given, and fails where it is asked to."""

    fails_at: str = ""
    opened: list = field(default_factory=list)
    written: list = field(default_factory=list)
    closed: list = field(default_factory=list)

    def open_log(self, run):
        self._called("open_log", self.opened, run)
        return self

    def write(self, number, figures):
        self._called("write", self.written, (number, figures))

    def close(self, summary):
        self._called("close", self.closed, summary)

    def _called(self, name, kept, what):
        if self.fails_at == name:
            raise OSError(28, "No space left on device")
        kept.append(what)


@pytest.fixture
def config(toy_config):
    return lambda **changes: toy_config(data__clients=6, algorithm__rounds=4, **changes)


def test_what_is_logged_is_what_the_files_have(config, tmp_path):
    tracker = Memory()
    steered = config(coordinator={"gain": 1.0, "augmentation": {"rotation": 10}})
    run(steered, tmp_path / "a", watch=[lambda *_: None, tracker])
    run(steered, tmp_path / "b")
    assert (tmp_path / "a/models.safetensors").read_bytes() == (tmp_path / "b/models.safetensors").read_bytes()
    result = load(tmp_path / "a")
    rounds = result.rounds
    assert [number for number, _ in tracker.written] == [1, 2, 3, 4]
    for number, figures in tracker.written:
        now = rounds[rounds["round"] == number].set_index("cluster")
        estimated = number % 2 == 0
        for k, row in now.iterrows():
            for key in ("clients", "clients.minority", "accuracy", "train_loss", "directive.augmentation"):
                assert figures.get(f"{key}/cluster {k}", float("nan")) == pytest.approx(row[key], nan_ok=True)
            assert figures.get(f"risk.outsider/cluster {k}") == (row["risk"] if estimated else None)
        for who, count in (("all", "clients"), ("minority", "clients.minority")):
            accuracy = now["accuracy" if who == "all" else f"accuracy.{who}"]
            mean = (accuracy * now[count]).sum() / now[count].sum()
            assert figures[f"accuracy/{who}"] == pytest.approx(mean)
        assert {"seconds/choose", "seconds/train", "seconds/red_team"} <= {*figures}
    assert tracker.closed == [result.summary]
    [about] = tracker.opened
    assert (about.rounds, about.out, about.parameters["algorithm.name"]) == (0, tmp_path / "a", "ifca-mir")


def test_a_resumed_run_logs_no_round_twice_and_only_what_a_checkpoint_has(config, tmp_path):
    tracker, out = Memory(), tmp_path / "run"
    lost = []

    def interrupted(simulation, progress, report):
        lost.append((progress.state.round, len(tracker.written)))
        if progress.state.round == 3:
            raise KeyboardInterrupt

    small = config(checkpoint={"every": 2})
    with pytest.raises(KeyboardInterrupt):
        run(small, out, watch=[tracker, interrupted])
    assert lost == [(0, 0), (1, 0), (2, 2), (3, 2)], "round 3 has no checkpoint when it is over"
    # At the end of an interrupted process it has one.
    assert ([number for number, _ in tracker.written], tracker.closed) == ([1, 2, 3], [None])
    run(small, out, resume=True, watch=[tracker])
    assert [number for number, _ in tracker.written] == [1, 2, 3, 4]
    assert [about.rounds for about in tracker.opened] == [0, 3]
    assert tracker.closed == [None, load(out).summary]


@pytest.mark.parametrize("fails_at", ["open_log", "write", "close"])
def test_a_tracker_that_fails_is_left_out_with_one_warning(config, tmp_path, caplog, fails_at):
    broken, sound = Memory(fails_at), Memory()
    run(config(red_team__attack="gap"), tmp_path / "run", watch=[broken, sound])
    said = "Memory failed, and logging to it stops: [Errno 28] No space left on device"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [said]
    assert load(tmp_path / "run").warnings == (said,)
    assert (len(sound.written), len(sound.closed), len(broken.written)) == (4, 1, 4 * (fails_at == "close"))


def test_a_full_disk_ends_no_training_that_logs_to_tensorboard(config, tmp_path, caplog):
    class Full(Memory):
        def open_log(self, run):
            return _EventFile(Path("/dev/full"), run)

    run(config(), tmp_path / "run", watch=[Full()])
    assert "Full failed, and logging to it stops: [Errno 28] No space left on device" in caplog.text
    assert load(tmp_path / "run").summary["rounds"] == 4


def steps_of_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - slow

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}, events


@pytest.mark.usefixtures("_unrendered_figures")
def test_tensorboard_reads_what_the_command_logs(config, tmp_path):
    path, out = tmp_path / "small.toml", tmp_path / "run"
    path.write_text(config().toml())
    command = ["run", str(path), "--out", str(out), "--quiet", "--log", "tensorboard", "--log", "tensorboard"]
    assert main([*command, "--set", "algorithm.rounds=2"]) == 0
    assert main([*command, "--resume"]) == 0
    scalars, events = steps_of_tensorboard(out / "tensorboard")
    result = load(out)
    accuracy = result.rounds[result.rounds["cluster"] == 0].set_index("round")["accuracy"].dropna()
    assert dict(scalars["accuracy/cluster 0"]) == pytest.approx(accuracy.to_dict())
    assert [step for step, _ in scalars["accuracy/all"]] == [1, 2, 3, 4]
    assert scalars["summary/accuracy.overall"][-1] == (4, pytest.approx(result.summary["accuracy.overall"]))
    hyper = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert hyper.plugin_name == "hparams"
    assert b"algorithm.clusters" in hyper.content
    assert 'name = "ifca-mir"' in events.Tensors("config.toml")[0].tensor_proto.string_val[0].decode()


def test_an_absent_package_or_another_tracker_is_one_sentence_and_nothing_is_trained(
    config, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(config().toml())
    assert main(["run", "small.toml", "--log", "mlflow"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("'--log'", "'tensorboard'", "'mlflow'", "docs/use.md"))
    folder = ModuleSpec("tensorboard", None, is_package=True)
    for found in (None, folder):  # A folder of logs can be imported.
        monkeypatch.setattr("shoal.runs.sinks.find_spec", lambda _, found=found: found)
        assert main(["run", "small.toml", "--log", "tensorboard"]) == 2
        assert "pip install 'shoal[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_without_a_directory_names_the_folder(tmp_path):
    about = LoggedRun("a title", "a = [1]", None, 0)
    with pytest.raises(InputError, match="TensorBoard needs a folder"):
        TensorBoard().open_log(about)
    writer = TensorBoard(tmp_path / "tb").open_log(about)
    writer.write(1, {"x": 2.5})
    writer.close(None)
    assert steps_of_tensorboard(tmp_path / "tb")[0] == {"x": [(1, 2.5)]}
