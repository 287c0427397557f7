"""The server's kernels: find the one that manages a pool, and send it requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..access import kernel_requests
from ..access.kernel_requests import PATIENCE
from ..errors import PoolError


@dataclass(frozen=True)
class Kernel:
    """A kernel that this server started.

    Attributes
    ----------
    path : str
        Its notebook, below the server's root; empty if it has none.
    """

    id: str
    path: str


class Kernels:
    """The kernels that the server's managers know.

    Parameters
    ----------
    kernel_manager : Any
        The server's manager of kernels.
    session_manager : Any
        The server's manager of sessions, which knows each notebook's kernel.
    """

    def __init__(self, kernel_manager: Any, session_manager: Any) -> None:
        self._kernels, self._sessions = kernel_manager, session_manager

    async def by_process(self) -> dict[int, Kernel]:
        """Return the kernels by the process id that the server started."""
        paths = {
            session["kernel"]["id"]: str(session.get("path") or "")
            for session in await self._sessions.list_sessions()
            if session.get("kernel")
        }
        found = {}
        for id in self._kernels.list_kernel_ids():
            pid = getattr(getattr(self._kernels.get_kernel(id), "provisioner", None), "pid", None)
            if isinstance(pid, int):
                found[pid] = Kernel(id, paths.get(id, ""))
        return found

    async def ask(self, id: str, content: dict[str, Any], patience: float = PATIENCE) -> dict[str, Any]:
        """Ask a kernel about its pools on its control channel, while a cell may run.

        Parameters
        ----------
        id : str
            The kernel's id.
        content : dict
            The request.
        patience : float
            Seconds to wait for the answer.

        Returns
        -------
        dict
            The answer's content.

        Raises
        ------
        PoolError
            When the kernel refuses, or does not answer.
        """
        try:
            connection = self._kernels.get_kernel(id).get_connection_info()
        except KeyError:
            raise PoolError("the kernel has ended") from None
        return await kernel_requests.ask(connection, content, patience)


def manager_of(owner: int, kernels: dict[int, Kernel]) -> Kernel | None:
    """Return the kernel that a process is, or that started it through a launcher."""
    import psutil

    if not kernels or owner <= 0:
        return None
    if owner in kernels:
        return kernels[owner]
    try:
        return next((kernels[parent.pid] for parent in psutil.Process(owner).parents() if parent.pid in kernels), None)
    except psutil.Error:
        return None
