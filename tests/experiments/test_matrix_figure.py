"""The script that compares algorithms and defences on one federation."""

import pandas as pd

from experiment_scripts import experiment_script


def test_differences_are_paired_by_seed_and_bold_where_their_interval_leaves_out_zero():
    matrix = experiment_script("matrix/figure")
    # Another order of seeds, and a spread between seeds that is ten times the difference.
    base = pd.DataFrame({"setting": "IFCA", "seed": [0, 1, 2], **{key: [0.1, 0.5, 0.9] for key in matrix.COMPARED}})
    above = base.iloc[::-1].assign(setting="above")
    above[list(matrix.COMPARED)] = above[list(matrix.COMPARED)].add([0.04, 0.05, 0.06], axis=0)
    unclear = base.assign(setting="unclear", accuracy=[0.2, 0.4, 0.9])
    rows = matrix.compared(pd.concat([base, above, unclear]), "IFCA")
    assert [row[0] for row in rows] == ["above", "unclear"]
    assert all(cell.startswith("**+0.050**") for cell in rows[0][1:])
    assert rows[1][1].startswith("+0.000 (")
