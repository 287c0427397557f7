"""Runs a program as a person would, in a process of its own, and sees that its pools leave nothing behind."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
MARK = "SKY_TEST"
PATIENCE = 60.0
PLACES = ("/dev/shm", "/tmp", os.environ.get("XDG_RUNTIME_DIR") or "/tmp")


def run_program(*arguments: str | Path, folder: Path, timeout: float = 240) -> str:
    """Run this Python with arguments, in a folder and with a registry of its own.

    Returns
    -------
    str
        What it printed; its standard error is in the failure's message.
    """
    mark, registry = uuid.uuid4().hex, folder / "registry.sqlite"
    env = {**os.environ, MARK: mark, "SKY_REGISTRY": str(registry), "PYTHONPATH": str(ROOT)}
    # What would make a rank slow, give sets of strings one order, or take figures out of the notebook.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "MPLBACKEND"):
        env.pop(name, None)
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert_nothing_is_left(mark, registry)
    return done.stdout


def assert_nothing_is_left(mark: str, registry: Path) -> None:
    """No process that carries the mark and no folder of the registry's pools is there after a while."""
    end = time.monotonic() + PATIENCE
    with sqlite3.connect(registry) as connection:
        pools = connection.execute("SELECT id, state FROM pools").fetchall()
    assert pools, "the program made a pool"
    assert all(state == "ended" for _, state in pools), f"not ended: {pools}"
    while (left := [*marked(mark), *folders([id for id, _ in pools])]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, f"left behind: {left}"


def marked(mark: str) -> list[str]:
    """The processes that have inherited the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def folders(pools: list[str]) -> list[str]:
    """The folders of these pools, wherever pools keep them."""
    return [str(path) for place in set(PLACES) for id in pools for path in Path(place).glob(f"sky-{id}-*")]
