"""What a pool must not leave: while nothing is on, at its end, and where a soak could not end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from sky_jupyter.node.agent import stack_sampling
from sky_jupyter.pool.registry.registry import Registry
from tests.programs import assert_nothing_is_left
from tests.soak.stage import Stage

_PATIENCE = 60.0
_SOCKETS_PATIENCE = 60.0


def of_runs(stage: Stage) -> list[str]:
    """What lies in the pool's folders that a run has left there; nothing is on."""
    found = []
    for folder in map(Path, stage.facts["folders"]):
        stray = [path.name for path in folder.iterdir() if len(path.name) == 8 and path.is_dir()]
        stray += [f"{path.parent.parent.name}/values/{path.name}" for path in folder.glob("n*/values/*")]
        if stray:
            found.append(f"nothing is on, and in {folder} there is {stray}")
    return found


def end(stage: Stage) -> list[str]:
    """End the pool in order; what is wrong with its rows, or is left of it."""
    found = _rows(stage)
    if on := [id for id, over in stage.child.ask("known").items() if not over]:
        found.append(f"the nodes think that {on} are still on")
    stage.diary.note("down")
    stage.child.ask("down")
    end = time.monotonic() + _SOCKETS_PATIENCE
    while (sockets := stage.child.ask("sockets")) and time.monotonic() < end:
        time.sleep(0.2)
    if sockets:
        found.append(f"the manager has sockets left: {sockets[:5]}")
    stage.child.connection.close()
    stage.child.process.wait(_PATIENCE)
    try:
        assert_nothing_is_left(stage.mark, stage.registry)
    except AssertionError as error:
        found.append(str(error))
    return found


def _rows(stage: Stage) -> list[str]:
    """How the registry has the pool's runs, against how they ended."""
    registry = Registry(stage.registry)
    try:
        rows = {row.id: row.state for row in registry.runs(stage.pool, limit=100_000)}
    finally:
        registry.close()
    # Older rows may have been removed.
    recent = dict(list(stage.over.items())[-500:])
    wrong = {
        "are over, and the registry has them as running": [id for id, state in rows.items() if state == "running"],
        "never began, and the registry does not have them as lost": [
            id for id in stage.never if rows.get(id, "lost") != "lost"
        ],
        "have no row in the registry": [id for id in recent if id not in rows],
        "have another state in the registry": [
            id for id, state in recent.items() if rows.get(id, state) not in (state, "running")
        ],
    }
    return [f"{len(ids)} runs {what}: {ids[:5]}" for what, ids in wrong.items() if ids]


def tell(stage: Stage) -> str:
    """What everybody is at, where something hangs."""
    with contextlib.suppress(OSError):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            stage.child.process.send_signal(number)
            time.sleep(8)
    text = stage.log.read_text(errors="replace")[-40_000:] + _stacks(stage)
    for path in [path for folder in stage.facts.get("folders", ()) for path in Path(folder).glob("**/*.log")]:
        with contextlib.suppress(OSError):
            text += f"\n--- {path}\n" + path.read_text(errors="replace")[-3000:]
    return text


def _stacks(stage: Stage) -> str:
    """All threads of the pools' processes, where py-spy can look at them."""
    registry = Registry(stage.registry)
    try:
        hosts = [row.host_pid for row in registry.pools() if row.host_lives]
    finally:
        registry.close()
    text, spy = "", stack_sampling.spy_path()
    for host in hosts:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(host).children(recursive=True) if spy else ():
                done = subprocess.run([spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True)
                text += f"\n--- {process.pid}\n{done.stdout[:20_000]}{done.stderr[:1000]}"
    return text


def remove(stage: Stage) -> None:
    """Whatever went wrong, nothing of it goes on."""
    with contextlib.suppress(OSError):
        stage.child.kill()
    registry = Registry(stage.registry)
    try:
        hosts = [row.host_pid for row in registry.pools() if row.host_lives]
    finally:
        registry.close()
    for pid in hosts:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            host = psutil.Process(pid)
            os.kill(pid, signal.SIGTERM)
            try:
                host.wait(_PATIENCE)
            except psutil.TimeoutExpired:
                host.kill()
