"""The demonstration: its lines say what its runs' files say, and a command that fails ends it."""

import json
import re
from html import unescape
from math import nan

import pytest

from experiment_scripts import experiment_script

demo = experiment_script("demo/demo")
SMALL = ("algorithm.rounds=2", "data.test_examples=120", "evaluation.every=9")


def made_up(accuracy, exposure=None, low=nan, high=nan):
    """A federation whose minority has an accuracy on 200 examples, and one exposure to every view."""
    keys = {"accuracy.overall": 0.8, "accuracy.minority": accuracy, "test_examples.minority": 200, "delta": 1e-5}
    ends = {"group": "minority", "accuracy": exposure, "low": low, "high": high}
    audit = {"findings": [{"view": view} | ends for view in demo.WHO]} if exposure else {}
    promised = {
        f"{key}.{view}{end}": 5.6 for view in demo.WHO for key, end in (("epsilon", ""), ("bound", ".accuracy"))
    }
    return demo.Outcome(keys | promised, audit)


def said(ifca=0.9, protected=0.8, exposure=(0.52, 0.48, 0.56)):
    outcomes = {"server-alone": made_up(0.2), "clients-alone": made_up(0.6)}
    outcomes |= {"ifca": made_up(ifca, 0.7, 0.65, 0.75), "protected": made_up(protected, *exposure)}
    return demo.lines(outcomes, {"minority": 18, "majority": 42}, "demo.html")


def test_one_seed_ends_with_eight_lines_that_are_of_its_files_and_one_picture(tmp_path, capsys):
    out = tmp_path / "demo"
    assert demo.demonstrate(out, 1, references=1, changes=SMALL) == 0
    printed = capsys.readouterr().out
    ended = printed.strip().splitlines()[-8:]
    assert [line[:2] for line in ended] == [f"{number}." for number in range(1, 9)]
    audit = json.loads((out / "ifca" / "audit.json").read_text())
    finding = next(one for one in audit["findings"] if (one["view"], one["group"]) == ("server", "minority"))
    server = [100 * finding[key] for key in ("accuracy", "low", "high")]
    assert "the server {:.0f} % ({:.0f} to {:.0f})".format(*server) in ended[2]
    summary = json.loads((out / "protected" / "summary.json").read_text())
    assert f"epsilon {summary['epsilon.client']:.1f} against other clients" in ended[6]
    assert f"cannot exceed {100 * summary['bound.client.accuracy']:.0f} %" in ended[6]
    assert str(out / "demo.html") in ended[7]
    page = unescape((out / "demo.html").read_text())
    assert page.count("<figure") == 1
    assert all(line[3:] in page for line in ended[:7])
    assert demo.demonstrate(out, 1, references=1, changes=SMALL) == 2


@pytest.mark.parametrize(
    ("exposure", "verdict"),
    [
        ((0.52, 0.48, 0.56), "At chance"),
        ((0.56, 0.51, 0.61), "Exposed"),
        ((0.52, 0.4, 0.64), "Not decided"),
    ],
)
def test_a_view_is_judged_by_its_interval(exposure, verdict):
    assert f"; chance 50 %. {verdict}: all three." in said(exposure=exposure)[3]


def test_gains_and_losses_are_claimed_where_intervals_show_them():
    assert said()[1].endswith("federation pays.")
    assert said(ifca=0.62)[1].endswith("do not show that federation pays.")
    assert re.search(r"-10 points \(-17 to -3\), a loss\.$", said()[4])
    assert said(protected=0.88)[4].endswith("within the margin of error.")
    assert "+20 points (+11 to +29) above" in said()[5]
    assert said(protected=0.61)[5].endswith("within the margin of error.")
