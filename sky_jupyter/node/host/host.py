"""Host: root process of a pool's part on one machine, parent of all others.

    python -m sky_jupyter.node.host FOLDER [SECONDS [OWNER]]

It starts the forkserver, and waits up to SECONDS for FOLDER/host.json; it ends when its parent is not the process OWNER
any more. Then it starts the scheduler, on the head's machine, and the agents, of which several may share a process, and
reports on standard output as JSON lines. A scheduler or a process of agents that ends is restarted in its place. So is
a forkserver, and all agents with it.

When FOLDER/host.json.next appears, it reads the new list of nodes from there, and restarts all agents, but not the
forkserver and the scheduler. The pool ends with its owner process if it has one; when its lease, its time to live or
its budget is over; and when its maker sends no heartbeat during the start. In any case everything ends with the host:
its children die with it, it adopts orphans, and it removes the folder. A machine that was made for the pool is powered
off then: see `power_file`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..protocol import agent_process
from ..protocol.host_config import CONFIG, NEXT, READY, STARTING, HostConfig
from ..system import file_locks, processes
from ..system.gpus import Devices
from ..system.stopped_processes import PAUSE, StoppedProcesses
from .budget_timer import BudgetTimer
from .host_parts import FORKSERVER_LOG, HostParts, fork
from .power_file import GRACE, MARGIN, PowerFile

_WATCH = 0.25
# Seconds between checks without an event; more frequent ones would be most of the costs of an idle host.
_IDLE = 0.5
_LOOK = 0.02
_FAREWELL = 0.5
# A process that ends more often than this within a minute is not restarted any more.
_REVIVALS = 5
_REVIVAL_SPAN = 60.0
_LAST_LINES = 30


class StartFailed(RuntimeError):
    """A required process did not start; ``lines`` are the last of its log."""

    def __init__(self, message: str, lines: list[str]) -> None:
        self.lines = lines
        super().__init__(message)


class HostProcess:
    """Host process of a pool on a machine; made by `main`."""

    def __init__(self, folder: Path, parts: HostParts) -> None:
        self.folder, self.parts = folder, parts
        self.config = HostConfig.read(folder)
        self.children: dict[int, str] = {}
        # The nodes of each process of agents, by its name.
        self.agents: dict[str, list[int]] = {}
        # Locks that only this process holds, until its end; processes in other PID namespaces see them.
        self.locks = [file_locks.hold(folder / file_locks.HOST), file_locks.shield(folder)]
        self.ending = False
        # Whether a ready pool ends by its lease, its time to live or its budget.
        self.expired = False
        # Number of signals that asked it to end: after the second one, it does not wait for the ranks.
        self.asked = 0
        self.revivals: dict[str, list[float]] = {}
        self.began = self.renewed = time.monotonic()
        # Whether the pool is ready, and the time of its maker's last heartbeat.
        self.ready, self.word = self.config.start_timeout is None, 0
        self.scheduler_address = self.config.scheduler
        self.devices = Devices()
        self.standstill, self.looked = StoppedProcesses(), self.began
        self.power = PowerFile(self.config.power_file)
        self.budget = BudgetTimer(folder)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A signal between a check and a sleep must end the sleep.
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # Agents write to this pipe to renew the lease.
        self.lease, self.lease_write = os.pipe()
        os.set_blocking(self.lease, False)
        os.set_blocking(self.lease_write, False)
        processes.adopt_orphans()
        try:
            self.start()
            self.watch()
        except BaseException as error:
            # The host's end removes the folder with its logs, so the message has the last lines.
            if isinstance(error, StartFailed):
                self.say(event="failed", message=str(error), lines=error.lines)
            else:
                self.say(event="failed", message=f"{type(error).__name__}: {error}")
                # The manager shows the end of this log with the message above; a failed start needs no traceback.
                traceback.print_exc()
        finally:
            self.end()
            if self.expired:
                self.power.give_up()
            else:
                # The manager that ended it may recreate it on this machine.
                self.power.keep(GRACE, at_once=True)

    def on_signal(self, *_: Any) -> None:
        self.ending = True
        self.asked += 1

    def start(self) -> None:
        parts = self.parts
        parts.order(self.config)
        self.children[parts.forkserver] = "forkserver"
        self.serve_scheduler, self.serve_agents = parts.serve_scheduler, parts.serve_agents
        self.devices = parts.present_gpus()
        self.has_scheduler = self.scheduler_address is None
        if self.has_scheduler:
            self.scheduler_address = self.start_scheduler()
        self.start_all_agents()
        self.renewed = time.monotonic()
        self.say(event="started", scheduler=self.scheduler_address)

    def renew_forkserver(self) -> None:
        """Start another forkserver, and kill the agents, which are then restarted.

        The old forkserver's kernels died with it.
        """
        from ..kernel import forkserver

        for name in ("fork", f"fork{forkserver.READY}"):
            (self.folder / name).unlink(missing_ok=True)
        with forkserver.listen(self.folder / "fork") as listener:
            listener.set_inheritable(True)
            # A fresh interpreter: this process has imported the control plane's modules by now.
            command = [sys.executable, "-m", forkserver.__name__, str(listener.fileno())]
            command += [str(self.config.exit_timeout), *self.config.preload]
            self.fork("forkserver", lambda: os.execv(sys.executable, command), log=FORKSERVER_LOG)
        for pid, name in self.children.items():
            if name.startswith("agent"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def start_scheduler(self) -> str:
        """Start the scheduler, at its former port if it had one; return its address."""
        read, write = os.pipe()
        address = self.config.addresses[0]
        port = int((self.scheduler_address or ":0").rpartition(":")[2])
        self.fork("scheduler", lambda: self.serve_scheduler(self.folder, address, port, write), log="scheduler.log")
        os.close(write)
        with os.fdopen(read) as pipe:
            line = pipe.readline().strip() if self.comes(read) else ""
        if not line and self.ending:
            raise StartFailed("the host ended: a signal asked it to while the pool started", [])
        if not line:
            raise StartFailed("the scheduler ended before it listened", _tail(self.folder / "scheduler.log"))
        return line

    def comes(self, pipe: int) -> bool:
        """Wait for a child's output or end; return False if the host must end meanwhile.

        Stopped processes are reported during the wait.
        """
        while not self.ending:
            if select.select([pipe], [], [], _WATCH)[0]:
                return True
            self.tell_who_stands_still()
        return False

    def start_all_agents(self) -> None:
        self.agents = {agent_process.name_of(nodes): nodes for nodes in self.config.agents}
        for name in self.agents:
            self.start_agents(name)

    def start_agents(self, name: str) -> None:
        """Start the process of this name, for the agents of its nodes."""
        nodes = self.agents[name]
        for node in nodes:
            (self.folder / f"n{node}").mkdir(mode=0o700, exist_ok=True)

        def serve() -> None:
            assert self.scheduler_address is not None
            self.serve_agents(self.folder, self.config, nodes, self.scheduler_address, self.devices, self.lease_write)

        self.fork(name, serve, log=agent_process.log_of(name))

    def fork(self, name: str, work: Callable[[], None], log: str) -> int:
        """Run ``work`` in a child that dies with this process; return its pid.

        Its output goes to the named log.
        """
        pid = fork(self.folder / log, work, self.locks)
        self.children[pid] = name
        return pid

    def watch(self) -> None:
        while not self.ending:
            for pid, status in processes.reap().items():
                name = self.children.pop(pid, None)
                if name is not None:
                    self.on_ended(name, processes.exit_text(status))
            if self.config.owner is not None and os.getppid() != self.config.owner:
                return
            if self.lease_is_over() or self.time_is_over():
                # The maker of a pool that was not ready may try again.
                self.expired = self.ready
                return
            self.keep_power()
            self.change_if_asked()
            self.tell_who_stands_still()
            select.select([self.wake, self.lease], [], [], _IDLE)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 512)

    def tell_who_stands_still(self) -> None:
        """Report once a second which children were stopped or resumed.

        The manager cannot see that from another machine.
        """
        if time.monotonic() - self.looked >= PAUSE:
            self.looked = time.monotonic()
            for change in self.standstill.look(self.children):
                self.say(event="standstill", **change)

    def change_if_asked(self) -> None:
        """Apply a new host.json from the manager: new agents and kernels."""
        word = self.folder / NEXT
        if not word.exists():
            return
        before = self.config.nodes
        try:
            self.config = HostConfig.parse(word.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            word.unlink()
            self.say(event="unchanged", message=f"{NEXT} cannot be read: {type(error).__name__}: {error}")
            return
        word.replace(self.folder / CONFIG)
        kept = {pid: name for pid, name in self.children.items() if not name.startswith("agent")}
        self.end_agents()
        self.end_orphans(kept)
        renumber(self.folder, before, self.config)
        self.revivals.clear()
        self.start_all_agents()
        # Meanwhile, no agent could renew the lease.
        self.renewed = time.monotonic()

    def end_orphans(self, kept: dict[int, str]) -> None:
        """Kill all descendants but ``kept``: kernels' leftovers and slow agents."""
        processes.kill_descendants(spare=frozenset(kept))
        self.children = {}
        for pid, name in kept.items():
            if processes.is_there(pid):
                self.children[pid] = name
            else:
                # Its exit status was collected with those of the killed processes.
                self.on_ended(name, "it ended as the nodes were changed")

    def lease_is_over(self) -> bool:
        """Return True if the lease has expired; clock changes do not matter."""
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while os.read(self.lease, 512):
                self.renewed = now
        if not self.ready:
            self.hear_of_start(now)
        limit = self.config.idle_timeout if self.ready else self.config.start_timeout
        return limit is not None and now - self.renewed > limit

    def hear_of_start(self, now: float) -> None:
        """Check whether the pool is ready, and note its maker's heartbeat."""
        self.ready = (self.folder / READY).exists()
        with contextlib.suppress(OSError):
            word = (self.folder / STARTING).stat().st_mtime_ns
            if self.ready or word != self.word:
                self.word, self.renewed = word, now

    def keep_power(self) -> None:
        """Let the machine stay on until the lease expires, and a little longer."""
        limit = self.config.idle_timeout if self.ready else self.config.start_timeout
        if limit is None:
            limit = GRACE
        left = limit - (time.monotonic() - self.renewed)
        self.power.keep(left + self.config.exit_timeout + MARGIN)

    def time_is_over(self) -> bool:
        """Return True if the pool's time to live is over, or its budget is used up."""
        if self.config.ttl is not None and time.monotonic() - self.began > self.config.ttl:
            return True
        return self.budget.is_over

    def on_ended(self, name: str, text: str) -> None:
        """Restart a child that has ended, and report it."""
        now = time.monotonic()
        recent = [when for when in self.revivals.get(name, []) if now - when < _REVIVAL_SPAN]
        revived = False
        if len(recent) < _REVIVALS:
            self.revivals[name] = [*recent, now]
            with contextlib.suppress(RuntimeError, OSError, ValueError, TypeError):
                if name == "scheduler":
                    self.start_scheduler()
                elif name == "forkserver":
                    self.renew_forkserver()
                else:
                    # An agent may have noted other nodes' new addresses.
                    self.config = HostConfig.read(self.folder)
                    self.start_agents(name)
                revived = True
        nodes = {"nodes": self.agents[name]} if name in self.agents else {}
        self.say(event="ended", name=name, text=text, revived=revived, **nodes)

    def end(self) -> None:
        """End the agents, kill the remaining processes, remove the folders."""
        # Ending may take long, but a manager that waits for the start must not.
        self.say(event="ending")
        with contextlib.suppress(Exception):
            self.end_agents()
        with contextlib.suppress(Exception):
            processes.kill_descendants()
        shutil.rmtree(self.config.blobs, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_agents(self) -> None:
        """Ask the agents to exit, and give them time to end their ranks in order."""
        end = time.monotonic() + self.config.exit_timeout + _FAREWELL
        for pid, name in self.children.items():
            if name.startswith("agent"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        while any(name.startswith("agent") for name in self.children.values()) and time.monotonic() < end:
            for pid in processes.reap():
                self.children.pop(pid, None)
            if self.asked > 1:
                break
            time.sleep(0.01)

    def say(self, **event: Any) -> None:
        """Write an event to standard output and to a file in the folder.

        The manager may be gone; it reads the file when it returns.
        """
        line = json.dumps(event) + "\n"
        with contextlib.suppress(OSError), open(self.folder / "host.events", "a", encoding="utf-8") as file:
            file.write(line)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(line)
            sys.stdout.flush()


def _tail(log: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return []


def renumber(folder: Path, before: Sequence[int], config: HostConfig) -> None:
    """Rename the nodes' folders to their new numbers; remove those of gone nodes."""
    numbers = {was: node for node, was in zip(config.nodes, config.was, strict=True) if was >= 0}
    if len(before) == len(config.nodes) == 1:
        # With a single node before and after, it is the same node, even after missed changes.
        numbers = dict(zip(before, config.nodes, strict=True))
    for node in before:
        path = folder / f"n{node}"
        if node in numbers and path.exists():
            # By a temporary name: the new one may still be in use.
            path.rename(folder / f"moved-{numbers[node]}")
        else:
            shutil.rmtree(path, ignore_errors=True)
    for node in numbers.values():
        with contextlib.suppress(FileNotFoundError):
            (folder / f"moved-{node}").rename(folder / f"n{node}")


def _is_told(folder: Path, patience: float, owner: int | None) -> bool:
    """Wait for host.json; return True if it came in time, and before the owner's end."""
    end = time.monotonic() + patience
    while not (folder / CONFIG).exists():
        if time.monotonic() > end or not folder.exists() or owner not in (None, os.getppid()):
            return False
        time.sleep(_LOOK)
    return True


def main(parts_class: type[HostParts] = HostParts, host_class: type[HostProcess] = HostProcess) -> None:
    """Run ``python -m sky_jupyter.node.host FOLDER [SECONDS [OWNER]]``."""
    folder, *given = sys.argv[1:]
    parts = parts_class(Path(folder))
    if given and not _is_told(Path(folder), float(given[0]), int(given[1]) if given[1:] else None):
        # The maker of the pool is gone, or does not need this host.
        shutil.rmtree(folder, ignore_errors=True)
    else:
        parts.take_variables(Path(folder))
        host_class(Path(folder), parts).run()
    # Exit at once: to unload the control plane's modules would take a quarter of a second.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)
