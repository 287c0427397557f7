"""Pool configuration of a host and its agents: ``host.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...spec.pool_spec import DEFAULT_OPTIONS

CONFIG = "host.json"
# The pool's variables that a host was started without; the host deletes the file when it reads it.
VARIABLES = "host.env"
# A changed configuration is written under this name; the host renames it to CONFIG once it has read it.
NEXT = "host.json.next"
# The process that starts the pool touches the first of these files repeatedly, and writes the second at the end.
STARTING, READY = "starting", "ready"
# The manager writes into this file the seconds until the pool's budget is used up, at the present price.
BUDGET = "budget"


@dataclass(frozen=True)
class HostConfig:
    """Content of ``host.json``.

    Parameters
    ----------
    pool : str
        The pool's id.
    nodes : list of int
        Numbers of the nodes on this machine.
    ranks_per_node, total_nodes : int
        The pool's shape.
    addresses : list of str
        Each node's address, by number; the scheduler and agents listen only on their own.
    scheduler : str or None
        The scheduler's address; None on the head's machine, which starts it.
    preload : list of str
        Modules that the forkserver imports.
    cwd : str
        The ranks' working folder.
    blobs : str
        Folder of the payload's blobs; removed with the pool's own folder.
    owner : int or None
        Process whose exit ends this pool; None for a pool that outlives its maker.
    idle_timeout : float or None
        Seconds without a manager and without a run after which this machine's part of the pool ends itself; None if
        only its owner ends it.
    journal : int
        Bytes that a node keeps of each run's output.
    blob_limit : int or None
        Bytes of unreferenced blobs that are kept; None for a quarter of the free space.
    contact : str or None
        Address under which the scheduler reaches this machine's agent, if it is not the machine's own. Then the agent
        listens on loopback.
    port : int
        Port of the agent in that case.
    shape : int
        How often the pool was resized. It is part of the agents' names, so that an agent that missed a
        change cannot take another one's place.
    was : list of int
        After a resize, the previous number of each entry of ``nodes``; -1 for a new node.
    ttl : float or None
        Seconds from its start after which this machine's part of the pool ends itself, even while it is busy.
    cluster : bool
        Whether all ranks form one world; otherwise each rank is a world of its own.
    exit_timeout : float
        Seconds that ranks have for an orderly exit (exit handlers, open files) before they are killed.
    start_timeout : float or None
        Seconds without a heartbeat of the starting process after which this machine's part of the pool ends
        itself, until the pool is ready; None if only ``idle_timeout`` counts.
    notice : str
        The provider's function that returns notices that this machine is about to be taken away; empty if there is
        none.
    power_file : str
        File on the machine with the time until which it stays on; "" on a machine that was not made for the pool.
    nodes_per_agent : int
        Most nodes whose agents share one process.
    """

    pool: str
    nodes: list[int]
    total_nodes: int
    ranks_per_node: int
    addresses: list[str]
    preload: list[str]
    cwd: str
    blobs: str
    scheduler: str | None = None
    owner: int | None = None
    idle_timeout: float | None = None
    journal: int = 256 << 20
    blob_limit: int | None = None
    contact: str | None = None
    port: int = 0
    shape: int = 0
    was: list[int] = field(default_factory=list)
    ttl: float | None = None
    cluster: bool = True
    exit_timeout: float = DEFAULT_OPTIONS.exit_timeout
    start_timeout: float | None = None
    notice: str = ""
    power_file: str = ""
    nodes_per_agent: int = 1

    @property
    def agents(self) -> list[list[int]]:
        """Nodes by the processes of their agents."""
        most = self.nodes_per_agent
        return [self.nodes[first : first + most] for first in range(0, len(self.nodes), most)]

    @property
    def lease_interval(self) -> float:
        """Seconds between two renewals of the lease."""
        return min(5.0, (self.idle_timeout or 60.0) / 8, (self.start_timeout or 60.0) / 8)

    @classmethod
    def read(cls, folder: Path) -> HostConfig:
        """Read ``host.json`` of ``folder``."""
        return cls.parse((folder / CONFIG).read_bytes())

    @classmethod
    def parse(cls, text: bytes) -> HostConfig:
        """Parse the content of such a file."""
        return cls(**json.loads(text))

    def dump(self) -> bytes:
        """Return the content of such a file."""
        return json.dumps(asdict(self)).encode()


def member_name(node: int, shape: int) -> str:
    """Return the name of a node's agent in the control plane."""
    return f"node-{node}.{shape}" if shape else f"node-{node}"
