"""Pictures of a run: throughput and warm share over time, latency curves, the archive's disk reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from rig.results import Result
from rig.steps import NAMES, Arm

mpl.use("Agg")  # pictures, no windows

COLOURS = {
    Arm.ARCHIVE: "tab:gray",
    Arm.HAPROXY: "tab:brown",
    Arm.EMPTY: "tab:orange",
    Arm.WARM: "tab:blue",
}


def draw(results: Sequence[Result], directory: Path, prefix: str) -> list[Path]:
    """A picture of each sort for each workload, of the last round; returns the files."""
    last = max((each.round for each in results), default=0)
    found = []
    for title in dict.fromkeys(each.title for each in results):
        chosen = [each for each in results if each.title == title and each.round == last]
        name = f"{prefix}-{title.replace(' ', '-')}"
        found.append(_over_time(chosen, title, directory / f"{name}-time.png"))
        found.append(_curves(chosen, title, directory / f"{name}-latency.png"))
    return found


def _over_time(results: Sequence[Result], title: str, path: Path) -> Path:
    figure, (top, middle, bottom) = plt.subplots(3, 1, sharex=True, figsize=(8, 8))
    for each in results:
        style: dict[str, Any] = {"color": COLOURS[each.arm], "label": NAMES[each.arm]}
        at = [moment.at for moment in each.timeline]
        top.plot(at, [moment.operations for moment in each.timeline], **style)
        bottom.plot(at, [moment.disk_reads for moment in each.timeline], **style)
        if each.arm in (Arm.EMPTY, Arm.WARM):
            middle.plot(at, [moment.warm_percent for moment in each.timeline], **style)
    top.set_ylabel("operations/s")
    top.set_title(title)
    top.legend(fontsize="small")
    middle.set_ylabel("warm %")
    middle.set_ylim(0, 105)
    bottom.set_ylabel("archive: disk reads/s")
    bottom.set_xlabel("seconds")
    return _save(figure, path)


def _curves(results: Sequence[Result], title: str, path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(8, 5))
    for each in results:
        for kind, style in (("read", "-"), ("update", "--")):
            latency = each.latency.get(kind)
            if latency is None:
                continue
            # A percentile p stands at 1 / (1 - p): each nine takes as much room as the one before.
            points = [(100 / (100 - p), ms) for p, ms in latency.curve if 0 < p < 100]
            axes.plot(
                [x for x, _ in points],
                [ms for _, ms in points],
                style,
                color=COLOURS[each.arm],
                label=f"{NAMES[each.arm]}, {kind}",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([2, 10, 20, 100, 1_000, 10_000], ["50", "90", "95", "99", "99.9", "99.99"])
    axes.set_xlabel("percentile")
    axes.set_ylabel("ms")
    axes.set_title(f"{title}: latency")
    axes.legend(fontsize="small")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return path
