"""Orderly exit of a rank's process.

A kernel is a fork of the forkserver and leaves by `os._exit`, which runs no exit handler and flushes no file. Before
that, this module does what programs rely on, in the interpreter's own order.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import signal
import sys
import threading
import traceback
from collections.abc import MutableMapping
from typing import Any

_PLAIN_BUFFERS = (io.BufferedWriter, io.BufferedRandom, io.BufferedReader, io.BufferedRWPair)


def run(namespace: MutableMapping[str, Any]) -> None:
    """Run all exit steps on the main thread; a failing step skips no other.

    Parameters
    ----------
    namespace : mapping
        The user's names.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    steps = (
        # This waits for non-daemon threads and for executors.
        threading._shutdown,  # type: ignore[attr-defined]
        atexit._run_exitfuncs,
        lambda: let_go(namespace),
        close_files,
        flush_native,
    )
    for step in steps:
        try:
            step()
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc(file=sys.__stderr__)


def flush_output() -> None:
    """Send the output of exit handlers.

    Register it as an exit handler before user code can register any.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def let_go(namespace: MutableMapping[str, Any]) -> None:
    """Delete the user's objects as the interpreter does: private names first."""
    names = [name for name in namespace if name != "__builtins__"]
    for name in sorted(names, key=lambda name: not str(name).startswith("_")):
        namespace[name] = None
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)
    gc.collect()


def close_files() -> None:
    """Close files that are still referenced, wrapping files first."""
    texts, others, buffers = [], [], []
    for one in gc.get_objects():
        # By the exact type only: a proxy's `__class__` may raise, or run any code.
        kind = type(one)
        if issubclass(kind, io.TextIOBase):
            texts.append(one)
        elif issubclass(kind, _PLAIN_BUFFERS):
            buffers.append(one)
        elif issubclass(kind, io.BufferedIOBase):
            # Such as gzip files, which write a trailer.
            others.append(one)
    for file in (*texts, *others, *buffers):
        if file not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(Exception):
                file.close()


def flush_native() -> None:
    """Flush the files of C code."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
