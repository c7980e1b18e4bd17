"""The first rounds of a run, trained again: the same moves as the run recorded."""

from dataclasses import replace

import pytest
import torch

from shoal.config.build import build
from shoal.replay.first_rounds import ROUNDS, FirstRounds
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine, run_rounds


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm__participation": 0.5, "defenses__max_update_norm": 0.1, "engine__precision": "bf16"},
        {"algorithm__name": "cfl", "algorithm__eps1": 10.0, "algorithm__eps2": 0.1},
    ],
    ids=["ifca-mir", "half-of-the-clients", "cfl"],
)
def test_first_rounds_are_those_that_the_run_recorded(toy_config, changes):
    config = toy_config(algorithm__rounds=6, record__updates=1, **changes)
    _, simulation = build(config)
    with config.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(simulation, engine)
        now, recorded = initial_state(simulation, engine), []
        models = [now.state.models]
        for after, report in run_rounds(simulation, engine, now):
            now = after
            recorded.append(report.updates)
            models.append(after.state.models)
        attacked = AttackedRun.from_run(simulation, now.state, now.rows, engine)
        seen, _ = attacked.first_rounds(engine)
        assert seen is not None
        for mine, theirs in zip(seen.updates, recorded[:ROUNDS], strict=True):
            for name in ("round", "clients", "assignment", "models", "updates"):
                assert torch.equal(*(torch.as_tensor(getattr(each, name)) for each in (mine, theirs)))
        assert all(torch.equal(*pair) for pair in zip(seen.models, models[: ROUNDS + 1], strict=True))
        assert len(seen.moves()) == ROUNDS + 1
        # Also where a model became several on the way.
        assert len(attacked.replay(engine).trajectory) == len(attacked.snapshot_rounds)
        changed = [{**row, "accuracy": row["accuracy"] + 1e-12} if row["round"] == 3 else row for row in now.rows]
        assert replace(attacked, rows=tuple(changed)).first_rounds(engine)[0] is None


def test_models_of_another_number_are_rows_that_rest_in_other_rounds():
    root = [torch.tensor([[0.0]]), torch.tensor([[1.0]])]
    clusters = [torch.tensor([[2.0], [2.0]]), torch.tensor([[3.0], [4.0]])]
    moves = FirstRounds(models=[*root, *clusters]).moves().diff(dim=0)
    assert moves[..., 0].tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 2]]
    apart = FirstRounds(models=[*root, torch.tensor([[2.0], [5.0]]), clusters[1]]).moves().diff(dim=0)
    assert apart[..., 0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, -1]]
