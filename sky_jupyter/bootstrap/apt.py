"""Debian packages of an image: installed on hosts as root, checked here."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import BootstrapError

PHASE = "system"
_PATIENCE = 60.0
# Seconds to wait for another process's apt: a machine that has just booted may be updating itself.
_LOCK_PATIENCE = 600
_QUESTIONS = "env LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l"
_REQUEST = re.compile(r"(?P<package>[^=]+)(=(?P<version>.+))?")


@dataclass(frozen=True)
class Findings:
    """Answer of a machine about the packages that are asked for.

    Parameters
    ----------
    missing : tuple of str
        Missing packages, as requested.
    has_apt : bool
        True if the machine has apt-get and dpkg-query.
    become : str or None
        Prefix of commands that need root: empty for root itself; None if the user cannot become root.
    """

    missing: tuple[str, ...] = ()
    has_apt: bool = True
    become: str | None = None

    @property
    def by_hand(self) -> str:
        """Command by which a user installs the missing packages."""
        return shlex.join(["sudo", "apt-get", "install", *self.missing])


def question(packages: Iterable[str], *, root: bool = True) -> str:
    """Return shell text that asks a machine for packages, and how to become root.

    `read` parses its answer.
    """
    steps = ["_sky_m=; command -v dpkg-query >/dev/null && command -v apt-get >/dev/null && echo apt yes"]
    for asked in packages:
        name, version = _parts(asked)
        query = f"LC_ALL=C dpkg-query -W -f='${{db:Status-Status}} ${{Version}}\\n' {shlex.quote(name)} 2>/dev/null"
        wanted = f"installed {version}" if version else "installed *"
        pattern = shlex.quote(wanted) if version else "'installed '*"
        steps.append(f'case "$({query})" in {pattern}) ;; *) _sky_m=1; echo {shlex.quote(f"missing {asked}")};; esac')
    if root:
        # sudo reports refused attempts to the administrator: run it only if packages are missing.
        steps.append(
            '[ -z "$_sky_m" ] || if [ "$(id -u)" = 0 ]; then echo "become "; '
            "elif command -v sudo >/dev/null && sudo -n true >/dev/null 2>&1; then echo 'become sudo -n '; fi"
        )
    return "; ".join([*steps, ":"])


def read(answer: str) -> Findings:
    """Parse a machine's answer to `question`."""
    rows = [line.split(" ", 1) for line in answer.splitlines() if " " in line]
    become = [value for name, value in rows if name == "become"]
    return Findings(
        missing=tuple(value for name, value in rows if name == "missing"),
        has_apt=["apt", "yes"] in rows,
        become=become[0] if become else None,
    )


def refuse(found: Findings, *, offline: bool) -> None:
    """Raise BootstrapError, with advice, if packages cannot be installed on a host."""
    names = ", ".join(found.missing)
    if not found.missing:
        return
    if not found.has_apt:
        raise BootstrapError(
            PHASE,
            f"the image asks for Debian packages ({names}), and there is no apt-get: it is no Debian or Ubuntu; "
            "install there what they hold, and leave them out of the image (apt)",
        )
    if offline:
        raise BootstrapError(
            PHASE,
            f"it lacks Debian packages that the image asks for ({names}), and offline (--offline) none are fetched; "
            f"install them there: {found.by_hand}",
        )
    if found.become is None:
        raise BootstrapError(
            PHASE,
            f"it lacks Debian packages that the image asks for ({names}), and the user is neither root there nor may "
            f"use sudo without a password; install them there: {found.by_hand}",
        )


def installation(found: Findings) -> str:
    """Return shell text that installs what is missing."""
    apt = f"{found.become}{_QUESTIONS} apt-get -q -o DPkg::Lock::Timeout={_LOCK_PATIENCE}"
    packages = shlex.join(found.missing)
    # A source that does not answer may not be needed. If it is, apt reports it in the second step.
    return f"{apt} update; {apt} install -y --no-install-recommends -- {packages}"


def check_here(packages: Iterable[str]) -> None:
    """Raise BootstrapError if this machine lacks packages; install nothing."""
    asked = list(packages)
    if not asked:
        return
    done = subprocess.run(
        ["/bin/sh", "-c", question(asked, root=False)], capture_output=True, text=True, timeout=_PATIENCE
    )
    found = read(done.stdout)
    names = ", ".join(found.missing)
    if found.missing and not found.has_apt:
        raise BootstrapError(
            PHASE,
            f"the image asks for Debian packages ({names}), and local nodes run on this machine, which has no "
            "apt-get: leave them out of the image (apt)",
        )
    if found.missing:
        raise BootstrapError(
            PHASE,
            f"the image asks for Debian packages that this machine lacks ({names}); nothing is installed on it for "
            f"local nodes; do it yourself: {found.by_hand}",
        )


def _parts(asked: str) -> tuple[str, str]:
    """Split a request into the package, with its architecture, and the version."""
    found = _REQUEST.fullmatch(asked)
    assert found is not None
    return found["package"], found["version"] or ""
