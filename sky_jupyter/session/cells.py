"""Cells on a pool: what they read is sent, output is shown, results are bound."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..capture.blobs import Tell
from ..capture.collect import Capture, collect
from ..display import views as display
from ..display.base.background_prompts import background_prompts
from ..display.base.prompts import can_ask
from ..display.model.outliving import Outliving
from ..errors import PoolError
from ..pool.base.events import Event, Listener, NoticeEvent, ProgressEvent, Tape
from ..pool.open_pools import pools
from ..pool.runs.result import CellError, CellResult
from ..pool.runs.run import Run
from ..spec.options import DEFAULT_GRACE
from ..util.text import format_size, rank_label
from .background_view import BackgroundView
from .pools import renew_taken
from .run_end_notifications import notify_at_end

if TYPE_CHECKING:
    from ..pool.pool import Detached, Pool

RESULT = "_sky"
# A grace period, in seconds, that never ends: other ranks go on after one has failed.
FOR_EVER = 1e9
_NAMES_SHOWN = 12
# Statuses of a cell's end after which its frames stay on the rank.
_DEBUGGED = ("error", "interrupted")


@dataclass(frozen=True)
class Cell:
    """Cell that will run, with its options; made by the magic.

    Parameters
    ----------
    code : str
        The cell's text, before IPython transforms it.
    source : str
        The text after that.
    count : int
        Its number in the notebook.
    ranks, shown : sequence of int
        The ranks that run it, and those of them whose output is shown.
    include : sequence of str
        Files and folders that are sent with the user's own code.
    exclude : frozenset of str, or "all"
        Names that are not sent although the cell reads them.
    push, shard : sequence of str
        Names that are sent even if the nodes have them, and names of which each rank gets a part.
    grace, timeout : float
        Seconds that other ranks have after one has failed, and that all ranks have.
    sync : bool
        Whether packages that its imports need are installed on the nodes.
    quiet : bool
        Whether nothing is shown.
    saved : int, optional
        How much of its printed text the saved notebook keeps.
    detach : bool
        Whether nobody waits for it.
    out : str, optional
        A second name for its result, besides `RESULT`.
    script : Capture, optional
        What is sent for the script that the cell runs: it reads none of the notebook's names.
    """

    code: str
    source: str
    count: int
    ranks: Sequence[int]
    shown: Sequence[int]
    include: Sequence[str] = ()
    exclude: frozenset[str] | Literal["all"] = frozenset()
    push: Sequence[str] = ()
    shard: Sequence[str] = ()
    grace: float = DEFAULT_GRACE
    timeout: float | None = None
    sync: bool = False
    quiet: bool = False
    saved: int | None = None
    detach: bool = False
    out: str | None = None
    script: Capture | None = None


def run_cell(pool: Pool, cell: Cell, namespace: dict[str, Any]) -> None:
    """Run a cell on a live pool; show it to its end and bind its result, or detach.

    Parameters
    ----------
    pool : Pool
        The pool.
    cell : Cell
        The cell, with its options.
    namespace : dict
        The notebook's namespace.

    Raises
    ------
    CaptureError
        When a value that it reads cannot be sent; nothing has run.
    CellError
        When ranks failed.
    """
    gather(pool, namespace)
    if pool.state != "ready":
        renew_taken(pool)
    settle(pool, cell.ranks)
    restarts = "; ".join(filter(None, take_restarts(pool, namespace)))
    for news in filter(None, [*pool.take_news(), restarts]):
        print(news)
    if cell.include:
        pool.include(cell.include, pool.spec.image.excludes)
    capture = cell.script or _captured(pool, cell, namespace)
    view: Any = display.NullView() if cell.quiet else run_view(pool, cell.ranks, cell.shown)
    if cell.saved is not None:
        display.keep(view, cell.saved)
    tape = Tape() if cell.detach else None
    is_live = cell.detach and display.can_be_let_go(view)
    listener: Listener = view.on_event
    if tape is not None:
        listener = functools.partial(_record, tape, view.on_event) if is_live else tape
    with pool.stopping():
        with display.DelayedView("values") as late:
            run = pool.submission.begin_cell(
                cell.code,
                capture,
                ranks=cell.ranks,
                count=cell.count,
                grace=cell.grace,
                timeout=cell.timeout,
                sync=cell.sync,
                # If all names are excluded, the notebook's settings are not sent either.
                follow=cell.exclude != "all" and cell.script is None,
                asks=tape is None and cell.script is None and can_ask(),
                apart=cell.script is not None,
                pager=min(cell.shown, default=None),
                attended=tape is None,
                listener=listener,
                on_send=late.on_event,
                tick=late.refresh,
            )
        if cell.script is None:
            note_source(pool, cell.source)
        notify_at_end(pool, run)
        if tape is None:
            attend(pool, run, view, namespace, cell.out)
        else:
            from ..pool.pool import Detached

            pool.detached[run.id] = Detached(run, tape, cell.out)
            pool.record_at_end(run)
            bound = f" and assigns {cell.out}, as the next cell on the pool does" if cell.out else ""
            print(f"run {run.id} continues; `%sky wait` shows it{bound}, `%sky interrupt` stops it")
            if is_live:
                view.let_go()
                BackgroundView(view, run)


def command_code(command: str) -> str:
    """Return code that runs a shell command on a rank; line 1 is the run's title."""
    from ..node.runtime import shell_command

    title = " ".join(command.split())
    return f"# {title}\n__import__({shell_command.__name__!r}, fromlist=['run']).run({command!r})"


