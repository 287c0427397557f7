"""Start, change and end of pools with a view, for the magics and `Compute`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..display import views as display
from ..display.base.background_prompts import background_prompts
from ..display.base.frontends import in_notebook
from ..display.base.prompts import person
from ..errors import PoolError, SkyError, SpecError
from ..pool.base.timeouts import TIMEOUTS
from ..pool.open_pools import pools
from ..pool.registry import provider_accounts, stopped_pools
from ..pool.registry.ended_pools import Gone
from ..pool.registry.pool_record import PoolRecord
from ..pool.registry.registry import PoolRow, Registry, refuse_elsewhere, sweep
from ..pool.registry.rows import clock
from ..pool.registry.stopped_pools import STOPPED
from ..providers import pool_listing, provider_registry
from ..providers.provisioning_types import QUEUED_POOL
from ..spec.pool_spec import PoolSpec
from ..util.garbage import collections_paused
from ..util.pool_cost import UNKNOWN, rate
from ..util.text import nearest
from ..widgets import manager as widgets
from . import job_queue

if TYPE_CHECKING:
    from ..pool.base.event_loop import Tick
    from ..pool.base.events import Listener
    from ..pool.pool import Pool
    from ..pool.transfer.transfer_job import Transfer

_log = logging.getLogger(__name__)


class Holder(Protocol):
    """Holder of a live pool, None before its start; a `Compute` is one."""

    @property
    def pool(self) -> Pool | None:
        """The live pool."""


def start_pool(spec: PoolSpec, given_up: threading.Event | None = None) -> Pool:
    """Start a pool with a view of its progress, and make it the current one.

    Parameters
    ----------
    spec : PoolSpec
        The pool's spec.
    given_up : threading.Event, optional
        Cancels the start when it is set; nothing of the start is left.

    Returns
    -------
    Pool
        The pool, ready.

    Raises
    ------
    PoolError
        When a live pool of this process already has the name.
    """
    with collections_paused():
        from ..pool.pool import Pool

    if pools.get(spec.name) is not None:
        raise PoolError(f"pool {spec.name!r} is already running; end it first, or give another name")
    return _started(Pool(spec, person.prompts), given_up)


def _started(pool: Pool, given_up: threading.Event | None = None) -> Pool:
    """Start a pool that was made, with a view of its progress."""
    spec = pool.spec
    view = _view(spec, f"pool {spec.name}", pool=spec.name, phases=pool.phases.facts)
    with _failing(view), pools.being_started(pool), person.answering(_until(given_up, view.refresh)) as tick:
        pool.start(view.on_event, tick)
    _take_in(pool)
    view.finish(f"{describe(spec)} ready{_price(pool)}{_unheeded(spec)}")
    return pool


def _view(spec: PoolSpec, title: str, **about: Any) -> display.StartView:
    """Return the view of a start; a null view if its options turn it off."""
    return display.start_view(title, **about) if spec.options.console else display.NullView()


def _view_of_row(row: PoolRow) -> display.StartView:
    """Return the view of attaching to a pool, as the pool's own options have it."""
    with contextlib.suppress(PoolError):
        # One that cannot be read is refused afterwards.
        refuse_elsewhere(row)
        return _view(PoolRecord.read(row).spec, f"pool {row.name}")
    return display.start_view(f"pool {row.name}")


