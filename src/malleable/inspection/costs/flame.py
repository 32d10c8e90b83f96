"""A picture of where the work is: calls from the top down, as wide as their flops."""

import html
import itertools
import zlib
from collections.abc import Mapping
from typing import Any

from malleable.inspection.counting import Count

WIDTH, HEIGHT, LEAST = 1000.0, 18, 0.5  # pixels; bars narrower than LEAST are left out
_COLOURS = ("#e76f51", "#f4a261", "#e9c46a", "#f2b880", "#d98c5f")


def svg(stacks: Mapping[tuple[str, ...], tuple[float, float]], title: str = "") -> str:
    """An SVG picture of {frames from the outermost in: (flops, bytes)}.

    After Brendan Gregg, "The Flame Graph", CACM 59(6), 2016, upside down ("icicle").

    >>> svg({("f:1", "dot_general"): (8.0, 0.0)}).count("<rect")
    3
    """
    tree: dict = {}
    for stack, (flops, _) in stacks.items():
        at = tree
        for name in stack:
            node = at.setdefault(name, [0.0, {}])
            node[0] += flops
            at = node[1]
    whole = sum(flops for flops, _ in stacks.values())
    bars: list[str] = []
    deepest = _grow(bars, tree, 0.0, 1, whole) if whole else 1
    head = _bar(0.0, WIDTH, 0, f"{title or 'program'}: {whole:.4g} flop", "#cccccc")
    size = f'viewBox="0 0 {WIDTH:g} {deepest * HEIGHT}" width="100%"'
    style = "font: 11px ui-monospace, monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">'
        + head
        + "".join(bars)
        + "</svg>"
    )


def _grow(bars, tree, left, depth, whole) -> int:
    """Add the bars of one level and those below; returns how deep it goes."""
    deepest = depth
    for name, (flops, inner) in sorted(tree.items(), key=lambda item: -item[1][0]):
        width = WIDTH * flops / whole
        if width < LEAST:
            continue
        told = f"{name}: {flops:.4g} flop, {flops / whole:.1%}"
        colour = _COLOURS[zlib.crc32(name.encode()) % len(_COLOURS)]
        bars.append(_bar(left, width, depth, told, colour, name))
        deepest = max(deepest, depth + 1, _grow(bars, inner, left, depth + 1, whole))
        left += width
    return deepest


def _bar(left, width, depth, told, colour, name="") -> str:
    """One bar with a tooltip, and as much of its name as fits."""
    text = (name or told)[: max(0, int((width - 6) / 6.7))]
    y = depth * HEIGHT
    return (
        f"<g><title>{html.escape(told)}</title>"
        f'<rect x="{left:.2f}" y="{y}" width="{width:.2f}" height="{HEIGHT - 1}" fill="{colour}"/>'
        f'<text x="{left + 3:.2f}" y="{y + 13}" fill="#222">{html.escape(text)}</text></g>'
    )


Stacks = Mapping[tuple[str, ...], Count]  # {frames from the outermost in: cost}


def speedscope(stacks: Stacks, name: str) -> dict[str, Any]:
    """Two profiles, one of flops and one of bytes, in the file format of speedscope.

    Format: https://www.speedscope.app/file-format-schema.json
    """
    frames = list(dict.fromkeys(itertools.chain.from_iterable(stacks)))
    at = {frame: i for i, frame in enumerate(frames)}
    profiles = []
    for unit, weights in (
        ("flop", [count.flops for count in stacks.values()]),
        ("bytes", [count.bytes for count in stacks.values()]),
    ):
        profiles.append(
            {
                "type": "sampled",
                "name": f"{name}: {unit}",
                "unit": "bytes" if unit == "bytes" else "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[at[frame] for frame in stack] for stack in stacks],
                "weights": weights,
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": profiles,
    }


def perfetto(stacks: Stacks, name: str) -> dict[str, Any]:
    """Slices as wide as their flops, nested as the calls: one flop is drawn as 1 ns.

    Format: Chrome's "Trace Event Format", which ui.perfetto.dev opens.
    """
    events: list[dict[str, Any]] = []

    def grow(rows, depth: int, start: float) -> None:
        for frame, group in itertools.groupby(rows, key=lambda row: row[0][depth]):
            inside = list(group)
            flops = sum(count.flops for _, count in inside)
            amount = {"flops": flops, "bytes": sum(count.bytes for _, count in inside)}
            times = {"ts": start / 1000, "dur": flops / 1000}  # microseconds
            events.append({"name": frame, "ph": "X", "pid": 1, "tid": 1, **times, "args": amount})
            deeper = [row for row in inside if len(row[0]) > depth + 1]
            grow(deeper, depth + 1, start)
            start += flops

    grow(sorted(stacks.items(), key=lambda row: row[0]), 0, 0.0)
    return {"traceEvents": events, "otherData": {"name": name, "unit": "1 ns is 1 flop"}}
