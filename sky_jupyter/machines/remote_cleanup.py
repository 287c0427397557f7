"""Shell script that ends a pool's processes on a machine and removes its folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..errors import MachineError
from ..node.protocol.version import HOST_PROCESS
from .base import Machine

_ID = re.compile(r"[0-9a-f]{8}\Z")
# Seconds that the processes have to end in order; timeout of the whole script.
_ORDERLY, _PATIENCE = 10, 60.0


def script(pool: str, folders: Sequence[str] = ()) -> str:
    """Return a script that ends a pool's processes of this user and removes folders.

    Its status is 0 once no process is left. A host process that still waits for a slow login finds its folder removed,
    and does not start. ``pool`` is the pool's id; ``folders`` are its folders on that machine.
    """
    assert _ID.match(pool)
    # The brackets keep the pattern from matching its own command line.
    pattern = shlex.quote(HOST_PROCESS.replace(".", "[.]"))
    look = (
        f'_sky_l() {{ for f in $(grep -ls {pattern} /proc/[0-9]*/cmdline); do [ -O "$f" ] || continue; '
        "c=$(tr '\\000' ' ' 2>/dev/null <\"$f\"); "
        f'case $c in (*"{HOST_PROCESS} "*/sky-{pool}-*) f=${{f#/proc/}}; echo "${{f%/cmdline}}";; esac; done; }}'
    )
    # Agents and kernels are children of the root process, and have its command line: only the root gets the signal, and
    # ends them in order.
    roots = (
        "_sky_r() { a=\" $(_sky_l | tr '\\n' ' ')\"; for p in $a; do t=$(cat /proc/$p/stat 2>/dev/null); "
        'set -- ${t##*)}; case $a in (*" ${2:-0} "*) ;; (*) echo $p;; esac; done; }'
    )
    wait = f'n=0; while [ $n -lt {_ORDERLY}0 ] && [ -n "$(_sky_l)" ]; do sleep 0.1; n=$((n+1)); done'
    gone = f"rm -rf -- {shlex.join(folders)}" if folders else ":"
    return (
        f"{look}; {roots}; for p in $(_sky_r); do kill -s TERM $p 2>/dev/null; done; {wait}; "
        f"for p in $(_sky_l); do kill -s KILL $p 2>/dev/null; done; {gone}; {wait}; "
        'for p in $(_sky_l); do kill -s KILL $p 2>/dev/null; done; sleep 0.1; [ -z "$(_sky_l)" ]'
    )


def run(machine: Machine, text: str) -> None:
    """Run a `script` on a machine; raise MachineError if a process is left."""
    done = machine.run(text, timeout=_PATIENCE)
    if done.status:
        told = done.out.decode("utf-8", "replace").strip()[-300:]
        raise MachineError(machine.name, "command", f"processes of a pool could not be ended: {told or 'no word'}")
