"""Parse ``%sky run``, ``%sky torchrun`` and ``%sky accelerate launch``.

Before the script come the launcher's own options, as the launcher reads them, and ours. All words after the script are
the script's. The tables are those of ``torch.distributed.run`` and ``accelerate launch``, which need not be installed
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from IPython.core.error import UsageError

from ..session.script_runs import Script
from ..util.text import nearest
from .launcher_options import ACCELERATE, RUN, TORCHRUN, LauncherOption

LAUNCHERS: Mapping[str, tuple[LauncherOption, ...]] = {"run": RUN, "torchrun": TORCHRUN, "accelerate": ACCELERATE}
_NODES = re.compile(r"(\d{1,6})(?::(\d{1,6}))?\Z")
_COMMAND = "launch"


@dataclass(frozen=True)
class SplitLine:
    """A line's words: those of our options, and the script with its launcher's."""

    ours: list[str]
    script: Script | None


def split(verb: str, words: Sequence[str], flags: Mapping[str, bool]) -> SplitLine:
    """Split a line into our options and a script with its launcher's.

    Parameters
    ----------
    verb : str
        ``run``, ``torchrun`` or ``accelerate``.
    words : sequence of str
        The words after the verb.
    flags : mapping of str to bool
        Our own options, and whether each takes a value.

    Returns
    -------
    SplitLine
        Its parts; without a script if only help is asked for.

    Raises
    ------
    UsageError
        For an option that neither the launcher nor we have, that cannot be used on a pool, or whose value is wrong; and
        without a script.
    """
    prog, words = f"%sky {verb}", list(words)
    if verb == "accelerate" and words[:1] not in ([_COMMAND], ["--help"], ["-h"]):
        given = f", not {words[0]!r}" if words else ""
        raise UsageError(f"{prog}: `%sky accelerate launch` runs a script{given}")
    if verb == "accelerate" and words[0] == _COMMAND:
        del words[0]
        prog = f"{prog} {_COMMAND}"
    table = {flag: one for one in LAUNCHERS[verb] for flag in one.flags}
    ours: list[str] = []
    found: list[tuple[LauncherOption, str]] = []
    theirs: list[str] = []
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            return SplitLine(["--help"], None)
        if flag in flags:
            ours.append(word)
            if flags[flag] and not equals:
                ours += _value(flag, words, prog)
            continue
        option = _named(flag, table, flags, prog)
        theirs.append(word)
        if option.metavar and not equals:
            (value,) = _value(flag, words, prog)
            theirs.append(value)
        elif equals and not option.metavar:
            raise UsageError(f"{prog}: {flag} takes no value")
        found.append((option, value))
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise UsageError(f"{prog}: the script is missing: `{prog} train.py`, or `{prog} -m package.module`")
    script = _script(verb if verb != "accelerate" else f"accelerate {_COMMAND}", found, prog)
    title = tuple(word for word in theirs if word not in ("-m", "--module"))
    return SplitLine(ours, replace(script, target=words[0], args=tuple(words[1:]), words=title))


def help_of(verb: str) -> str:
    """Return the help for a launcher's own options."""
    rows = [
        f"  {f'{one.flags[0]} {one.metavar}':30} {f'refused: {one.refused}' if one.refused else one.help}"
        for one in LAUNCHERS[verb]
    ]
    return "\n".join(["", "the launcher's own options, before the script:", *rows])


def _value(flag: str, words: list[str], prog: str) -> list[str]:
    if not words:
        raise UsageError(f"{prog}: {flag} takes a value")
    return [words.pop(0)]


