"""Shell text for the other side: what is sent goes by standard input, so that no argument there shows it.

A user's login shell may be any, and says what it likes before a command begins; it is only asked to
become ``/bin/sh``, which then reads one line, the script. What follows that line is the script's input.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ...errors import SpecError

# What a login sets for itself must not keep a command from running: another interpreter's PYTHONHOME, a PATH without
# the system's tools, a umask that keeps the user from their own files.
_CLEAN = "unset PYTHONHOME; export PATH=${PATH:+$PATH:}/usr/bin:/bin; case $(umask) in *[1-7]??) umask 077;; esac"
LAUNCH = f"""exec /bin/sh -c '{_CLEAN}; IFS= read -r _sky && eval "$_sky"'"""
_NEWLINE = "_sky_n=$(printf '\\nx'); _sky_n=${_sky_n%x}; "
# Bytes for which it pays to choose with what they are copied.
_MUCH = 8 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Prints who it is, then becomes the command: the process id is the command's own.
_INNER = """printf '%s %s %s\\n' "$1" "$$" "$(cat "/proc/$$/stat" 2>/dev/null)"; shift; exec "$@" """


def quote(text: str) -> str:
    """One shell word, on one line."""
    if "\0" in text:
        raise SpecError(f"{text!r} has a zero byte, which no argument, variable or path can have")
    # A line break would end the line that the script is sent in.
    return shlex.quote(text).replace("\n", "'\"$_sky_n\"'")


def path(where: PurePath | str) -> str:
    """A path as a shell word; ``~/`` is the user's home there."""
    text = str(where)
    if text == "~":
        return '"$HOME"'
    return '"$HOME"/' + quote(text[2:]) if text.startswith("~/") else quote(text)


def line(script: str) -> bytes:
    """A script as the one line that `LAUNCH` reads; its own line breaks become semicolons nowhere: it has none."""
    assert "\n" not in script
    return (_NEWLINE + script + "\n").encode("utf-8", "surrogateescape")


def exports(env: Mapping[str, str]) -> str:
    """Variables, added to those that the login has."""
    for name in env:
        if not _NAME.match(name):
            raise SpecError(f"environment variable {name!r} is not a valid name; use letters, digits and _")
    return "".join(f"export {name}={quote(value)}; " for name, value in env.items())


def command(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, log: PurePath, mark: str, survive: bool, make: bool = False
) -> str:
    """Run a command in a session of its own; ``mark`` begins the lines that are ours, ``make`` makes ``cwd``.

    The first line of standard output says which process it is; the line on standard error how it ended.
    """
    words = " ".join(quote(word) for word in argv)
    program = quote(argv[0])
    begin = (
        exports(env)
        + (f"(umask 077; mkdir -p -- {path(cwd)}); " if make else "")
        + f"cd {path(cwd)} || exit 1; (umask 077; : >>{path(log)}) || exit 1; "
        + f"command -v {program} >/dev/null || {{ printf '%s: not found\\n' {program} >&2; exit 127; }}; "
    )
    run = f"/bin/sh -c {quote(_INNER)} sh {mark} {words} 2>>{path(log)}"
    tell = f"printf '%s %s\\n' {mark} $? >&2"
    if survive:
        # What it prints is taken from it even when nobody is left to read that: else it would end of it.
        # It has a session of its own: the shell's may be ended without it.
        own = "_sky_s=; command -v setsid >/dev/null && _sky_s=setsid; "
        relay = "{ trap '' PIPE HUP; cat; exec cat >/dev/null; } 2>/dev/null"
        return f"{begin}{own}{{ (exec $_sky_s {run} </dev/null); {tell}; }} | {relay}"
    # The connection is the other end of standard input: when that closes, all of the session is ended.
    watch = "(trap '' TERM; cat <&3; kill -s TERM -- -$$; sleep 3; kill -s KILL -- -$$) >/dev/null 2>&1 & _sky_w=$!; "
    return f"{begin}trap : TERM HUP; exec 3<&0 </dev/null; {watch}{run} 3<&-; {tell}; kill -s KILL $_sky_w"


def signal(name: str, pid: int, ticks: int) -> str:
    """Send a signal to the group of a process, if it is still the one that began then; what is to end goes on to."""
    on = ' && kill -s CONT -- "-$3"' if name == "TERM" else ""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" != {ticks} ] || case $1 in [ZX]) ;; *) kill -s {name} -- "-$3"{on};; esac'
    )


def alive(pid: int, ticks: int) -> str:
    """Say whether a process is still there, and still the one that began then."""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" = {ticks} ] && case $1 in [ZX]) exit 1;; esac'
    )


def server() -> str:
    """Say who serves this connection there."""
    return 'printf "%s %s\\n" "$PPID" "$(cat "/proc/$PPID/stat")"'


def end_server(pid: int, ticks: int) -> str:
    """End who served a connection that is given up, if that is still there: it holds ports until it notices."""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" != {ticks} ] || case $_sky_t in *"(sshd"*) kill -s KILL {pid};; esac'
    )


def take(size: int) -> str:
    """Copy exactly so many bytes of standard input, or what there is of them.

    ``head`` may take 8 KiB at a time, which costs the host more than to decrypt them; not every ``dd`` counts bytes.
    """
    if size < _MUCH:
        return f"head -c {size}"
    options = "iflag=fullblock,count_bytes status=none"
    return (
        f"if dd count=0 {options} </dev/null 2>/dev/null; then dd bs=128k count={size} {options}; "
        f"else head -c {size}; fi"
    )


def put(files: Sequence[tuple[PurePath, int]], part: str) -> str:
    """Write files, whose bytes follow one another, each whole or not at all, for its user only."""
    steps = ["umask 077"]
    for where, size in files:
        target, folder = path(where), path(where.parent)
        new = f"{folder}/{quote(f'.{part}')}"
        steps.append(
            f"mkdir -p -- {folder} && {{ {take(size)}; }} >{new} && [ $(wc -c <{new}) -eq {size} ] && mv -f -- {new} "
            f"{target} || {{ rm -f -- {new}; exit 1; }}"
        )
    return "; ".join(steps)
