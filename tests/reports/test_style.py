"""The style of Shoal's figures, by which one's own can be drawn too."""

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.colors import to_hex

from shoal.reports.plotting import cluster_style, styled


def test_ones_own_figures_have_by_name_the_style_of_the_pages():
    with plt.style.context("shoal.figures"):
        found = dict(mpl.rcParams)
    with styled():
        assert found == dict(mpl.rcParams)
    assert found != dict(mpl.rcParams)


def test_lines_take_the_colours_of_clusters_in_turn():
    with plt.style.context("shoal.figures"):
        colors = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    assert list(map(to_hex, colors)) == [cluster_style(k).color.lower() for k in range(7)]
