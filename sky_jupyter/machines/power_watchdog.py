"""Watchdog that powers a pool's machine off when nobody uses it.

It is a shell script that a provider starts as root at each boot of the machine, before anything else, such as by
cloud-init's ``bootcmd``. It needs ``sh``, ``sleep`` and ``/proc``. It powers the machine off when the time in the power
file (`sky_jupyter.node.host.power_file`) or the machine's deadline has passed. Both are compared with ``/proc/uptime``,
so later changes of the clock do not matter.
"""

from __future__ import annotations

import math
import shlex

from ..node.host.power_file import GRACE

POWER_FILE = "/run/sky_jupyter/power"
# If systemd has not powered off within two minutes, force it.
POWER_OFF = "shutdown -P now || poweroff; sleep 120; poweroff -f"
# Shell functions: `uptime` sets $up; `read_end` sets $said to the text of $file, and $end if that is a time since the
# boot, which has ten digits at most. Sets $up, and $last to the deadline ($until), as a time since the boot.
CLOCK = """\
uptime() { read -r up rest < /proc/uptime; up=${up%%.*}; }
read_end() {
    said=
    [ ! -f "$file" ] || { read -r said < "$file"; } 2>/dev/null
    case $said in ''|*[!0-9]*|???????????*) ;; *) end=$said ;; esac
}
uptime
last=9999999999
while read -r name value rest; do
    if [ "$name" = btime ] && [ -n "$until" ]; then last=$((until - value)); fi
done < /proc/stat
"""
_SCRIPT = """\
file=$1; grace=$2; until=$3; pause=$4; off=$5
{ echo -1000 > /proc/self/oom_score_adj; } 2>/dev/null
"""
_SCRIPT += CLOCK
_SCRIPT += """\
mkdir -p "${file%/*}"; chmod 777 "${file%/*}"
end=$((up + grace))
echo "$end" > "$file"; chmod 666 "$file"
while :; do
    uptime
    read_end
    if [ "$up" -ge "$end" ] || [ "$up" -ge "$last" ]; then sh -c "$off"; fi
    sleep "$pause"
done
"""
# A shell writes the same file while the machine is still being prepared.
_KEEP = 'read -r up rest < /proc/uptime; [ ! -e {file} ] || {{ echo "$((${{up%%.*}} + {grace}))" > {file}.new && '
_KEEP += "chmod 666 {file}.new && mv -f {file}.new {file}; }}"


def command(
    until: float | None,
    *,
    file: str = POWER_FILE,
    grace: float = GRACE,
    pause: float = 5.0,
    power_off: str = POWER_OFF,
) -> str:
    """Return the shell line that starts the watchdog in the background.

    The line depends on its arguments alone: a repeated order is the same.

    Parameters
    ----------
    until : float or None
        Unix time at which the machine is powered off in any case.
    file : str
        The power file; its folder is made.
    grace : float
        Seconds after which it is powered off if nobody has written the file.
    pause : float
        Seconds between two looks.
    power_off : str
        Shell commands that power the machine off; repeated while it is on.

    Returns
    -------
    str
        The line, for a root shell.
    """
    limit = "" if until is None else str(math.ceil(until))
    words = ["sh", "-c", _SCRIPT, "sky-watchdog", file, str(math.ceil(grace)), limit, f"{pause:g}", power_off]
    return f"setsid {shlex.join(words)} </dev/null >/dev/null 2>&1 &"


def keep_line(file: str, grace: float = GRACE) -> str:
    """Return the shell line that lets a machine stay on for ``grace`` seconds.

    If the path begins with a variable, such as ``$FOLDER/power``, the machine's shell expands it.
    """
    folder, slash, rest = file.partition("/")
    word = f'"{folder}"{shlex.quote(slash + rest)}' if folder.startswith("$") else shlex.quote(file)
    return _KEEP.format(file=word, grace=math.ceil(grace))


__all__ = ["CLOCK", "POWER_FILE", "POWER_OFF", "command", "keep_line"]
