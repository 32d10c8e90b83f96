"""Costs for viewers of profiles: speedscope (speedscope.app) and Perfetto (ui.perfetto.dev)."""

import itertools
from collections.abc import Mapping
from typing import Any

from malleable.inspection.counting import Count

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
