"""The pool panel of `%sky`: pools as JSON, HTML and text.

It is drawn from the data of `pool.status_cache`, as in docs/actions.md. The labextension draws the JSON, and then
follows the pool. Other front ends draw the HTML, which uses only what the sanitizer of an untrusted notebook leaves:
sparklines are pictures, with their numbers beside them.
"""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...util.text import rank_label
from ..base import frontends
from ..base.frontends import in_notebook
from ..model import ansi
from ..model import run_html as render

MIME = "application/vnd.sky.pool.v1+json"
VERSION = 1
HostFacts = Mapping[str, Any]
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 20
_WIDTH, _HEIGHT = 80, 16
# Samples that a picture spans; one is taken each second.
_SPAN = 300
# Limits of a saved notebook: samples of each node, lines of each phase, characters of a line.
_KEPT_SAMPLES = 60
_KEPT_LINES, _KEPT_LINE = 20, 200
_TITLE = 50
# Most ranks of a pool that are shown one by one.
_MOST_RANKS = 32
_SLOW = 0.05
_COLOURS = {"idle": "32", "ready": "32", "busy": "34", "starting": "34", "restarting": "34", "replacing": "33"}
_COLOURS |= {"resizing": "34"}
_TROUBLE = "31"
_NONE = "no pool is running; `%sky up --nodes 2` makes one, and so does `%%sky --nodes 2` over a cell"


def show(pools: Sequence[HostFacts]) -> None:
    """Show pools, as HTML where the front end draws it."""
    text = "\n".join(map(to_text, pools)) or _NONE
    if not (pools and in_notebook()):
        print(text)
        return
    from IPython.display import display

    bundle = {MIME: to_json(pools), "text/html": "".join(map(to_html, pools)), "text/plain": text}
    display(frontends.drawable(bundle), raw=True)


def to_json(pools: Sequence[HostFacts]) -> dict[str, Any]:
    """Return the pools as they are now, in the size that a saved notebook keeps."""
    return {"version": VERSION, "at": round(time.time()), "pools": [_kept(pool) for pool in pools]}


def _kept(pool: HostFacts) -> dict[str, Any]:
    nodes = [{**node, "samples": _thinned(node["samples"])} for node in pool["nodes"]]
    phases = []
    for phase in pool["phases"]:
        lines = [line[:_KEPT_LINE] for line in phase["lines"][-_KEPT_LINES:]]
        parts = [{**part, "line": part["line"][:_KEPT_LINE]} for part in phase.get("nodes", ())]
        phases.append({**phase, "lines": lines, "nodes": parts})
    return {**pool, "nodes": nodes, "phases": phases}


