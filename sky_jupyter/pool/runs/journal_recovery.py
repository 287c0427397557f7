"""Recovery after the loss of the head: journals are read from disks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...errors import SkyError
from ...node.protocol.journal_events import Gap, is_count, parse
from ...util import json_codec
from ..base.event_loop import in_thread
from ..base.timeouts import TIMEOUTS
from ..hosts.reachability import script_of

if TYPE_CHECKING:
    from ..hosts.launch import Host
    from .run import Run

# The timeout of reading a node's journal.
_PATIENCE = TIMEOUTS.repairs.recovery
_MOST = 16 << 20
# A journal's files are named after their first event; only those that may have events from `start` on are read.
_READ = """
import glob, json, os, sys
base, start, most = {base!r}, {start}, {most}
names = [name[len(base) + 1:] for name in glob.glob(glob.escape(base) + ".*")]
firsts = sorted((int(name), name) for name in names if name.isdigit())
wanted = [name for at, (_, name) in enumerate(firsts) if at + 1 == len(firsts) or firsts[at + 1][0] > start]
lines = dict()
for name in wanted + ["held"] * ("held" in names):
    with open(base + "." + name, "rb") as file:
        for line in file:
            try:
                number = int(json.loads(line)["seq"])
            except (ValueError, KeyError, TypeError):
                break
            if number >= start and line.endswith(b"\\n"):
                lines.setdefault(number, line)
for number in sorted(lines):
    most -= len(lines[number])
    if most < 0:
        break
    sys.stdout.buffer.write(lines[number])
"""
_THERE = (
    "{why}; what it had printed on its own node by then is here. It continues there, but its output is not received: "
    "`%sky restart` "
    "recreates the pool, `%sky down` ends it"
)
_AWAY = (
    "{why}; its own node could not be reached just now to see how far it is. It may go on there, unheard: "
    "`%sky restart` recreates the pool, `%sky down` ends it"
)


async def give_up(runs: Iterable[Run], hosts: Sequence[Host], why: str) -> None:
    """End runs whose head is lost; read the journals of the other nodes first.

    ``why`` is what has happened to the head.
    """
    on = [run for run in runs if run.left]
    for run in on:
        gone = [rank for rank in run.left if _host_of(hosts, run, rank) in (None, hosts[0])]
        run.lose(gone, f"{why}; `%sky restart` recreates the pool")
    await asyncio.gather(*(_see(run, host, why) for run in on for host in hosts[1:]))


def _host_of(hosts: Sequence[Host], run: Run, rank: int) -> Host | None:
    return next((host for host in hosts if run.outcomes[rank].node in host.nodes), None)


async def _see(run: Run, host: Host, why: str) -> None:
    """Read a run's events from a host's journals; fail unfinished ranks."""
    ranks = [rank for rank in run.left if run.outcomes[rank].node in host.nodes]
    if not ranks:
        return
    text = _THERE
    for node in host.nodes:
        start = run.next(node)
        try:
            lines = await asyncio.wait_for(in_thread(_lines, host, node, run.id, start), _PATIENCE)
        except (SkyError, asyncio.TimeoutError, TimeoutError):
            text = _AWAY
        else:
            run.take(node, start, *_batch(lines, start))
    left = [rank for rank in ranks if run.outcomes[rank].status == "running"]
    run.lose(left, text.format(why=why))


def _lines(host: Host, node: int, run: str, start: int) -> bytes:
    """Return a journal's events from ``start`` on, one per line."""
    code = _READ.format(base=f"{host.there}/n{node}/journal/{run}.jsonl", start=start, most=_MOST)
    return host.machine.run(script_of(host.python, code), timeout=_PATIENCE).out


def _batch(lines: bytes, start: int) -> tuple[int, bytes]:
    """Return the number of events, and their lines with gaps filled in."""
    at, parts = start, []
    for line in lines.splitlines(keepends=True):
        event = parse(line)
        number = None if event is None else event.get("seq")
        if event is None or not is_count(number) or number < at:
            continue
        gap = Gap.from_json(event) if event.get("kind") == "gap" else None
        if number > at:
            parts.append(json_codec.dumps(Gap(at, number, 0, "it could not be read").to_json()) + b"\n")
        parts.append(line)
        at = number + 1 if gap is None else gap.next
    return at - start, b"".join(parts)
