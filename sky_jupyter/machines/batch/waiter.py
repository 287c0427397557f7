"""Waiter: the shell script on each node of a job; it starts the pool's processes.

A process that is started over the login host dies with its job step, so the waiter starts all processes that must
survive. It reads requests from a named pipe. It ends as `container_command` does, by the power file: when the pool has
ended, nobody has used the node for the time of its lease, or the deadline has passed. It needs a POSIX shell,
``mkfifo`` and ``/proc``.
"""

from __future__ import annotations

import math
import shlex

from ...node.host.power_file import GRACE
from ..power_watchdog import CLOCK
from .login_session import CLEAN

# The power file of a node; `node.host.power_file` and `power_watchdog.keep_line` use the same.
POWER_FILE = "$SKY_JOB_FOLDER/power"
_BEGIN = """\
folder=$1; grace=$2; until=$3
umask 077
[ ! -O "$folder" ] || rm -rf "$folder"
mkdir "$folder" || {
    echo "sky: $folder cannot be made on $(hostname), or belongs to somebody else"; exit 1; }
file=$folder/power
shared=/dev/shm/${folder##*/}
[ ! -O "$shared" ] || rm -rf "$shared"
mkdir "$shared" 2>/dev/null || shared=
SKY_JOB_FOLDER=$folder; SKY_JOB_SHARED=$shared; export SKY_JOB_FOLDER SKY_JOB_SHARED
"""
_LOOP = """\
export -p > "$folder/env"
mkfifo "$folder/start"
# Kept open by itself: a reader that waits for the next writer would not hear of the end.
exec 3<>"$folder/start"
( trap '' HUP
  while IFS= read -r one <&3; do
      case $one in "$folder"/*) ;; *) continue;; esac
      ( exec 3<&-; exec <"$one/0" >"$one/1" 2>"$one/2"; rm -rf "$one"; cd; exec /bin/sh -c "$0" ) &
  done ) & starter=$!
# The scheduler ends all at once, by TERM and soon by KILL: what the pool has on disk and in memory is in these.
clear() { kill "$starter" 2>/dev/null; rm -rf "$folder" ${shared:+"$shared"} 2>/dev/null; }
trap 'for i in 1 2 3 4 5 6 7 8; do clear; sleep 0.2; done; exit 0' TERM INT HUP
say() { echo "sky: $(hostname): $1"; }
end=$((up + grace))
# Who ends the node may be quicker than this: what was written meanwhile stays.
( set -C; echo "$end" > "$file" ) 2>/dev/null
say "waiting for the pool; without a sign of it this node ends after $grace s"
: > "$folder/ready"
why=
while [ -z "$why" ]; do
    sleep 1 & wait "$!"
    uptime
    read_end
    if [ "$said" = 0 ]; then why='its pool has ended, or does not have this node any more'
    elif [ "$up" -ge "$last" ]; then why='its time is over: the deadline of the pool (ttl) has passed'
    elif [ "$up" -ge "$end" ]; then why='nobody has used it for the time of its lease: the notebook is gone'; fi
done
say "$why"
clear
exit 0
"""
# A requeued job has another folder; if a later start is ready, this one is over. Folders of other users do not count.
_WAIT = """\
i=0
until [ -e {where}/ready ] && {owned}; do
    [ ! -e {where} ] || {owned} || [ ! -e {where} ] || {{ echo {where}' belongs to somebody else' >&2; exit 7; }}
    for f in {begin}*{end}; do
        n=${{f#{begin}}}; n=${{n%{end}}}
        case $n in ''|*[!0-9]*) continue;; esac
        [ "$n" -le {start} ] || [ ! -e "$f/ready" ] || ! {later} || {{
            echo 'this start of the job has expired' >&2; exit 8; }}
    done
    i=$((i+1)); [ $i -lt {tenths} ] || exit 9
    sleep 0.1
done
echo {ready}
exec cat
"""
READY = "sky-ready"
# Tenths of a second that a step waits for the job's own script, which may load modules first.
_TENTHS = 1200


def script(until: float | None, folder: str, launch: str, *, grace: float = GRACE) -> str:
    """Return a shell command that runs the waiter.

    Parameters
    ----------
    until : float or None
        Unix time at which the waiter ends in any case.
    folder : str
        Shell word of the node's own folder; it may name variables.
    launch : str
        Script that is started for each request; it reads a line from its input and runs it.
    grace : float
        Seconds after which the waiter ends if nobody writes the power file.

    Returns
    -------
    str
        The command.
    """
    limit = "" if until is None else str(math.ceil(until))
    text = _BEGIN + CLOCK + CLEAN + "\n" + _LOOP
    words = shlex.join([str(math.ceil(grace)), limit])
    return f"sh -c {shlex.quote(text)} {shlex.quote(launch)} {folder} {words}"


def owned(folder: str) -> str:
    """Return a shell condition: a folder exists, is this user's, and is no link.

    Jobs' ids are predictable and ``/tmp`` is open to all users, so another user may have created the folder. A user's
    own folder cannot be replaced: ``/tmp`` is sticky. `find` looks only once; two tests might see two folders.
    """
    return f'[ -n "$(find {folder} -prune -type d -user "$(id -u)" 2>/dev/null)" ]'


def ready(folder: str, incarnation: str, node: str) -> str:
    """Return a step's script that waits for a start's waiter, and prints `READY`.

    Parameters
    ----------
    folder : str
        The start's folder on the node, which ends with incarnation and node.
    incarnation : str
        The job's id, a dot, and how often it was requeued.
    node : str
        The node.

    Returns
    -------
    str
        The script.
    """
    job, _, start = incarnation.partition(".")
    begin = shlex.quote(f"{folder.removesuffix(f'{incarnation}.{node}')}{job}.")
    return _WAIT.format(
        where=(where := shlex.quote(folder)),
        owned=owned(where),
        begin=begin,
        end=shlex.quote(f".{node}"),
        start=start if start.isdecimal() else 0,
        later=owned('"$f"'),
        tenths=_TENTHS,
        ready=READY,
    )


def handover(folder: str) -> str:
    """Return a step's script: the waiter starts a shell, whose streams it relays."""
    where = shlex.quote(folder)
    return (
        f"d={where}/$$; umask 077; {owned(where)} && [ -p {where}/start ] && mkdir $d && mkfifo $d/0 $d/1 $d/2 || "
        "{ echo 'the job does not wait on this node any more' >&2; exit 1; }; "
        f"echo $d >>{where}/start; "
        # In the order in which the waiter opens them.
        "exec 4<&0; cat <&4 >$d/0 & i=$!; cat <$d/1 & o=$!; cat <$d/2 >&2; wait $o; kill $i 2>/dev/null; exit 0"
    )


def ending(folder: str) -> str:
    """Return a step's script that tells the waiter to end, and waits a few seconds."""
    where = shlex.quote(folder)
    wait = f"while [ -e {where} ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done"
    return f"{owned(where)} || exit 0; i=0; echo 0 >{where}/power; {wait}"


def within(folder: str, command: str) -> str:
    """Return a step's script that runs a command in the job script's environment."""
    where = shlex.quote(folder)
    used = f"! {owned(where)} || [ ! -r {where}/env ] || . {where}/env"
    return f"{used}; {CLEAN}; cd; exec /bin/sh -c {shlex.quote(command)}"


__all__ = ["POWER_FILE", "READY", "ending", "handover", "owned", "ready", "script", "within"]
