"""What a host and its agents are told of the pool: the file host.json in the pool's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...spec.pool_spec import DEFAULT_OPTIONS

CONFIG = "host.json"
# What a host is to be from now on lies beside it under this name, until it has seen it.
NEXT = "host.json.next"
# A start's maker writes the first of these in the pool's folder again and again, and the other one at its end.
STARTING, READY = "starting", "ready"


@dataclass(frozen=True)
class HostConfig:
    """What host.json holds.

    Parameters
    ----------
    pool : str
        The pool's id.
    nodes : list of int
        Numbers of the nodes that live on this machine.
    ranks_per_node, total_nodes : int
        The pool's shape.
    addresses : list of str
        Each node's address, by number; the scheduler and agents listen on their own only.
    scheduler : str or None
        Where the scheduler is; None on the head's machine, which starts it.
    preload : list of str
        Modules that the forkserver imports.
    cwd : str
        The ranks' working folder.
    blobs : str
        Folder of the payload's blobs; removed at the end with the pool's own folder.
    owner : int or None
        Process that this pool ends with; None where it is kept.
    idle_timeout : float or None
        Seconds without a manager and without a run after which this machine's part of the pool ends
        itself; None where only its owner ends it.
    journal : int
        Bytes that a node keeps of each run's output.
    blob_limit : int or None
        Bytes of blobs that are kept though no name holds them; None for a quarter of what is free.
    contact : str or None
        Where the scheduler reaches the agent of this machine, when that is not its own address: the agent
        listens on its loopback then.
    port : int
        At which port there.
    shape : int
        How often the pool's nodes were changed before. Agents are members under names that have it, so that
        one that missed a change takes nobody's place.
    was : list of int
        After such a change, the numbers that ``nodes`` had before it, each at its place; -1 for one that is new.
    ttl : float or None
        Seconds from its start after which this machine's part of the pool ends itself, whatever it does.
    cluster : bool
        Whether the nodes work together; else each rank is a world of its own.
    exit_timeout : float
        Seconds that ranks have for an orderly end: exit handlers, open files. What takes longer is killed.
    start_timeout : float or None
        Seconds without word of who makes the pool after which this machine's part of it ends itself, until it
        has been said that the pool is ready; None where only ``idle_timeout`` counts.
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

    @property
    def lease_interval(self) -> float:
        """Seconds between two renewals of the lease."""
        return min(5.0, (self.idle_timeout or 60.0) / 8, (self.start_timeout or 60.0) / 8)

    @classmethod
    def read(cls, folder: Path) -> HostConfig:
        """Read host.json of ``folder``."""
        return cls.parse((folder / CONFIG).read_bytes())

    @classmethod
    def parse(cls, text: bytes) -> HostConfig:
        """Read what such a file holds."""
        return cls(**json.loads(text))

    def dump(self) -> bytes:
        """What such a file is to hold."""
        return json.dumps(asdict(self)).encode()


def member_name(node: int, shape: int) -> str:
    """The name under which the control plane knows a node's agent."""
    return f"node-{node}.{shape}" if shape else f"node-{node}"
