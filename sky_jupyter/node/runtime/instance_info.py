"""Place of a rank in its pool, as user code sees it.

`instance_info` reads the variable COMPUTE_POOL, which the agent sets in every rank before any user code. This module
uses only the standard library: it is sent to the nodes.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import NotInPoolError, SpecError
from ...spec.pool_spec import MAX_NODES, MAX_RANKS_PER_NODE
from ...util.text import nearest
from ...util.validate import brief, check_whole

POOL_VARIABLE = "COMPUTE_POOL"
# Name of the head's port if no plugin has a coordinator.
PLAIN = "pool"
# Linux takes at most 128 KiB in one environment variable.
MAX_JSON = 128 * 1024 - len(POOL_VARIABLE) - 2
_MAX_WORD = 255
# Original values of this rank's variables: user code may change or clear the environment.
_kept: dict[str, str] = {}


@dataclass(frozen=True)
class InstanceInfo:
    """Description of this rank and its pool.

    The agent makes it when it starts a kernel; user code gets it from `instance_info`.

    Parameters
    ----------
    node : int
        This machine's number, from 0.
    rank : int
        This process's number over all nodes.
    total_nodes : int
        The number of machines.
    world_size : int
        The number of ranks.
    ranks_per_node : int
        The number of ranks on each node.
    local_rank : int
        This process's number on its node.
    head_addr : str
        Address of node 0, as the other nodes reach it.
    head_port : int
        A port on the head that is free for a framework's coordinator.
    accelerators : int
        The number of accelerators that this node's ranks share; CUDA_VISIBLE_DEVICES names a rank's own.
    accelerator : str, optional
        The kind of the accelerators.
    peers : tuple of str
        The address of each node, by node number.
    job_id : str
        The id of this start of the pool's ranks.
    ports : mapping of str to int
        The coordinator's port for each plugin that has one of its own; see `port`.
    cluster : bool
        Whether the ranks work together. If not (``Options(cluster=False)``), each is a world of its own: ``rank`` is 0
        and ``world_size`` 1, ``head_addr`` is its own machine and ``peers`` is empty; ``node``, ``total_nodes``,
        ``local_rank`` and ``ranks_per_node`` still say where it runs.
    """

    node: int
    rank: int
    total_nodes: int
    world_size: int
    ranks_per_node: int
    local_rank: int
    head_addr: str
    head_port: int
    accelerators: int = 0
    accelerator: str | None = None
    peers: tuple[str, ...] = ()
    job_id: str = ""
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    cluster: bool = True

    def __post_init__(self) -> None:
        check_whole("total_nodes", self.total_nodes, 1, MAX_NODES)
        check_whole("ranks_per_node", self.ranks_per_node, 1, MAX_RANKS_PER_NODE)
        check_whole("world_size", self.world_size, 1, MAX_NODES * MAX_RANKS_PER_NODE)
        check_whole("node", self.node, 0, self.total_nodes - 1)
        check_whole("local_rank", self.local_rank, 0, self.ranks_per_node - 1)
        check_whole("rank", self.rank, 0, self.world_size - 1)
        check_whole("accelerators", self.accelerators, 0, 1024)
        check_whole("head_port", self.head_port, 1, 65535)
        if not self.cluster:
            if (self.world_size, self.rank) != (1, 0):
                raise SpecError(f"a rank by itself is rank 0 of 1, not {self.rank} of {self.world_size}")
        elif self.world_size != self.total_nodes * self.ranks_per_node:
            raise SpecError(
                f"world_size must be total_nodes * ranks_per_node, {self.total_nodes} * {self.ranks_per_node}, "
                f"not {self.world_size}"
            )
        elif self.rank != self.node * self.ranks_per_node + self.local_rank:
            raise SpecError(f"rank {self.rank} is not local rank {self.local_rank} of node {self.node}")
        _word("head_addr", self.head_addr)
        if self.accelerator is not None:
            # A driver's name, such as NVIDIA A100-SXM4-80GB.
            _word("accelerator", self.accelerator, spaces=True)
        if self.job_id != "":
            _word("job_id", self.job_id)
        self._check_peers_and_ports()

    def _check_peers_and_ports(self) -> None:
        if isinstance(self.peers, str) or not isinstance(self.peers, Iterable):
            raise SpecError(f"peers must be a list of addresses, not {brief(self.peers)}")
        # A pool of one node needs no list: its only peer is the head.
        peers = tuple(self.peers) or ((self.head_addr,) if self.total_nodes == 1 and self.cluster else ())
        if len(peers) != (self.total_nodes if self.cluster else 0):
            raise SpecError(f"peers must have one address a node, {self.total_nodes}, not {len(peers)}")
        for peer in peers:
            _word("an address in peers", peer)
        object.__setattr__(self, "peers", peers)
        if not isinstance(self.ports, Mapping) or len(self.ports) > 256:
            raise SpecError(f"ports must map at most 256 plugin names to ports, not {brief(self.ports)}")
        for name, port in self.ports.items():
            _word("a name in ports", name)
            check_whole(f"ports[{name!r}]", port, 1, 65535)
        object.__setattr__(self, "ports", dict(self.ports))

    @property
    def total_accelerators(self) -> int:
        """The number of accelerators of all nodes, which have equally many."""
        return self.accelerators * self.total_nodes

    @property
    def is_head(self) -> bool:
        """Whether this is the pool's first rank."""
        return self.rank == 0 and (self.cluster or (self.node, self.local_rank) == (0, 0))

    @property
    def addr(self) -> str:
        """The address of this node, as the other nodes reach it."""
        return self.peers[self.node] if self.cluster else self.head_addr

    @property
    def hostname(self) -> str:
        """The host name of this machine."""
        return socket.gethostname()

    # Skyward's names for the same values.

    @property
    def nodes(self) -> int:
        """Skyward's name for `total_nodes`."""
        return self.total_nodes

    @property
    def worker(self) -> int:
        """Skyward's name for `local_rank`."""
        return self.local_rank

    @property
    def workers_per_node(self) -> int:
        """Skyward's name for `ranks_per_node`."""
        return self.ranks_per_node

    @property
    def total_workers(self) -> int:
        """Skyward's name for `world_size`."""
        return self.world_size

    @property
    def global_worker_index(self) -> int:
        """Skyward's name for `rank`."""
        return self.rank

    def port(self, name: str) -> int:
        """Return the head's port for the coordinator of a plugin.

        Parameters
        ----------
        name : str
            The plugin's name.

        Returns
        -------
        int
            Its own port, else `head_port`.
        """
        return self.ports.get(name, self.head_port)

    def to_json(self) -> str:
        """Serialise to the text that COMPUTE_POOL holds.

        Returns
        -------
        str
            JSON.

        Raises
        ------
        SpecError
            When it is too long for an environment variable.
        """
        text = json.dumps({item.name: getattr(self, item.name) for item in fields(self)}, separators=(",", ":"))
        _short_enough(text)
        return text

    @classmethod
    def from_json(cls, text: str) -> InstanceInfo:
        """Parse what `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.

        Returns
        -------
        InstanceInfo
            Its value.

        Raises
        ------
        SpecError
            When it is not JSON, is too long, lacks a field, or has an unknown or invalid one.
        """
        _short_enough(text)
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{POOL_VARIABLE} is not JSON: {error}") from None
        if not isinstance(facts, dict):
            raise SpecError(f"{POOL_VARIABLE} must be a JSON object, not {brief(facts)}")
        known = [item.name for item in fields(cls)]
        for key in facts:
            if key not in known:
                raise SpecError(f"{POOL_VARIABLE} has the unknown field {brief(key)}{nearest(key, known)}")
        missing = [name for name in known[: known.index("accelerators")] if name not in facts]
        if missing:
            raise SpecError(f"{POOL_VARIABLE} lacks {', '.join(missing)}")
        return cls(**facts)


