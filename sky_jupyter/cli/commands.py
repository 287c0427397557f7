"""Commands of ``sky-jupyter``: each prints its findings and returns a status."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..access import pool_facts
from ..access.pool_access import PoolAccess
from ..errors import PoolError
from ..pool.registry.registry import PoolRow, RunRow
from ..pool.registry.rows import notebooks
from ..util.text import cleaned, plain

if TYPE_CHECKING:
    from ..pool.pool import Pool

_TITLE = 50
# Most bytes of output that are shown, by default (as in `%sky logs`) and if a number of lines is given.
_MOST, _MOST_ASKED = 1 << 20, 20 << 20
_FOLLOWED = 10
# Least seconds between two looks at a run's output, and the pause in durations of the last look: a long look may use a
# fifth of a processor.
_LOOK, _IDLE = 0.5, 4
_HOUR = 3600.0


@contextlib.contextmanager
def opened() -> Iterator[PoolAccess]:
    """Yield access to the pools; at its end, print the registry's warnings."""
    access = PoolAccess(_attach)
    try:
        yield access
    finally:
        access.close()
        for text in access.registry.take_warnings():
            print(f"sky-jupyter: {text}", file=sys.stderr)


def _attach(row: PoolRow) -> Pool:
    """Attach to a pool that nobody manages; ask for passphrases in the terminal."""
    from ..display.base.prompts import person
    from ..pool.pool import Pool

    return person.wait(lambda: Pool.attach(row, person.prompts))


def pools(given: argparse.Namespace) -> int:
    """List the pools."""
    with opened() as access:
        found = access.pools()
    if given.json:
        _print_json({"pools": found})
    elif not found:
        print("no pool is running; `%sky up` in a notebook makes one")
    else:
        head = ("NAME", "ID", "NODES", "STATE", "AGE", "RUNS", "MANAGED BY")
        _print_table([head, *map(_pool_line, found)])
    return 0


def _pool_line(pool: dict[str, Any]) -> tuple[str, ...]:
    nodes = f"{pool['nodes']} {pool['provider']}"
    doing = ", ".join(f"{run['id']} {_short(run['title'])}" for run in pool["running"]) or "nothing"
    who = pool["manager"]["who"] if pool["manager"] else "nobody"
    return pool["name"], pool["id"], nodes, pool["state"], _age(pool["began"]), doing, who


def runs(given: argparse.Namespace) -> int:
    """List the runs."""
    with opened() as access:
        row = None if given.pool is None else access.find(given.pool)
        found = access.runs(row, given.last)
    if given.json:
        facts = zip(pool_facts.of_runs(found), found, strict=True)
        _print_json({"runs": [{**fact, "pool": run.pool_name or run.pool} for fact, run in facts]})
    elif not found:
        print("nothing has run yet")
    else:
        several = notebooks(found)
        head = ("RUN", "POOL", "STATE", "BEGAN", "TOOK", *(("NOTEBOOK",) if several else ()), "CELL")
        _print_table([head, *(_run_line(run, several) for run in found)])
    return 0


def _run_line(run: RunRow, several: Mapping[str, str]) -> tuple[str, ...]:
    took = "" if run.elapsed is None else f"{run.elapsed:.1f} s"
    began = time.strftime("%d %b %H:%M:%S", time.localtime(run.began))
    return run.id, run.pool_name or run.pool, run.state, began, took, *_notebook(run, several), _short(run.title)


def _notebook(run: RunRow, several: Mapping[str, str]) -> tuple[str, ...]:
    return (several[run.notebook] or "-",) if several else ()


def logs(given: argparse.Namespace) -> int:
    """Show the output of a run, or follow it."""
    with opened() as access:
        row, run = _meant(access, given.what, given.run)
        with access.log(row) as source:
            homes = source.homes(run.id)
            ranks = [rank for rank in sorted(homes) if given.rank is None or rank in given.rank]
            if not ranks:
                raise PoolError(f"run {run.id} has no such rank: it has {len(homes)}, from 0 on")
            if given.follow:
                return _follow(source, run, ranks, given)
            return _show(source, run, ranks, given)


def _meant(access: PoolAccess, what: str | None, run: str | None) -> tuple[PoolRow, RunRow]:
    """Return the pool and the run that a command line means."""
    rows = access.rows()
    if what is not None and run is None and what not in {text for row in rows for text in (row.name, row.id)}:
        found = access.registry.run(what) if rows else None
        row = next((row for row in rows if found is not None and row.id == found.pool), None)
        if found is not None and row is not None:
            return row, found
        if found is not None:
            raise PoolError(f"run {found.id} was on pool {found.pool_name or found.pool!r}, which has ended")
    row = access.find(what)
    return row, access.run(row, run)


def _show(source: Any, run: RunRow, ranks: list[int], given: argparse.Namespace) -> int:
    from ..pool.runs.log_reader import newest

    tails = newest(source, run.id, ranks, _MOST if given.last is None else _MOST_ASKED, given.last)
    texts = {rank: tail.text() for rank, tail in tails.items()}
    if given.json:
        shown = [{"rank": rank, "text": plain(text), "cut": tails[rank].cut} for rank, text in texts.items()]
        _print_json({"run": pool_facts.of_run(run), "ranks": shown})
        return 0
    for rank, text in texts.items():
        if len(texts) > 1:
            print(f"── rank {rank}")
        write(text)
    return 0


