"""The benchmarks' pictures: SVG files in bench/plots, drawn by matplotlib."""

import pathlib
import statistics

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

FOLDER = pathlib.Path(__file__).parent / "plots"
# Text stays text, and a picture of the same figures is the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "transship", "font.size": 9})


def _save(figure, name):
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


def bars(name, title, contenders, seconds, unit="seconds"):
    """Medians as bars, with the least and the most, on a logarithmic axis."""
    figure, axes = pyplot.subplots(figsize=(7, 0.32 * len(contenders) + 0.9))
    medians = [statistics.median(times) for times in seconds]
    errors = [[m - min(t) for m, t in zip(medians, seconds)], [max(t) - m for m, t in zip(medians, seconds)]]
    colors = ["#1f6f8b" if "container" in contender else "#b0b0b0" for contender in contenders]
    axes.barh(contenders, medians, xerr=errors, color=colors, ecolor="#444444", capsize=2)
    axes.set_xscale("log")
    axes.invert_yaxis()
    for place, (median, times) in enumerate(zip(medians, seconds)):
        axes.text(max(times) * 1.05, place, f"{median:.3g}", va="center")
    axes.margins(x=0.15)
    axes.set_xlabel(f"{unit}, median with least and most")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, name)


def lines(name, title, x_label, y_label, series, is_log=(True, True)):
    """Lines of medians, with the least and the most. series: {label: [(x, values)]}"""
    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for label, points in series.items():
        x = [point[0] for point in points]
        medians = [statistics.median(values) for _, values in points]
        errors = [
            [m - min(values) for m, (_, values) in zip(medians, points)],
            [max(values) - m for m, (_, values) in zip(medians, points)],
        ]
        axes.errorbar(x, medians, yerr=errors, label=label, marker="o", markersize=3, capsize=2)
    axes.set_xscale("log" if is_log[0] else "linear")
    axes.set_yscale("log" if is_log[1] else "linear")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, name)
