"""Trackers: what is logged is what the files have, once, and a tracker that fails ends no training."""

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from shoal.cli.app import main
from shoal.core.errors import InputError
from shoal.runs.result import load
from shoal.runs.run import run
from shoal.runs.sinks import MLflow, TensorBoard, WandB
from shoal.runs.sinks.sink import LoggedRun
from shoal.runs.sinks.tensorboard import _EventFile


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
    said = "Memory fails and is logged to no more: [Errno 28] No space left on device"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [said]
    assert load(tmp_path / "run").warnings == (said,)
    assert (len(sound.written), len(sound.closed), len(broken.written)) == (4, 1, 4 * (fails_at == "close"))


def test_a_full_disk_ends_no_training_that_logs_to_tensorboard(config, tmp_path, caplog):
    class Full(Memory):
        def open_log(self, run):
            return _EventFile(Path("/dev/full"), run)

    run(config(), tmp_path / "run", watch=[Full()])
    assert "Full fails and is logged to no more: [Errno 28] No space left on device" in caplog.text
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


def stand_in_mlflow():
    """MLflow's client as far as the sink knows it, with its refusal of a parameter's second value."""
    runs: list[SimpleNamespace] = []

    class MlflowClient:
        def __init__(self, uri):
            assert uri.startswith("sqlite:////")

        def get_experiment_by_name(self, name):
            return SimpleNamespace(experiment_id="1") if runs else None

        def create_experiment(self, name):
            assert not runs
            return "1"

        def search_runs(self, experiments, order_by):
            return runs[::-1]

        def create_run(self, experiment, run_name, tags):
            data = SimpleNamespace(tags=dict(tags), params={}, metrics={}, history=[])
            runs.append(
                SimpleNamespace(info=SimpleNamespace(run_id=len(runs), status="", run_name=run_name), data=data)
            )
            return runs[-1]

        def update_run(self, run, status):
            runs[run].info.status = status

        set_terminated = update_run

        def set_tag(self, run, key, value):
            runs[run].data.tags[key] = value

        def log_batch(self, run, metrics=(), params=()):
            assert len(metrics) + len(params) <= 100
            for key, value in params:
                assert runs[run].data.params.setdefault(key, value) == value
            runs[run].data.history += metrics
            runs[run].data.metrics |= {key: value for key, value, *_ in metrics}

        def get_metric_history(self, run, key):
            return [SimpleNamespace(step=step) for name, _, _, step in runs[run].data.history if name == key]

    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    package.MlflowClient, package.entities = MlflowClient, entities
    entities.Metric, entities.Param = (lambda *of: of), (lambda *of: of)
    package.__spec__ = importlib.util.spec_from_loader("mlflow", None, origin="stand-in")
    return {"mlflow": package, "mlflow.entities": entities}


def stand_in_wandb():
    class Run(SimpleNamespace):
        def log(self, figures, step):
            assert step > self.steps[-1]
            self.steps.append(step)

        def finish(self, exit_code):
            self.ended = exit_code

    def init(*, id, dir, **options):  # noqa: A002
        made = Run(id=id or "x9", steps=[0], summary={}, options=options)
        (Path(dir) / f"wandb/offline-run-2026-{made.id}").mkdir(parents=True, exist_ok=True)
        package.runs.append(made)
        return made

    package = ModuleType("wandb")
    package.init, package.Settings, package.runs = init, lambda **_: None, []
    package.__spec__ = importlib.util.spec_from_loader("wandb", None, origin="stand-in")
    return {"wandb": package}


def kinds(package):
    """A recorded stand-in, and the package itself where it is installed: neither is in the extra of developers."""
    return ["stand-in", "package"] if importlib.util.find_spec(package) else ["stand-in"]


