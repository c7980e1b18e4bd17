"""The posterior attack beside the Adversarial Robustness Toolbox's (ART), on the same posteriors.

    python benchmarks/posterior_attack.py OUT [--seeds 0 1 2 3 4]

For each seed, a small run of FedAvg and shadow models trained as it was. Both sides get the shadow models' posteriors
and labels, of members and of non-members, and score the same records of the target: `ShadowModelAttack` here, and ART's
`MembershipInferenceBlackBox` with its defaults in an environment of its own, which is made if it is missing
(`peers.py`). An attack calls a record a member above a probability of 1/2. A seed's files in OUT that are there are
taken as they are. Written: OUT/<settings>-<seed>.npz and -art.npz (what both get, and ART's scores),
OUT/posterior_attack.csv and OUT/posterior_attack.md.
"""

import argparse
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import peers
import torch
from numpy.typing import NDArray

from shoal import Engine, InputError, ShadowModelAttack, ShadowModels, Stream
from shoal.attacks.membership_attack import Query, Records
from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_bytes, write_text
from shoal.metrics import membership_metrics
from shoal.simulation.play import initial_state, move_to_engine, run_rounds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
from paired_differences import differences, spread, table

BASE = Path(__file__).with_name("posterior_attack.toml")
SIDE = Path(__file__).with_name("systems") / "art_side.py"
SHADOWS = ShadowModels(number=3, training="federated", warm_start=False)
OURS = {
    "Shoal, logistic, per class": ShadowModelAttack(),
    "Shoal, logistic, one for all classes, sorted posteriors": ShadowModelAttack(
        per_class=False, sorted_posteriors=True
    ),
    "Shoal, random forest, per class": ShadowModelAttack("random-forest"),
}
ART = {"lr": "ART, logistic regression", "rf": "ART, random forest", "nn": "ART, neural network"}
FIGURES = {"accuracy": "balanced accuracy", "auc": "AUC"}

Arrays = dict[str, NDArray]


def outputs_of(config: Config) -> Arrays:
    """What both sides get of a run.

    Returns:
        shadow_posteriors (M, C) float64, shadow_labels (M,) int64 and shadow_member (M,) bool of the shadow models'
        records, and target_posteriors, target_labels and target_member of the run's training and test examples.
    """
    _, simulation = build(config)
    with Engine(simulation.setup.model, threads=config.engine.threads) as engine:
        simulation = move_to_engine(simulation, engine)
        now = initial_state(simulation, engine)
        for after, _ in run_rounds(simulation, engine, now):
            now = after
        training, federation = simulation.on(engine), simulation.federation
        local, stream = training.local_of_clusters(now.state), Stream(config.seed)("posterior attack")
        (records,) = SHADOWS.records(now.state, federation, engine, local, stream)
        inside = federation.clients.indices
        outputs = torch.cat([
            engine.outputs(now.state.models[0], federation.clients.x, inside).cpu(),
            engine.outputs(now.state.models[0], federation.test.x).cpu(),
        ])  # fmt: skip
    return {
        "shadow_posteriors": torch.softmax(records.outputs.double(), dim=1).numpy(),
        "shadow_labels": records.labels.numpy(),
        "shadow_member": records.member.numpy(),
        "target_posteriors": torch.softmax(outputs.double(), dim=1).numpy(),
        "target_labels": torch.cat([federation.clients.y[inside], federation.test.y]).numpy(),
        "target_member": np.arange(len(outputs)) < len(inside),
    }


def our_scores(given: Arrays, seed: int) -> Arrays:
    """The scores (M,) of the target's records by each of `OURS`."""
    # The softmax of the logarithm of posteriors is the posteriors.
    shadow, target = (
        torch.from_numpy(given[f"{of}_posteriors"]).clamp(min=1e-300).log() for of in ("shadow", "target")
    )
    count = len(shadow)
    records = Records(
        outputs=shadow,
        labels=torch.from_numpy(given["shadow_labels"]),
        member=torch.from_numpy(given["shadow_member"]),
        shadow=torch.zeros(count, dtype=torch.int64),
        example=torch.arange(count),
    )
    query = Query(target, torch.from_numpy(given["target_labels"]))
    stream = Stream(seed)("ours")
    return {name: attack.fit(records, stream(name)).score(query) for name, attack in OURS.items()}


def art_scores(outputs: Path, seed: int) -> Arrays:
    """Those of ART, which are kept beside ``outputs``.

    Raises:
        RuntimeError: its environment could not be made, or its side failed; the last line of what it said.
    """
    kept = outputs.with_name(f"{outputs.stem}-art.npz")
    if not kept.exists():
        half = outputs.with_name(f"{outputs.stem}-art.half.npz")
        command = [str(peers.python_of("art")), str(SIDE), str(outputs), str(half), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().rpartition("\n")[2] or "ART's side failed without a word")
        half.replace(kept)
    with np.load(kept) as file:
        return {ART[name]: file[name].astype(np.float64) for name in file}


def measured(scores: Arrays, member: NDArray[np.bool_], seed: int) -> list[dict]:
    """A row for each attack: balanced accuracy at a threshold of 1/2, and AUC."""
    rows = []
    for name, score in scores.items():
        metrics = membership_metrics(score, member, threshold=0.5)
        rows.append({"seed": seed, "attack": name, **{figure: getattr(metrics, figure) for figure in FIGURES}})
    return rows


def report(rows: pd.DataFrame) -> str:
    """Every attack's figures, and the differences of the first to each of ART's by seed, as Markdown."""
    seeds, first = rows["seed"].nunique(), next(iter(OURS))
    lines = [
        [str(name), *(spread(mine[figure]) for figure in FIGURES)]
        for name, mine in rows.groupby("attack", sort=False)
    ]  # fmt: skip
    parts = [table(f"{seeds} seeds, mean ± standard deviation", ["attack", *FIGURES.values()], lines)]
    lines = []
    for figure, title in FIGURES.items():
        by = rows.pivot_table(index="seed", columns="attack", values=figure)
        lines += [[title, name, *differences(by[first] - by[name])] for name in ART.values() if name in by]
    heads = ["figure", "less", "difference", "95 % interval", "seeds above"]
    return "\n".join([*parts, table(f"{first}, less ART's, paired by seed", heads, lines), ""])


def compare(
    out: Path,
    seeds: Sequence[int],
    changes: Sequence[str] = (),
    base: Path = BASE,
    art: Callable[[Path, int], Arrays] = art_scores,
) -> pd.DataFrame:
    """Compare both sides on a run for each seed; a row a seed and attack."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in seeds:
        config = read_config(base, [*changes, f"seed={seed}"])
        settings = hashlib.sha256(f"{SHADOWS}\n{replace(config, seed=0).toml()}".encode()).hexdigest()[:8]
        path = out / f"{settings}-{seed}.npz"
        if not path.exists():
            content = io.BytesIO()
            np.savez(content, **outputs_of(config))
            write_bytes(path, content.getvalue())
        with np.load(path) as file:
            given = dict(file)
        rows += measured(our_scores(given, seed) | art(path, seed), given["target_member"], seed)
        print(f"seed {seed}: {len(given['target_member'])} records", flush=True)
    joined = pd.DataFrame(rows)
    write_text(out / "posterior_attack.csv", joined.to_csv(index=False))
    write_text(out / "posterior_attack.md", report(joined))
    return joined


def main() -> None:
    """Compare, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    try:
        print(report(compare(given.out, given.seeds, given.changes)))
    except (InputError, RuntimeError) as error:
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)


if __name__ == "__main__":
    main()
