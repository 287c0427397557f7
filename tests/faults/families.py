"""The processes of a notebook and of its pool, told apart; and how much memory they took meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.magics.notebook import Notebook


def family(page: Notebook, pool: str) -> dict[str, psutil.Process]:
    """The manager, and the processes of its pool of this id, each by the log that it writes."""
    manager = psutil.Process(page.manager.provisioner.pid)  # type: ignore[union-attr]
    found = {"manager": manager}
    for process in manager.children(recursive=True):
        with suppress(psutil.Error):
            for file in process.open_files():
                path = Path(file.path)
                if path.suffix == ".log" and f"sky-{pool}-" in str(path):
                    # Such as "scheduler", "n0/agent" and "n1/rank1".
                    found[str(path).split(f"sky-{pool}-")[1].partition("/")[2].removesuffix(".log")] = process
    return found


@contextmanager
def peaks(processes: Mapping[str, psutil.Process]) -> Iterator[dict[str, int]]:
    """By how many bytes the resident memory of each process grew at the most, until the ``with`` block ended."""
    before = {name: process.memory_info().rss for name, process in processes.items()}
    grown = dict.fromkeys(processes, 0)
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for name, process in processes.items():
                with suppress(psutil.Error):
                    grown[name] = max(grown[name], process.memory_info().rss - before[name])
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield grown
    finally:
        over.set()
        thread.join()
