"""A provider whose machines are taken away when a test says so, and the function that its nodes call."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import sky_jupyter as sky
from sky_jupyter.node.runtime.interruption import Interruption
from sky_jupyter.providers import Local

# The file in which a test writes the notice; nodes are started with this variable.
FILE = "SKY_TEST_NOTICE"


@dataclass(frozen=True)
class Doomed(Local):
    """Local nodes that ask a file whether their machine is taken away."""

    notice = f"{__name__}:read"


def read() -> Interruption | None:
    """What the file says: an action and a time, or nothing."""
    path = Path(os.environ[FILE])
    if not path.exists():
        return None
    return Interruption(*json.loads(path.read_text()))


def write(action: str = "terminate", within: float | None = 120.0) -> None:
    """Say that the machine is taken away within so many seconds."""
    path = Path(os.environ[FILE])
    at = None if within is None else time.time() + within
    path.with_suffix(".new").write_text(json.dumps([action, at]))
    path.with_suffix(".new").rename(path)


def withdraw() -> None:
    """Say that it stays."""
    Path(os.environ[FILE]).unlink()


def wait_elsewhere() -> str:
    """What a call does that ends on machines that stay alone."""
    while sky.interruption().here:
        time.sleep(0.1)
    return socket.gethostname()
