"""A clock that can be set for chosen processes: their time of day jumps, and nobody else's.

Debian's faketime does not serve here: with it, each `time.sleep` of Python 3.11 and later fails.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_FILE
#define CLOCK_FILE getenv("SKY_TEST_CLOCK")
#endif

static int64_t none = 0;
static volatile int64_t *ahead = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = CLOCK_FILE;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *place = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (place != MAP_FAILED) ahead = place;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

int sem_timedwait(sem_t *restrict what, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec shifted = *until;
    shifted.tv_sec -= *ahead;
    return real(what, &shifted);
}
"""


class Clock:
    """The clock of the processes that begin with `environment`; right until it is set.

    Parameters
    ----------
    folder : Path
        Where its library and its state lie.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (Debian: gcc libc6-dev), for a clock that can be set")
        self.state, library = folder / "clock", folder / "clock.so"
        self.set(0)
        (folder / "clock.c").write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, folder / "clock.c", "-ldl"]
        subprocess.run(list(map(str, command)), check=True)
        before = os.environ.get("LD_PRELOAD", "")
        self.environment = {
            "LD_PRELOAD": ":".join(filter(None, [str(library), before])),
            "SKY_TEST_CLOCK": str(self.state),
        }

    def set(self, ahead: int) -> None:
        """Have it be so many seconds ahead of the right time, from now on."""
        with self.state.open("r+b" if self.state.exists() else "wb") as file:
            file.write(struct.pack("=q", ahead))
