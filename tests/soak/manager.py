"""The manager under test: a process that does what the driver asks, and may be killed at any moment.

    python -m tests.soak.manager DESCRIPTOR

One request at a time comes as a pickled tuple, ``(verb, arguments)``; ``("ok", value)`` or
``("error", text)`` goes back. SIGINT is a press of the interrupt button while a run is waited for;
SIGUSR1 has all threads and the loop's tasks written to standard error.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import psutil

from sky_jupyter import plugins
from sky_jupyter.api import attach_pool, start_pool
from sky_jupyter.capture.collect import collect, collect_value
from sky_jupyter.errors import SkyError
from sky_jupyter.node.protocol import rpc
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import Event, NoticeEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellResult
from sky_jupyter.pool.runs.run import Run
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.soak import words


class Manager:
    """Its public methods are the verbs."""

    def __init__(self) -> None:
        self.pool: Pool = None  # type: ignore[assignment] # `up` or `attach` comes first
        self.runs: dict[str, Run] = {}
        self.notices: dict[str, list[str]] = {}
        self.namespace: dict[str, Any] = {}
        self.fresh: set[int] = set()
        self.waiting = False

    # -- life

    def up(self, name: str, nodes: int, ranks_per_node: int, torch: bool) -> str:
        chosen = (*((plugins.torch(),) if torch else ()), plugins.Plugin("trimming", around_app=words.trimming))
        spec = PoolSpec(Local(), nodes, ranks_per_node, plugins=chosen, name=name, keep=True, journal=64 << 20)
        self.pool = start_pool(spec)
        return self.pool.id

    def attach(self, name: str) -> str:
        self.pool = attach_pool(name)
        return self.pool.id

    def restart(self) -> None:
        self.pool.restart()

    def down(self) -> None:
        self.pool.down()

    def sockets(self) -> list[str]:
        """This process's connections; one that Dask was making as the scheduler died is closed when it is collected."""
        gc.collect()
        return [str(connection) for connection in psutil.Process().net_connections("inet")]

    # -- runs

    def begin(self, code: str, namespace: dict[str, Any], options: dict[str, Any]) -> str:
        """As the magics do it: what was broken is mended, and what is new is sent."""
        self.namespace.update(namespace)
        self._look()
        capture = collect(code, self.namespace, self.pool.ledger)
        run = self.pool.submission.begin_cell(code, capture, listener=self._note, **options)
        return self._began(run)

    def begin_call(self, one: bool, arguments: tuple[Any, ...]) -> str:
        """As `Compute` does it: on one rank, or on all."""
        from tests.soak.calls import call

        self._look()
        ledger = self.pool.ledger.unsent() if one else self.pool.ledger
        blob, capture = collect_value((call, arguments, {}), {}, ledger, label="call")
        begin = self.pool.submission.begin_one if one else self.pool.submission.begin_call
        return self._began(begin(blob, capture, listener=self._note))

    def adopt(self, id: str) -> str:
        return self._began(self.pool.adopt(id, self._note))

    def wait(self, id: str) -> dict[str, Any]:
        """A run's end: how each rank ended, what it said and returned, and how often it was interrupted from here."""
        run, escaped = self.runs[id], 0
        interrupted = False
        while True:
            try:
                self.waiting = True
                interrupted = self.pool.wait(run) or interrupted
                break
            except KeyboardInterrupt:
                escaped += 1
            finally:
                self.waiting = False
        result = self.pool.finish(self.runs.pop(id))
        self.fresh |= self.pool.take_restarted()
        fresh, self.fresh = self.fresh, set()
        record = {**_record(result), "fresh": fresh}
        return {**record, "escaped": escaped, "interrupted": interrupted, "notices": self.notices.pop(id, [])}

    def known(self) -> dict[str, bool]:
        """The runs that the nodes know, and which of them are over."""
        return {id: facts["over"] for id, facts in self.pool.runs().items()}

    def log(self, id: str) -> dict[str, Any]:
        return _record(self.pool.log(id), values=False)

    def settle(self) -> tuple[set[int], list[str]]:
        """Wait for what is mended; the ranks that are said to be new since this was last asked, and the news."""
        self.pool.settle()
        self._look()
        fresh, self.fresh = self.fresh, set()
        return fresh, self.news()

    def news(self) -> list[str]:
        return self.pool.take_news()

    def status(self) -> dict[int, dict[str, Any]]:
        return self.pool.status()

    def measure(self) -> dict[str, Any]:
        """This process, once what nobody holds is gone."""
        words.trim()
        facts = self.pool.registry.pool(self.pool.id)
        assert facts is not None
        port = int(self.pool.scheduler_address.rpartition(":")[2])
        return {"objects": len(gc.get_objects()), "host": facts.host_pid, "folders": facts.folders, "port": port}

    # -- parts

    def _look(self) -> None:
        """What the magics do before each cell."""
        self.pool.settle()
        fresh = self.pool.take_restarted()
        self.fresh |= fresh
        if len(fresh) == self.pool.spec.world_size:
            self.pool.ledger.forget_nodes(self.namespace)
        elif fresh:
            self.pool.ledger = self.pool.ledger.unsent(fresh, self.pool.spec.world_size)

    def _began(self, run: Run) -> str:
        self.runs[run.id] = run
        return run.id

    def _note(self, event: Event) -> None:
        # What is said of a run that is over, as it is mended, nobody takes any more.
        if isinstance(event, NoticeEvent) and event.run in self.runs:
            self.notices.setdefault(event.run, []).append(event.text)

    def on_interrupt(self, *_: Any) -> None:
        if self.waiting:
            raise KeyboardInterrupt

    def dump(self, *_: Any) -> None:
        print(f"--- {time.strftime('%X')} manager {os.getpid()}", file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        tasks = asyncio.all_tasks(loop().loop)
        for task in tasks:
            task.print_stack(file=sys.stderr)
        if self.pool is not None:
            print(self.pool, self.pool.broken, self.pool.supervisor.repairs.mending, file=sys.stderr)
            for run in self.runs.values():
                left = {rank: outcome.status for rank, outcome in run.outcomes.items()}
                print(run.id, left, run.why, run.task, file=sys.stderr)
            # In a thread: where the nodes do not answer either, the rest is told all the same.
            asker = threading.Thread(target=self._ask_nodes, daemon=True)
            asker.start()
            asker.join(15)
        sys.stderr.flush()

    def _ask_nodes(self) -> None:
        """What the nodes say of runs that last too long."""
        assert self.pool is not None
        assert self.pool.control is not None
        print(self.pool.status(), file=sys.stderr)
        print(self.pool.where(within=3), file=sys.stderr)
        for run in self.runs.values():
            for node in sorted({run.outcomes[rank].node for rank in run.left}):
                ask = self.pool.control.ask(rpc.READ_EVENTS, [node], run=run.id, start=run.next(node))
                answer = loop().call(ask, timeout=5)[node]
                facts = {name: value for name, value in answer.items() if name != "data"}
                print(run.id, node, run.next(node), facts, len(answer["data"]), file=sys.stderr)


def _record(result: CellResult, *, values: bool = True) -> dict[str, Any]:
    ranks = {}
    for rank, outcome in result._outcomes.items():
        facts = {"status": outcome.status, "stdout": result.stdout(rank), "stderr": result.stderr(rank)}
        facts.update({name: outcome.end.get(name, "") for name in ("ename", "evalue", "text", "why")})
        if values and outcome.status == "ok":
            try:
                facts["value"] = result.value(rank)
            except SkyError as error:
                facts["value"] = error
        ranks[rank] = facts
    return {"id": result.run, "ranks": ranks}


def main() -> None:
    """Serve until the driver is gone."""
    connection = Connection(int(sys.argv[1]))
    manager = Manager()
    signal.signal(signal.SIGINT, manager.on_interrupt)
    signal.signal(signal.SIGUSR1, manager.dump)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    psutil.cpu_count()
    while True:
        try:
            verb, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = ("ok", getattr(manager, verb)(*arguments))
        except BaseException:
            answer = ("error", traceback.format_exc())
        connection.send(answer)
        # Not to be held while the next request is waited for.
        del answer, arguments


if __name__ == "__main__":
    main()