def _follow(source: Any, run: RunRow, ranks: Collection[int], given: argparse.Namespace) -> int:
    """Print what ranks print, each line under its rank, until the run is over."""
    from ..access.log_pages import follow

    began = time.monotonic()

    def wait() -> None:
        nonlocal began
        sys.stdout.flush()
        time.sleep(max(_LOOK, _IDLE * (time.monotonic() - began)))
        began = time.monotonic()

    # By rank, the line that it has not ended yet.
    open_lines: dict[int, str] = {}
    for rank, text in follow(source, run.id, given.last or _FOLLOWED, wait):
        if rank not in ranks:
            continue
        if given.json:
            print(json.dumps({"rank": rank, "text": plain(text)}), flush=True)
        elif len(ranks) == 1:
            write(text, whole=False)
        else:
            *lines, rest = (open_lines.get(rank, "") + text).split("\n")
            open_lines[rank] = after_bars(rest)
            for line in lines:
                write(f"{rank}: {line}\n")
    for rank, line in sorted(open_lines.items()):
        if line:
            write(f"{rank}: {line}\n")
    return 0


def where(given: argparse.Namespace) -> int:
    """Show what each rank is doing."""
    with opened() as access:
        text = access.where(access.find(given.pool))
    if given.json:
        _print_json({"text": plain(text)})
    else:
        write(text)
    return 0


def down(given: argparse.Namespace) -> int:
    """End a pool: by the kernel that manages it, else from here."""
    with opened() as access:
        row = _named(access, given.pool)
        done = True
        if row is not None and row.owner_lives:
            reply = access.ask(row, {"action": "down"})
            text, done = str(reply["message"]), bool(reply["done"])
        else:
            from ..magics.end_leftovers import end_left

            # A pool that has ended may have left something on other machines.
            text = end_left(given.pool if row is None else row.id)
    if given.json:
        _print_json({"message": text, "done": done})
    else:
        print(text)
    return 0


def _named(access: PoolAccess, name: str) -> PoolRow | None:
    rows = access.rows()
    return access.find(name) if any(name in (row.name, row.id) for row in rows) else None


def attach(given: argparse.Namespace) -> int:
    """Open an IPython that manages a pool."""
    with opened() as access:
        row = access.find(given.pool)
    magic = f"%sky attach {row.id}{' --take-over' if given.take_over else ''}"
    if row.owner_lives and not given.take_over:
        raise PoolError(
            f"pool {row.name!r} is managed by {row.who}: `sky-jupyter where` and `logs` look at it without taking it "
            "away, `--take-over` takes it from there"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise PoolError(f"attaching needs a terminal; in a notebook: `%load_ext sky_jupyter`, then `{magic}`")
    then = "keeps running when you leave" if row.keep else "ends with it, as it is not kept"
    print(f"an IPython that manages pool {row.name}, which {then}; `%%sky` runs a cell on it")
    from IPython import start_ipython

    code = f"get_ipython().run_line_magic('sky', {magic.removeprefix('%sky ')!r})"
    start_ipython(argv=["--no-banner", "--ext=sky_jupyter", "-i", "-c", code])
    return 0


def shell(given: argparse.Namespace) -> int:
    """Open a terminal on a rank's node; return the exit status of its program."""
    import asyncio
    import shlex

    from .remote_terminal import BROKEN, RemoteTerminal

    words = given.program
    command = (words[0] if len(words) == 1 else shlex.join(words)) if words else None
    if command is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise PoolError("a shell needs a terminal; without one, give a command: sky-jupyter shell POOL RANK -- COMMAND")

    async def run(access: PoolAccess) -> int:
        opened = False
        try:
            async with access.terminals(access.find(given.pool)) as (line, idle):
                terminal = RemoteTerminal(line, given.at, command, idle)
                await terminal.open()
                opened = True
                return await terminal.run()
        except PoolError as error:
            if not opened:
                raise
            print(f"sky-jupyter: {' '.join(str(error).split())}", file=sys.stderr)
            return BROKEN

    with opened() as access:
        return asyncio.run(run(access))


def mcp(given: argparse.Namespace) -> int:
    """Serve the pools to an agent over standard input and output, until that ends."""
    try:
        import anyio

        from ..mcp_server.tools import build
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio", "pydantic"):
            raise
        raise PoolError("the MCP server needs a package more: pip install 'sky-jupyter[mcp]'") from None
    # An agent's look attaches to no pool: that would renew its lease.
    access = PoolAccess()
    try:
        anyio.run(build(access, allow_run=given.allow_run).run_stdio_async)
    finally:
        access.close()
    return 0


# -- output ----------------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def write(text: str, *, whole: bool = True) -> None:
    """Write what ranks printed; of control sequences only colours reach a terminal."""
    text = cleaned(text)
    text = text if sys.stdout.isatty() else plain(text)
    sys.stdout.write(text + "\n" if whole and text and not text.endswith("\n") else text)


def after_bars(line: str) -> str:
    """Return what a terminal shows of an unfinished line: a bar's last drawing."""
    return line[line.rfind("\r", 0, -1) + 1 :]


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _short(text: str) -> str:
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def _age(began: float) -> str:
    minutes = max(0.0, time.time() - began) / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes * 60 / _HOUR:.0f} h"
