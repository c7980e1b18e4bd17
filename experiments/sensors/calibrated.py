"""Estimates of risk from losses alone, each with a line fitted on federations of other settings, against references.

    python experiments/sensors/calibrated.py docs/results/audit/sensors-calibrated

Trains the federations of `SETTINGS` with four reference federations each. By models, in OUT/sensors.csv: the mean error
of each sensor as it is, and as a line of it whose two numbers are fitted on the models of all other settings; against
the balanced accuracy of an outsider's attack that decides. "base" is the setting of `compare.py`. By records, in
OUT/records.csv: how well what a client knows of its records ranks them by exposure: Spearman's correlation with the
mean difference of the scores of reference models with and without the record, and the share of the tenth most exposed
that is found. OUT/models.csv has all figures of a model; losses stay in --raw.

Sensors, all of what clients can count on training examples (members) and on as many hold-outs:

    histogram       cross-fitted accuracy of a threshold on the loss (`LossHistograms`)
    tail 1 %, 5 %   share of hold-outs above the loss that so many members exceed (Dodd et al. 2025, arXiv:2510.19773)
    trace range     AUC of the interquartile range of a record's losses over ten rounds (Pollock et al. 2025,
                    arXiv:2411.05743, where it ranks records)
    fall            as histogram, of the loss less that after four tenths of the rounds
    relative        as histogram, of the loss less that on the other cluster's model (`relative-histogram`)
    examples        logarithm of the number of training examples: no sensor at all
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from shoal.attacks.queries.loss_histograms import EDGES, cross_fitted_accuracy
from shoal.audit.attacked_records import attack_records
from shoal.audit.record_table import OUTSIDER, strongest
from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_text
from shoal.data import Shards
from shoal.engine import Engine
from shoal.metrics import mean_interval, roc_auc
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine

EXPERIMENTS = Path(__file__).resolve().parents[1]
BASE, BAR = EXPERIMENTS / "sensors" / "base.toml", EXPERIMENTS / "control" / "bar-base.toml"
SETTINGS: Mapping[str, tuple[Path, list[str], tuple[int, ...]]] = {
    "base": (BASE, [], (0, 1, 2, 3, 4)),
    "bar": (BAR, [], (5, 6, 7)),
    "bar-12": (BAR, ["algorithm.rounds=12"], (5, 6, 7)),
    "bar-80": (BAR, ["algorithm.rounds=80"], (5, 6, 7)),
    "bar-1epoch": (BAR, ["local.epochs=1", "algorithm.rounds=60"], (5, 6, 7)),
    "bar-fedavg": (BAR, ["algorithm.name=fedavg", "algorithm.clusters=1"], (5, 6, 7)),
    "bar-small": (BAR, ["data.clients=20", "data.test_examples=1500"], (5, 6, 7)),
    "bar-100": (BAR, ["data.examples_per_client=100", "algorithm.rounds=20", "data.test_examples=8000"], (5, 6)),
    "bar-augment": (BAR, ["defenses.augmentation.rotation=10", "defenses.augmentation.shift=1.33"], (5, 6)),
}
"""A base, changes of it, and seeds."""

SNAPSHOTS = 10
FALL_FROM = 3
"""The snapshot, of ten, that a loss has fallen since."""

Arrays = dict[str, NDArray[Any]]


def trained(config: Config) -> Arrays:
    """Losses of members and hold-outs over the rounds, the truth by references, and reference scores of the records."""
    _, simulation = build(config)
    with Engine(simulation.setup.model, threads=1) as engine:
        simulation = move_to_engine(simulation, engine)
        training, snapshots = replace(simulation.on(engine), risk_estimator=None), list[tuple[NDArray, NDArray]]()
        state, federation = initial_state(simulation, engine).state, training.federation

        def losses(shards: Shards, models: torch.Tensor) -> NDArray[np.float32]:
            return engine.example_losses(models, shards).numpy().astype(np.float32)

        for after, _ in training.rounds(state, simulation.rounds):
            state = after
            if state.round % (simulation.rounds // SNAPSHOTS) == 0:
                snapshots.append((losses(federation.clients, state.models), losses(federation.holdout, state.models)))
        attacked = AttackedRun.from_run(simulation, state, [], engine)
        references = [attacked.train_reference(i, engine) for i in range(simulation.reference_federations)]
        records = records_of_run(attacked, attacked.scores(engine), references, engine)
    found = attack_records(records).measured("model", OUTSIDER)
    truth = {int(k): attacks[strongest(attacks)[0]].accuracy for k, attacks in found.items()}
    return {
        "members": np.stack([members for members, _ in snapshots]),
        "holdout": np.stack([holdout for _, holdout in snapshots]),
        "owner": federation.clients.owners().numpy(), "holdout_owner": federation.holdout.owners().numpy(),
        "assignment": state.assignment.numpy(), "entry": attacked.records.entry.numpy(),
        "model": np.array([*truth]), "accuracy": np.array([*truth.values()]),
        "reference": records.scores.reference, "reference_member": records.scores.reference_member,
    }  # fmt: skip


def best_threshold(value: NDArray, other: NDArray, owner: NDArray, other_owner: NDArray, edges: NDArray) -> float:
    """The package's cross-fitted accuracy, by halves of the clients, of values that are lower for members."""
    counts = np.zeros((int(max(owner.max(), other_owner.max())) + 1, 2, len(edges) + 1))
    for kind, (values, owners) in enumerate(((value, owner), (other, other_owner))):
        np.add.at(counts[:, kind], (owners, np.searchsorted(edges, values, side="right")), 1)
    there = np.flatnonzero(counts.any(axis=(1, 2)))
    return cross_fitted_accuracy(counts[there], np.arange(len(there)) % 2, np.zeros(counts.shape[1:])).value


