"""Who recognises the records of HiLoRA's and PINA's clients, and what they cost, beside IFCA on the same adapters.

    python experiments/algorithms/adapter_views.py hilora | pina OUT [--seeds 0 1 2 3 4] [--references 16]

Federation and adapters are those of `adapters.py`. HiLoRA's server and its other clients have the root and clusters'
adapters: the row "HiLoRA, as sent" is the run that ends where leaves begin, so that its final models are what is ever
sent; in "HiLoRA" each client's own model, with its leaf, is what it releases. Of PINA the same is audited with local
steps without noise, which show what the attacks can find where the steps are not private.

A run whose table is in OUT/runs is not run again. Written: OUT/WHAT-views.csv, a row for each algorithm, seed, view and
group (and "all"), with the attack that decides; and OUT/WHAT-costs.csv, of seed 0: what a client gets and sends in a
round, in bytes of float32, and processor seconds of the round, by the kind of the round.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from adapters import LOCAL, adapted, compared, federation

import shoal
from shoal.core.atomic_files import write_text
from shoal.data.preferences import VIEWS
from shoal.engine import Algorithm, Engine, LocalSGD, State, Training

CLIENTS, EXAMPLES, RANK, ROUNDS = 16, 60, 24, 40
FIGURES = ("auc", "accuracy", "tpr_at_fpr_0.01")


def settings(what: str) -> dict[str, tuple[Algorithm, LocalSGD, int]]:
    """Algorithm, local training and rounds by name."""
    known = compared(what, ROUNDS)
    if what == "hilora":
        names = ("IFCA, K = 4", "IFCA after one-shot, K = 4", "HiLoRA")
        chosen = {name: (*known[name], ROUNDS) for name in names}
        algorithm = known["HiLoRA"][0]
        assert isinstance(algorithm, shoal.HiLoRA)
        return chosen | {"HiLoRA, as sent": (algorithm, LOCAL, sum(algorithm.tier_rounds))}
    chosen = {name: (*known[name], ROUNDS) for name in ("IFCA", "PINA")}
    quiet = {f"{name}, steps without noise": known[name][0] for name in ("IFCA", "PINA")}
    plain = replace(known["PINA"][1], gradient_privacy=shoal.DPSGD(1.0, 0.0))
    return chosen | {name: (algorithm, plain, ROUNDS) for name, algorithm in quiet.items()}


def audited(what: str, name: str, seed: int, references: int, folder: Path) -> pd.DataFrame:
    """The rows of one run."""
    algorithm, local, rounds = settings(what)[name]
    of = federation(what, seed, CLIENTS, EXAMPLES)
    result = shoal.simulate(of, adapted(of, RANK), algorithm, local, rounds=rounds, seed=seed)
    audit = result.audit(folder, references=references)
    found, overall = audit.flat(), result.summary.overall
    kept = {"test accuracy": overall["accuracy.overall"], "ARI": overall["adjusted_rand_index"]}
    rows = []
    for view in VIEWS:
        for group in ("all", *of.groups):
            key = f"views.{view}.{group}"
            if f"{key}.attack" not in found:
                continue
            here = audit.attacks[(audit.attacks["name"] == group) & (audit.attacks["attack"] == found[f"{key}.attack"])]
            row = {"algorithm": name, "seed": seed, "view": view, "group": group, "attack": found[f"{key}.attack"]}
            row |= {f"{figure}{end}": found.get(f"{key}.{figure}{end}") for figure in FIGURES for end in ENDS}
            row |= {end: int(here[end].iloc[0]) for end in ("members", "non_members")}
            rows.append({**row, "exact": float(here["exact"].iloc[0]), **kept, "references": references})
    return pd.DataFrame(rows).round(4)


ENDS = ("", ".low", ".high")


def costs(what: str) -> Iterator[dict[str, Any]]:
    """A row for each algorithm and kind of round of seed 0."""
    of = federation(what, 0, CLIENTS, EXAMPLES)
    model = adapted(of, RANK)
    for name, (algorithm, local, rounds) in settings(what).items():
        kinds = defaultdict[tuple[int, bool], list[tuple[int, float]]](list)
        with Engine(model, threads=1) as engine:
            training = Training(engine.prepare(of), algorithm, local, engine, shoal.Stream(0))
            state = training.start()
            while state.round < rounds:
                began, before = time.process_time(), state
                state, report = training.round(state)
                seconds = time.process_time() - began
                sends = any(one.weights is not None for one in report.plan.trainings)
                # Who chooses gets all models; another client its own alone, and none to train its own ranks.
                offered = len(before.models) if report.losses is not None else int(sends)
                kinds[offered, sends].append((moving(before, state), seconds))
        for (offered, sends), measured in kinds.items():
            numbers, seconds = zip(*measured, strict=True)
            size = 4 * model.layout.size
            yield {
                "algorithm": name, "rounds": len(seconds), "bytes down": size * offered, "bytes up": size * sends,
                "bytes that move": 4 * max(numbers) * sends, "processor s": round(statistics.median(seconds), 3),
            }  # fmt: skip


def moving(before: State, after: State) -> int:
    """How many numbers of the models moved, which alone need be sent."""
    same = after.models if after.models.shape == before.models.shape else after.models[: len(before.models)]
    return int((same != before.models).any(dim=0).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["hilora", "pina"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("--references", type=int, default=16)
    args = parser.parse_args()
    folder = args.out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for seed in args.seeds:
        for name in settings(args.what):
            path = folder / f"{args.what}-{name.replace(' ', '-')}-{seed}.csv"
            if not path.exists():
                table = audited(args.what, name, seed, args.references, path.with_suffix(""))
                write_text(path, table.to_csv(index=False))
            tables.append(pd.read_csv(path))
            print(f"{path.name}: done", file=sys.stderr, flush=True)
    rows = pd.concat(tables)
    write_text(args.out / f"{args.what}-views.csv", rows.to_csv(index=False))
    write_text(args.out / f"{args.what}-costs.csv", pd.DataFrame(costs(args.what)).to_csv(index=False))
    means = rows.groupby(["algorithm", "view", "group"], sort=False)[["auc", "accuracy", "test accuracy", "members"]]
    print(means.agg(["mean", "min", "max"]).round(3).to_string())


if __name__ == "__main__":
    main()