def _captured(pool: Pool, cell: Cell, namespace: dict[str, Any]) -> Capture:
    """Return what must be sent to the ranks of the notebook's names."""
    with display.DelayedView("values") as late:
        return collect(
            cell.source,
            namespace,
            pool.ledger,
            exclude=cell.exclude,
            push=cell.push,
            shard=cell.shard,
            ranks=pool.spec.world_size,
            tell=_reading(late),
        )


def _reading(view: display.DelayedView) -> Tell:
    """Return a callback that reports the bytes read of large values."""
    there = 0

    def tell(more: int) -> None:
        nonlocal there
        there += more
        view.on_event(ProgressEvent("reading values", f"reading values: {format_size(there)}", there, 0))
        view.refresh()

    return tell


def _record(tape: Tape, shown: Listener, event: Event) -> None:
    tape(event)
    shown(event)


def note_source(pool: Pool, source: str) -> None:
    """Keep a cell's source for completion; one that runs again counts once."""
    if source in pool.sources:
        pool.sources.remove(source)
    pool.sources.append(source)


def attend(pool: Pool, run: Run, view: Any, namespace: dict[str, Any], out: str | None = None) -> None:
    """Show a run to its end and bind its result.

    From now on, the ledger has what the ranks assigned.
    """
    try:
        result = pool.attend(run, background_prompts.looking(view.refresh))
    except CellError as error:
        _bind(error.result, namespace, out)
        raise
    finally:
        pool.note_writes(run, namespace)
        _note_failures(pool, run)
        # New kernels were reported when they were replaced.
        _, lost = take_restarts(pool, namespace)
        if lost:
            view.on_event(NoticeEvent(lost))
        view.finish(run.elapsed)
    _bind(result, namespace, out)


def _note_failures(pool: Pool, run: Run) -> None:
    """Note which ranks keep a failure to debug, until their next cell or kernel."""
    pool.failed.difference_update(run.outcomes)
    pool.failed.update(rank for rank, outcome in run.outcomes.items() if outcome.status in _DEBUGGED)


def _bind(result: CellResult, namespace: dict[str, Any], out: str | None) -> None:
    """Assign a result to its names in the notebook."""
    namespace[RESULT] = result
    if out is not None:
        namespace[out] = result
        for pool in pools.all():
            pool.ledger.notebook_wrote([out])


def debug(pool: Pool, rank: int, count: int, namespace: dict[str, Any]) -> None:
    """Debug the last failure of a rank, with a prompt of this process.

    Parameters
    ----------
    pool : Pool
        The pool.
    rank : int
        The rank.
    count : int
        The number of the cell that asked for this.
    namespace : dict
        The notebook's namespace.

    Raises
    ------
    PoolError
        If nobody can type commands here.
    CellError
        If the rank has no failure to debug.
    """
    if not can_ask():
        raise PoolError("the debugger's commands cannot be typed here: this front end takes no input")
    gather(pool, namespace, over=True)
    renew_taken(pool)
    settle(pool, [rank])
    view = run_view(pool, [rank])
    with pool.stopping():
        run = pool.submission.begin_cell(
            "%debug", Capture(), ranks=[rank], count=count, asks=True, listener=view.on_event
        )
        try:
            pool.attend(run, background_prompts.looking(view.refresh))
        finally:
            # Commands may assign names, and `_sky` stays that of the failure.
            pool.note_writes(run, namespace)
            view.finish(run.elapsed)


def settle(pool: Pool, ranks: Sequence[int] | None = None) -> None:
    """Wait, with a view, until the pool has repaired what the last run broke.

    See `Pool.settle`.
    """
    if not pool.is_unsettled:
        return
    with display.DelayedView("new kernels", failed="not there", pool=pool.spec.name) as late:
        pool.settle(late.on_event, late.refresh, ranks)


def gather(pool: Pool, namespace: dict[str, Any], *, over: bool = False) -> None:
    """Wait for detached runs: the next cell needs what they assigned.

    With ``over``, handle only runs that have ended: use it before kernels end that have what the runs assigned.
    """
    for id, detached in list(pool.detached.items()):
        if over and not detached.run.over.is_set():
            continue
        if not detached.run.over.is_set():
            print(f"waiting for run {id}, which was left running; `%sky wait` shows it")
        try:
            with display.DelayedView(f"run {id}", "over", "not over", pool=pool.spec.name) as late:
                with pool.watchdog.telling(late.on_event):
                    silent = display.NullView(late.refresh)
                    _await_end(pool, detached, silent)
                    attend(pool, detached.run, silent, namespace, detached.out)
        except CellError as error:
            print(f"run {id}: {error}; `%sky logs {id}` shows what it printed")
        del pool.detached[id]


