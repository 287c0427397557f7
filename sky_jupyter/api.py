"""The library API: `Compute` and `@function`, in Skyward's vocabulary, on the same pools as ``%%sky``.

::

    @sky.function
    def train(data): ...

    with sky.Compute(nodes=2, plugins=[sky.plugins.jax()]) as pool:
        losses = train(data) @ pool      # every rank, a list in rank order
        first = train(data) >> pool      # one rank
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from . import display
from .capture.code import check_path
from .capture.collect import collect_value
from .display.asking import person
from .errors import PoolError, SpecError, nearest
from .plugins import Plugin, parse_plugins
from .pool.live import pools
from .pool.manager import Pool
from .pool.moving import Transfer
from .pool.registry import Registry
from .pool.results import exception_of
from .providers import Local
from .spec import DEFAULT_JOURNAL, Accelerator, Image, PoolSpec, seconds, size

T = TypeVar("T")


class Function(Generic[T]):
    """A function that runs on a pool; made by `function`. Calling it gives a `PendingCall`."""

    def __init__(self, wrapped: Callable[..., T], timeout: float | None = None) -> None:
        self.__wrapped__ = wrapped
        self.timeout = timeout
        functools.update_wrapper(self, wrapped)

    def __call__(self, *args: Any, **kwargs: Any) -> PendingCall[T]:
        """Bind arguments; nothing runs before the call meets a pool."""
        # A wrong call is told here and not on a node.
        inspect.signature(self.__wrapped__).bind(*args, **kwargs)
        return PendingCall(self, args, kwargs)

    def local(self, *args: Any, **kwargs: Any) -> T:
        """Call it here, without a pool."""
        return self.__wrapped__(*args, **kwargs)

    def _rewrap(self, wrapped: Callable[..., T]) -> Function[T]:
        """The same around another function; for decorators above ``@sky.function``."""
        return Function(wrapped, self.timeout)

    def __repr__(self) -> str:
        return f"<sky.function {getattr(self.__wrapped__, '__qualname__', self.__wrapped__)}>"


def function(wrapped: Callable[..., T] | None = None, *, timeout: float | None = None) -> Any:
    """Make a function one that runs on a pool.

    Parameters
    ----------
    timeout : float, optional
        Seconds after which a broadcast of it is stopped; no limit unless given.

    Examples
    --------
    >>> @function
    ... def double(x):
    ...     return 2 * x
    """
    if timeout is not None and not timeout > 0:
        raise SpecError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    if wrapped is None:
        return lambda inner: Function(inner, timeout)
    if not callable(wrapped):
        raise SpecError(f"@sky.function goes over a function, not {wrapped!r}")
    return Function(wrapped, timeout)


class PendingCall(Generic[T]):
    """A function with its arguments, waiting for a pool; made by calling a `Function`."""

    def __init__(self, function: Function[T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def __matmul__(self, pool: Compute | Pool) -> list[T]:
        """Run on every rank; the results in rank order.

        Raises
        ------
        CellError
            When ranks failed: a group of their exceptions, with the other ranks' results.
        """
        live = _live(pool)
        _note_restarts(live)
        blob, capture = collect_value(self._payload(), _main(), live.ledger, label=repr(self.function))
        view = display.run_view(self._title(live), range(live.spec.world_size), results=False, pool=live.spec.name)
        with display.LateView("values") as late:
            run = live.begin_call(
                blob,
                capture,
                timeout=self.function.timeout,
                listener=view.on_event,
                on_send=late.on_event,
                tick=late.refresh,
            )
        try:
            return list(live.attend(run, view.refresh))
        finally:
            live.note_writes(run, _main())
            view.finish(run.elapsed)

    def __rshift__(self, pool: Compute | Pool) -> T:
        """Run on one rank, the least busy; its result.

        Raises
        ------
        Exception
            What the function raised, with the remote traceback as a note.
        """
        live = _live(pool)
        # One rank needs all that the function reads: the ledger speaks of what every rank has.
        blob, capture = collect_value(self._payload(), _main(), live.ledger.unsent(), label=repr(self.function))
        view = display.run_view(self._title(live), range(live.spec.world_size), results=False, pool=live.spec.name)
        with display.LateView("values") as late:
            run = live.begin_one(blob, capture, listener=view.on_event, on_send=late.on_event, tick=late.refresh)
        try:
            interrupted = live.wait(run, view.refresh)
            result = live.finish(run)
        finally:
            live.note_writes(run, _main())
            view.finish(run.elapsed)
        if interrupted:
            raise KeyboardInterrupt(repr(self))
        (outcome,) = run.outcomes.values()
        if outcome.failed:
            raise exception_of(outcome)
        return result.head

    def _payload(self) -> tuple[Any, ...]:
        return self.function.__wrapped__, self.args, self.kwargs

    def _title(self, pool: Pool) -> str:
        return f"{getattr(self.function, '__name__', 'function')} @ {pool.spec.name}"

    def __repr__(self) -> str:
        return f"<pending call of {self.function!r}: `>> pool` runs it on one rank, `@ pool` on every rank>"


class Compute:
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
        return put_files(_live(self), local, remote, None if on is None else list(on))

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
        return get_files(_live(self), remote, local, None if on is None else list(on))

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
        live = _live(self)
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


def start_pool(spec: PoolSpec) -> Pool:
    """Start a pool, shown as it comes up, and make it the current one.

    Raises
    ------
    PoolError
        When a live pool of this process has the name already.
    """
    if pools.get(spec.name) is not None:
        raise PoolError(f"pool {spec.name!r} lives already; end it first, or give another name")
    pool = Pool(spec, person.prompts)
    view = display.start_view(f"pool {spec.name}", pool=spec.name, phases=pool.phases.facts)
    try:
        with pools.being_started(pool), person.answering(view.refresh) as tick:
            pool.start(view.on_event, tick)
    except BaseException as error:
        view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", ok=False)
        raise
    _take_in(pool)
    view.finish(f"{describe(spec)} ready")
    return pool


def _take_in(pool: Pool) -> None:
    """A pool is there: it is found by its name, pages have its widgets, and it is seen how its values come."""
    pools.add(pool)
    pool.shows = lambda title: display.LateView(title, "here", "not fetched")
    comms = pool.supervisor.comms
    mirror = display.mirror(pool.id, comms.send)
    if mirror is not None:
        comms.listen(mirror)


def attach_pool(name: str | None = None, *, take_over: bool = False) -> Pool:
    """Become the manager of a kept pool that lives, and make it the current one.

    Parameters
    ----------
    name : str, optional
        Its name or id; may be left out where there is only one to attach to.
    take_over : bool
        Whether another notebook that manages it loses it.

    Raises
    ------
    PoolError
        When there is no such pool, another live process manages it, or it cannot be reached.
    """
    registry = Registry()
    try:
        rows = [row for row in registry.pools() if row.keep or row.provider != "local"]
        rows = [row for row in rows if not row.is_mine]
        rows = [row for row in rows if name is not None or (row.outlives and pools.get(row.name) is None)]
    finally:
        registry.close()
    # Of several of one name the newest is meant; the others have their ids.
    chosen = [row for row in rows if name in (None, row.id)] or [row for row in rows if row.name == name][-1:]
    if len(chosen) != 1:
        names = ", ".join(row.name for row in rows) or "none"
        what = "no kept pool lives" if not rows else f"which pool? {names}"
        if name is not None:
            what = f"no kept pool {name!r} lives{nearest(name, [row.name for row in rows])}; those that do: {names}"
        raise PoolError(f"{what}. `%sky up --keep --name NAME` makes one that outlives its notebook")
    (row,) = chosen
    if pools.get(row.name) is not None:
        raise PoolError(f"pool {row.name!r} is managed here already")
    view = display.start_view(f"pool {row.name}")
    try:
        with person.answering(view.refresh) as tick:
            pool = Pool.attach(row, person.prompts, take_over=take_over, listener=view.on_event, tick=tick)
    except BaseException as error:
        view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "not attached", ok=False)
        raise
    _take_in(pool)
    view.finish(f"{describe(pool.spec)} attached")
    return pool


def resize_pool(pool: Pool, nodes: int | None = None, *, add: Sequence[str] = (), remove: Sequence[int] = ()) -> None:
    """Change a pool's nodes, shown as it goes on; see `Compute.resize`."""
    view = display.start_view(f"pool {pool.spec.name}", pool=pool.spec.name)
    try:
        with person.answering(view.refresh) as tick:
            pool.resize(nodes, view.on_event, tick, add=add, remove=remove)
    except SpecError:
        # Nothing has begun.
        raise
    except BaseException as error:
        view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", ok=False)
        raise
    view.finish(f"{describe(pool.spec)}, new kernels on all ranks")


