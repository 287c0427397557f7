"""Shell scripts for machines, sent by standard input, not as arguments.

A user's login shell may be any, and may print anything before a command begins. It only has to start ``/bin/sh``, which
then reads one line, the script. The bytes after that line are the script's input.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ...errors import SpecError

# A login's settings must not keep a command from running: another interpreter's PYTHONHOME, a PATH without the
# system's tools, a umask that keeps the user from their own files.
_CLEAN = "unset PYTHONHOME; export PATH=${PATH:+$PATH:}/usr/bin:/bin; case $(umask) in *[1-7]??) umask 077;; esac"
LAUNCH = f"""exec /bin/sh -c '{_CLEAN}; IFS= read -r _sky && eval "$_sky"'"""
_NEWLINE = "_sky_n=$(printf '\\nx'); _sky_n=${_sky_n%x}; "
# Size from which choosing the faster copy command pays off.
_MUCH = 8 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Prints its process id, then becomes the command, which keeps that id.
_INNER = """printf '%s %s %s\\n' "$1" "$$" "$(cat "/proc/$$/stat" 2>/dev/null)"; shift; exec "$@" """


def quote(text: str) -> str:
    """Return a text as one shell word on one line."""
    if "\0" in text:
        raise SpecError(f"{text!r} has a zero byte, which no argument, variable or path can have")
    # A line break would end the line that the script is sent in.
    return shlex.quote(text).replace("\n", "'\"$_sky_n\"'")


def path(where: PurePath | str) -> str:
    """Return a path as a shell word; ``~/`` is the user's home there."""
    text = str(where)
    if text == "~":
        return '"$HOME"'
    return '"$HOME"/' + quote(text[2:]) if text.startswith("~/") else quote(text)


def line(script: str) -> bytes:
    """Return a script as the line that `LAUNCH` reads; it must have no line breaks."""
    assert "\n" not in script
    return (_NEWLINE + script + "\n").encode("utf-8", "surrogateescape")


def exports(env: Mapping[str, str]) -> str:
    """Return a script that adds variables to those of the login."""
    for name in env:
        if not _NAME.match(name):
            raise SpecError(f"environment variable {name!r} is not a valid name; use letters, digits and _")
    return "".join(f"export {name}={quote(value)}; " for name, value in env.items())


def command(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, log: PurePath, mark: str, survive: bool, make: bool = False
) -> str:
    """Return a script that runs a command in a session of its own.

    Lines that begin with ``mark`` are ours: the first line of standard output has the process id, the line on
    standard error the exit status. ``make`` creates ``cwd``.
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
        # Its output is read even if nobody listens: otherwise SIGPIPE would end it. It has its own session, so that the
        # shell's session can be ended without it.
        own = "_sky_s=; command -v setsid >/dev/null && _sky_s=setsid; "
        relay = "{ trap '' PIPE HUP; cat; exec cat >/dev/null; } 2>/dev/null"
        return f"{begin}{own}{{ (exec $_sky_s {run} </dev/null); {tell}; }} | {relay}"
    # Standard input is the connection: when that closes, the whole session is ended.
    watch = "(trap '' TERM; cat <&3; kill -s TERM -- -$$; sleep 3; kill -s KILL -- -$$) >/dev/null 2>&1 & _sky_w=$!; "
    return f"{begin}trap : TERM HUP; exec 3<&0 </dev/null; {watch}{run} 3<&-; {tell}; kill -s KILL $_sky_w"


def signal(name: str, pid: int, ticks: int) -> str:
    """Return a script that signals a process's group if its start time is ``ticks``.

    SIGTERM is followed by SIGCONT, so that a stopped process can end.
    """
    on = ' && kill -s CONT -- "-$3"' if name == "TERM" else ""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" != {ticks} ] || case $1 in [ZX]) ;; *) kill -s {name} -- "-$3"{on};; esac'
    )


def naming_itself(script: str, mark: str) -> str:
    """Return a script that first prints its process, so that it can be ended."""
    return (
        f'{{ IFS= read -r _sky_t </proc/$$/stat; }} 2>/dev/null; printf \'%s %s %s\\n\' {mark} "$$" "$_sky_t"; '
        f"( exec 2>&1; {script} )"
    )


def end(pid: int, ticks: int) -> str:
    """Return a script that ends another one, with its group if it has its own."""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" != {ticks} ] || if [ "$3" = {pid} ]; then kill -s KILL -- -{pid}; else kill -s KILL {pid}; fi'
    )


def alive(pid: int, ticks: int) -> str:
    """Return a script that succeeds if the process started at ``ticks`` still runs."""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" = {ticks} ] && case $1 in [ZX]) exit 1;; esac'
    )


def server() -> str:
    """Return a script that prints the connection's sshd process and its stat line."""
    return 'printf "%s %s\\n" "$PPID" "$(cat "/proc/$PPID/stat")"'


def end_server(pid: int, ticks: int) -> str:
    """Return a script that kills an old connection's sshd: it holds ports until then."""
    return (
        f"_sky_t=$(cat /proc/{pid}/stat 2>/dev/null); set -- ${{_sky_t##*)}}; "
        f'[ "${{20:-}}" != {ticks} ] || case $_sky_t in *"(sshd"*) kill -s KILL {pid};; esac'
    )


def take(size: int) -> str:
    """Return a script that copies up to ``size`` bytes of standard input.

    ``head`` may read 8 KiB at a time, which costs the host more than decrypting them; not every ``dd`` counts bytes.
    """
    if size < _MUCH:
        return f"head -c {size}"
    options = "iflag=fullblock,count_bytes status=none"
    return (
        f"if dd count=0 {options} </dev/null 2>/dev/null; then dd bs=128k count={size} {options}; "
        f"else head -c {size}; fi"
    )


def put(files: Sequence[tuple[PurePath, int]], part: str) -> str:
    """Return a script that writes files atomically from concatenated bytes."""
    steps = ["umask 077"]
    for where, size in files:
        target, folder = path(where), path(where.parent)
        new = f"{folder}/{quote(f'.{part}')}"
        steps.append(
            f"mkdir -p -- {folder} && {{ {take(size)}; }} >{new} && [ $(wc -c <{new}) -eq {size} ] && mv -f -- {new} "
            f"{target} || {{ rm -f -- {new}; exit 1; }}"
        )
    return "; ".join(steps)
