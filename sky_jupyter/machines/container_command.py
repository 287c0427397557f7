"""Wait script: the command of a pool's container, which ends if it is unused.

It is a POSIX shell script, the first process of the container. It needs ``sh``, ``sleep``, ``mkdir`` and ``/proc``, a
folder that it can write to, and no root. It reads the power file (`sky_jupyter.node.host.power_file`), as the watchdog
of whole machines does (`power_watchdog`), and prints why it ends:

========================================================  ===========
The pool has ended, or no longer has this container       status 0
Nobody has written the power file for as long as it said  status 0
The deadline has passed                                   status 0
Something else ends the container, which it asks by TERM  status 143
========================================================  ===========

Status 0 means that the work is done, so that no controller replaces the container. An evicted container must be
replaced, so its status must not mean that.
"""

from __future__ import annotations

import math

from ..node.host.power_file import GRACE
from .power_watchdog import CLOCK

# Kubernetes replaces $$ and $(NAME) in a command, so the script has neither.
_SCRIPT = """\
file=$1; grace=$2; until=$3; pause=$4
end() { echo "sky: $2"; exit "$1"; }
trap 'end 143 "this container was told to end (TERM)"' TERM INT QUIT HUP
ended='its pool has ended, or does not have this node any more'
"""
_SCRIPT += CLOCK
_SCRIPT += """\
read_end
if [ "$said" = 0 ]; then end 0 "$ended"; fi
end=$((up + grace))
# Whoever ends this container may be quicker than its first lines: what was written meanwhile stays.
[ -n "$said" ] || set -C
mkdir -p "${file%/*}"
{ echo "$end" > "$file"; } 2>/dev/null || [ -s "$file" ] ||
    end 1 "cannot write $file, where the pool says what it needs"
set +C
echo "sky: waiting for the pool; without a sign of it this container ends after $grace s"
while :; do
    uptime
    read_end
    if [ "$said" = 0 ]; then end 0 "$ended"; fi
    if [ "$up" -ge "$last" ]; then end 0 'its time is over: the deadline of the pool (ttl) has passed'; fi
    if [ "$up" -ge "$end" ]; then end 0 'nobody has used it for the time of its lease: the notebook is gone'; fi
    sleep "$pause" & wait "$!"
done
"""


def command(
    until: float | None,
    *,
    file: str,
    grace: float = GRACE,
    pause: float = 1.0,
) -> list[str]:
    """Return the program and arguments of the container.

    They depend on the arguments alone: a repeated order is the same.

    Parameters
    ----------
    until : float or None
        Unix time at which the container ends in any case.
    file : str
        The power file; its folder is made.
    grace : float
        Seconds after which it ends if nobody has written the file.
    pause : float
        Seconds between two looks.

    Returns
    -------
    list of str
        The words.
    """
    limit = "" if until is None else str(math.ceil(until))
    return ["/bin/sh", "-c", _SCRIPT, "sky-wait", file, str(math.ceil(grace)), limit, f"{pause:g}"]


__all__ = ["command"]