def put_files(
    pool: Pool, local: str | os.PathLike[str], remote: str | None = None, on: Sequence[int] | None = None
) -> Transfer:
    """Bring a file or folder to a pool's nodes, shown as it goes; see `Compute.put`."""
    return _shown(f"put {local}", lambda **watch: pool.put(local, remote, on, **watch))


def get_files(
    pool: Pool, remote: str, local: str | os.PathLike[str] | None = None, on: Sequence[int] | None = None
) -> Transfer:
    """Fetch a file or folder from a pool's nodes, shown as it comes; see `Compute.get`."""
    return _shown(f"get {remote}", lambda **watch: pool.get(remote, local, on, **watch))


def _shown(title: str, move: Callable[..., Transfer]) -> Transfer:
    view = display.start_view(title)
    try:
        done = move(listener=view.on_event, tick=view.refresh)
    except SpecError:
        # Nothing has begun.
        raise
    except BaseException as error:
        view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", ok=False)
        raise
    view.finish(str(done))
    return done


def describe(spec: PoolSpec) -> str:
    """A spec in a few words: ``"2 local nodes with jax, keras"``."""
    text = f"{spec.nodes} {spec.provider} node{'s' if spec.nodes > 1 else ''}"
    if spec.ranks_per_node > 1:
        text += f" of {spec.ranks_per_node} ranks"
    if spec.plugins:
        text += f" with {', '.join(str(plugin) for plugin in spec.plugins)}"
    return text


def _live(pool: Compute | Pool) -> Pool:
    live = pool.pool if isinstance(pool, Compute) else pool
    if not isinstance(live, Pool):
        what = (
            "is not started: use it in a `with` block, or `start()` it" if isinstance(pool, Compute) else "is no pool"
        )
        raise PoolError(f"{pool!r} {what}")
    return live


def _note_restarts(live: Pool) -> None:
    """What kernels had been sent that are no more is sent again, to those that are new."""
    fresh = live.take_restarted()
    if len(fresh) == live.spec.world_size:
        live.ledger.forget_nodes(_main())
    elif fresh:
        live.ledger = live.ledger.unsent(fresh, live.spec.world_size)


def _main() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


__all__ = ["Compute", "Function", "PendingCall", "Transfer", "attach_pool", "describe", "function", "start_pool"]
