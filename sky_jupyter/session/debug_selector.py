"""Selector of the debugged rank: a page's request on the control channel.

docs/actions.md has the messages.
"""

from __future__ import annotations

from typing import Any

from ..pool.open_pools import pools
from ..util import control_channel
from .debug_target import DebugTarget

REQUEST = "sky_debugger_request"
CHANGED = "sky_debugger"


class DebugSelector:
    """Choice of the debugged rank, as pages see it; made by `install`.

    Parameters
    ----------
    kernel : Any
        The notebook's kernel.
    target : DebugTarget
        What its pages debug.
    """

    def __init__(self, kernel: Any, target: DebugTarget) -> None:
        self._kernel, self._target = kernel, target
        self._told: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        """Return what pages show: the pool, its number of ranks, and the debugged one."""
        pool = self._target.pool or pools.current
        return {
            "pool": pool.spec.name if pool else None,
            "ranks": pool.spec.world_size if pool else 0,
            "rank": self._target.rank,
        }

    def tell(self, result: Any = None) -> None:
        """Tell pages the state if it has changed; thread-safe."""
        state = self.state()
        if state != self._told:
            self._told = state
            self._kernel.session.send(self._kernel.iopub_socket, CHANGED, state, parent={}, ident=CHANGED.encode())

    async def answer(self, content: dict[str, Any]) -> control_channel.Reply:
        """Change to ``rank`` if it is given (null: the notebook); return the state."""
        rank = content.get("rank")
        name = content.get("pool")
        if name is not None and not isinstance(name, str):
            return control_channel.refusal(f"'pool' is a pool's name, not {name!r:.64}")
        if rank is not None:
            if not isinstance(rank, int) or isinstance(rank, bool):
                return control_channel.refusal(f"'rank' is a rank's number, or null, not {rank!r:.64}")
            pool = pools.need(name)
            pool.check_ranks([rank])
            await self._target.turn_to(pool, rank)
        elif "rank" in content:
            await self._target.turn_back()
        return {"status": "ok", **self.state()}, ()


def install(shell: Any, target: DebugTarget | None) -> DebugSelector | None:
    """Let pages show and change the debugged rank; None if no page here debugs."""
    if target is None:
        return None
    selector = DebugSelector(shell.kernel, target)
    target.changed = selector.tell
    shell.events.register("post_run_cell", selector.tell)
    control_channel.register(shell.kernel, REQUEST, lambda content, request: selector.answer(content))
    selector.tell()
    return selector


def remove(shell: Any, selector: DebugSelector | None) -> None:
    """Undo `install`."""
    if selector is not None:
        control_channel.unregister(shell.kernel, REQUEST)
        shell.events.unregister("post_run_cell", selector.tell)
        selector.tell()


__all__ = ["DebugSelector", "install", "remove"]
