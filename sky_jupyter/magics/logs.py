"""``%sky logs``: show or save what a run printed, or a node's machine's own log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..errors import PoolError, SkyError, SpecError
from ..pool.runs.log_reader import newest, texts_of, walk
from ..providers.base import has_console
from ..util.text import first_line, format_size, rank_label

if TYPE_CHECKING:
    from ..pool.pool import Pool

# Maximum size of a shown output: as much as a cell's view keeps; with --last, as much as a page can take.
_MOST, _MOST_ASKED = 1 << 20, 20 << 20


def ranks_of(pool: Pool, run: str, asked: Collection[int] | None) -> list[int]:
    """Return the ranks of a run that are asked for; raise SpecError for others."""
    ranks = list(pool.homes(run))
    if missing := sorted({*(asked or ())}.difference(ranks)):
        raise SpecError(f"run {run} was not on {rank_label(missing)}; it was on {rank_label(ranks)}")
    return [rank for rank in ranks if asked is None or rank in asked]


def text(pool: Pool, run: str, ranks: Collection[int], lines: int | None = None) -> str:
    """Return the newest output of ranks, each under its name if there are several."""
    most = _MOST if lines is None else _MOST_ASKED
    parts, cut = [], []
    for rank, tail in newest(pool, run, ranks, most, lines).items():
        printed = tail.text()
        if tail.cut and (lines is None or printed.count("\n") < lines):
            cut.append(rank)
        parts.append(printed if len(ranks) == 1 else f"── {rank_label([rank])}\n{printed}")
    if cut:
        parts.insert(0, _more(run, cut, lines, most // max(1, len(ranks))))
    return "\n".join(part.rstrip("\n") for part in parts)


def _more(run: str, cut: Collection[int], lines: int | None, share: int) -> str:
    """Return a line that says where the rest of a cut output is."""
    more = "" if lines is not None else f"`%sky logs {run} --last N` shows N lines of each rank, "
    return (
        f"… of {rank_label(cut)} the newest {format_size(share)} each; {more}`%sky logs {run} --to FILE` writes all of "
        "it to files, result.stdout(rank) has it …"
    )


def write(pool: Pool, run: str, ranks: Collection[int], to: str) -> str:
    """Write all output of ranks that the nodes have, and say what was written."""
    target = Path(os.path.expanduser(to))
    names = {rank: target if len(ranks) == 1 else target / f"rank{rank}.log" for rank in ranks}
    written = 0
    try:
        if len(ranks) > 1:
            target.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            files: dict[int, TextIO] = {
                rank: stack.enter_context(path.open("w", encoding="utf-8", errors="replace", newline=""))
                for rank, path in names.items()
            }
            for page in walk(pool, run):
                for _, rank, piece in texts_of(page):
                    if rank in files:
                        files[rank].write(piece)
        written = sum(path.stat().st_size for path in names.values())
    except OSError as error:
        raise SkyError(f"run {run} cannot be written to {error.filename or target}: {error.strerror}") from error
    return f"run {run}: {format_size(written)} of {rank_label(ranks)} written to {target}{'/' * (len(ranks) > 1)}"


def of_machines(
    pool: Pool, nodes: Collection[int], *, previous: bool = False, last: int | None = None, to: str | None = None
) -> str:
    """Return the own logs of nodes' machines by name; or save them, and say where.

    Raises PoolError if the provider has no such logs, or the pool no such node.
    """
    provider, ids = pool.spec.provider, pool.ids
    if not has_console(provider):
        raise PoolError(
            f"the nodes of pool {pool.spec.name} have no log of their own ({provider}); `%sky logs` shows runs"
        )
    if wrong := [node for node in nodes if node >= len(ids)]:
        raise PoolError(f"pool {pool.spec.name} has no node {wrong[0]}: it has {len(ids)}, from 0 on")
    found = {}
    for node in nodes:
        try:
            found[node] = provider.console(ids[node], previous=previous, lines=last)
        except SkyError as error:
            if len(nodes) == 1:
                raise
            found[node] = f"({first_line(error)})\n"
    if to is not None:
        return _write_machines(found, Path(os.path.expanduser(to)))
    told = {node: log or "(empty)" for node, log in found.items()}
    parts = [log if len(nodes) == 1 else f"── node {node}: {ids[node]}\n{log}" for node, log in told.items()]
    return "\n".join(part.rstrip("\n") for part in parts)


def _write_machines(found: Mapping[int, str], target: Path) -> str:
    try:
        if len(found) > 1:
            target.mkdir(parents=True, exist_ok=True)
        for node, log in found.items():
            path = target if len(found) == 1 else target / f"node{node}.log"
            path.write_text(log, encoding="utf-8", errors="replace")
    except OSError as error:
        raise SkyError(f"the log cannot be written to {error.filename or target}: {error.strerror}") from error
    size = format_size(sum(len(log) for log in found.values()))
    return f"{size} of {_node_label(found)} written to {target}{'/' * (len(found) > 1)}"


def _node_label(nodes: Collection[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
