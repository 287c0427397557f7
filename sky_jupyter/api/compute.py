"""`Compute`: a pool for a ``with`` block."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from ..capture.code import check_path
from ..errors import PoolError
from ..plugins import Plugin, parse_plugins
from ..pool.live import pools
from ..pool.manager import Pool
from ..pool.moving import Transfer
from ..providers import Local
from ..spec import DEFAULT_JOURNAL, Accelerator, Image, PoolSpec, seconds, size
from .names import SharedNames
from .pools import get_files, live_pool, pull_value, put_files, resize_pool, start_pool
from .running import Running


class Compute(Running, SharedNames):
    """A pool for a ``with`` block; the block's end ends it.

    Parameters
    ----------
    provider : optional
        What makes the machines; `Local` unless given.
    nodes : int, optional
        How many nodes; 1 unless given, or all of an SSH provider's hosts.
    ranks_per_node : int
        How many rank processes on each.
    accelerator : str or Accelerator, optional
        What each node must have, such as ``"A100:8"``.
    plugins : iterable of Plugin or str
        Entered in this order.
    image : Image, optional
        Packages and variables that the nodes need besides what the plugins add.
    name : str
        What the pool is called; ``%%sky --name`` finds it by this name.
    keep : bool
        Whether it lives on when this process ends before the block does; ``%sky attach`` finds it again.
    idle_timeout : float or str, optional
        How long a kept pool that nobody uses lives, in seconds or such as ``"30m"``; twelve hours
        unless given.
    journal : int or str
        How much of each run's output a node keeps, in bytes or such as ``"64MB"``.
    blob_limit : int or str, optional
        How much of what was sent a machine keeps for later once no name there holds it, in bytes or such as
        ``"2GB"``; a quarter of the memory or disk that is free unless given.
    include : iterable of str
        Files and folders that are sent with the project's own modules; `included` finds them there.
    sync : bool
        Whether nodes are given the packages that functions import, as they are here.

    Raises
    ------
    SpecError
        When something in it cannot be; nothing has been started.
    """

    def __init__(
        self,
        provider: Any = None,
        nodes: int | None = None,
        ranks_per_node: int = 1,
        accelerator: str | Accelerator | None = None,
        plugins: Iterable[Plugin | str] = (),
        image: Image | None = None,
        name: str = "compute",
        keep: bool = False,
        idle_timeout: float | str | None = None,
        journal: int | str = DEFAULT_JOURNAL,
        blob_limit: int | str | None = None,
        include: Iterable[str] = (),
        sync: bool = False,
    ) -> None:
        self.spec = PoolSpec(
            provider=Local() if provider is None else provider,
            nodes=getattr(provider, "default_nodes", 1) if nodes is None else nodes,
            ranks_per_node=ranks_per_node,
            accelerator=Accelerator.parse(accelerator) if isinstance(accelerator, str) else accelerator,
            image=image or Image(),
            plugins=parse_plugins(plugins),
            name=name,
            keep=keep,
            idle_timeout=seconds(idle_timeout) if isinstance(idle_timeout, str) else idle_timeout,
            journal=size(journal) if isinstance(journal, str) else journal,
            blob_limit=size(blob_limit) if isinstance(blob_limit, str) else blob_limit,
        )
        self.include, self.sync = tuple(include), sync
        for path in self.include:
            check_path(path)
        self.pool: Pool | None = None

    def start(self, *, anew: bool = False) -> Compute:
        """Start the pool without a ``with`` block, or take the one of this name that lives; `close` ends it.

        For cells that run again, as marimo's do by themselves: the pool stays the same as long as its spec does.

        Parameters
        ----------
        anew : bool
            Whether a pool of this name with another spec is ended first; otherwise it is an error.

        Raises
        ------
        PoolError
            When a pool of this name lives with another spec.

        Examples
        --------
        >>> pool = Compute(nodes=2, name="train").start()
        """
        live = pools.get(self.spec.name)
        if live is None:
            return self.__enter__()
        differences = live.spec.differences(self.spec)
        if differences and not anew:
            raise PoolError(
                f"pool {self.spec.name!r} lives with another spec: {'; '.join(differences)}. "
                "Give it another name, or end that one first with start(anew=True)"
            )
        # One that is broken is of no use to anybody.
        if differences or live.state == "broken":
            live.down()
            pools.discard(live)
            return self.__enter__()
        return self._take(live)

    def __enter__(self) -> Compute:
        start_pool(self.spec)
        return self._take(pools.need(self.spec.name))

    def _take(self, pool: Pool) -> Compute:
        self.pool = pool
        pool.include(self.include)
        pool.packages.sync = self.sync
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def put(
        self, local: str | os.PathLike[str], remote: str | None = None, on: Iterable[int] | None = None
    ) -> Transfer:
        """Bring a file or folder of this machine to the nodes.

        It crosses this machine's link once, whatever the number of nodes, which copy it to each other.
        What is there already is not sent again, and a transfer that broke is gone on with. On nodes of
        this machine it is a plain copy.

        Parameters
        ----------
        local : str or path
            The file or folder. A folder is added to one that is there; nothing in that is removed.
        remote : str, optional
            Its name on the nodes, its own unless given. A relative one begins in the ranks' working
            folder: the home on another machine, the folder in which the pool was made on this one. With
            a slash at its end it is the folder to put it into.
        on : iterable of int, optional
            The nodes; all unless given.

        Returns
        -------
        Transfer
            What was done: its ``size``, and how many bytes were ``sent`` over the link.

        Raises
        ------
        SpecError
            When there is no such file, or no such node.
        TransferError
            When something else stands in its place on a node, or there is no room: nothing was sent then.
        """
        return put_files(live_pool(self), local, remote, None if on is None else list(on))

    def get(
        self, remote: str, local: str | os.PathLike[str] | None = None, on: Iterable[int] | None = None
    ) -> Transfer:
        """Fetch a file or folder from the head, or from other nodes.

        Parameters
        ----------
        remote : str
            Its name there, as for `put`.
        local : str or path, optional
            Its name here, its own unless given; with a slash at its end, the folder to put it into. Of
            several nodes, the folder in which each one's goes into ``node-K``.
        on : iterable of int, optional
            The nodes; the head unless given.

        Returns
        -------
        Transfer
            What was done.

        Raises
        ------
        TransferError
            When it is not there, or cannot be written here.
        """
        return get_files(live_pool(self), remote, local, None if on is None else list(on))

    def pull(self, name: str, on: int | Iterable[int] | None = None, how: str | None = None) -> Any:
        """Bring a variable of the ranks here; they keep theirs.

        Parameters
        ----------
        name : str
            What it is called on the ranks.
        on : int or iterable of int, optional
            Whose; all ranks' unless given.
        how : str, optional
            ``"stack"`` for one array whose first axis is the ranks. ``"concat"`` for arrays, tables or lists
            joined; an array that spans ranks is put together whole, wherever in the variable it is.

        Returns
        -------
        Any
            One rank's value; of several ranks a list in their order, unless ``how`` says otherwise.

        Raises
        ------
        SpecError
            When there is no such name or rank, or the values do not fit together.
        PoolError
            When a value cannot be brought here: it says which part of it.
        """
        ranks = None if on is None else [on] if isinstance(on, int) else list(on)
        return pull_value(live_pool(self), name, ranks, how)

    def resize(self, nodes: int | None = None, *, add: Iterable[str] = (), remove: Iterable[int] = ()) -> None:
        """Have more or fewer nodes: either so many, or with hosts that are added and nodes that are removed.

        All ranks get new kernels, since the number of ranks is fixed for a kernel's life: what they had in
        their namespaces is lost, and what runs ends. Machines, connections and environments of nodes that
        stay are kept. Nodes are numbered anew without gaps, and new ones come last. Where it fails, or is
        interrupted, the pool is as it was.

        Parameters
        ----------
        nodes : int, optional
            How many. An SSH provider that has more hosts than nodes gives those; the last nodes go first.
        add : iterable of str, optional
            Hosts that become nodes.
        remove : iterable of int, optional
            The numbers of nodes that are removed, with all that they have of the pool; not the head, 0.

        Raises
        ------
        SpecError
            When it cannot be; nothing has changed.
        BootstrapError, MachineError
            What failed, in which phase, and on which node.
        """
        live = live_pool(self)
        resize_pool(live, nodes, add=[add] if isinstance(add, str) else list(add), remove=list(remove))
        self.spec = live.spec

    def close(self) -> None:
        """End the pool; nothing where it has ended."""
        if self.pool is not None:
            self.pool.down()
            pools.discard(self.pool)
            self.pool = None

    def __repr__(self) -> str:
        return f"<Compute {self.spec.name!r}: {self.spec.nodes} nodes, {'live' if self.pool else 'not started'}>"