def _named(flag: str, table: Mapping[str, LauncherOption], flags: Mapping[str, bool], prog: str) -> LauncherOption:
    """Return a launcher's option by its flag or the flag's start, as argparse does."""
    if flag in table:
        return table[flag]
    plain = flag.replace("_", "-")
    near = {one.flags[0]: one for name, one in table.items() if name.startswith("--") and name.startswith(plain)}
    if flag.startswith("--") and len(near) == 1:
        return next(iter(near.values()))
    if len(near) > 1:
        raise UsageError(f"{prog}: {flag} may be {' or '.join(sorted(near))}")
    if any(flag in one.flags for one in TORCHRUN):
        raise UsageError(f"{prog}: {flag} is an option of torchrun: `%sky torchrun {flag} …`")
    known = [*table, *flags]
    raise UsageError(f"{prog}: unknown option {flag}{nearest(flag, known)} (the script's own options come after it)")


def _script(verb: str, found: Sequence[tuple[LauncherOption, str]], prog: str) -> Script:
    """Return the script's options from its launcher's."""
    script = Script(verb, "file", "", accelerate=verb not in ("run", "torchrun"))
    idle: list[str] = []
    passed: list[str] = []
    given: dict[str, str] = {}
    for option, value in found:
        if option.refused:
            raise UsageError(f"{prog}: {option.flags[0]} cannot hold on a pool: {option.refused}")
        if option.dest == "pool":
            idle.append(option.flags[0])
        elif option.dest == "accelerate":
            passed += [option.flags[0], *([value] if option.metavar else [])]
        else:
            given[option.dest] = value
    if "module" in given and "no_python" in given:
        raise UsageError(f"{prog}: --module and --no-python contradict each other; give one of them")
    script = replace(script, kind="module" if "module" in given else "program" if "no_python" in given else "file")
    if "standalone" in given and given.get("nodes", "1") not in ("1", "1:1"):
        raise UsageError(f"{prog}: --standalone is for one node, and --nnodes asks for {given['nodes']}")
    if "standalone" in given:
        given["nodes"] = "1"
    for dest, read in _READERS.items():
        if dest in given:
            script = read(script, given[dest], prog)
    if idle:
        flags = ", ".join(dict.fromkeys(idle))
        script = replace(script, notes=(f"ignored, as the pool does that itself: {flags}",))
    return replace(script, options=tuple(passed))


def _nodes(script: Script, text: str, prog: str) -> Script:
    match = _NODES.match(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < least <= most:
        flag, form = ("--num_machines", "2") if "accelerate" in prog else ("--nnodes", "2, or 1:4")
        raise UsageError(f"{prog}: {flag} takes a number of nodes such as {form}, not {text!r}")
    return replace(script, nodes=(least, most))


def _per_node(script: Script, text: str, prog: str) -> Script:
    if text in ("auto", "gpu"):
        return replace(script, per_node=text)  # type: ignore[arg-type]
    if not text.isdecimal() or not 0 < int(text) <= _MOST_PER_NODE:
        raise UsageError(
            f"{prog}: --nproc-per-node takes a number from 1 to {_MOST_PER_NODE}, gpu (the node's accelerators) or "
            f"auto (those, or one a rank), not {text!r}"
        )
    return replace(script, per_node=int(text))


def _restarts(script: Script, text: str, prog: str) -> Script:
    if not text.isdecimal() or int(text) > _MOST_RESTARTS:
        raise UsageError(f"{prog}: --max-restarts takes a number from 0 to {_MOST_RESTARTS}, not {text!r}")
    return replace(script, restarts=int(text))


def _processes(script: Script, text: str, prog: str) -> Script:
    """Read accelerate's number of processes, which counts those of all nodes."""
    if not text.isdecimal() or not 0 < int(text) <= _MOST_PER_NODE * 1024:
        raise UsageError(f"{prog}: --num_processes takes a number above 0, not {text!r}")
    return replace(script, processes=int(text))


_MOST_PER_NODE = 1024
_MOST_RESTARTS = 1000
_READERS: Mapping[str, Callable[[Script, str, str], Script]] = {
    "nodes": _nodes,
    "per_node": _per_node,
    "processes": _processes,
    "config": lambda script, text, prog: replace(script, config=text),
    "restarts": _restarts,
    "id": lambda script, text, prog: replace(script, id=text),
    "role": lambda script, text, prog: replace(script, role=text),
}
