"""Plugins' commands before a pool's processes start."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.bootstrap import plugin_steps
from sky_jupyter.errors import BootstrapError
from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import wait_until


def test_a_start_that_is_stopped_ends_a_step_with_its_children() -> None:
    # The shell waits for its child, which has its output.
    step = sky.plugins.Step(["sh", "-c", "sleep 300 & echo $!; wait; echo over"])
    spec = PoolSpec(Local(), plugins=(sky.Plugin.create("slow").with_bootstrap(lambda spec: [step]),))
    stop, lines = threading.Event(), list[str]()

    def tell(line: str) -> None:
        lines.append(line)
        stop.set()

    with pytest.raises(BootstrapError, match="stopped") as caught:
        plugin_steps.run(spec, [LocalMachine()], Path(sys.executable), dict(os.environ), tell, stop)
    assert caught.value.lines == tuple(lines)
    (child,) = map(int, lines)
    wait_until(lambda: not psutil.pid_exists(child))
