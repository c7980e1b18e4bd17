"""The programs of docs/use.md, one after the other, as a reader would copy them."""

import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import shoal

PAGE = (Path(__file__).parents[2] / "docs" / "use.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_programs_of_the_page_run_in_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mlflow, wandb, made = MagicMock(), MagicMock(), {}
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for program in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        # The second names a run that the third makes, and eight reference federations that take long.
        exec(program.replace('"runs/long"])', '"runs/mine"])').replace("references=8", "references=1"), made)
    assert made["result"].clients.groupby("group")["cluster"].nunique().tolist() == [1, 1]
    assert (tmp_path / "runs" / "long" / "summary.json").exists()
    assert "adjusted_rand_index=1.0" in capsys.readouterr().out
    trackers = [made["MLflow"](), made["WandB"]()]
    logged = shoal.Run(made["simulation"], "runs/logged", watch=trackers).train()
    summary, steps = logged.summary, [*logged.rounds["round"].unique()]
    assert [call.kwargs["step"] for call in mlflow.log_metrics.mock_calls] == [*steps, steps[-1]]
    assert mlflow.log_metrics.mock_calls[-1].args[0].items() <= summary.items()
    mlflow.end_run.assert_called_once_with("FINISHED")
    assert [call.kwargs["step"] for call in wandb.init().log.mock_calls] == steps
    wandb.init().summary.update.assert_called_once_with(summary)
    wandb.init().finish.assert_called_once_with(exit_code=0)