def by_model(arrays: Arrays) -> list[dict[str, float]]:
    """The truth and all sensors of each model with at least two clients."""
    rows, differences = [], np.concatenate([-EDGES[::-1], [0.0], EDGES])
    for k, truth in zip(arrays["model"].tolist(), arrays["accuracy"], strict=True):
        mine = [arrays["assignment"][arrays[owner]] == k for owner in ("owner", "holdout_owner")]
        owners = [arrays[owner][inside] for owner, inside in zip(("owner", "holdout_owner"), mine, strict=True)]
        if len(np.unique(owners[0])) < 2 or np.isnan(truth):
            continue
        losses = [arrays[kind][:, inside] for kind, inside in zip(("members", "holdout"), mine, strict=True)]
        own, member = [loss[..., k] for loss in losses], np.arange(sum(map(len, owners))) < len(owners[0])
        row = {"cluster": k, "truth": truth, "examples": np.log(len(owners[0]))}
        row["histogram"] = best_threshold(own[0][-1], own[1][-1], *owners, EDGES)
        for share in (0.01, 0.05):
            row[f"tail {share:.0%}"] = (own[1][-1] > np.quantile(own[0][-1], 1 - share)).mean()
        ranges = [np.subtract(*np.percentile(loss, [75, 25], axis=0)) for loss in own]
        row["trace range"] = roc_auc(np.concatenate(ranges), member)
        row["fall"] = best_threshold(*(loss[-1] - loss[FALL_FROM] for loss in own), *owners, differences)
        if losses[0].shape[2] == 2:
            row["relative"] = best_threshold(
                *(loss[-1, :, k] - loss[-1, :, 1 - k] for loss in losses), *owners, differences
            )
        rows.append(row)
    return rows


