"""Nodes that are lost, and get new kernels when they are back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...util.text import node_label, rank_label
from ..base.timeouts import TIMEOUTS
from .kernel_repairs import KernelRepairs
from .supervisor_context import SupervisorContext

if TYPE_CHECKING:
    from .turns import Turns

# How long nodes that were lost together are waited for, once one of them is back.
_TOGETHER = TIMEOUTS.repairs.together
# A node whose agent ended must be back within this; else runs on it fail.
_RETURN_PATIENCE, _REVIVAL_PATIENCE = TIMEOUTS.repairs.returned, TIMEOUTS.repairs.revived
_PLURALS = {"its agent ": "their agents ", "its ": "their ", "it does": "they do", "it is": "they are"}


class LostNodesContext(SupervisorContext, Protocol):
    """The supervisor as its lost nodes see it."""

    @property
    def turns(self) -> Turns: ...

    @property
    def restarted(self) -> set[int]:
        """The ranks whose kernels are new; its users add to it."""
        ...

    def tell(self, text: str) -> None:
        """Send a notice to the runs' listeners, or keep it in `news`."""
        ...


class _Return(asyncio.Event):
    """Return of a lost node, and why it was lost."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class LostNodes:
    """Lost nodes of one pool; used on the loop only.

    Parameters
    ----------
    supervisor : LostNodesContext
        The pool's supervisor.
    repairs : KernelRepairs
        Repairs of kernels: a node that is back needs one.
    """

    def __init__(self, supervisor: LostNodesContext, repairs: KernelRepairs) -> None:
        self._supervisor, self._repairs = supervisor, repairs
        # Called with each lost node whose agent does not restart by itself.
        self.on_lost: Callable[[int], None] = lambda node: None
        self._returned: dict[int, _Return] = {}
        # Lost nodes, until they are back and have new kernels; those of them that are back, with why they were lost.
        self.nodes: set[int] = set()
        self._back: dict[int, str] = {}
        repairs.on_restart = self.forget_repairs

    def forget(self) -> None:
        """Forget all nodes: nothing of the pool is alive."""
        self._returned.clear()
        self.nodes.clear()
        self._back.clear()

    def forget_repairs(self) -> None:
        """Forget the repairs: a restart, which replaces all kernels, has cancelled them.

        A node that is not back yet is repaired when it is.
        """
        self._returned.clear()
        self.nodes.difference_update(self._back)
        self._back.clear()

    def lose(self, node: int, why: str, *, revived: bool) -> None:
        """Note a lost node, and repair it when it is back.

        ``revived`` says that its agent restarts by itself.
        """
        self.nodes.add(node)
        self._back.pop(node, None)
        if self._supervisor.turns.guest:
            # The manager repairs it.
            return
        if not revived:
            self.on_lost(node)
        # Made now, as the node may be back before its repair's turn comes.
        returned = self._returned[node] = _Return(why)
        self._repairs.begin(self._take_back(node, returned, _REVIVAL_PATIENCE if revived else _RETURN_PATIENCE))

    def renew(self, node: int) -> None:
        """Begin to replace the kernels of a node that is back without them."""
        if self._supervisor.turns.guest:
            per_node = self._supervisor.spec.ranks_per_node
            self._supervisor.restarted.update(range(node * per_node, (node + 1) * per_node))
            self.nodes.discard(node)
        elif node in self._returned:
            returned = self._returned.pop(node)
            self._back[node] = returned.why
            returned.set()
        else:
            self._back[node] = "it is back"
            self._repairs.begin(self._replace(node))

    async def _take_back(self, node: int, returned: _Return, patience: float) -> None:
        try:
            await asyncio.wait_for(returned.wait(), patience)
        except asyncio.TimeoutError:
            # If it comes back later, it is repaired then.
            if self._returned.get(node) is returned:
                del self._returned[node]
            return
        if node in self._back and (others := [one for one in self._returned.values() if one.why == returned.why]):
            # They were lost for one reason, such as the end of a process that they share: the others are back soon,
            # too.
            tasks = [self._supervisor.keep_task(one.wait()) for one in others]
            await asyncio.wait(tasks, timeout=_TOGETHER)
            for task in tasks:
                task.cancel()
        await self._replace(node)

    async def _replace(self, node: int) -> None:
        """Replace kernels of a returned node, of those lost with it, and dependent ones."""
        why = self._back.get(node)
        if why is None:
            # Its kernels were replaced together with those of another node.
            return
        nodes = sorted(other for other, its in self._back.items() if its == why)
        for other in nodes:
            del self._back[other]
        per_node = self._supervisor.spec.ranks_per_node
        mine = [rank for other in nodes for rank in range(other * per_node, (other + 1) * per_node)]
        ranks = self._repairs.to_replace(mine)
        self._supervisor.restarted.update(ranks)
        why = why if len(nodes) == 1 else _of_several(why)
        self._supervisor.tell(f"{node_label(nodes)}: {why}; new kernels are made for {rank_label(ranks)}")
        try:
            await self._repairs.replace_lost(ranks)
        finally:
            # One may have been lost again meanwhile.
            self.nodes -= {other for other in nodes if other not in self._returned and other not in self._back}


def _of_several(why: str) -> str:
    """Return the reason of one node's loss or return, in the plural."""
    for one, several in _PLURALS.items():
        if why.startswith(one):
            return several + why.removeprefix(one)
    return why