def running(pool: Pool) -> list[str]:
    """Return the pool's runs that have not ended and are not detached."""
    runs = pool.runs().items()
    # A guest handles its own runs.
    return [
        id
        for id, facts in runs
        if not (facts["over"] or id in pool.detached or facts["begin"].get("guest") or pool.is_guest)
    ]


def detach(pool: Pool, id: str) -> Detached:
    """Adopt a run of another notebook as a detached one."""
    from ..pool.pool import Detached

    tape = Tape()
    detached = pool.detached[id] = Detached(pool.adopt(id, tape), tape)
    return detached


def follow(pool: Pool, id: str, namespace: dict[str, Any]) -> None:
    """Show a run of another notebook, or a detached one, from its beginning."""
    detached = pool.detached.pop(id, None)
    if detached is not None:
        view = run_view(pool, list(detached.run.outcomes), elapsed=detached.run.since_began)
        detached.tape.play(view.on_event)
        attend(pool, detached.run, view, namespace, detached.out)
    else:
        # The pool may have had another size when the run began.
        view = run_view(pool, sorted(pool.homes(id)))
        attend(pool, pool.adopt(id, view.on_event), view, namespace)


def watch(pool: Pool, id: str, namespace: dict[str, Any]) -> None:
    """Show a run as `follow` does; an interrupt ends only the view."""
    detached = pool.detached.get(id) or detach(pool, id)
    view = run_view(pool, list(detached.run.outcomes), elapsed=detached.run.since_began)
    detached.tape.play(view.on_event)
    _await_end(pool, detached, view)
    del pool.detached[id]
    attend(pool, detached.run, view, namespace, detached.out)


def _await_end(pool: Pool, detached: Detached, view: Any) -> None:
    """Wait for a run's end; an interrupt ends the wait, and the run goes on."""
    run = detached.run
    if pool.watch(run, background_prompts.looking(view.refresh)):
        return
    detached.tape.stop()
    text = f"run {run.id} continues; `%sky wait` shows it again, `%sky interrupt` stops it"
    view.on_event(NoticeEvent(text))
    view.finish(run.since_began)
    raise KeyboardInterrupt(text)


def run_view(pool: Pool, ranks: Sequence[int], shown: Sequence[int] | None = None, elapsed: float = 0.0) -> Any:
    """Return a run's view, with the output of the ranks in ``shown``.

    ``elapsed`` is how long the run has gone on, in seconds.
    """
    name = pool.spec.name
    title = f"sky · {name}" if name != "default" else "sky"
    seen = [rank for rank in ranks if shown is None or rank in shown]
    unseen = [rank for rank in ranks if rank not in seen]
    more: dict[str, Any] = {"cost": pool.pricing, "elapsed": elapsed, "outliving": _outliving(pool)}
    return display.run_view(title, seen, pool=name, unseen=unseen, **more)


def _outliving(pool: Pool) -> Outliving | None:
    """Return how a pool outlives this process; None if it does not."""
    spec = pool.spec
    if pool.is_guest:
        return Outliving("joined")
    if spec.keep or spec.provider.survives_manager:
        return Outliving("kept" if spec.keep else "lease", spec.lease)
    return None


# -- what the ranks have ---------------------------------------------------------------------------


def take_restarts(pool: Pool, namespace: dict[str, Any]) -> tuple[str, str]:
    """Record new kernels in the ledger; return lines on what is new and what is lost."""
    fresh = pool.take_restarted(namespace)
    if not fresh:
        return "", ""
    own = only_there(pool) - pool.ledger.imported
    back = listing("back to what the notebook has", own & namespace.keys())
    lost = own - namespace.keys()
    forget_sent(pool, fresh, namespace)
    if len(fresh) == pool.spec.world_size:
        return "all kernels are new", _both(listing("lost, as only the nodes had them", lost), back)
    ranks = rank_label(sorted(fresh))
    missing = listing(f"missing on {ranks}, while the others have them", lost)
    named = "" if pool.spec.name == "default" else f" --name {pool.spec.name}"
    way = f"`%sky copy --to {','.join(map(str, sorted(fresh)))}{named}` copies them from another rank"
    return f"new kernels: {ranks}", _both(missing, back and f"{back}, on {ranks}", way if missing or back else "")


def forget_sent(pool: Pool, fresh: Collection[int], namespace: dict[str, Any]) -> None:
    """Remove from the ledger what was sent to kernels that were replaced."""
    if len(fresh) == pool.spec.world_size:
        pool.ledger.forget_nodes(namespace)
    elif fresh:
        pool.ledger = pool.ledger.unsent(fresh, pool.spec.world_size)


def only_there(pool: Pool) -> set[str]:
    """Return the names whose values only the nodes have."""
    return {one.name for one in pool.ledger.facts({}) if one.origin == "nodes" and not one.gone} - pool.modules


def listing(what: str, names: Iterable[str]) -> str:
    """Return a line with the first few names; empty if there are none."""
    shown = sorted(names)
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return f"{what}: {', '.join(shown[:_NAMES_SHOWN])}{more}" if shown else ""


def _both(*texts: str) -> str:
    return "; ".join(filter(None, texts))
