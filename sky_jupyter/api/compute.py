"""`Compute`: a pool for a ``with`` block."""

from __future__ import annotations

import asyncio
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..capture.project_files import check_paths
from ..errors import PoolError, SpecError
from ..plugins import Plugin, parse_plugins
from ..pool.open_pools import pools
from ..pool.pool import Pool
from ..pool.transfer.transfer_job import Transfer
from ..providers import Local
from ..providers.base import is_provider
from ..session.pools import end_pool, get_files, kept_pool, live_pool, pull_value, put_files, resize_pool, start_pool
from ..spec.options import Options, Worker
from ..spec.pool_spec import DEFAULT_JOURNAL, Accelerator, Image, PoolSpec, seconds, size
from ..util.pool_cost import PoolCost
from .calls import PendingCall
from .compute_shared_objects import SharedNames
from .functions import function_of
from .operators import Runner, run_all
from .spec_fallbacks import Spec, first_of

if TYPE_CHECKING:
    from distributed import Client

UNNAMED = "compute"
T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)


class Compute(Runner, SharedNames):
    """Pool for a ``with`` or ``async with`` block.

    The end of the block ends the pool, if the block made it.

    If a pool of this name is live in this process, such as one that an outer block or ``%sky up --name`` has made, the
    block joins it. With ``keep=True``, or if only the name is given, the block also joins a pool that another process
    has kept. The pool must have the same spec, unless only the name is given, and it goes on after the block.

    Parameters
    ----------
    *specs : Spec
        Several ways to get the machines. They are tried in the order that `Options.selection` sets, and the first that
        is available is used. The parameters below hold for what a spec leaves out.
    provider : optional
        The provider of the machines; by default `Local`.
    nodes : int, optional
        The number of nodes; by default 1, or all hosts of an SSH provider.
    ranks_per_node : int, optional
        The number of rank processes on each node; by default 1, or what ``Options(worker=…)`` says.
    accelerator : str or Accelerator, optional
        The accelerators that each node must have, such as ``"A100:8"``.
    plugins : iterable of Plugin or str
        The plugins, which are entered in this order.
    image : Image, optional
        Packages, variables and files that the nodes need besides what the plugins add.
    options : Options, optional
        Options of the pool's start and supervision.
    region : str, optional
        The region of the machines. This and the next five options have no effect on existing machines, such as local
        nodes and SSH hosts: a line says so, and the program runs.
    allocation : str, optional
        ``"spot"``, ``"on-demand"``, ``"spot-if-available"`` or ``"cheapest"``.
    max_hourly_cost : float, optional
        The maximum price of a node, in dollars per hour.
    vcpus : float, optional
        The minimum number of processors of a node.
    memory_gb : float, optional
        The minimum memory of a node, in GB.
    disk_gb : float, optional
        The minimum disk of a node, in GB.
    max_cost : float, optional
        The budget: the dollars that the machines may cost in all. At 80% a line says so, and when the budget is used up
        the pool ends. A user who is there is asked first and has a minute to answer; without a notebook the nodes end
        by themselves. A budget has no effect on existing machines.
    ttl : float or str, optional
        The time after which the pool ends, whatever runs on it and whoever manages it: seconds, or a text such as
        ``"2h"``. With 0 or None, a pool ends after 24 hours if its machines are created for it; any other pool has no
        limit.
    name : str, optional
        The pool's name; ``%%sky --name`` finds it by this name. Without a name, each block has a pool of its own.
    keep : bool
        Whether the pool goes on after the block, and after this process. ``%sky attach``, or the same `Compute` in
        another process, attaches to it again; `down` ends it.
    idle_timeout : float or str, optional
        The time without a manager and without a run after which the nodes end, in seconds or as a text such as
        ``"30m"``. By default twelve hours for a kept pool, and half an hour for one on other machines that is not kept.
    journal : int or str
        The part of each run's output that a node keeps, in bytes or as a text such as ``"64MB"``.
    blob_limit : int or str, optional
        The size of each machine's cache of sent values that no name there refers to any more, in bytes or as a text
        such as ``"2GB"``; by default a quarter of the free memory or disk.
    include : iterable of str
        Files and folders that are sent with the project's own modules, besides the image's ``includes``.
    sync : bool
        Whether packages that functions import are installed on the nodes, at the versions that are here.
    worker : Worker, optional
        Short for ``options=Options(worker=…)``, as in Skyward's programs.
    selection : str, optional
        Short for ``options=Options(selection=…)``, as in Skyward's programs.

    Raises
    ------
    SpecError
        When an argument is not valid; nothing has been started.

    Examples
    --------
    >>> with Compute(Spec(SSH("gpu1,gpu2")), Spec(Local()), nodes=2, ttl="2h") as pool:
    ...     results = train() @ pool
    """

    def __init__(
        self,
        *specs: Spec,
        provider: Any = None,
        nodes: int | None = None,
        ranks_per_node: int | None = None,
        accelerator: str | Accelerator | None = None,
        plugins: Iterable[Plugin | str] = (),
        image: Image | None = None,
        options: Options | None = None,
        region: str | None = None,
        allocation: str | None = None,
        max_hourly_cost: float | None = None,
        vcpus: float | None = None,
        memory_gb: float | None = None,
        disk_gb: float | None = None,
        max_cost: float | None = None,
        ttl: float | str | None = None,
        name: str | None = None,
        keep: bool = False,
        idle_timeout: float | str | None = None,
        journal: int | str = DEFAULT_JOURNAL,
        blob_limit: int | str | None = None,
        include: Iterable[str] = (),
        sync: bool = False,
        worker: Worker | None = None,
        selection: str | None = None,
    ) -> None:
        chosen, included = parse_plugins(plugins), _paths(include)
        given = [
            specs,
            provider,
            nodes,
            ranks_per_node,
            accelerator,
            image,
            options,
            max_cost,
            ttl,
            idle_timeout,
            blob_limit,
            worker,
            selection,
        ]
        wishes = {
            "region": region,
            "allocation": allocation,
            "max_hourly_cost": max_hourly_cost,
            "vcpus": vcpus,
            "memory_gb": memory_gb,
            "disk_gb": disk_gb,
        }
        if provider is not None and specs:
            raise SpecError("the specs name their providers: leave provider out, or give it alone")
        options = _with(options, {"worker": worker, "selection": selection})
        image = Image() if image is None else image
        if not isinstance(image, Image):
            raise SpecError(f"image must be sky.Image(…), not {image!r}")
        common = {
            "ranks_per_node": _ranks(ranks_per_node, options),
            "image": replace(image, includes=(*image.includes, *included)),
            "plugins": chosen,
            "options": options,
            "name": UNNAMED if name is None else name,
            "keep": keep,
            "idle_timeout": _seconds(idle_timeout),
            "max_cost": max_cost,
            "journal": size(journal) if isinstance(journal, str) else journal,
            "blob_limit": size(blob_limit) if isinstance(blob_limit, str) else blob_limit,
        }
        ways = specs or (Spec(Local() if provider is None else provider),)
        others = {"nodes": nodes, "accelerator": accelerator, "ttl": ttl, **wishes}
        self.specs = tuple(_made(way, others, common) for way in ways)
        self.spec = self.specs[0]
        check_paths(self.spec.image.includes)
        self.sync = sync
        self.named = name is not None
        # Whether only a name was given: then any pool of this name will do.
        self._any = self.named and not keep and not any((*given, *chosen, *included, *wishes.values()))
        self.pool: Pool | None = None
        # Whether `close` ends the pool.
        self._own = False

    def start(self, *, anew: bool = False) -> Compute:
        """Start or join the pool without a ``with`` block; `close` ends it.

        Use it in cells that run again, as marimo's do by themselves: the pool stays the same as long as its spec does.

        Parameters
        ----------
        anew : bool
            Whether to end a pool of this name first if it has another spec; otherwise that is an error.

        Returns
        -------
        Compute
            This object.

        Raises
        ------
        PoolError
            When a pool of this name is running with another spec.

        Examples
        --------
        >>> pool = Compute(nodes=2, name="train").start()
        """
        live = pools.get(self.spec.name)
        if live is not None and (live.state == "broken" or (anew and self._differences(live))):
            # A broken pool is of no use.
            live.down()
            pools.discard(live)
            live = None
        self._enter(threading.Event(), live, anew=anew)
        self._own = not self.spec.keep
        return self

    def __enter__(self) -> Compute:
        self._enter(threading.Event(), pools.get(self.spec.name) if self.named else None)
        return self

    async def __aenter__(self) -> Compute:
        given_up = threading.Event()
        live = pools.get(self.spec.name) if self.named else None
        # A thread waits, so that the loop's other tasks go on.
        entering = asyncio.ensure_future(asyncio.to_thread(self._enter, given_up, live))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            given_up.set()
            await asyncio.wait([entering])
            if not entering.cancelled() and entering.exception() is None:
                await asyncio.to_thread(self.close)
            raise
        return self

    def _enter(self, given_up: threading.Event, live: Pool | None, *, anew: bool = False) -> None:
        """Join the pool of this name, or make one; see `start` for ``anew``."""
        if self.pool is not None and self.pool.state != "ended":
            raise PoolError(f"{self!r} is live already: it is one pool for one block at a time")
        if live is None and self.named:
            live = kept_pool(self.spec.name, given_up) if self._any or self.spec.keep else None
            if live is not None and anew and self._differences(live):
                # Another process has kept it.
                live.down()
                pools.discard(live)
                live = None
        if live is not None:
            self._join(live)
            return
        with pools.naming(self.spec.name, other=not self.named) as name:
            specs = [replace(spec, name=name) for spec in self.specs]
            tell = print if self.spec.options.console else _log.info
            made = first_of(specs, lambda spec: start_pool(spec, given_up), tell)
        self._own = not made.spec.keep
        self._take(made)

    def _join(self, live: Pool) -> None:
        differences = self._differences(live)
        if differences:
            raise PoolError(
                f"pool {live.spec.name!r} is running with another spec: {'; '.join(differences)}. "
                "Give it another name, or end that one first with start(anew=True)"
            )
        if live.state == "broken":
            raise PoolError(f"pool {live.spec.name!r} is broken: {live.broken}; end it first, with start(anew=True)")
        self._own = False
        pools.use(live)
        self._take(live)

    def _differences(self, live: Pool) -> list[str]:
        """Return what differs from a live pool; empty if one of the specs is the pool's."""
        if self._any:
            return []
        found = [live.spec.differences(spec) for spec in self.specs]
        return min(found, key=len)

    def _take(self, pool: Pool) -> None:
        self.pool = pool
        self.spec = pool.spec
        image = self.specs[0].image
        pool.include(image.includes, image.excludes)
        pool.packages.sync |= self.sync

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.close)))

    @property
    def live_pool(self) -> Pool:
        """The pool; PoolError before it is started."""
        return live_pool(self)

    @overload
    def map(self, function: Callable[[T], PendingCall[R]], items: Iterable[T]) -> list[R]: ...
    @overload
    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]: ...
    def map(self, function: Any, items: Iterable[Any]) -> list[Any]:
        """Call a function with each item on the free ranks; keep the order.

        Items are read and sent as there is room, so that the items of a long generator are not all held at once.

        Parameters
        ----------
        function : callable
            A function of one argument: a `sky.function`, whose time limit holds for each call, or any other function.
        items : iterable
            The arguments.

        Returns
        -------
        list
            One result per item, in the order of the items.

        Raises
        ------
        Exception
            What the first call to fail raised; the others are stopped.
        """
        wrapped, live = function_of(function), self.live_pool
        name = getattr(wrapped, "__name__", "function")
        calls, total = (wrapped(item) for item in items), operator.length_hint(items, -1)
        return run_all(live, calls, f"{name} for each >> {live.spec.name}", total=total)

    @property
    def dask(self) -> Client:
        """The Dask client of the pool's plain workers, which start on first use.

        Each node has one worker, a process of its own in the pool's environment, which ends with the pool. Submitted
        tasks run in the workers, never in the ranks' kernels, and see neither the ranks' namespaces nor their plugins.

        Raises
        ------
        PoolError
            When the pool's nodes do not reach each other, or its workers do not start.

        Examples
        --------
        >>> pool.dask.submit(sum, [1, 2]).result()
        3
        """
        return live_pool(self).dask

    def put(
        self, local: str | os.PathLike[str], remote: str | None = None, on: Iterable[int] | None = None
    ) -> Transfer:
        """Upload a file or folder to the nodes.

        The data crosses this machine's link once, whatever the number of nodes: the nodes copy it to each other. What a
        node has already is not sent again, and a broken transfer resumes. For nodes on this machine it is a plain copy.

        Parameters
        ----------
        local : str or path
            The file or folder. A folder is merged into an existing one, from which nothing is removed.
        remote : str, optional
            Its path on the nodes; by default its own name. A relative path starts in the ranks' working folder: on
            another machine the home folder, on this one the folder in which the pool was made. A path with a slash at
            its end is the folder to put it into.
        on : iterable of int, optional
            The nodes; by default all.

        Returns
        -------
        Transfer
            The transfer: its ``size``, and how many bytes were ``sent`` over the link.

        Raises
        ------
        SpecError
            When there is no such file, or no such node.
        TransferError
            When something else has its path on a node, or there is no room; nothing has been sent.
        """
        return put_files(live_pool(self), local, remote, None if on is None else list(on))

    def get(
        self, remote: str, local: str | os.PathLike[str] | None = None, on: Iterable[int] | None = None
    ) -> Transfer:
        """Download a file or folder from the head, or from other nodes.

        Parameters
        ----------
        remote : str
            Its path there, as for `put`.
        local : str or path, optional
            Its path here; by default its own name. A path with a slash at its end is the folder to put it into. For
            several nodes it is a folder, in which the copy of node K goes into ``node-K``.
        on : iterable of int, optional
            The nodes; by default the head.

        Returns
        -------
        Transfer
            What was done.

        Raises
        ------
        TransferError
            When it does not exist there, or cannot be written here.
        """
        return get_files(live_pool(self), remote, local, None if on is None else list(on))

    def pull(self, name: str, on: int | Iterable[int] | None = None, how: str | None = None) -> Any:
        """Fetch a variable from the ranks, which keep theirs.

        Parameters
        ----------
        name : str
            Its name on the ranks.
        on : int or iterable of int, optional
            The ranks; by default all.
        how : str, optional
            ``"stack"`` makes one array whose first axis is the ranks. ``"concat"`` joins arrays, tables or lists; it
            also assembles an array that spans ranks, wherever in the variable the array is.

        Returns
        -------
        Any
            One rank's value; of several ranks a list in their order, unless ``how`` says otherwise.

        Raises
        ------
        SpecError
            When there is no such name or rank, or the values do not fit together.
        PoolError
            When a value cannot be fetched; the message says which part of it.
        """
        ranks = None if on is None else [on] if isinstance(on, int) else list(on)
        return pull_value(live_pool(self), name, ranks, how)

    def resize(self, nodes: int | None = None, *, add: Iterable[str] = (), remove: Iterable[int] = ()) -> None:
        """Change the number of nodes.

        Give either the number, or hosts to add and nodes to remove.

        All ranks get new kernels, since the number of ranks is fixed for a kernel's life: their namespaces are lost,
        and running cells and calls end. Nodes that stay keep their machines, connections and environments. Nodes are
        renumbered without gaps, and new ones come last. If a resize fails or is interrupted, the pool is as it was.

        Parameters
        ----------
        nodes : int, optional
            The new number of nodes. An SSH provider takes new nodes from its unused hosts. Nodes with the highest
            numbers are removed first.
        add : iterable of str, optional
            Hosts that become nodes.
        remove : iterable of int, optional
            The numbers of the nodes to remove, with all that they have of the pool. The head, node 0, cannot be
            removed.

        Raises
        ------
        SpecError
            When the resize is not possible; nothing has changed.
        BootstrapError, MachineError
            When a node could not be prepared or reached; the message says what failed, in which phase, and on which
            node.
        """
        live = live_pool(self)
        resize_pool(live, nodes, add=[add] if isinstance(add, str) else list(add), remove=list(remove))
        self.spec = live.spec
        self.specs = (live.spec,)

    def close(self) -> None:
        """End the pool, unless it is kept or a ``with`` block only joined it.

        After `start`, it also ends a pool that `start` found live. It does nothing if the pool has ended.
        """
        pool, self.pool = self.pool, None
        if pool is not None and self._own:
            end_pool(pool)

    def down(self) -> None:
        """End the pool, whoever made it and whether it is kept or not."""
        pool, self.pool = self.pool, None
        if pool is None:
            # Without a name it would be another one's pool.
            pool = (pools.get(self.spec.name) or kept_pool(self.spec.name)) if self.named else None
        if pool is not None:
            end_pool(pool)

    def cost(self) -> PoolCost:
        """Return what the pool's machines cost, as last known.

        Its ``hourly`` and ``total`` are dollars; its ``machines`` has every machine that the pool ever had. Existing
        machines, such as local nodes and SSH hosts, cost nothing.

        Returns
        -------
        PoolCost
            The last known cost; an unknown amount is None.

        Raises
        ------
        PoolError
            When the pool is not started.
        """
        live = live_pool(self)
        return live.cost or PoolCost(live.spec.name, at=time.time())

    def __repr__(self) -> str:
        return f"<Compute {self.spec.name!r}: {self.spec.nodes} nodes, {'live' if self.pool else 'not started'}>"


