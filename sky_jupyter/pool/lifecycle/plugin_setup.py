"""Kernels of a pool's ranks: started or replaced, with plugins entered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle

from ...errors import BootstrapError
from ...node.protocol import rpc
from ...node.runtime.instance_info import PLAIN
from ...plugins.core.secrets import sending
from ...util.text import plain
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from ..runs.result import aborted

if TYPE_CHECKING:
    from ..execution.supervisor import Supervisor
    from ..execution.unresponsive_notices import Watchdog
    from ..transfer.python_versions import PoolPythons

# Long, as loaded machines are more frequent than ranks that hang.
_AGAIN_PATIENCE = TIMEOUTS.start.set_up_again


class PluginSetupContext(PoolContext, Protocol):
    """The pool, and the parts that a new kernel affects."""

    @property
    def pythons(self) -> PoolPythons:
        """The Python versions of the nodes."""
        ...

    @property
    def watchdog(self) -> Watchdog: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def generation(self) -> int:
        """The manager's fencing token."""
        ...


class PluginSetup:
    """Setup of kernels and plugins on one pool; runs on the loop."""

    def __init__(self, pool: PluginSetupContext) -> None:
        self.pool = pool
        self._epoch = 0

    async def enter(self, ranks: Sequence[int] | None = None, epoch: tuple[dict[str, int], str] | None = None) -> None:
        """Enter the plugins on all ranks, or on these, at the same time."""
        plugins = self.pool.spec.plugins
        apps = [plugin.around_app for plugin in plugins if plugin.around_app is not None]
        ports, job = epoch or await self._new_epoch()
        with sending():
            dumped, dumped_apps = cloudpickle.dumps(plugins), cloudpickle.dumps(apps) if apps else b""
        answers = await self.pool.control.ask(
            rpc.ENTER_PLUGINS,
            self._nodes(ranks),
            plugins=dumped,
            ports=ports,
            job=job,
            apps=dumped_apps,
            noise=[expression for plugin in plugins for expression in plugin.noise],
            ranks=ranks,
            **self.pool.pythons.reader,
        )
        ends = [(int(rank), node, end) for node, those in answers.items() for rank, end in those.items()]
        # If a rank has died, the errors of the others only say that they waited for it.
        for rank, node, end in sorted(ends, key=lambda one: (one[2]["status"] != "died" or aborted(one[2]), one[0])):
            if end["status"] != "ok":
                raise BootstrapError("plugins", _why_not_entered(rank, end), node=node, lines=_last_lines(end))

    async def _new_epoch(self) -> tuple[dict[str, int], str]:
        """Return the coordinators' ports and a job name of a new epoch.

        No coordinator's address is used twice: a late peer of the last epoch could join it.
        """
        own = [plugin.name for plugin in self.pool.spec.plugins if plugin.collective] or [PLAIN]
        names = [*own, *(f"{name}.programs" for name in own)]
        ports = (await self.pool.control.ask(rpc.FREE_PORTS, [0], count=len(names)))[0]
        self._epoch += 1
        who = f"{self.pool.generation}{self.pool.supervisor.turns.guest}"
        return dict(zip(names, ports, strict=True)), f"{self.pool.id}-{who}.{self._epoch}"

    async def again(self, ended: Sequence[int]) -> bool:
        """Reinitialize the frameworks, with new kernels for ``ended``; return success."""
        control, epoch = self.pool.control, await self._new_epoch()
        living = [rank for rank in range(self.pool.spec.world_size) if rank not in ended]

        async def again() -> None:
            answers = await control.ask(
                rpc.REINITIALIZE, ports=epoch[0], job=epoch[1], patience=_AGAIN_PATIENCE, ranks=living
            )
            if not all(answers.values()):
                raise BootstrapError("plugins", "a rank could not set its frameworks up again")

        try:
            if ended:
                await self._make_kernels(ended)
            # Both at the same time, as the old and the new ranks wait for each other.
            await asyncio.gather(again(), *([self.enter(ended, epoch)] if ended else []))
        except BootstrapError:
            return False
        return True

    async def renew(self, ranks: Sequence[int] | None) -> None:
        """Replace kernels and enter the plugins on the new ones."""
        await self._make_kernels(ranks)
        await self.enter(ranks)

    async def _make_kernels(self, ranks: Sequence[int] | None) -> None:
        failures = await self.pool.control.ask(rpc.RESTART_KERNELS, self._nodes(ranks), ranks=ranks)
        for node, failed in failures.items():
            for text in failed.values():
                raise BootstrapError("plugins", text, node=node)
        renewed = range(self.pool.spec.world_size) if ranks is None else ranks
        self.pool.watchdog.renew(renewed)
        self.pool.supervisor.turns.renewed(renewed)

    def _nodes(self, ranks: Sequence[int] | None) -> list[int] | None:
        """Return the nodes of these ranks, the only ones to ask."""
        return None if ranks is None else sorted({rank // self.pool.spec.ranks_per_node for rank in ranks})


def _why_not_entered(rank: int, end: Mapping[str, Any]) -> str:
    text = f"rank {rank}: "
    if end["status"] == "died":
        text += str(end.get("text", "its kernel ended"))
    else:
        text += f"{end.get('ename', end['status'])}: {end.get('evalue', '')}"
    for module, why in (end.get("preload_failed") or {}).items():
        text += f"\n  {module} could not be imported: {why}"
    return text


def _last_lines(end: Mapping[str, Any]) -> list[str]:
    return [line for text in end.get("traceback") or end.get("tail") or () for line in plain(text).splitlines()][-30:]
