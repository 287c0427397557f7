"""Submission of runs: what they need is sent to the nodes, and they begin there."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...capture.blobs import Blob
from ...capture.collect import Capture
from ...errors import PoolError
from ...spec.options import DEFAULT_GRACE
from ...util.interrupts import counting_interrupts
from ..base.event_loop import Tick, loop, no_tick
from ..base.events import Listener, NoticeEvent, ignore
from ..runs.run import Run, new_id
from ..transfer import send_values
from .input_replies import answer_questions
from .short_cell import ShortCell
from .task_context import FunctionBundle, TaskContext
from .tasks import TaskRequest

if TYPE_CHECKING:
    from ...capture.changed_settings import Settings
    from ..base.run_timeline import PoolEvents
    from ..registry.registry import Registry
    from ..runs.input_requests import AskUser
    from ..transfer.packages import PoolPackages
    from ..transfer.project_code import PoolCode
    from .short_call import ShortCall
    from .tasks import PoolTasks, TaskRun
    from .unresponsive_notices import Watchdog

CALLED = "called with functions on single ranks (`f(x) @ pool`, on all ranks, and cells are a guest's too)"


class GuestChecks(Protocol):
    """What guests of a pool may do."""

    def refuse_guest(self, done: str) -> None:
        """Raise PoolError if this is a guest; ``done`` is the change, as in "restarted"."""
        ...

    def require_same(self) -> None:
        """Raise PoolError for a guest whose pool has ended or changed."""
        ...


class SubmissionContext(TaskContext, Protocol):
    """The pool as seen by the submission of runs."""

    # The run that the user waits for.
    current: Run | None
    settings: Settings
    code: PoolCode
    packages: PoolPackages
    calls: PoolTasks

    @property
    def lifecycle(self) -> GuestChecks: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def events(self) -> PoolEvents:
        """The events of the newest runs and calls, and of the pool."""
        ...

    @property
    def watchdog(self) -> Watchdog: ...

    @property
    def ask(self) -> AskUser | None:
        """The callback that asks the user while something runs; None if there is none."""
        ...

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """Return the ranks, by default all; raise SpecError for others."""
        ...

    def press(self, run: Run, times: int = 1) -> None:
        """Interrupt a run for the user; the second time, replace kernels."""
        ...


class RunSubmission:
    """Submission of one pool's runs; made with it.

    Parameters
    ----------
    pool : SubmissionContext
        The pool.
    """

    def __init__(self, pool: SubmissionContext) -> None:
        self.pool = pool

    def begin_cell(
        self,
        code: str,
        capture: Capture,
        *,
        ranks: Sequence[int] | None = None,
        count: int = 1,
        grace: float = DEFAULT_GRACE,
        timeout: float | None = None,
        sync: bool = False,
        follow: bool = True,
        asks: bool = False,
        apart: bool = False,
        pager: int | None = None,
        attended: bool = False,
        listener: Listener = ignore,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Run:
        """Start a cell on ranks; return its run once its values are sent.

        Parameters
        ----------
        code : str
            The cell, before IPython transforms it.
        capture : Capture
            The values and modules that its names need.
        ranks : sequence of int, optional
            Ranks that run it.
        count : int
            The cell's number, as tracebacks show it.
        grace : float
            Seconds that other ranks get after one has failed.
        timeout : float, optional
            Seconds after which all ranks are stopped.
        sync : bool
            Whether to install the packages that its imports need on the nodes, in the notebook's versions.
        follow : bool
            Whether to send the settings of the notebook's process; see `Settings`.
        asks : bool
            Whether its code may ask the user, as by `input`; otherwise that is refused.
        apart : bool
            Whether the ranks' work runs in separate processes; see `Run`.
        pager : int, optional
            The rank that shows what ``name?`` finds, by default the first of the ranks.
        attended : bool
            Whether the caller attends it at once. Then a cell that seems to show nothing goes the short way: if it
            takes only a moment, it is over when this returns.
        listener : callable
            Receives the run's events.
        on_send : callable
            Receives the progress of the values' transfer to other machines.
        tick : callable
            Called every poll.

        Returns
        -------
        Run
            The run, to be passed to `Pool.attend`.
        """
        run = self.new_run(self.pool.check_ranks(ranks), listener, capture)
        run.apart = apart
        shipped = self.ship(run, on_send, tick, sync=sync, follow=follow, text=code)
        first = min(run.outcomes) if pager is None else pager
        asking = self._asking(run, asks=asks)
        content = {"kind": "cell", "code": code, "count": count, "pager": first, **shipped, **asking}
        return self._begin(
            run, content, code, grace, timeout, attended=attended and not apart and not capture.names.shows
        )

    def begin_call(
        self,
        call: Blob,
        capture: Capture,
        *,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        asks: bool = False,
        title: str = "",
        listener: Listener = ignore,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Run:
        """Start a function on ranks; ``title`` names it in events. See `begin_cell`."""
        run = self.new_run(self.pool.check_ranks(ranks), listener, capture)
        run.limit, run.kind, run.title = "timeout", "call", title
        content = {"kind": "call", **self.ship(run, on_send, tick, call), **self._asking(run, asks=asks)}
        return self._begin(run, content, "a function call", DEFAULT_GRACE, timeout)

    def begin_one(
        self,
        call: Blob,
        capture: Capture,
        *,
        rank: int | None = None,
        retries: int | None = None,
        listener: Listener = ignore,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
    ) -> TaskRun:
        """Start a function as a Dask task, by default on the idlest rank."""
        pool = self.pool
        if rank is not None:
            pool.check_ranks([rank])
        carrier = self.new_run([], listener, capture)
        bundle = FunctionBundle(self.ship(carrier, on_send, tick, call), capture, carrier)
        order = TaskRequest(bundle, rank=rank, listener=listener, carrier=carrier, noted=True, title="a function call")
        order.retries = retries
        (run,) = pool.calls.begin([order], on_send, tick)
        pool.registry.run_began(run.id, pool.id, run.code, [] if rank is None else [rank])
        return run

    def new_run(self, ranks: Sequence[int], listener: Listener, capture: Capture) -> Run:
        """Return a run on these ranks; without ranks, one that owns files for calls."""
        pool = self.pool
        pool.require_live()
        if pool.is_guest:
            pool.lifecycle.require_same()
        if not ranks:
            pool.lifecycle.refuse_guest(CALLED)
        run = Run(new_id(), {rank: rank // pool.spec.ranks_per_node for rank in ranks}, listener)
        # Nodes with other versions of Python cannot run the notebook's code.
        run.capture = pool.pythons.fitting(capture) if pool.pythons.others else capture
        run.shape = pool.shape
        if not ranks:
            # It owns the files that are sent for calls, and does not run.
            run.events = pool.events.own
        return run

    def ship(
        self,
        run: Run,
        on_send: Listener,
        tick: Tick,
        call: Blob | None = None,
        *,
        sync: bool = False,
        follow: bool = True,
        text: str = "",
    ) -> dict[str, Any]:
        """Write a run's blobs for its nodes; discard them on failure.

        Raises CaptureError if there is no room for them or its code cannot be sent, PoolError if the pool has ended.
        """
        pool, modules = self.pool, run.capture.modules
        with pool.explaining_end():
            hosts = send_values.hosts_of(pool, run)
            around = pool.surround(
                modules, run.listener, hosts, on_send, tick, run=run.id, put=sync, again=True, text=text, follow=follow
            )
            for note in run.capture.notes:
                run.listener(NoticeEvent(note, run.id))
            try:
                return {**around, **send_values.ship(pool, run, call, on_send, tick)}
            except BaseException:
                send_values.discard(pool, run)
                raise

    def take_up(self, short: ShortCall, listener: Listener, *, asks: bool) -> Run:
        """Continue an opened short call of all ranks as a run. See `begin_call`."""
        pool = self.pool
        run = Run(short.id, {rank: rank // pool.spec.ranks_per_node for rank in short.ranks}, listener)
        run.capture, run.shape, run.incarnations = short.function.bundle.capture, pool.shape, short.incarnations
        run.limit, run.kind, run.title, run.code = "timeout", "call", short.title, "a function call"
        inline = base64.b64encode(bytes(short.arguments)).decode()
        content = {"kind": "call", **short.function.content, "inline": inline, **self._asking(run, asks=asks)}
        ends = {rank: one.end() for rank, one in short.results.items()}
        pool.current = run
        pool.supervisor.add(run)
        pool.events.add(run.events)
        opened = pool.supervisor.execute_opened(run, content, DEFAULT_GRACE, short.about.get("timeout"), ends)
        run.task = loop().submit(opened)
        run.task.add_done_callback(lambda _: pool.calls.short.release(short))
        pool.registry.run_began(run.id, pool.id, run.code, list(run.outcomes), 0)
        return run

    def _asking(self, run: Run, *, asks: bool) -> dict[str, bool]:
        """Connect a run's questions to the user; return the request field that says so."""
        pool = self.pool
        if not asks or pool.ask is None:
            return {}
        answer_questions(run, pool.supervisor, pool.ask)
        return {"asks": True}

    def _begin(
        self,
        run: Run,
        content: dict[str, Any],
        code: str,
        grace: float,
        timeout: float | None,
        *,
        attended: bool = False,
    ) -> Run:
        """Begin a run whose values are sent; see `begin_cell`."""
        pool = self.pool
        run.code, run.count = code, int(content.get("count", 0))
        run.title = run.title or (f"In[{run.count}]" if run.count > 0 else "")
        # An interrupt within this block would leave a run that nothing waits for or stops.
        with counting_interrupts() as presses:
            pool.current = run
            pool.events.add(run.events)
            self.register([run])
            directly = attended and not timeout and self._may_be_direct(run)
            if not directly:
                # Send the cell first: recording it would delay that.
                run.task = loop().submit(pool.supervisor.execute(run, content, grace, timeout))
            pool.registry.run_began(run.id, pool.id, code, list(run.outcomes), max(0, run.count))
            if directly:
                self._run_directly(run, content, grace, presses)
        if presses:
            run.early = True
            pool.press(run, len(presses))
        return run

    def _may_be_direct(self, run: Run) -> bool:
        """Return whether a cell may go the short way; connect for later ones if needed."""
        pool = self.pool
        short = pool.calls.short
        if not short.direct.is_possible:
            short.connect()
            return False
        return short.is_idle and run.shape == pool.control.shape and not pool.watchdog.troubles

    def _run_directly(self, run: Run, content: dict[str, Any], grace: float, presses: list[object]) -> None:
        """Run a cell as a direct call, or as a run if it cannot be made or is opened."""
        pool = self.pool
        begin = {"code": run.code, "grace": grace, "timeout": None, "began": time.time(), "apart": False}
        cell, short = ShortCell(run, content, begin), pool.calls.short
        run.start_clock()
        if not short.direct.make(cell, presses):
            run.task = loop().submit(pool.supervisor.execute(run, content, grace, None))
        elif cell.opened:
            run.incarnations = cell.incarnations
            run.task = loop().submit(pool.supervisor.execute_opened(run, content, grace, None, cell.ends))
            run.task.add_done_callback(lambda _: short.release(cell))
        else:
            for rank, end in cell.ends.items():
                run.take_end(rank, end)
            pool.supervisor.turns.note_wrote(run.capture.names.sure.union(run.writes))
            run.task.set_result(None)

    def register(self, runs: Sequence[Run]) -> None:
        """Register runs about to start; raise PoolError if the pool has ended meanwhile."""
        pool = self.pool
        for run in runs:
            pool.supervisor.add(run)
        try:
            pool.require_live()
        except PoolError:
            # The pool may have ended before the runs were added, so that `lose_all` did not find them.
            for run in runs:
                pool.supervisor.discard(run)
            raise
