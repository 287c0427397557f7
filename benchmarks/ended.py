"""What becomes of a run of benchmarks that a signal or an error ends: nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from types import FrameType

import psutil

_MARK, _FOLDER = "SKY_BENCHMARK_RUN", "SKY_BENCHMARK_FOLDER"
# Seconds that processes have to end by themselves, and so to remove their folders.
_PATIENCE = 15.0
_TICK = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def raise_signals(*, once: bool = False) -> None:
    """Have SIGTERM and SIGINT leave what runs by an exception, so that it ends what it has started.

    Parameters
    ----------
    once : bool
        Whether further ones are ignored: a process whose parent ends it may have the terminal's besides.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if once:
            _ignore_signals()
        sys.exit(128 + number)

    for one in _SIGNALS:
        # Where it is ignored, as in the background of a shell, it stays so.
        if signal.getsignal(one) != signal.SIG_IGN:
            signal.signal(one, leave)


def _ignore_signals() -> None:
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)


@contextlib.contextmanager
def leaving_nothing() -> Iterator[str]:
    """Yield a folder that is removed at the end; where an exception is that, end all that the block has started.

    Whoever has adopted it. Where the block ends well, each benchmark has ended what it started: a test looks.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        mark = uuid.uuid4().hex
        os.environ.update({_MARK: mark, _FOLDER: folder})
        try:
            yield folder
        except BaseException:
            _ignore_signals()
            _end(mark)
            raise


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a peer, in that of the run: killed processes may write into it once it is removed."""
    return tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get(_FOLDER), ignore_cleanup_errors=True)


def _end(mark: str) -> None:
    """Wait for the processes with the mark, and kill those that take too long."""
    end = time.monotonic() + _PATIENCE
    while (left := _marked(mark)) and time.monotonic() < end + _PATIENCE:
        if time.monotonic() > end:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        time.sleep(_TICK)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.pid != os.getpid():
                found.append(process)
    return found