def instance_info() -> InstanceInfo:
    """Return which rank this process is, and what its pool looks like.

    Returns
    -------
    InstanceInfo
        The same object as long as COMPUTE_POOL does not change.

    Raises
    ------
    NotInPoolError
        When this process is no rank of a pool.
    """
    text = variable(POOL_VARIABLE)
    if not text:
        raise NotInPoolError(
            "this process is not a rank of a pool, so it has no instance info; "
            "call it in a %%sky cell or in a function that runs on a pool"
        )
    return _parsed(text)


def variable(name: str) -> str | None:
    """Read an environment variable as it was at the rank's start.

    User code may have changed or cleared the environment since.
    """
    return _kept.get(name) or os.environ.get(name)


def keep(names: Iterable[str]) -> None:
    """Remember this process's variables for `variable`.

    A rank calls it once they are set.
    """
    _kept.update({name: os.environ[name] for name in names if name in os.environ})


def is_head() -> bool:
    """Tell whether this process is rank 0 of its pool.

    Returns
    -------
    bool
        The same as ``instance_info().is_head``.

    Raises
    ------
    NotInPoolError
        When this process is not a rank of a pool.
    """
    return instance_info().is_head


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> InstanceInfo:
    return InstanceInfo.from_json(text)


def _word(name: str, value: Any, *, spaces: bool = False) -> None:
    printable = isinstance(value, str) and 0 < len(value) <= _MAX_WORD and value.isprintable()
    if not printable or (" " in value and not spaces):
        without = "" if spaces else " without spaces"
        raise SpecError(f"{name} must be 1 to {_MAX_WORD} printable characters{without}, not {brief(value)}")


def _short_enough(text: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_JSON:
        raise SpecError(f"{POOL_VARIABLE} is longer than the {MAX_JSON} bytes that an environment variable can hold")
