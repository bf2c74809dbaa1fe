"""The report as Markdown: goals beside the published figures, every step, where the time goes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rig.goals import Verdict, judge
from rig.results import Result, Spread
from rig.scales import Scale
from rig.steps import NAMES


@dataclass(frozen=True, slots=True)
class Heading:
    """Of what run this is."""

    kind: str
    """``quick`` or ``full``."""
    when: str
    commit: str
    machine: str
    rounds: int
    scale: Scale
    notes: Sequence[str]


def number(value: float) -> str:
    """Three digits or so."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value < 1 else f"{value:.1f}"


def spread(found: Spread | None) -> str:
    """A median, with the range where there are several rounds."""
    if found is None:
        return "not measured"
    if found.least == found.most:
        return number(found.median)
    return f"{number(found.median)} ({number(found.least)} to {number(found.most)})"


def row(*cells: str) -> str:
    """Of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def verdict_word(verdict: Verdict) -> str:
    """Met, missed, or neither."""
    return {True: "met", False: "**missed**", None: "-"}[verdict.met]


def goal_table(results: Sequence[Result]) -> list[str]:
    """Every goal."""
    lines = [row("goal", "bound", "measured", "published", ""), row(*["---"] * 5)]
    lines += [
        row(each.text, each.bound, spread(each.measured), each.published, verdict_word(each))
        for each in judge(results)
    ]
    return lines


def latency_cell(result: Result, kind: str) -> str:
    """p50 / p95 / p99."""
    of = result.latency.get(kind)
    return "" if of is None else f"{number(of.p50)} / {number(of.p95)} / {number(of.p99)}"


def step_table(results: Sequence[Result]) -> list[str]:
    """Every step of every round."""
    lines = [
        row(
            "workload", "arm", "round", "op/s", "read p50 / p95 / p99 ms", "update p50 / p95 / p99 ms",
            "disk reads/s", "lag s", "replayed of written", "refused", "load", "others' processors",
        ),
        row(*["---"] * 12),
    ]  # fmt: skip
    for each in sorted(results, key=lambda result: (result.title, list(NAMES).index(result.arm))):
        noisy = "" if each.undisturbed else " (disturbed)"
        lines.append(
            row(
                each.title + (f" ({each.wanted:,.0f}/s)" if each.wanted else ""),
                NAMES[each.arm],
                str(each.round),
                number(each.operations),
                latency_cell(each, "read"),
                latency_cell(each, "update"),
                number(each.disk_reads),
                number(each.lag_most),
                f"{each.replayed:,} of {each.written:,}" if each.replayed else "",
                str(each.refused),
                f"{each.load:.1f}",
                f"{each.others:.2f}{noisy}",
            )
        )
    return lines


def cost_table(results: Sequence[Result]) -> list[str]:
    """Processor time an operation."""
    names = list(dict.fromkeys(name for each in results for name in each.cpu_us))
    lines = [row("workload", "arm", "round", *names), row(*["---"] * (3 + len(names)))]
    for each in results:
        cells = [number(each.cpu_us[name]) if name in each.cpu_us else "" for name in names]
        lines.append(row(each.title, NAMES[each.arm], str(each.round), *cells))
    return lines


def report(heading: Heading, results: Sequence[Result]) -> str:
    """The whole page."""
    scale = heading.scale
    disturbed = sum(not each.undisturbed for each in results)
    setting = (
        f"Commit {heading.commit}; {heading.machine}; {heading.rounds} round(s). {scale.documents:,} documents, "
        f"{scale.data_mb:,} MB, {scale.data_to_cache:.0f} x the archive's cache of {scale.cache_mb} MB; all its memory "
        f"{scale.memory_mb} MB; {scale.iops} disk reads/s; {scale.connections} connections; one member each tier."
    )
    lines = [f"# Run of {heading.when} ({heading.kind})", "", setting, ""]
    lines += [*(f"- {note}" for note in heading.notes), ""]
    if disturbed:
        warning = (
            f"**{disturbed} of {len(results)} steps were disturbed** by other processes on the machine (last column of the "
            "second table): ratios of such steps say little where the processor was the limit."
        )
        lines += [warning, ""]
    lines += [
        "## Goals",
        "",
        "Ratios to the archive alone in the same round.",
        "",
        *goal_table(results),
    ]
    lines += ["", "## Steps", "", *step_table(results)]
    lines += ["", "## Processor time an operation (us)", "", *cost_table(results), ""]
    return "\n".join(lines)
