"""Events of runs that were missed, read from the nodes' journals."""

from __future__ import annotations

import asyncio

from ...errors import NodeLost
from ...node.protocol import rpc
from ..base.timeouts import TIMEOUTS
from ..runs.run import Run
from .supervisor_context import SupervisorContext

_PAUSE = TIMEOUTS.polls.repairs


class JournalReader:
    """Reader of the journals on one pool's nodes; used on the loop only.

    Parameters
    ----------
    supervisor : SupervisorContext
        The pool's supervisor.
    """

    def __init__(self, supervisor: SupervisorContext) -> None:
        self._supervisor = supervisor
        # Runs and nodes whose missing events are being read.
        self._reading: set[tuple[str, int]] = set()

    def take(self, run: Run, node: int, first: int, count: int, data: bytes) -> None:
        """Give a run the events that a node has sent; read what is missing before them."""
        missing = run.take(node, first, count, data)
        if missing is not None and (run.id, node) not in self._reading:
            self._supervisor.keep_task(self.read(run, node, missing))

    async def read(self, run: Run, node: int, start: int) -> None:
        """Read missing events from a node's journal, from ``start`` on."""
        key = id, _ = (run.id, node)
        self._reading.add(key)
        try:
            while True:
                answer = (await self._supervisor.control.ask(rpc.READ_EVENTS, [node], run=id, start=start))[node]
                if run.id != id:
                    # The call was retried elsewhere meanwhile: these events are of its former attempt.
                    return
                following, data = answer["next"], answer["data"]
                if not isinstance(following, int) or following <= start:
                    if not run.waits(node):
                        break
                    # Newer events have arrived, with a gap before them: read on.
                    await asyncio.sleep(_PAUSE)
                    start = run.next(node)
                    continue
                run.take(node, start, following - start, data)
                start = following
            if answer["over"]:
                # The journal of an agent that died may lack an end.
                run.lose([rank for rank in run.left if run.outcomes[rank].node == node], f"node {node} had lost it")
        except (LookupError, TypeError, NodeLost):
            # The run was not begun there, or the node is lost, which is reported elsewhere.
            pass
        finally:
            self._reading.discard(key)

    async def read_all(self, run: Run) -> None:
        """Read all events of a run from the nodes' journals."""
        for node in sorted({outcome.node for outcome in run.outcomes.values() if outcome.node >= 0}):
            await self.read(run, node, 0)

    async def read_active(self, node: int) -> None:
        """Read what a node's active runs have written so far."""
        for run in self._supervisor.registered:
            if run.left and run.concerns(node):
                await self.read(run, node, run.next(node))
