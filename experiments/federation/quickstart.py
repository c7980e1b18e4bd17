"""Flower's own quickstart with PyTorch, audited: ten lines are added to a copy of it, and nothing else is changed.

    python experiments/federation/quickstart.py APP OUT [--nodes 10] [--run-config "local-epochs=1"]

APP is the folder examples/quickstart-pytorch of a checkout of Flower's repository (docs/flower.md names the commit).
This Python has what it imports beside shoal-flower: flwr-datasets and torchvision. OUT gets the copy, the trace and
the audit's page, and app.log, what Flower printed.

Its data set, CIFAR-10, comes from a network. Here Fashion-MNIST stands in for it, in the cache of `datasets` under
CIFAR-10's name and in its form: columns ``img`` (pictures of 32x32, three channels) and ``label``, 50,000 examples for
training and 10,000 for tests. The app reads it as it would read CIFAR-10, with HF_HUB_OFFLINE set.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import torch
from processes import Loopback, Programs
from torch.nn.functional import interpolate

from shoal.core.errors import ShoalError, require
from shoal.data.datasets import ImageDataset
from shoal.data.sources.catalog import load_dataset

PLAIN = "app = ClientApp()"
"""The line of the app's client_app.py that is exchanged."""

CLIENT_APP = """\
import shoal_flower

app = ClientApp(mods=[shoal_flower.AppRecorder("/tmp/shoal-trace")])
"""
"""What stands there afterwards."""

AUDIT = """\
from pytorchexample.task import Net, load_centralized_dataset, load_data

import shoal
import shoal_flower

members = [load_data(client, 10, 32)[0] for client in range(10)]
trace = shoal_flower.app_trace("/tmp/shoal-trace", Net(), members, others=load_centralized_dataset())
files = shoal.audit_trace(trace)
found = files.audit.attacks.query("scope == 'all'").set_index(["view", "attack"])
print(found[["members", "non_members", "auc", "auc.low", "auc.high"]].round(3), files.page, sep="\\n")
"""
"""The file audit.py, beside the app's pyproject.toml."""


def with_audit(app: Path, copy: Path, trace: Path, nodes: int) -> None:
    """Copy the app to ``copy`` with the lines that record it into ``trace``, and with audit.py for so many ``nodes``.

    Raises:
        InputError: it is another app, or a later version of it.
    """
    client_app = app / "pytorchexample" / "client_app.py"
    require(client_app.is_file(), f"{app}: is not Flower's quickstart-pytorch; it has no pytorchexample/client_app.py")
    text = client_app.read_text()
    require(text.count(PLAIN) == 1, f"{client_app}: has not the one line '{PLAIN}'")
    shutil.copytree(app, copy)
    mended = text.replace(PLAIN, CLIENT_APP.rstrip()).replace("/tmp/shoal-trace", str(trace))
    (copy / "pytorchexample" / "client_app.py").write_text(mended)
    audit = AUDIT.replace("/tmp/shoal-trace", str(trace)).replace("10, 32", f"{nodes}, 32")
    (copy / "audit.py").write_text(audit.replace("range(10)", f"range({nodes})"))


def write_stand_in(cache: Path) -> None:
    """Write Fashion-MNIST into a cache of `datasets`, as if CIFAR-10 had been loaded into it."""
    from datasets import ClassLabel, DatasetInfo, Features, Image, SplitDict, SplitInfo  # noqa: PLC0415
    from datasets.arrow_writer import ArrowWriter  # noqa: PLC0415
    from PIL import Image as Picture  # noqa: PLC0415

    data = load_dataset("fashion-mnist")
    assert isinstance(data, ImageDataset)
    # The training examples that CIFAR-10 has no room for are left out.
    parts = {"train": range(50_000), "test": range(data.train_count, len(data.labels))}
    features = Features({"img": Image(), "label": ClassLabel(num_classes=10)})
    folder, name = cache / "uoft-cs___cifar10" / "plain_text" / "0.0.0" / "stand-in", "cifar10"
    folder.mkdir(parents=True)
    splits = SplitDict(dataset_name=name)
    for split, rows in parts.items():
        with ArrowWriter(path=str(folder / f"{name}-{split}.arrow"), features=features) as writer:
            for batch in torch.tensor(rows).split(1000):
                grey = interpolate(data.pixels[batch].float(), size=(32, 32), mode="bilinear").round().byte()
                for pixels, label in zip(grey[:, 0].numpy(), data.labels[batch].tolist(), strict=True):
                    file = BytesIO()
                    Picture.fromarray(pixels).convert("RGB").save(file, "png", compress_level=1)
                    writer.write({"img": {"bytes": file.getvalue(), "path": None}, "label": label})
            count, size = writer.finalize()
        splits.add(SplitInfo(split, size, count, dataset_name=name))
    about = DatasetInfo(features=features, builder_name="parquet", dataset_name=name, config_name="plain_text")
    about.version, about.splits, about.dataset_size = "0.0.0", splits, sum(part.num_bytes for part in splits.values())
    about.write_to_directory(str(folder))


def train(copy: Path, out: Path, nodes: int, run_config: str) -> str:
    """Run the copy by ``flwr run`` on a SuperLink for simulations; returns what Flower printed of it."""
    (out / "flower").mkdir()
    with Programs(out / "flower") as programs:
        Loopback(programs).start_server("--simulation")
        command = ["flwr", "run", ".", "loopback", "--stream", "--federation-config", f"num-supernodes={nodes}"]
        return programs.call(command + (["--run-config", run_config] if run_config else []), copy, seconds=3600)


def main() -> None:
    """Write the stand-in, train and audit, and say how long each took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("app", type=Path, help="the folder examples/quickstart-pytorch of Flower's repository")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--nodes", type=int, default=10, help="simulated SuperNodes")
    parser.add_argument("--run-config", default="", help="changes of the app's settings, as of flwr run")
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True)
    with_audit(given.app, out / "app", out / "trace", given.nodes)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hub"), "HF_DATASETS_CACHE": str(out / "datasets")}
    write_stand_in(out / "datasets")
    began = time.perf_counter()
    log = train(out / "app", out, given.nodes, given.run_config)
    (out / "app.log").write_text(log)
    trained = time.perf_counter()
    if not any((out / "trace").glob("round-*")):
        raise ShoalError(f"nothing was recorded; {out}/app.log has what Flower printed")
    print(*re.findall(r".*'accuracy':.*", log), sep="\n")
    subprocess.run([sys.executable, "audit.py"], cwd=out / "app", check=True)
    print(f"flwr run: {trained - began:.0f} s; audit.py: {time.perf_counter() - trained:.0f} s")


if __name__ == "__main__":
    main()
