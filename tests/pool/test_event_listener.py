"""The events of a host process that another manager started."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sky_jupyter.machines.base import Machine
from sky_jupyter.node.system.stopped_processes import GONE, STILL
from sky_jupyter.pool.hosts import event_listener, launch
from sky_jupyter.util import process_identity


class Adopted:
    """A host process with its folder, which a thread listens to."""

    def __init__(self, folder: Path) -> None:
        self.sleep = subprocess.Popen(["sleep", "600"])
        pid = self.sleep.pid
        self.machine: Machine = launch.LOCAL
        self.there, self.place, self.heard = str(folder), " on host1", 0
        self.process = self.machine.process((pid, process_identity.started(pid)))
        # As of a process behind a link: nothing of its output comes here.
        self.command = SimpleNamespace(identity=self.process.identity, lines=lambda: iter(()))
        self.left = threading.Event()
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.tell = self.told.put

    def end(self) -> None:
        self.sleep.kill()
        self.sleep.wait()


def test_old_events_of_an_adopted_host_are_skipped_and_new_ones_follow(tmp_path: Path) -> None:
    events = tmp_path / launch.EVENTS
    ended = {"event": "ended", "name": "forkserver", "text": "killed", "revived": True}
    stopped = {"event": "standstill", "pid": 7, "state": STILL}
    again = [{**stopped, "pid": 8}, {**stopped, "pid": 8, "state": GONE}]
    past = [{"event": "started"}, ended, stopped, *again]
    # The last one is still being written.
    events.write_text("".join(json.dumps(event) + "\n" for event in past) + '{"event": "un')
    host = Adopted(tmp_path)
    listener = threading.Thread(target=event_listener.listen, args=(host,))
    try:
        event_listener.skip_past(host)
        listener.start()
        with events.open("a") as file:
            file.write('changed"}\n')
        told = [host.told.get(timeout=60) for _ in range(2)]
        host.end()
        told.append(host.told.get(timeout=60))
    finally:
        host.end()
        listener.join()
    assert [event["event"] for event in told] == ["standstill", "unchanged", "gone"]
    assert told[0] == stopped
    assert host.heard == len(past) + 1
