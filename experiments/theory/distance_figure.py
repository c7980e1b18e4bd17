"""The figure of `contraction.py`: distance to the true model over rounds, and the bound."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shoal.core.atomic_files import write_atomically

# Label, colour (Okabe and Ito's), dashes and marker by method or beta, and cluster.
LINE_STYLES = {
    ("ifca-gradient", 0): ("minority, gradients averaged", "#D55E00", "-", "o"),
    ("ifca-gradient", 1): ("majority, gradients averaged", "#0072B2", "-", "s"),
    ("ifca-model", 0): ("minority, models averaged", "#E69F00", (0, (5, 2)), "^"),
    ("ifca-model", 1): ("majority, models averaged", "#56B4E9", (0, (5, 2)), "v"),
    (0.5, 0): ("minority, \N{GREEK SMALL LETTER BETA} = 0.5", "#D55E00", "-", "o"),
    (0.5, 1): ("majority, \N{GREEK SMALL LETTER BETA} = 0.5", "#0072B2", "-", "s"),
    (0.8, 0): ("minority, \N{GREEK SMALL LETTER BETA} = 0.8", "#E69F00", (0, (5, 2)), "^"),
    (0.8, 1): ("majority, \N{GREEK SMALL LETTER BETA} = 0.8", "#56B4E9", (0, (5, 2)), "v"),
}
GAP = 0.5
STYLE = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 9.0,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "theory-contraction",
}


def plot_distances(axes: Axes, rows: pd.DataFrame, style: tuple) -> None:
    """The mean over seeds, with the range of all seeds behind it."""
    label, color, dashes, marker = style
    distances = rows.groupby("round")["distance"].agg(["mean", "min", "max"])
    axes.fill_between(distances.index, distances["min"], distances["max"], color=color, alpha=0.2, linewidth=0)
    line = {"color": color, "linestyle": dashes, "marker": marker, "markevery": 4, "ms": 4, "label": label}
    axes.plot(distances.index, distances["mean"], **line)


def plot_bound(axes: Axes, rows: pd.DataFrame) -> None:
    """The bound from the mean initial distance, without epsilon_0."""
    first = rows[rows["round"] == 0]["distance"].mean()
    rounds = range(int(rows["round"].max()) + 1)
    factor = rows["bound"].iloc[0]
    bound = [first * factor**t for t in rounds]
    axes.plot(rounds, bound, color="black", linestyle=(0, (1, 1.5)), label="bound of Theorem 4 without its constant")


def draw_figure(rows: pd.DataFrame, folder: Path) -> None:
    """Write contraction.svg and contraction.pdf; the same rows give the same bytes."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        plot_bound(left, rows)
        plot_bound(right, rows)
        for (key, cluster), style in LINE_STYLES.items():
            of_cluster = rows[rows["cluster"] == cluster]
            if isinstance(key, str):
                plot_distances(left, of_cluster[of_cluster["method"] == key], style)
            else:
                selected = of_cluster.query("method == 'ifca-mir' and beta == @key and gap == @GAP")
                plot_distances(right, selected, style)
        left.set(title="IFCA", xlabel="round", ylabel="distance of the model from its truth", yscale="log")
        right.set(title=f"IFCA-MIR, gradients averaged, risk gap {GAP:g}", xlabel="round")
        for axes in (left, right):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8)
        save(figure, folder / "contraction.svg", {"Date": None})
        save(figure, folder / "contraction.pdf", {"CreationDate": None})


def save(figure: Figure, path: Path, metadata: dict) -> None:
    # The temporary file has another suffix, so the format must be given.
    suffix = path.suffix[1:]
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=suffix, metadata=metadata))
