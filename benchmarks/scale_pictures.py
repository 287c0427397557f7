"""Curves of `scale` as SVG pictures: ``python -m benchmarks.scale_pictures LINES`` writes them to docs/images.

LINES is a file with the lines of JSON that the benchmark prints.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
PICTURES = {
    "start": ("start", "end"),
    "cell": ("empty cell", "first byte", "f() @ pool"),
    "output": ("flood", "status", "broadcast of 1 MB"),
    "calls": ("10,000 calls >>",),
    "faults": ("a node's death named", "a machine's silence named", "resize by 10 %", "attach"),
}
PEERS = {"ours": "Sky Jupyter", "ipyparallel": "ipyparallel", "dask": "Dask"}
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a", "#ef6c00", "#00838f", "#5d4037", "#546e7a", "#ad1457")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 60, 230, 20, 40
Curve = list[tuple[float, float]]


def curves(told: Sequence[Mapping[str, Any]], whats: Sequence[str]) -> dict[str, Curve]:
    """Return each curve's points: simulated and real ones apart, since the first are no kernels."""
    found: dict[str, Curve] = {}
    for one in told:
        for peer, name in PEERS.items():
            for what in whats:
                if not one["delay"] and what in one.get(peer, {}):
                    label = f"{name}: {what}{', simulated' if one['kind'] == 'simulated' else ''}"
                    found.setdefault(label, []).append((one["nodes"], one[peer][what]))
    return {name: sorted(points) for name, points in found.items()}


def picture(found: Mapping[str, Curve]) -> str:
    """Draw curves on logarithmic axes."""
    xs = [x for points in found.values() for x, _ in points]
    ys = [max(y, 1e-4) for points in found.values() for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    first, last = math.log10(min(xs)), math.log10(max(*xs, 10))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - first) / (last - first)
        up = (math.log10(max(y, 1e-4)) - low) / max(1, high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        _, y = at(min(xs), 10.0**power)
        text = f"{10.0**power:g} s" if power >= 0 else f"{10.0 ** (power + 3):g} ms"
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for x in sorted(set(xs)):
        across, _ = at(x, ys[0])
        parts.append(f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{(WIDTH - RIGHT + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">nodes</text>')
    for number, (name, points) in enumerate(found.items()):
        colour, dash = COLOURS[number % len(COLOURS)], ' stroke-dasharray="5 3"' if "simulated" in name else ""
        places = [at(x, y) for x, y in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = TOP + 8 + 16 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y}h16" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 34}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(lines: str) -> None:
    """Write the pictures, and print the figures as tables in Markdown: ours, and those beside peers."""
    told = [json.loads(line) for line in Path(lines).read_text(encoding="utf-8").splitlines()]
    for name, whats in PICTURES.items():
        if found := curves(told, whats):
            (IMAGES / f"scale-{name}.svg").write_text(picture(found), encoding="utf-8")
    columns = sorted(told, key=lambda one: (one["delay"], one["kind"], one["nodes"]))
    figures = dict.fromkeys(what for one in columns for what in one["ours"] if "others" not in what)
    _print_table(columns, [("ours", what, what) for what in figures])
    beside = [one for one in columns if set(one) & PEERS.keys() - {"ours"}]
    shared = dict.fromkeys(what for one in beside for peer in PEERS if peer != "ours" for what in one.get(peer, ()))
    if beside:
        _print_table(beside, [(peer, what, f"{what}: {name}") for what in shared for peer, name in PEERS.items()])


def _print_table(columns: Sequence[Mapping[str, Any]], rows: Sequence[tuple[str, str, str]]) -> None:
    """Print a table in Markdown; a row's peer, figure and name are given."""
    heads = [str(one["nodes"]) + (f", {one['delay'] * 1000:g} ms" if one["delay"] else "") for one in columns]
    print(f"| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for peer, what, name in rows:
        values = [one.get(peer, {}).get(what) for one in columns]
        if any(value is not None for value in values):
            print(f"| {name} | {' | '.join(_text(what, value) for value in values)} |")
    print()


def _text(what: str, value: float | None) -> str:
    if value is None:
        return ""
    if what.endswith(("MB", "lost")) and "1 MB" not in what:
        return f"{value:.0f}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


if __name__ == "__main__":
    main(sys.argv[1])
