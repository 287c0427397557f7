"""Acknowledgements of output to the agents that sent it, for flow control."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...errors import SkyError
from ...node.protocol import rpc
from ...node.protocol.journal_events import is_count
from ..base.timeouts import TIMEOUTS
from .supervisor_context import SupervisorContext

# Acknowledgements are gathered for this long, and sent in one request.
_GATHER = TIMEOUTS.polls.acknowledgements


class OutputAcknowledgements:
    """Acknowledgements that one pool's agents wait for; used on the loop only.

    Parameters
    ----------
    supervisor : SupervisorContext
        The pool's supervisor.
    """

    def __init__(self, supervisor: SupervisorContext) -> None:
        self._supervisor = supervisor
        # By node, the mark up to which its output is acknowledged; None for all that it has sent.
        self._marks: dict[int, int | None] = {}

    def take(self, batch: Mapping[str, Any]) -> None:
        """Acknowledge a batch to its agent if that asks for it."""
        node, mark = batch.get("node"), batch.get("mark")
        nodes = self._supervisor.spec.nodes
        if batch.get("wants") is True and is_count(node) and is_count(mark) and node < nodes:
            self.send_soon({node: mark})

    def send_soon(self, marks: Mapping[int, int | None]) -> None:
        """Acknowledge output up to these marks to the nodes' agents, soon."""
        if not self._marks:
            asyncio.get_running_loop().call_later(_GATHER, self._send_gathered)
        self._marks.update(marks)

    def _send_gathered(self) -> None:
        marks, self._marks = self._marks, {}
        self._supervisor.keep_task(self._send(marks))

    async def _send(self, marks: dict[int, int | None]) -> None:
        try:
            await self._supervisor.control.ask(rpc.ACK_OUTPUT, sorted(marks), marks=marks)
        except (OSError, SkyError):
            # A lost node must not hold back the others' acknowledgements.
            for node in marks if len(marks) > 1 else ():
                self._supervisor.keep_task(self._send({node: marks[node]}))
