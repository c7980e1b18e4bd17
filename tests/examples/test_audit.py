"""The code of docs/audit.md runs, and the tables have the attacks and metrics that there are."""

import re
from pathlib import Path

import pytest

from shoal.audit.attacked_records import REFERENCE_ATTACKS
from shoal.audit.audit import METRICS
from shoal.audit.update_audit import UPDATE_ATTACKS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "audit.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_audit_of_one_s_own_model_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "docs/audit.md", "exec"), {})
    attack, auc = capsys.readouterr().out.split()
    assert f"`{attack}`" in (DOCS / "attacks.md").read_text(encoding="utf-8")
    assert float(auc) > 0.55


def test_every_attack_is_in_the_table_with_the_reference_federations_that_it_needs():
    rows = [line for line in (DOCS / "attacks.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for attack in (*REFERENCE_ATTACKS, *UPDATE_ATTACKS):
        (row,) = [line for line in rows if f"`{attack.name}`" in line]
        assert str(getattr(attack, "least", 0)) in row.split("|")[5], attack.name


def test_every_metric_of_an_audit_is_among_its_keys():
    rows = [line for line in (DOCS / "configuration.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    for metric in METRICS:
        assert any(f".{metric}`" in line for line in rows), metric