def _thinned(samples: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return fewer samples, each the mean of neighbours."""
    size = max(1, -(-len(samples) // _KEPT_SAMPLES))
    ends = range(len(samples), 0, -size)
    groups = [samples[max(0, end - size) : end] for end in reversed(ends)]
    return [[round(sum(column) / len(group), 3) for column in zip(*group, strict=True)] for group in groups]


def to_text(pool: HostFacts) -> str:
    """Return a pool as lines of text."""
    lines = [_head(pool)]
    lines += [f"  {host}: {text}" for host, text in sorted(pool["away"].items())]
    lines += [
        f"  {text}: its control connection goes through here, no collectives" for text in sorted(pool["apart"].values())
    ]
    lines += [f"  {_run(run)}" for run in pool["runs"]]
    for node in pool["nodes"]:
        parts = [f"{node['state']}{_hint(node)}", *_use(node)]
        lines.append(f"  node {node['node']}{_place(node)}: {' · '.join(parts)}")
        if pool["world_size"] <= _MOST_RANKS:
            lines += [f"    rank {rank['rank']}: {_rank(rank, pool['state'])}" for rank in node["ranks"]]
    return "\n".join([*lines, *(f"  {line}" for line in [_phases(pool)] if line)])


def to_html(pool: HostFacts) -> str:
    """Return a pool as a table of its nodes."""
    trouble = pool["state"] not in _COLOURS
    header = render.html_line(_head(pool), state="failed" if trouble else "done")
    notes = [f"{host}: {text}" for host, text in sorted(pool["away"].items())]
    notes += [
        f"{text}: its control connection goes through here, no collectives" for text in sorted(pool["apart"].values())
    ]
    notes += [_run(run) for run in pool["runs"]]
    above = "".join(f'<div style="font-size:85%">{html.escape(note)}</div>' for note in notes)
    gpus = any(node["gpus"] for node in pool["nodes"])
    names = ["node", "state", "where", "CPU", "memory", *(["GPU"] if gpus else []), "ranks", "up"]
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
    rows = "".join(_row(node, gpus=gpus) for node in pool["nodes"])
    table = f'<table style="font-size:85%;margin:4px 0"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div style="margin:0;padding:0 0 0 8px">{header}{above}{table}{_html_phases(pool)}</div>'


# -- parts -----------------------------------------------------------------------------------------


def _head(pool: HostFacts) -> str:
    text = f"pool {pool['name']}{' (current)' if pool['current'] else ''}: {pool['about']}, {pool['state']}"
    if pool["why"]:
        text += f" ({pool['why']})"
    text += f", up {render.duration(pool['uptime'])}" if pool["state"] == "ready" else ""
    text = f"{text}, {pool['remaining']}" if pool.get("remaining") else text
    return f"{text}, {pool['cost']['text']}" if pool.get("cost") else text


def _run(run: HostFacts) -> str:
    title = run["title"]
    title = title if len(title) <= _TITLE else title[: _TITLE - 1] + "…"
    where = f"In[{run['count']}]" if run["count"] else f"run {run['id']}"
    parts = [f"{where}: {title}", render.duration(run["elapsed"])]
    if run["left"]:
        work = "works" if len(run["left"]) == 1 else "work"
        parts.append("all ranks work" if run["left"] == run["ranks"] else f"{rank_label(run['left'])} {work}")
    if run["failed"]:
        parts.append(f"{rank_label(run['failed'])} failed")
    if run["timed_out"] or run["interrupted"]:
        parts.append("timed out" if run["timed_out"] else "interrupted")
    return " · ".join(parts)


def _place(node: HostFacts) -> str:
    where = node["host"] or node["address"]
    return f" ({where})" if where else ""


def _hint(node: HostFacts) -> str:
    return "; `%sky restart` recreates it" if node["state"] == "lost" else ""


def _rank(rank: HostFacts, pool: str) -> str:
    if not rank["pid"]:
        return "its kernel starts" if pool == "starting" else "its kernel is being replaced"
    memory = f", {_bytes(rank['memory'])}" if rank["memory"] else ""
    return f"{'busy' if rank['run'] else 'idle'} (process {rank['pid']}{memory})"


def _use(node: HostFacts) -> list[str]:
    """Describe a node's load in words with sparklines; empty if it is unknown."""
    now = node["now"]
    if not now:
        return []
    cpu, memory, *gpus = _series(node)
    parts = [f"CPU {_percent(now[0])} {spark(cpu)}"]
    parts.append(f"memory {_of(now[1], node['memory'])} {spark(memory)}")
    for index, gpu in enumerate(node["gpus"]):
        busy, used = now[2 + 2 * index], now[3 + 2 * index]
        parts.append(f"{gpu['name']} {_percent(busy)} {spark(gpus[2 * index])}, {_of(used, gpu['memory'])}")
    return parts


def _series(node: HostFacts) -> list[list[float]]:
    """Return a node's samples, each as a fraction of the total."""
    whole = [1.0, node["memory"]]
    for gpu in node["gpus"]:
        whole += [1.0, gpu["memory"]]
    return [
        [min(1.0, sample[1 + index] / most) if most else 0.0 for sample in node["samples"]]
        for index, most in enumerate(whole)
    ]


def spark(values: Sequence[float]) -> str:
    """Return values from 0 to 1 as block characters, the newest last."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * min(1.0, max(0.0, value)))] for value in _binned(values, _COLUMNS))


def _binned(values: Sequence[float], columns: int) -> list[float]:
    """Return at most so many means of neighbours; the newest group is complete."""
    size = max(1, -(-len(values) // columns))
    ends = range(len(values), 0, -size)
    bins = [values[max(0, end - size) : end] for end in ends]
    return [sum(part) / len(part) for part in reversed(bins)]


def _phases(pool: HostFacts) -> str:
    told = [phase for phase in pool["phases"] if phase["elapsed"] >= _SLOW or phase["state"] != "done"]
    if not told:
        return ""
    whole = render.duration(sum(phase["elapsed"] for phase in pool["phases"]))
    return f"started in {whole}: {', '.join(map(_phase, told))}"


def _phase(phase: HostFacts) -> str:
    text = f"{phase['phase']} {render.duration(phase['elapsed'])}"
    if phase["state"] == "on":
        return (
            f"{phase['phase']} {render.pace(phase['elapsed'], phase['usual'])}" if phase["usual"] else f"{text} so far"
        )
    return f"{text} (failed)" if phase["state"] == "failed" else text


def _percent(part: float) -> str:
    return f"{round(100 * part)}%"


def _of(used: float, whole: float) -> str:
    return f"{used / 1e9:.1f} of {whole / 1e9:.1f} GB"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


# -- HTML ------------------------------------------------------------------------------------------


def _row(node: HostFacts, *, gpus: bool) -> str:
    colour = ansi.css(_COLOURS.get(node["state"], _TROUBLE))
    state = f'<span style="{colour}">●</span> {html.escape(node["state"] + _hint(node))}'
    cells = [str(node["node"]), state, html.escape(node["host"] or node["address"]), *_html_use(node)]
    if not gpus:
        del cells[5]
    busy = [rank["rank"] for rank in node["ranks"] if rank["run"]]
    ranks = html.escape(rank_label(rank["rank"] for rank in node["ranks"])) if node["ranks"] else ""
    cells += [
        f"{ranks}{f' ({len(busy)} busy)' if busy else ''}",
        render.duration(node["uptime"]) if node["uptime"] else "",
    ]
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _html_use(node: HostFacts) -> list[str]:
    """Return a node's CPU, memory and GPUs as HTML."""
    now = node["now"]
    if not now:
        return ["", "", ""]
    cpu, memory, *gpus = _series(node)
    found = []
    for index, gpu in enumerate(node["gpus"]):
        busy, used = now[2 + 2 * index], now[3 + 2 * index]
        text = f"{_percent(busy)}, {_of(used, gpu['memory'])} ({gpu['name']})"
        found.append(f"{picture(gpus[2 * index], 'GPU use')} {html.escape(text)}")
    return [
        f"{picture(cpu, 'CPU use')} {_percent(now[0])} of {node['cores']:g} cores",
        f"{picture(memory, 'memory use')} {_of(now[1], node['memory'])}",
        "<br>".join(found),
    ]


def picture(values: Sequence[float], what: str) -> str:
    """Return values from 0 to 1 as an area chart, five minutes wide."""
    if not values:
        return ""
    bins = _binned(values, _WIDTH)
    step = _WIDTH / _SPAN * -(-len(values) // _WIDTH)
    first = _WIDTH - step * (len(bins) - 1)
    points = [(first + step * index, 1 + (_HEIGHT - 2) * (1 - value)) for index, value in enumerate(bins)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{first:.1f},{_HEIGHT} {line} {_WIDTH},{_HEIGHT}"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#7f7f7f" fill-opacity="0.12"/>'
        f'<polygon points="{area}" fill="#2f7fe0" fill-opacity="0.3"/>'
        f'<polyline points="{line}" fill="none" stroke="#2f7fe0"/></svg>'
    )
    data = base64.b64encode(svg.encode()).decode()
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    alt = f"{what} of the last {render.duration(len(values))}"
    return (
        f'<img src="data:image/svg+xml;base64,{data}" {size} alt="{alt}" style="display:inline;vertical-align:middle">'
    )


def _html_phases(pool: HostFacts) -> str:
    if not pool["phases"]:
        return ""
    lines: Iterable[str] = (
        f"{_phase(phase)}\n" + "".join(f"    {line}\n" for line in phase["lines"][-_KEPT_LINES:])
        for phase in pool["phases"]
    )
    title = html.escape(_phases(pool) or "started")
    inner = f'<pre style="margin:0;font-size:85%">{html.escape("".join(lines))}</pre>'
    return f'<details style="font-size:85%"><summary>{title}</summary>{inner}</details>'
