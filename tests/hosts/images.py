"""The bare Debian that test hosts start from, made once by debootstrap and kept in the user's cache.

It has sshd with what that needs and Debian's minimal base, and no more: no Python, no curl, no ip. With
`python`, Debian's own python3 is added. Two users without root are there, `ada` and `bob`.

Needs the standard library alone, so that CI can make the images ahead of the tests:

    python3 tests/hosts/images.py [RELEASE ...]
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import itertools
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

USERS = ("ada", "bob")  # their uids are 1000 and 1001
SLURM = ("slurmctld", "slurmd", "slurm-client", "munge")
PASSWORD = "correct horse battery staple"


class ImageError(Exception):
    """An image could not be made; the message says why."""


def image(*, release: str = "", python: bool = False, slurm: bool = False) -> Path:
    """The folder of an image, which nobody may write to; made now if it is not there.

    Parameters
    ----------
    release : str
        Debian's code name, such as ``"bullseye"``; this machine's own unless given.
    python : bool
        Whether Debian's python3 is in it.
    slurm : bool
        Whether Debian's Slurm is in it, and python3 with that.
    """
    release = release or own_release()
    name = f"{release}-{platform.machine()}-{_recipe()}"
    folder = cache()
    bare = made(folder / f"{name}-bare", lambda place: _debootstrap(release, place))
    if not python and not slurm:
        return bare
    whole = made(folder / f"{name}-python", lambda place: _add(bare, place, "python3"))
    if not slurm:
        return whole
    recipe = hashlib.sha256(f"{SLURM}{inspect.getsource(_add_slurm)}".encode()).hexdigest()[:8]
    return made(folder / f"{whole.name}-slurm-{recipe}", lambda place: _add_slurm(whole, place))


def python_version(image: Path) -> str:
    """The minor version of the Python that is in an image, ``"3.11"``; empty where there is none."""
    found = image / "usr" / "bin" / "python3"
    return os.readlink(found).removeprefix("python") if found.is_symlink() else ""


@functools.cache
def cache() -> Path:
    """Where images are kept: the user's cache as it was when first asked for, whatever a test makes of it later."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "sky-jupyter-tests" / "hosts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def own_release() -> str:
    """The code name of this machine's Debian."""
    with contextlib.suppress(OSError):
        found = platform.freedesktop_os_release()
        if found.get("ID") == "debian":
            return found.get("VERSION_CODENAME", "stable")
    return "stable"


def mirror(release: str) -> str:
    """Where apt finds Debian on this machine; empty where it does not say, for debootstrap's own choice."""
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)", "Created-By: Packages"]
    with contextlib.suppress(OSError):
        listing = subprocess.run(command, capture_output=True, text=True).stdout
        sources = [line.split() for line in listing.splitlines()]
        # The one of this release, else the one that has this machine's own.
        for name in (release, own_release()):
            for source in sources:
                if len(source) == 3 and source[:2] == [name, "main"]:
                    return source[2]
    return ""


def _recipe() -> str:
    """A short hash of how images are made: a change to that recreates them."""
    text = "".join(inspect.getsource(part) for part in (_debootstrap, _finish, _add))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def made(place: Path, make: Callable[[Path], None]) -> Path:
    """`place`, once it is whole; of several that come at once, one makes it and the others wait."""
    if place.exists():
        return place
    with (place.parent / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return place
        half = place.with_name(f"{place.name}.half")
        shutil.rmtree(half, ignore_errors=True)  # one was ended half-way
        # What it starts holds the lock as well, lest another one begin while a part of this one lives on.
        os.set_inheritable(lock.fileno(), True)
        make(half)
        half.rename(place)
    return place


def _debootstrap(release: str, place: Path) -> None:
    command = ["debootstrap", "--variant=minbase", "--include=openssh-server", release, str(place), mirror(release)]
    _run([part for part in command if part])
    _finish(place)


def _finish(place: Path) -> None:
    """Users, and nothing that two hosts may not share."""
    for key in place.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    for user in USERS:
        _run(["chroot", str(place), "useradd", "--create-home", "--shell", "/bin/bash", user])
    lines = "".join(f"{user}:{PASSWORD}\n" for user in USERS)
    _run(["chroot", str(place), "chpasswd"], lines)
    _run(["chroot", str(place), "apt-get", "clean"])


def _add(bare: Path, place: Path, package: str) -> None:
    _run(["cp", "-a", "--reflink=auto", str(bare), str(place)])
    resolver = place / "etc" / "resolv.conf"
    before = resolver.read_bytes() if resolver.exists() else b""
    with contextlib.suppress(OSError):
        shutil.copyfile("/etc/resolv.conf", resolver)
    _run(["chroot", str(place), "apt-get", "install", "-qy", "--no-install-recommends", package])
    _run(["chroot", str(place), "apt-get", "clean"])
    resolver.write_bytes(before)


def _add_slurm(base: Path, place: Path) -> None:
    """Add Slurm's daemons and commands, without a key or a daemon that runs."""
    _run(["cp", "-a", "--reflink=auto", str(base), str(place)])
    resolver, policy = place / "etc" / "resolv.conf", place / "usr" / "sbin" / "policy-rc.d"
    before = resolver.read_bytes() if resolver.exists() else b""
    with contextlib.suppress(OSError):
        shutil.copyfile("/etc/resolv.conf", resolver)
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    # Else its data would be written out package by package.
    install = ["apt-get", "install", "-qy", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io"]
    _run(["chroot", str(place), *install, *SLURM])
    _run(["chroot", str(place), "apt-get", "clean"])
    (place / "etc" / "munge" / "munge.key").unlink(missing_ok=True)
    policy.unlink()
    resolver.write_bytes(before)


def _run(command: list[str], text: str = "") -> None:
    environment = {**os.environ, **_proxy(), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    environment["PATH"] = f"{environment.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    environment.pop("TMPDIR", None)
    # What debootstrap mounts is gone when it ends, however it ends.
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if not _all_users():
        environment["container"] = "lxc"  # debootstrap need not make devices then, which only real root can
    try:
        done = subprocess.run(
            [*apart, *command],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            close_fds=False,
        )
    except FileNotFoundError:
        raise ImageError("unshare is not installed") from None
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-10:])
        raise ImageError(f"{' '.join(command)} ended with status {done.returncode}:\n{last}")


def _all_users() -> bool:
    """Whether this is no user namespace, or one of the whole machine's users."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def _proxy() -> dict[str, str]:
    """What apt has been told of a proxy, as debootstrap's wget understands it."""
    with contextlib.suppress(OSError):
        command = ["apt-config", "shell", "PROXY", "Acquire::http::Proxy"]
        found = subprocess.run(command, capture_output=True, text=True).stdout.partition("=")[2].strip().strip("'")
        if found and found != "DIRECT":
            return {"http_proxy": found}
    return {}


if __name__ == "__main__":
    releases = sys.argv[1:] or [own_release()]
    kinds = [{}, {"python": True}, {"slurm": True}]
    for name, wanted in itertools.product(releases, kinds):
        begun = time.monotonic()
        try:
            path = image(release=name, **wanted)
        except ImageError as error:
            sys.exit(f"no image for the test hosts: {error}")
        print(f"{path}: {time.monotonic() - begun:.1f} s")