def install(modules, monkeypatch):
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", kinds("mlflow"))
def test_mlflow_has_parameters_rounds_and_summary(config, tmp_path, monkeypatch, kind, caplog):
    if kind == "stand-in":
        install(stand_in_mlflow(), monkeypatch)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    groups = {"(a)": {"share": 0.5}, "b": {"share": 0.5, "rotation": [60, 90]}}
    out = tmp_path / "run"
    run(config(data__groups=groups, algorithm={"name": "ifca-mir", "rounds": 2}), out, watch=MLflow())
    run(config(data__groups=groups), out, watch=MLflow(), resume=True)
    assert caplog.text.count("fails") == 0
    from mlflow import MlflowClient  # noqa: PLC0415

    client = MlflowClient(f"sqlite:///{out.resolve()}/mlflow/mlflow.db")
    where = client.get_experiment_by_name("shoal").experiment_id
    [found] = client.search_runs([where], order_by=["attributes.start_time DESC"])
    summary = load(out).summary
    assert found.data.params["local.batch_size"] == "6"
    assert found.data.metrics["accuracy.overall"] == pytest.approx(summary["accuracy.overall"])
    assert found.data.tags["dataset"] == "digits"
    assert [entry.step for entry in client.get_metric_history(found.info.run_id, "accuracy/_a_")] == [1, 2, 3, 4]
    assert (found.info.status, found.info.run_name) == ("FINISHED", "IFCA-MIR on digits, seed 3")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", kinds("wandb"))
def test_wandb_has_one_id_and_goes_on(config, tmp_path, monkeypatch, kind, caplog):
    modules = stand_in_wandb()
    if kind == "stand-in":
        install(modules, monkeypatch)
    out = tmp_path / "run"
    run(config(algorithm={"name": "ifca-mir", "rounds": 2}), out, watch=WandB())
    run(config(), out, watch=WandB(), resume=True)
    assert "fails" not in caplog.text
    names = sorted(path.name for path in out.glob("wandb/offline-run-*"))
    assert len({name.rpartition("-")[2] for name in names}) == 1
    if kind == "stand-in":
        first, second = modules["wandb"].runs
        assert (first.steps, first.ended) == ([0, 1, 2], 0)
        assert (second.steps, second.summary) == ([0, 3, 4], load(out).summary)
        assert second.options["mode"] == "offline"
        assert second.options["config"]["local.batch_size"] == 6
    else:
        files = b"".join(path.read_bytes() for path in out.glob("wandb/offline-run-*/*.wandb"))
        for words in (b"accuracy/minority", b"local.batch_size", b"accuracy.overall", b"risk.outsider/cluster 0"):
            assert words in files


def test_an_absent_package_is_one_sentence_and_nothing_is_trained(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()  # As W&B leaves it.
    monkeypatch.syspath_prepend(tmp_path)
    hidden = {"wandb": importlib.util.find_spec("wandb")}
    monkeypatch.setattr("shoal.runs.sinks.sink.find_spec", hidden.get)
    (tmp_path / "small.toml").write_text(config().toml())
    for name, sink in (("tensorboard", TensorBoard), ("mlflow", MLflow)):
        said = f"logging to '{name}' needs its package: pip install 'shoal[{name}]'"
        assert main(["run", "small.toml", "--log", name]) == 2
        assert capsys.readouterr() == ("", f"shoal: {said}\n")
        with pytest.raises(InputError, match="needs its package"):
            run(config(), tmp_path / "run", watch=sink())
    if hidden["wandb"].origin is None:
        assert main(["run", "small.toml", "--log", "wandb"]) == 2
    assert main(["run", "small.toml", "--log", "tensorbord"]) == 2
    assert "'--log' must name a tracker; got 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_without_a_directory_names_the_folder(tmp_path):
    about = LoggedRun("a title", {"a": [1]}, "a = [1]", None, 0)
    with pytest.raises(InputError, match="'folder' of TensorBoard is missing"):
        TensorBoard().open_log(about)
    writer = TensorBoard(tmp_path / "tb").open_log(about)
    writer.write(1, {"x": 2.5})
    writer.close(None)
    assert steps_of_tensorboard(tmp_path / "tb")[0] == {"x": [(1, 2.5)]}
