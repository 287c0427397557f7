"""Socket of a process of agents, for short calls of a notebook on its machine.

The socket is in the pool's folder, like the pool's keys. Only its owner can enter that folder, so that whoever can
connect also has the keys. A call on ranks whose agents share the process is one frame here, and so is its answer; see
docs/design-calls.md.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

from ...errors import PoolError
from ..protocol import short_call_frames as frames
from ..protocol.short_call_frames import FrameSocket
from ..system import peer_user
from .context import AgentContext
from .short_call_relay import JointValues, ShortCallRelay

_BACKLOG = 8


class ListeningAgent(AgentContext, Protocol):
    """Agent of a node, as this socket uses it."""

    short: ShortCallRelay

    def obey(self, manager: int) -> None:
        """Accept a call of the current or a newer manager; PoolError for a replaced one."""
        ...


class ShortCallListener:
    """Listening socket of an agents' process; made when its agents begin.

    Parameters
    ----------
    agents : sequence of ListeningAgent
        The agents of the process.
    path : str
        Path of the socket.
    """

    def __init__(self, agents: Sequence[ListeningAgent], path: str) -> None:
        # Without the socket, calls go over TLS.
        self._socket = peer_user.listen(path, lambda connected: _Connection(agents, connected), _BACKLOG)


class _Connection:
    """Connection of a notebook to this process's agents, while all of them obey it."""

    def __init__(self, agents: Sequence[ListeningAgent], connected: socket.socket) -> None:
        self._present = agents
        self._manager = 0
        # The agents by node, after the notebook's first frame, and their incarnations then; the runs of its calls.
        self._agents: dict[int, ListeningAgent] = {}
        self._incarnations: dict[int, str] = {}
        self._mine: dict[int, set[str]] = {}
        self._line = FrameSocket(connected, self._on_frame, self._on_close)

    def _on_frame(self, frame: list[Any]) -> None:
        try:
            if self._agents:
                self._take(frame)
            else:
                self._begin(frame)
        except (PoolError, ValueError, TypeError, LookupError):
            # The manager was replaced, or the frame is invalid.
            self._line.close()

    def _begin(self, frame: list[Any]) -> None:
        kind, manager = frame
        if kind != frames.HELLO or type(manager) is not int:
            raise ValueError("this is no notebook's first frame")
        # Nobody would learn the results of agents that are not connected.
        present = [agent for agent in self._present if agent.send is not None]
        for agent in present:
            agent.obey(manager)
        self._manager = manager
        self._agents = {agent.node: agent for agent in present}
        self._incarnations = {agent.node: agent.incarnation for agent in present}
        self._mine = {agent.node: set() for agent in present}
        for agent in present:
            agent.short.closers.add(self._line.close)
        self._line.send(frames.pack(frames.OPENED, self._incarnations))

    def _take(self, frame: list[Any]) -> None:
        if frame[0] != frames.CALL:
            for node, agent in self._agents.items():
                agent.short.take(frame, self._line.send, self._mine[node])
            return
        # The call's other ranks have agents in other processes.
        _, id, _, _, ranks, _ = frame
        concerned = [agent for agent in self._agents.values() if not agent.ranks.keys().isdisjoint(ranks)]
        count = sum(len(agent.ranks.keys() & set(ranks)) for agent in concerned)
        if not concerned or not all(map(self._is_as_it_was, concerned)):
            self._line.close()
            return
        joint = JointValues(self._line.send, id, count) if count > 1 else None
        for agent in concerned:
            agent.short.take(frame, self._line.send, self._mine[agent.node], joint)

    def _is_as_it_was(self, agent: ListeningAgent) -> bool:
        is_same = agent.incarnation == self._incarnations[agent.node]
        return is_same and agent.manager == self._manager and agent.send is not None

    def _on_close(self) -> None:
        for node, agent in self._agents.items():
            agent.short.closers.discard(self._line.close)
            agent.short.leave(self._mine[node])