def _made(way: Spec, others: dict[str, Any], common: dict[str, Any]) -> PoolSpec:
    """Build the spec of one way to get the machines."""
    if not isinstance(way, Spec):
        raise SpecError(f"Compute takes sky.Spec(…) without a name before it, not {way!r}; a provider is provider=…")
    if not is_provider(way.provider):
        raise SpecError(f"provider must be a provider, such as sky.Local() or sky.SSH(…), not {way.provider!r}")
    own = {name: value for name in others if (value := getattr(way, name)) is not None}
    found = {**others, **own}
    kind = found["accelerator"]
    count = found.pop("nodes")
    return PoolSpec(
        **common,
        **{
            **found,
            "provider": way.provider,
            "nodes": way.provider.default_nodes() if count is None else count,
            "accelerator": Accelerator.parse(kind) if isinstance(kind, str) else kind,
            # Skyward's 0 means no limit, but machines that are created for a pool always have one.
            "ttl": _seconds(found["ttl"]) or None,
        },
    )


def _with(options: Options | None, given: dict[str, Any]) -> Options:
    """Return the options, with those that `Compute` was given by themselves."""
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise SpecError(f"options must be sky.Options(…), not {options!r}")
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if getattr(options, name, None) != getattr(Options(), name):
            raise SpecError(f"{name} is given twice: leave it out of Compute, or of Options")
    return replace(options, **given) if given else options


def _ranks(given: int | None, options: Options) -> int:
    """Return the ranks per node, given by our name or by Skyward's."""
    worker = options.worker if isinstance(options, Options) else None
    slots = None if worker is None else worker.concurrency
    if given is not None and slots is not None and given != slots:
        raise SpecError(f"ranks_per_node={given} and Worker(concurrency={slots}) say the same thing; give one of them")
    return next((number for number in (given, slots) if number is not None), 1)


def _seconds(given: float | str | None) -> float | None:
    return seconds(given) if isinstance(given, str) else given


def _paths(include: Iterable[str]) -> tuple[str, ...]:
    return (include,) if isinstance(include, str) else tuple(include)
