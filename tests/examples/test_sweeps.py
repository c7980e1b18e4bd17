"""The example of docs/sweeps.md, where the page says that a reader can put it."""

import re
import textwrap
from pathlib import Path

from shoal.sweeps import read_sweep

ROOT = Path(__file__).parents[2]


def test_the_example_is_a_sweep_of_as_many_runs_as_the_page_says(tmp_path):
    page = (ROOT / "docs" / "sweeps.md").read_text()
    example = page.partition("## The file\n")[2].partition("    title = ")
    text = textwrap.dedent("".join(example[1:]).partition("\nThese are ")[0])
    said = re.search(r"These are 5 shares x 2 algorithms x 5 seeds = (\d+) runs", page)
    # Beside the README, as far as its base can tell.
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "sweep.toml").write_text(text)
    assert len(read_sweep(tmp_path / "sweep.toml").runs) == int(said[1]) == 50
