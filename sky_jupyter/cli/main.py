"""Command line of ``sky-jupyter``: parse it, run the command, report errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import SkyError
from ..util.text import visible
from . import commands, script_command

# The status of programs that a Ctrl-C has stopped.
_INTERRUPTED = 130
_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words behind the program's name.

    Returns
    -------
    int
        0, or 1 after a failure, 2 for a wrong command line, 130 after a Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # All words after the dashes belong to the program on the node.
    end = words.index("--") if words[:1] == ["shell"] and "--" in words else len(words)
    given = _script(words) or parser().parse_args(words[:end])
    given.program = words[end + 1 :]
    try:
        status = int(given.command(given))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has gone. Python flushes standard output once more at its exit, which must not
        # fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except (SkyError, OSError, TimeoutError) as error:
        text = str(error) if isinstance(error, SkyError) and str(error) else f"{type(error).__name__}: {error}"
        print(f"sky-jupyter: {visible(' '.join(text.split()))}", file=sys.stderr)
        return _FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="sky-jupyter",
        description="Look at the pools of your notebooks, from a terminal of the machine on which the notebooks run.",
    )
    verbs = top.add_subparsers(metavar="COMMAND", required=True)
    pools = _verb(verbs, "pools", commands.pools, "list the running pools, and who manages each")
    runs = _verb(verbs, "runs", commands.runs, "list what has run, the newest first")
    logs = _verb(verbs, "logs", commands.logs, "show what a run has printed")
    where = _verb(verbs, "where", commands.where, "show what each rank is doing: its stack")
    down = _verb(verbs, "down", commands.down, "end a pool; what its ranks have in memory is lost")
    attach = _verb(verbs, "attach", commands.attach, "manage a kept pool from an IPython in this terminal")
    shell = _verb(verbs, "shell", commands.shell, "open a terminal on a rank's node, or run a command: -- COMMAND")
    mcp = _verb(verbs, "mcp", commands.mcp, "serve the pools to an agent, by the Model Context Protocol over stdio")
    mcp.add_argument("--allow-run", action="store_true", help="let the agent run cells; otherwise it may look")
    for name, help in script_command.VERBS.items():
        # Their arguments are parsed as those of `%sky`; see `_script`.
        verbs.add_parser(name, help=help)
    for verb in (pools, runs, logs, where, down):
        verb.add_argument("--json", action="store_true", help="print JSON")
    for verb in (runs, where, attach):
        verb.add_argument("pool", nargs="?", metavar="POOL", help="its name or id; not needed where there is one")
    shell.add_argument("pool", metavar="POOL", help="its name or id")
    shell.add_argument("at", nargs="?", type=_rank, default=0, metavar="RANK", help="on the node of this rank (0)")
    down.add_argument("pool", metavar="POOL", help="its name or id")
    logs.add_argument("what", nargs="?", metavar="POOL|RUN", help="a pool (its newest run), or a run's id")
    logs.add_argument("--run", metavar="RUN", help="a run of that pool, or how its id begins")
    logs.add_argument("--rank", type=_ranks, metavar="RANKS", help="these ranks only, such as 0 or 0,2-3")
    logs.add_argument("--last", type=_lines, metavar="N", help="the last N lines of each rank (with -f: 10)")
    logs.add_argument("-f", "--follow", action="store_true", help="keep printing new output until the run is over")
    runs.add_argument("--last", type=_lines, default=20, metavar="N", help="the newest N (20)")
    attach.add_argument("--take-over", action="store_true", help="also from another notebook, which loses it")
    return top


def _script(words: list[str]) -> argparse.Namespace | None:
    """Return the parsed line if it runs a script, else None."""
    if not words or words[0] not in script_command.VERBS:
        return None
    return argparse.Namespace(command=script_command.script, verb=words[0], words=words[1:])


def _verb(verbs: Any, name: str, command: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    verb.set_defaults(command=command)
    return verb


def _ranks(text: str) -> frozenset[int]:
    from ..magics.option_table import ranks

    try:
        return frozenset(ranks(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not ranks: give numbers such as 0 or 0,2-3") from None


def _rank(text: str) -> int:
    if not text.isdecimal() or len(text) > 7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank: give a number such as 0")
    return int(text)


def _lines(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000000")
    return int(text)
