"""A library that shows a host's programs another clock or another architecture than its kernel has.

Time namespaces shift no time of day, and a kernel has one architecture. So the library is named in
the host's /etc/ld.so.preload and answers for libc: whoever asks libc is deceived, sshd and Python
and date and uname among them; a static binary, such as uv's, is not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.faults import clocks

_SOURCE = r"""
#include <string.h>
#include <sys/utsname.h>

static char machine[sizeof ((struct utsname *)0)->machine];

__attribute__((constructor)) static void learn(void) {
    int file = open(MACHINE_FILE, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (read(file, machine, sizeof machine - 1) < 0) machine[0] = 0;
    close(file);
}

int uname(struct utsname *found) {
    int failed = syscall(SYS_uname, found);
    if (!failed && machine[0]) strcpy(found->machine, machine);
    return failed;
}
"""


_SUDO = r"""
#define _GNU_SOURCE
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    int first = 1;
    while (first < count && words[first][0] == '-' && strcmp(words[first], "--")) first++;
    if (first < count && !strcmp(words[first], "--")) first++;
    if (first >= count || setgroups(0, 0) || setgid(0) || setuid(0)) return 1;
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    execvp(words[first], words + first);
    return 127;
}
"""


class Sudo:
    """The program by which each user is root, as on a cloud's machines; its options are all passed over."""

    PROGRAM = "/usr/bin/sudo"

    @staticmethod
    def program(folder: Path) -> Path:
        """The program, compiled once and kept in this folder."""
        path = folder / f"sudo-{hashlib.sha256(_SUDO.encode()).hexdigest()[:8]}"
        return path if path.exists() else _compiled(path, _SUDO)


class Face:
    """Where the library and what it reads lie on a host."""

    LIBRARY = "/usr/local/lib/face.so"
    CLOCK = "/var/lib/face/clock"
    MACHINE = "/var/lib/face/machine"

    @staticmethod
    def clock(ahead: int) -> bytes:
        """The content of `CLOCK` for a clock that is so many seconds ahead."""
        return struct.pack("=q", ahead)

    @staticmethod
    def library(folder: Path) -> Path:
        """The library, compiled once and kept in this folder."""
        source = clocks.SOURCE + _SOURCE
        path = folder / f"face-{hashlib.sha256(source.encode()).hexdigest()[:8]}.so"
        if path.exists():
            return path
        files = [f'-DCLOCK_FILE="{Face.CLOCK}"', f'-DMACHINE_FILE="{Face.MACHINE}"']
        return _compiled(path, source, "-shared", "-fPIC", "-ldl", *files)


def _compiled(path: Path, source: str, *options: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (Debian: gcc libc6-dev), for a host with a wrong clock, another face or sudo")
    half = path.with_name(f"{path.name}.{os.getpid()}")
    # Libraries come after what needs them.
    command = [compiler, "-O1", "-x", "c", "-", "-o", str(half), *options]
    subprocess.run(command, input=source, text=True, check=True)
    half.rename(path)
    return path
