"""Orderly shutdown of a pool's kernels: plugins, exit handlers and files."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from ...errors import SkyError
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ...util.text import rank_label
from ..base.event_loop import loop, wait_ticking
from ..base.events import Event
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from ..execution.unresponsive_notices import ANEW

Tell = Callable[[str], None]
_LEAVE_PATIENCE = TIMEOUTS.end.plugins
# A shutdown that takes no longer than this is not reported.
_QUIET = TIMEOUTS.end.quiet
# The time that an agent needs in addition, to kill and to answer.
_MARGIN = TIMEOUTS.end.margin
_INTERRUPT_PATIENCE = TIMEOUTS.end.interrupt
_MOMENT = TIMEOUTS.end.moment
_LOOK = TIMEOUTS.polls.kernel_end


def silently(text: str) -> None:
    """Discard a message."""


class LeavingContext(PoolContext, Protocol):
    """The pool, and the time limit of its shutdown."""

    @property
    def exit_timeout(self) -> float:
        """The seconds that ranks get for an orderly shutdown."""
        ...


class Leaving:
    """Shutdown of one pool's kernels; only `attend` runs off the loop."""

    def __init__(self, pool: LeavingContext) -> None:
        self.pool = pool
        # Messages from the loop, for the thread that waits.
        self._words: collections.deque[str] = collections.deque()

    def hear(self, event: Event) -> None:
        """Queue an event's text for the shutdown's messages; thread-safe."""
        if text := getattr(event, "text", ""):
            self._words.append(text.removesuffix(ANEW))

    def say(self, tell: Tell) -> None:
        """Send all queued messages to ``tell``."""
        while self._words:
            tell(self._words.popleft())

    def attend(self, work: Coroutine[Any, Any, None], limit: float, tell: Tell) -> KeyboardInterrupt | None:
        """Wait for the shutdown; an interrupt kills the kernels, and is returned."""
        end = time.monotonic() + limit

        def tick() -> None:
            self.say(tell)
            if time.monotonic() > end:
                raise TimeoutError

        future = loop().submit(work)
        try:
            wait_ticking(future, tick)
            tick()
        except KeyboardInterrupt as press:
            with contextlib.suppress(Exception):
                loop().call(self._kill(), timeout=_MOMENT)
            return press
        except Exception:
            # Kernels that could not be reached end with their host.
            pass
        finally:
            future.cancel()
        return None

    async def end_all(self, patience: float, *, busy: bool) -> None:
        """End all kernels, by an interrupt if ``busy``; report slow ones."""
        ranks = list(range(self.pool.spec.world_size))
        if busy:
            await self._interrupt()
        await self._leave_plugins(ranks)
        await self._finish(ranks, patience, self._words.append)

    async def finish(self, ranks: Sequence[int], *, busy: bool) -> None:
        """End kernels that are replaced; notify the pool of slow ones."""
        if not busy and len(ranks) == self.pool.spec.world_size:
            await self._leave_plugins(ranks)
        with contextlib.suppress(Exception):
            # Kernels that could not be reached are killed when they are replaced.
            await self._finish(ranks, self.pool.exit_timeout, self.pool.notify)

    async def _finish(self, ranks: Sequence[int], patience: float, tell: Tell) -> None:
        """End kernels in order; kill those that exceed ``patience``."""
        asked = asyncio.ensure_future(self._ask(rpc.END_KERNELS, ranks=list(ranks), patience=patience))
        try:
            await asyncio.wait([asked], timeout=_QUIET)
            if not asked.done() and patience > _QUIET and (what := await self._still_at(ranks)):
                tell(f"ending: {what} ({_QUIET:g} s of {patience:g} s); an interrupt kills at once")
            await asyncio.wait([asked], timeout=patience + _MARGIN)
            late = sorted(rank for one in asked.result().values() for rank in one) if asked.done() else []
        finally:
            asked.cancel()
        if late and patience:
            was = "were" if len(late) > 1 else "was"
            tell(
                f"{rank_label(late)} did not end within {patience:g} s and {was} killed: "
                "what was not written by then is lost (--exit-timeout, Options(exit_timeout=…) gives more time)"
            )

    async def _still_at(self, ranks: Sequence[int]) -> str:
        """Describe which ranks still have a kernel, and what it does."""
        with contextlib.suppress(asyncio.TimeoutError, SkyError, OSError):
            states = _by_rank(await asyncio.wait_for(self._ask(rpc.STATUS), _MOMENT))
            left = [rank for rank in ranks if states.get(rank, {}).get("pid")]
            busy = [rank for rank in left if states[rank]["busy_with"]]
            done = [rank for rank in left if rank not in busy]
            deaf = (
                f"{rank_label(busy)} {'do' if len(busy) > 1 else 'does'} not respond to the interrupt" if busy else ""
            )
            handlers = f"{rank_label(done)} still {'run their' if len(done) > 1 else 'runs its'} exit handlers"
            return ", ".join(filter(None, [deaf, handlers if done else ""]))
        return ""

    async def _interrupt(self) -> None:
        """Interrupt what runs, so that it ends in order."""
        end = time.monotonic() + _INTERRUPT_PATIENCE
        with contextlib.suppress(SkyError, OSError):
            await self._ask(rpc.SIGNAL_KERNELS, number=int(signal.SIGINT))
            while time.monotonic() < end:
                if not any(its["busy_with"] for its in _by_rank(await self._ask(rpc.STATUS)).values()):
                    return
                await asyncio.sleep(_LOOK)

    async def _leave_plugins(self, ranks: Sequence[int]) -> None:
        """Leave the plugins; rank 0 holds the coordinators and leaves last."""
        if any(plugin.around_process for plugin in self.pool.spec.plugins):
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._ask(rpc.LEAVE_PLUGINS, ranks=list(ranks[1:])), _LEAVE_PATIENCE)
                await asyncio.wait_for(self._ask(rpc.LEAVE_PLUGINS, ranks=list(ranks[:1])), _LEAVE_PATIENCE)

    async def _kill(self) -> None:
        await self._ask(rpc.SIGNAL_KERNELS, number=int(signal.SIGKILL))

    async def _ask(self, call: AgentCall, **arguments: Any) -> dict[int, Any]:
        """Call the agents that are reachable."""
        if not self.pool.has_control or None in self.pool.control.silent:
            return {}
        control = self.pool.control
        nodes = set(control.addresses) - control.silent - control.off
        return await control.ask(call, sorted(node for node in nodes if node is not None), **arguments)


def _by_rank(states: dict[int, Any]) -> dict[int, dict[str, Any]]:
    return {int(rank): its for state in states.values() for rank, its in state["ranks"].items()}
