"""Runs a command as root of namespaces of its own, so that a user without root can have hosts too.

    python3 tests/hosts/rootless.py python3 dev.py test tests/hosts

It needs leave to make user namespaces, and ranges of further user and group ids (/etc/subuid and
/etc/subgid, with Debian's package uidmap), since hosts have several users. The command has no
network but the hosts', and is the laptop there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_APART = ["unshare", "--user", "--map-root-user", "--map-auto"]
_LAPTOP = [*_APART, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def main(command: list[str]) -> int:
    """Make the images while there is a network, then run the command."""
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    tried = subprocess.run([*_LAPTOP, "true"], capture_output=True, text=True)
    if tried.returncode:
        print(f"this user may not make the namespaces that hosts need: {tried.stderr.strip()}", file=sys.stderr)
        print("needed: apt-get install uidmap, and a range in /etc/subuid and /etc/subgid", file=sys.stderr)
        return 1
    made = subprocess.run([*_APART, sys.executable, str(Path(__file__).with_name("images.py"))])
    if made.returncode:
        return made.returncode
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    start = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return subprocess.run([*_LAPTOP, *start, *command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