@contextlib.contextmanager
def _failing(view: display.StartView, what: str = "failed", unless: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """End a view with an error, except one that says that nothing has begun."""
    try:
        yield
    except unless:
        raise
    except BaseException as error:
        view.finish("interrupted" if isinstance(error, KeyboardInterrupt) else what, ok=False)
        raise


def _price(pool: Pool) -> str:
    """Return what the pool costs an hour, if its machines are bought."""
    cost = pool.cost
    if cost is None:
        return ""
    return f", {UNKNOWN if cost.hourly is None else f'{rate(cost.hourly)} an hour'}"


def _unheeded(spec: PoolSpec) -> str:
    """Return which machine options the provider ignores."""
    if not spec.ignored:
        return ""
    names = ", ".join(spec.ignored)
    return f" ({names} {'have' if len(spec.ignored) > 1 else 'has'} no meaning on {spec.provider.kind} nodes)"


def _until(given_up: threading.Event | None, tick: Callable[[], None]) -> Callable[[], None]:
    """Return a poll callback that raises once the start is given up."""
    if given_up is None:
        return tick

    def checked() -> None:
        if given_up.is_set():
            raise PoolError("the start was cancelled")
        tick()

    return checked


def restart_pool(pool: Pool) -> None:
    """Start new kernels for all ranks, with a view; see `Pool.restart`."""
    _restart(pool, pool.restart)


def renew_taken(pool: Pool) -> None:
    """Recreate a pool whose machines were taken away, or wait until it has done so."""
    if why := pool.lifecycle.failure.taken_away():
        told = _show if pool.spec.options.console else _log.info
        told(f"pool {pool.spec.name} is recreated: {why}")
        _restart(pool, pool.lifecycle.pool_restart.renew)


def _restart(pool: Pool, restart: Callable[[Listener, Tick], None]) -> None:
    view = _view(pool.spec, f"pool {pool.spec.name}", pool=pool.spec.name, phases=pool.phases.facts)
    try:
        with person.answering(view.refresh) as tick:
            restart(view.on_event, tick)
    except BaseException:
        goes_on = pool.lifecycle.comeback.is_on
        view.finish("not waited for: the restart goes on by itself" if goes_on else "the restart failed", ok=False)
        raise
    view.finish("new kernels on all ranks")


def end_pool(pool: Pool, tell: Callable[[str], None] | None = None) -> None:
    """End a pool and forget it; show, or ``tell``, which ranks take long."""
    pool.lifecycle.refuse_guest("ended")
    told = tell or (_show if pool.spec.options.console else _log.info)
    pool.down(lambda text: told(f"pool {pool.spec.name}: {text}"))
    pools.discard(pool)


def _show(text: str) -> None:
    """Print a line of a pool; outside of notebooks, on standard error."""
    print(text, file=None if in_notebook() else sys.stderr)


def stop_pool(pool: Pool, tell: Callable[[str], None]) -> str:
    """Stop a pool's machines and forget the pool; return what was done.

    The text says until when the disks stay.
    """
    name = pool.spec.name
    pool.lifecycle.refuse_guest("stopped")
    from ..pool.lifecycle import stop_start

    until = stop_start.stop(pool.lifecycle, lambda text: tell(f"pool {name}: {text}"))
    pools.discard(pool, Gone(name, f"pool {name!r} on {pool.spec.provider} was stopped", f"%sky start {name}"))
    if pool.unended != []:
        raise PoolError(
            f"pool {name}: not all of its machines were seen to stop, and they may go on to cost: `%sky start {name}` "
            f"starts it again, `%sky down {name}` ends it"
        )
    return (
        f"pool {name}: its machines are stopped, and only their disks cost; `%sky start {name}` starts them again. "
        f"The first sweep after {clock(until)} ends them"
    )


def start_stopped(name: str | None = None) -> Pool:
    """Start a stopped pool's machines, and the pool on them; make it current.

    Raises PoolError if there is no such pool, or its machines cannot be started now.
    """
    registry = Registry()
    try:
        rows = [row for row in registry.pools() if row.state == STOPPED and name in (None, row.name, row.id)]
    finally:
        registry.close()
    if len(rows) != 1 and (name is None or not rows):
        names = ", ".join(row.name for row in rows)
        raise PoolError(f"which pool? {names}" if rows else f"no pool{f' {name!r}' if name else ''} is stopped")
    row = rows[-1]
    if pools.get(row.name) is not None:
        raise PoolError(f"pool {row.name!r} is already running; end it first")
    spec, ids = stopped_pools.read(row.id, row.name)
    from ..pool.lifecycle import stop_start
    from ..pool.pool import Pool

    pool = Pool(spec, person.prompts)
    person.wait(lambda: stop_start.resume(pool.lifecycle, row, ids))
    return _started(pool)


def kept_pool(name: str, given_up: threading.Event | None = None) -> Pool | None:
    """Attach to the kept pool of this name; None if it is managed, or has ended."""
    registry = Registry()
    try:
        # A pool whose processes were killed leaves its name and its folder behind.
        sweep(registry)
    finally:
        registry.close()
    row = kept_row(name)
    if row is None or row.owner_lives:
        return None
    try:
        return attach_pool(row.id, given_up=given_up)
    except PoolError:
        if not _ends(row):
            raise
        return None


def _ends(row: PoolRow) -> bool:
    """Return whether a local pool has just ended; wait for its host to clean up.

    The host removes the folder first.
    """
    is_gone = row.is_local and bool(row.folders) and not os.path.isdir(row.folders[0])
    return is_gone and row.host_ends_within(TIMEOUTS.end.host_process)


def kept_row(name: str) -> PoolRow | None:
    """Return the newest pool of this name that can be attached to.

    A pool that nobody manages comes first; None if there is no pool.
    """
    registry = Registry()
    try:
        rows = [row for row in registry.pools() if row.name == name and row.is_here and row.outlives]
    finally:
        registry.close()
    rows = [row for row in rows if not row.is_mine]
    return max(rows, key=lambda row: (not row.owner_lives, row.began), default=None)


def managed_row(name: str) -> PoolRow | None:
    """Return the newest pool of this name of another live manager; None without one."""
    registry = Registry()
    try:
        rows = [row for row in registry.pools() if row.name == name and row.is_here and row.owner_lives]
    finally:
        registry.close()
    return max((row for row in rows if not row.is_mine), key=lambda row: row.began, default=None)


def _take_in(pool: Pool) -> None:
    """Register a pool that is live, with its files, widgets and values."""
    pools.add(pool)
    display.mute(pool.spec.name, off=pool.spec.options.console)
    image = pool.spec.image
    for path in image.includes:
        # If the pool was made elsewhere, its files may not be here.
        with contextlib.suppress(SpecError):
            pool.include([path], image.excludes)
    if pool.spec.options.console:
        pool.farewell = display.aside
        pool.ask = background_prompts.ask
    pool.shows = lambda title, done="here": display.DelayedView(title, done, "not fetched", pool=pool.spec.name)
    if not pool.is_guest:
        widgets.attach(pool)


def attach_pool(name: str | None = None, *, take_over: bool = False, given_up: threading.Event | None = None) -> Pool:
    """Attach to a kept pool, or start one in its queued job; make it current.

    Parameters
    ----------
    name : str, optional
        The pool's name or id; it may be left out if there is only one to attach to.
    take_over : bool
        Whether to take it from another notebook that manages it.
    given_up : threading.Event, optional
        Cancels this when it is set; the pool stays as it was.

    Returns
    -------
    Pool
        The pool, which this process manages now.

    Raises
    ------
    PoolError
        When there is no such pool, another live process manages it, or it cannot be reached.
    """
    registry = Registry()
    try:
        rows = [row for row in registry.pools() if row.may_outlive]
        rows = [row for row in rows if not row.is_mine]
        rows = [row for row in rows if name is not None or (row.outlives and pools.get(row.name) is None)]
        rows.sort(key=lambda row: row.is_here)
        if name is None and any(row.is_here for row in rows):
            rows = [row for row in rows if row.is_here]
    finally:
        registry.close()
    # Of several pools with one name the newest is meant; the others have their ids.
    chosen = [row for row in rows if name in (None, row.id)] or [row for row in rows if row.name == name][-1:]
    if not chosen and (queued := person.wait(functools.partial(job_queue.left, name))) is not None:
        return start_pool(queued, given_up)
    if len(chosen) != 1:
        names = ", ".join(row.name for row in rows) or "none"
        what = "no kept pool is running" if not rows else f"which pool? {names}"
        if name is not None:
            what = f"no kept pool {name!r} is running{nearest(name, [row.name for row in rows])}; running: {names}"
            if elsewhere := _elsewhere(name):
                raise PoolError(elsewhere)
        raise PoolError(
            f"{what}. `%sky up --keep --name NAME` makes one that outlives its notebook; a job that `%sky up --detach` "
            "left in a queue is taken up by its name where that was run, elsewhere by the same line without --detach"
        )
    from ..pool.pool import Pool

    (row,) = chosen
    if pools.get(row.name) is not None:
        raise PoolError(f"pool {row.name!r} is managed here already")
    view = _view_of_row(row)
    try:
        with _failing(view, "not attached"), person.answering(_until(given_up, view.refresh)) as tick:
            pool = Pool.attach(row, person.prompts, take_over=take_over, listener=view.on_event, tick=tick)
    except SkyError as error:
        if not row.is_local:
            told = str(error).partition("\n")[0]
            again = f"%sky up --provider {row.provider} …"
            pools.miss(Gone(row.name, f"pool {row.name!r} was not attached to ({told})", again))
        raise
    _take_in(pool)
    view.finish(f"{describe(pool.spec)} attached")
    return pool


def join_pool(name: str, *, given_up: threading.Event | None = None) -> Pool:
    """Join a pool that another notebook manages, as its guest; make it current.

    Parameters
    ----------
    name : str
        The pool's name or id.
    given_up : threading.Event, optional
        Cancels this when it is set.

    Returns
    -------
    Pool
        The pool, on which cells run in turn with those of others.

    Raises
    ------
    PoolError
        When there is no such pool, it is not ready, or it cannot be reached.
    """
    from ..pool.pool import Pool

    row = _row_to_join(name)
    live = pools.get(row.name)
    if live is not None and live.state == "taken":
        pools.discard(live)
    elif live is not None:
        raise PoolError(f"this notebook has a pool {row.name!r} already: `%sky status` shows it")
    view = _view_of_row(row)
    with _failing(view, "not joined"), person.answering(_until(given_up, view.refresh)) as tick:
        pool = Pool.join(row, person.prompts, listener=view.on_event, tick=tick)
    _take_in(pool)
    view.finish(f"{describe(pool.spec)} joined as a guest; {managed_by(row)}")
    return pool


def managed_by(row: PoolRow) -> str:
    """Say who manages a pool."""
    return f"it is managed by {row.who}" if row.owner_lives else "no notebook manages it"


def _row_to_join(name: str) -> PoolRow:
    """Return the pool of this name or id to join; raise PoolError if there is none."""
    registry = Registry()
    try:
        rows = registry.pools()
    finally:
        registry.close()
    # Of several pools with one name, one with a manager is preferred, then the newest.
    same = [row for row in rows if row.id == name] or [row for row in rows if row.name == name]
    row = max(same, key=lambda row: (row.is_here, row.owner_lives, row.began), default=None)
    if row is None:
        others = [row.name for row in rows if not row.is_mine and row.owner_lives]
        raise PoolError(
            f"no pool {name!r} is running{nearest(name, others)}; "
            f"those of other notebooks: {', '.join(others) or 'none'}"
        )
    if row.is_mine:
        raise PoolError(f"pool {row.name!r} is managed by this notebook: `%%sky --name {row.name}` uses it")
    if row.state in _UNJOINED:
        raise PoolError(f"pool {row.name!r} {_UNJOINED[row.state]}; {managed_by(row)}")
    if row.is_local and row.is_here and not (row.host_lives and (row.keep or row.owner_lives)):
        raise PoolError(f"pool {row.name!r} has ended with the notebook that managed it")
    return row


# States in which a pool cannot be joined.
_UNJOINED = {
    "starting": "is being started: join it when it is ready",
    "ending": "is being ended",
    "stopped": "is stopped, and `%sky start` starts it",
}


def leave_pool(pool: Pool) -> None:
    """Leave a pool as its guest; raise PoolError if this process manages the pool."""
    if not pool.is_guest:
        name = pool.spec.name
        raise PoolError(f"this notebook manages pool {name!r}, and is not a guest: `%sky down {name}` ends it")
    name = pool.spec.name
    pool.release()
    pools.discard(pool, Gone(name, f"this notebook has left pool {name!r}", f"%sky join {name}"))


def _elsewhere(name: str) -> str:
    """Return which other computer can attach to a pool, by its machines' tags."""
    registry = Registry()
    with contextlib.closing(registry), contextlib.suppress(Exception):
        for purchase in provider_accounts.of(registry):
            look = functools.partial(
                pool_listing.pools, provider_registry.restore(purchase.provider, purchase.recipe), purchase.regions
            )
            for found in person.wait(look):
                if name in (found.name, found.id) and found.id.startswith(QUEUED_POOL):
                    return (
                        f"{found}. `%sky up --detach` of other options, or of another computer, left this job in the "
                        "queue: the same line without --detach attaches to it, here too. `%sky sweep "
                        f"{found.id}` ends it"
                    )
                if name in (found.name, found.id):
                    host = found.owner.rpartition("/")[0] or "the computer that made it"
                    return (
                        f"{found}. Its keys are on {host} alone, in the files of the user who made it: `%sky attach "
                        f"{found.name or found.id}` works there. Here, `%sky sweep {found.id}` ends its machines"
                    )
    return ""


def resize_pool(pool: Pool, nodes: int | None = None, *, add: Sequence[str] = (), remove: Sequence[int] = ()) -> None:
    """Change a pool's nodes with a view of it; see `Compute.resize`."""
    view = _view(pool.spec, f"pool {pool.spec.name}", pool=pool.spec.name)
    with _failing(view, unless=SpecError), person.answering(view.refresh) as tick:
        pool.resize(nodes, view.on_event, tick, add=add, remove=remove)
    view.finish(f"{describe(pool.spec)}, new kernels on all ranks")


def put_files(
    pool: Pool, local: str | os.PathLike[str], remote: str | None = None, on: Sequence[int] | None = None
) -> Transfer:
    """Upload a file or folder with a view of it; see `Compute.put`."""
    return _shown(pool, f"put {local}", lambda **watch: pool.put(local, remote, on, **watch))


def get_files(
    pool: Pool, remote: str, local: str | os.PathLike[str] | None = None, on: Sequence[int] | None = None
) -> Transfer:
    """Download a file or folder with a view of it; see `Compute.get`."""
    return _shown(pool, f"get {remote}", lambda **watch: pool.get(remote, local, on, **watch))


def pull_value(
    pool: Pool, name: str, on: Sequence[int] | None = None, how: str | None = None, most: int | None = None
) -> Any:
    """Fetch a variable from the ranks; see `Compute.pull`.

    A view appears if it takes long.
    """
    with pool.shows(f"pull {name}") as view:
        return pool.pull(name, on, how, view.on_event, view.refresh, most)


def copy_names(
    pool: Pool,
    names: Sequence[str],
    source: int | None,
    targets: Sequence[int] | None,
    namespace: dict[str, Any],
) -> str:
    """Copy names from one rank to others, by default to those without; describe it.

    A view appears if it takes long.
    """
    from ..pool.transfer import copy_names as copying

    source, groups = copying.plan(pool, namespace, names, source, targets)
    if not groups:
        return "no rank lacks a name that others have; `%sky names` lists them"
    with pool.shows(f"copy from rank {source}") as view:
        done = [
            copying.copy(pool, group, source, ranks, namespace, view.on_event, view.refresh)
            for group, ranks in groups.items()
        ]
    return copying.lines(done)


def _shown(pool: Pool, title: str, move: Callable[..., Transfer]) -> Transfer:
    view = _view(pool.spec, title)
    with _failing(view, unless=SpecError):
        pool.settle(view.on_event, view.refresh)
        done = move(listener=view.on_event, tick=view.refresh)
    view.finish(str(done))
    return done


def describe(spec: PoolSpec) -> str:
    """Describe a spec in a few words: ``"2 local nodes with jax, keras"``."""
    text = f"{spec.nodes} {spec.provider} node{'s' if spec.nodes > 1 else ''}"
    if spec.ranks_per_node > 1:
        text += f" of {spec.ranks_per_node} ranks"
    if spec.plugins:
        text += f" with {', '.join(str(plugin) for plugin in spec.plugins)}"
    return text


def live_pool(pool: Holder | Pool) -> Pool:
    """Return the live pool of a `Compute`, or the pool itself.

    Parameters
    ----------
    pool : Compute or Pool
        The right operand of an operator.

    Returns
    -------
    Pool
        The live pool.

    Raises
    ------
    PoolError
        When it is not started, or is no pool.
    """
    live = getattr(pool, "pool", pool)
    if live is None:
        raise PoolError(f"{pool!r} is not started: use it in a `with` block, or `start()` it")
    from ..pool.pool import Pool

    if not isinstance(live, Pool):
        raise PoolError(f"{pool!r} is no pool")
    live.must_be_ours()
    renew_taken(live)
    return live
