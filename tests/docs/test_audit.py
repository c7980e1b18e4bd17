"""The code of docs/audit.md runs, and its table has the attacks that there are."""

import re
from pathlib import Path

import pytest

from shoal.audit.audit import METRICS
from shoal.audit.reference_records import REFERENCE_ATTACKS
from shoal.audit.update_audit import UPDATE_ATTACKS

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_audit_of_one_s_own_model_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "docs/audit.md", "exec"), {})
    attack, auc = capsys.readouterr().out.split()
    assert f"`{attack}`" in PAGE
    assert float(auc) > 0.55


def test_every_attack_and_metric_is_in_a_table():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    for attack in (*REFERENCE_ATTACKS, *UPDATE_ATTACKS):
        least = str(getattr(attack, "least", 0))
        (row,) = [line for line in rows if f"`{attack.name}`" in line and line.count("|") == 5]
        assert least in row.rsplit("|", 2)[1], f"{attack.name} needs {least}"
    for metric in METRICS:
        assert any(metric in line for line in rows), metric