def by_record(arrays: Arrays) -> dict[str, tuple[float, float]]:
    """Rank correlation with the exposure of members, and the share of its highest tenth that is found, by feature."""
    entry = arrays["entry"]
    model = arrays["assignment"][arrays["owner"][entry]]
    reference, inside = (arrays[name][: len(entry)] for name in ("reference", "reference_member"))
    known = (model >= 0) & inside.any(axis=1) & ~inside.all(axis=1)
    entry, model, reference, inside = entry[known], model[known], reference[known], inside[known]
    with_it, without = (np.where(side, reference, 0).sum(axis=1) / side.sum(axis=1) for side in (inside, ~inside))
    exposure, trace = with_it - without, arrays["members"][:, entry, model]
    features = {
        "trace range": np.subtract(*np.percentile(trace, [75, 25], axis=0)),
        "final loss": trace[-1],
        "mean loss": trace.mean(axis=0),
        "fall": trace[FALL_FROM] - trace[-1],
    }
    tenth = len(exposure) // 10
    worst = np.argsort(-exposure)[:tenth]
    return {
        name: (float(spearmanr(value, exposure).statistic), np.isin(np.argsort(-value)[:tenth], worst).mean())
        for name, value in features.items()
    }


def lines_of(models: pd.DataFrame) -> pd.DataFrame:
    """The error of each sensor as it is, and by a line that is fitted on the models of other settings.

    gain: by how much the line's is less than that of a constant that is fitted alike, with its 95 % interval over runs.
    """
    rows, constant = [], pd.Series(dtype=float)
    for sensor in ("none", *models.columns.drop(["setting", "seed", "cluster", "truth"])):
        seen = models if sensor == "none" else models.dropna(subset=[sensor])
        errors = pd.Series(dtype=float)
        for setting, judged in seen.groupby("setting", sort=False):
            fitted = seen[seen["setting"] != setting]
            degree, values = (0, seen["truth"]) if sensor == "none" else (1, seen[sensor])
            line = np.polyfit(values[fitted.index], fitted["truth"], degree)
            errors = pd.concat([errors, np.polyval(line, values[judged.index]) - judged["truth"]])
        constant = errors.abs() if sensor == "none" else constant
        gain = (constant[errors.index] - errors.abs()).groupby([seen["setting"], seen["seed"]]).mean()
        low, high = mean_interval(gain.to_numpy())
        raw = seen[sensor] - seen["truth"] if sensor in ("histogram", "fall", "relative") else np.nan * errors
        base = seen["setting"] == "base"
        line = np.polyfit(values[~base], seen["truth"][~base], degree)
        rows.append({
            "sensor": sensor, "models": len(seen), "error": raw.abs().mean(), "base.error": raw[base].abs().mean(),
            "line.error": errors.abs().mean(), "line.bias": errors.mean(), "base.line.error": errors[base].abs().mean(),
            "gain": gain.mean(), "gain.low": low, "gain.high": high,
            "rank_correlation": np.nan if sensor == "none" else spearmanr(seen[sensor], seen["truth"]).statistic,
            "slope": line[0] if degree else 0.0, "level": np.polyval(line, 0.5),
        })  # fmt: skip
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--raw", type=Path, default=Path("runs/sensors-calibrated"), help="where raw losses are kept")
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    given = parser.parse_args()
    given.raw.mkdir(parents=True, exist_ok=True)
    models, records = [], []
    for setting in given.settings:
        base, changes, seeds = SETTINGS[setting]
        further = ["evaluation.reference_federations=4", "evaluation.every=1000", "engine.threads=1"]
        for seed in seeds:
            path = given.raw / f"{setting}-{seed}.npz"
            if not path.exists():
                config = read_config(base, [*changes, *further, "red_team.attack=loss-threshold", f"seed={seed}"])
                np.savez_compressed(path, **trained(config))
                print(path.stem, flush=True)
            arrays = dict(np.load(path))
            models += [{"setting": setting, "seed": seed, **row} for row in by_model(arrays)]
            records += [
                {"setting": setting, "seed": seed, "feature": name, "rank_correlation": rho, "tenth_found": found}
                for name, (rho, found) in by_record(arrays).items()
            ]
    of_models, of_records = pd.DataFrame(models), pd.DataFrame(records)
    mean = of_records.groupby("feature", sort=False)[["rank_correlation", "tenth_found"]].mean().reset_index()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, table in (("models", of_models), ("sensors", lines_of(of_models)), ("records", mean)):
        write_text(given.out / f"{name}.csv", table.to_csv(index=False, float_format="%.4f"))
        print(table.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
