"""``%%sky`` and ``%sky``: read options, call the layers below, nothing else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class
from IPython.display import display as display_value

from ..capture.cell_names import analyse
from ..capture.changed_settings import Settings
from ..capture.module_changes import statements
from ..capture.project_files import check_path
from ..display import views as display
from ..display.base import frontends
from ..display.base.prompts import agrees
from ..display.notebook import pool_panel
from ..errors import PoolError, SkyError, SpecError
from ..pool import frontend_requests, terminal_requests
from ..pool.lifecycle import status
from ..pool.open_pools import pools
from ..pool.registry.pool_record import PoolRecord
from ..pool.runs.result import CellError
from ..session import cells, debug_selector, debug_target, script_runs
from ..session.cells import Cell
from ..session.debug_target import NodeCode
from ..session.pools import (
    attach_pool,
    copy_names,
    describe,
    end_pool,
    get_files,
    join_pool,
    kept_row,
    leave_pool,
    put_files,
    resize_pool,
    restart_pool,
    start_pool,
    start_stopped,
    stop_pool,
)
from ..spec.pool_spec import PoolSpec
from ..util.text import shortened
from . import (
    auto,
    busy_completion,
    cell_completion,
    debug_magic,
    leftover_pools,
    pool_mismatch,
    pull,
    runs_table,
    tracebacks,
)
from . import busy_status as busy
from . import names_table as names
from .cell_text import SKY_LINE
from .manual import MANUAL
from .option_completion import sky_matcher
from .option_table import chosen, without_values
from .parsing import HelpRequested, ParsedLine, check_shown, parse

if TYPE_CHECKING:
    from ..pool.pool import Pool


@magics_class
class SkyMagics(Magics):
    """The magics of a shell; made when the extension is loaded."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.pulse = busy.Pulse(shell)
        self.auto = auto.Auto(shell)
        # Whether the cell that runs, or has just ended, ran on the nodes by `%sky auto`.
        self._ran_auto = False
        self.inspector = cell_completion.install(shell)
        busy_completion.install(shell, self.inspector)
        self.rank_debug = debug_magic.RankDebug(shell, self.debug_rank)
        self.debug_target = debug_target.install(shell, self.node_code)
        self.debug_selector = debug_selector.install(shell, self.debug_target)

    @line_cell_magic
    def sky(self, line: str, cell: str | None = None) -> None:
        with self.auto.aside(), _short_errors(line):
            given = parse(line, cell=cell is not None)
            if cell is None:
                self.line = line
                self.verb(given)
            else:
                self.cell(line, cell, given)

    sky.__doc__ = MANUAL

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run the cell in the notebook, also while `%sky auto` sends cells to a pool."""
        # Alone on its line it is taken away before IPython looks for magics.
        raise UsageError(f"%%local takes no options, not {shortened(line, line)!r}")

    def auto_cell(self, code: str) -> None:
        """Run a plain cell, or a part of it, on the pool of `%sky auto`; its transformer has cells call this."""
        self._ran_auto = True
        with self.auto.aside(), _short_errors(self.auto.line):
            given = self.auto.need()
            try:
                self.on_ranks(code, given)
            except PoolError as error:
                pool = pools.get(str(given.name))
                if type(error) is PoolError and (pool is None or pool.state != "ready"):
                    raise PoolError(f"{error} (`%sky auto off` runs cells in the notebook again)") from None
                raise

    # -- %%sky -------------------------------------------------------------------------------------

    def cell(self, line: str, body: str, given: ParsedLine) -> None:
        """Run the body of ``%%sky``, whose lines are numbered as in the notebook."""
        if not body.strip():
            raise UsageError(
                f"%%sky: the cell is empty; `%sky up {line}`".rstrip(" `") + "` makes a pool for later cells"
            )
        self.on_ranks(_numbered(line, body), given)

    def node_code(self, text: str) -> NodeCode | None:
        """Return what the nodes run for a cell of the notebook; None if it runs here."""
        lines = text.splitlines(keepends=True)
        blank = next((at for at, line in enumerate(lines) if line.strip()), 0)
        # IPython drops empty lines above a cell.
        lines = _with_body(lines[blank:])
        if lines and SKY_LINE.match(lines[0]):
            code = _numbered(lines[0].removeprefix("%%sky").strip(), "".join(lines[1:]))
            return NodeCode(code, blank + (not code.startswith("# %%sky")))
        return NodeCode("".join(lines), blank) if self.auto.on and auto.goes_to_nodes(lines) else None

    def on_ranks(self, code: str, given: ParsedLine) -> None:
        """Run code on a pool as a cell; start the pool if there is none."""
        # The number that the notebook shows; the shell's own counter may be one ahead of it.
        count = self.shell.displayhook.prompt_count
        # Everything that can be wrong with the cell itself is said before a pool is made for it.
        source = tracebacks.to_python(self.shell, code, count)
        for path in given.include:
            check_path(path)
        if self.inspector.answer_question(source, given):
            return
        pool = self.pool_for(given)
        cells.run_cell(pool, cell_of(pool, code, source, count, given), self.shell.user_ns)

    def pool_for(self, given: ParsedLine) -> Pool:
        """Return the pool that the options mean; start it if there is none."""
        live = pools.current if given.name is None else pools.get(given.name)
        if live is None:
            return self.taken_up(given) or self.made(given)
        if given.pool:
            wanted = given.spec(live.spec)
            if live.spec.differences(replace(wanted, image=replace(wanted.image, pip=live.spec.image.pip))):
                raise PoolError(pool_mismatch.other(live.spec, given, live.spec.differences(wanted)))
            if "pip" in given.pool:
                self.add_packages(live, wanted.image.pip)
        _take_limits(live, given)
        pools.use(live)
        return live

    def add_packages(self, pool: Pool, requirements: Sequence[str]) -> None:
        """Install packages on a live pool's nodes, for this pool alone."""
        pool.lifecycle.refuse_guest("given more packages")
        with display.DelayedView("packages", failed="not installed", pool=pool.spec.name) as late:
            installed = pool.packages.add(requirements, late.on_event, late.refresh)
        if installed:
            print(f"installed on the nodes: {', '.join(installed)}")

    def made(self, given: ParsedLine) -> Pool:
        """Start a new pool.

        A cell that says nothing of machines gets none in place of a pool that was elsewhere.
        """
        gone = pools.gone(given.name)
        if gone is not None and given.verb is None and "provider" not in given.pool:
            raise PoolError(gone.refusal("%%sky --provider local", pools.names))
        if given.name is not None and not given.pool and (why := pool_mismatch.name_alone(given)):
            raise PoolError(why)
        spec = given.spec()
        numbers = [one for one in (*(given.on or ()), *(given.only or ())) if isinstance(one, int)]
        top = max(numbers, default=0)
        if top >= spec.world_size:
            ranks = "1 rank, rank 0" if spec.world_size == 1 else f"ranks 0 to {spec.world_size - 1}"
            raise SpecError(f"%%sky: the pool would have {ranks}, not {top}: `%%sky --nodes {top + 1}` makes it larger")
        return started(spec)

    def taken_up(self, given: ParsedLine) -> Pool | None:
        """Attach to the pool that ``--keep`` asks for, if nobody manages it."""
        row = kept_row(given.name or "default") if given.pool.get("keep") else None
        if row is None or row.owner_lives:
            return None
        kept = PoolRecord.read(row).spec
        if differences := kept.differences(given.spec(kept)):
            raise PoolError(pool_mismatch.other(kept, given, differences, attached=False))
        pool = attach_pool(row.id)
        _take_limits(pool, given)
        for id in cells.running(pool):
            cells.detach(pool, id)
            print(f"run {id} continues there; `%sky wait` shows it, `%sky interrupt` stops it")
        return pool

    def on_ranks_apart(self, given: ParsedLine) -> None:
        """Run a script on a pool; start the pool if there is none, with what the launcher's options ask for."""
        assert given.script is not None
        script = given.script.found()
        for path in given.include:
            check_path(path)
        if (pools.current if given.name is None else pools.get(given.name)) is None:
            given = replace(given, pool={**script.pool_options(), **given.pool})
        pool = self.pool_for(replace(given, verb=None))
        count = self.shell.displayhook.prompt_count
        script_runs.run_script(pool, script, cell_of(pool, "", "", count, given), self.shell.user_ns)

    do_run = do_torchrun = do_accelerate = on_ranks_apart

    # -- %sky --------------------------------------------------------------------------------------

    def verb(self, given: ParsedLine) -> None:
        """Execute a verb of ``%sky``."""
        getattr(self, f"do_{given.verb}")(given)

    def do_up(self, given: ParsedLine) -> None:
        if given.dry_run or given.detach:
            spec = given.spec()
            from ..session import job_queue

            print(job_queue.preview(spec) if given.dry_run else job_queue.submit(spec))
            return
        there = pools.current if given.name is None else pools.get(given.name)
        began = time.time()
        pool = self.pool_for(given)
        ended = time.time()
        pool.packages.sync |= given.sync
        if pool is there:
            print(f"pool {pool.spec.name}: {describe(pool.spec)}, live")
        if given.timings:
            from . import start_timings

            whole = None if pool is there else (began, ended)
            print(start_timings.table(pool.phases.timings(), whole))

    def do_auto(self, given: ParsedLine) -> None:
        if given.target == "off":
            self.auto.turn_off()
            print("auto off: cells run in the notebook")
            return
        for path in given.include:
            check_path(path)
        pool = self.pool_for(replace(given, verb=None))
        _shown_ranks(pool, given)
        self.auto.turn_on(given, pool.spec.name, self.line.strip().removeprefix("auto").strip())
        print(f"auto on: cells run on pool {pool.spec.name} until `%sky auto off`; `%%local` runs one in the notebook")

    def do_status(self, given: ParsedLine) -> None:
        if given.name is not None and pools.get(given.name) is None and (row := kept_row(given.name)):
            print(leftover_pools.kept(row))
            return
        chosen = pools.all() if given.name is None else [pools.need(given.name)]
        kept = leftover_pools.nobodys() if given.name is None else []
        if chosen or not kept:
            pool_panel.show([status_of(pool) for pool in chosen])
        for line in kept:
            print(line)
        if given.name is None and (gone := pools.gone()) is not None:
            print(gone.refusal("%sky up --provider local", pools.names))
        if self.auto.on and self.auto.given:
            print(f"auto on: cells run on pool {self.auto.given.name} until `%sky auto off`")

    def do_restart(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        pool.lifecycle.refuse_guest("restarted")
        cells.gather(pool, self.shell.user_ns, over=True)
        spec = given.spec(pool.spec)
        if pool.spec.differences(spec):
            end_pool(pool, print)
            started(spec)
            return
        _take_limits(pool, given)
        restart_pool(pool)
        _, lost = cells.take_restarts(pool, self.shell.user_ns)
        if lost:
            print(lost)

    def do_resize(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        pool.lifecycle.refuse_guest("resized")
        nodes = None if given.target is None else int(given.target)
        if pool.planned(nodes, given.add, given.remove).is_of(pool.spec):
            print(f"pool {pool.spec.name}: {describe(pool.spec)}, as it was")
            return
        cells.gather(pool, self.shell.user_ns, over=True)
        _take_limits(pool, given)
        if given.yes:
            pool.change_spec(replace(pool.spec, options=replace(pool.spec.options, crowded=True)))
        if not given.yes and not self.may_lose(pool):
            print(f"pool {pool.spec.name} stays as it was")
            return
        resize_pool(pool, nodes, add=given.add, remove=given.remove)
        _, lost = cells.take_restarts(pool, self.shell.user_ns)
        for line in filter(None, [lost, _unsure(pool).lstrip("; ")]):
            print(line)

    def may_lose(self, pool: Pool) -> bool:
        """Tell whether names that only the ranks have may be lost; ask if there are any.

        Parameters
        ----------
        pool : Pool
            The pool that is to be restarted, resized or ended.

        Returns
        -------
        bool
            Whether the verb may go on.

        Raises
        ------
        PoolError
            When nobody can be asked.
        """
        on = [run.id for run in list(pool.supervisor.runs.values()) if run.left]
        own, here = cells.only_there(pool) - pool.ledger.imported, self.shell.user_ns.keys()
        what = [f"run {', '.join(on)} ends"] if on else []
        what += [cells.listing("these names are lost, as only the nodes have them", own - here)]
        what += [cells.listing("these go back to what the notebook has", own & here)]
        what = list(filter(None, what))
        if not what:
            return True
        text = f"All ranks of pool {pool.spec.name} get new kernels: {'; '.join(what)}."
        agreed = agrees(f"{text} Go on?")
        if agreed is None:
            raise PoolError(f"{text} This front end cannot ask for confirmation: give --yes")
        return agreed

    def do_interrupt(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        if pool.stop_resizing():
            print(f"pool {pool.spec.name}: the change of its nodes is cancelled; the pool stays as it was")
            return
        busy = pool.current is not None and bool(pool.current.left)
        pool.interrupt()
        idle = "this notebook runs nothing there" if pool.is_guest else "nothing runs"
        print(f"pool {pool.spec.name}: {'every rank that works is interrupted' if busy else idle}")

    def do_where(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        print("\n".join([str(pool.where()), *pool.watchdog.troubles.values()]))

    def do_debug(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        (rank,) = pool.check_ranks([int(given.target or 0)])
        self.debug_on(pool, rank)

    def debug_rank(self, pool: Pool, rank: int) -> None:
        """Debug a rank's failure, for ``%debug RANK``."""
        with self.auto.aside(), _short_errors(""):
            self.debug_on(pool, rank)

    def debug_on(self, pool: Pool, rank: int) -> None:
        """Debug the failure of a rank's last cell."""
        cells.debug(pool, rank, self.shell.displayhook.prompt_count, self.shell.user_ns)

    def do_exec(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        ranks, _ = _shown_ranks(pool, given)
        if not given.per_rank:
            ranks = pool.first_ranks(ranks)
        code = cells.command_code(str(given.target))
        count = self.shell.displayhook.prompt_count
        cells.run_cell(
            pool,
            Cell(
                code,
                code,
                count,
                ranks,
                ranks,
                # One node's failure says nothing of the others.
                grace=cells.FOR_EVER,
                timeout=given.timeout,
                quiet=given.quiet,
                detach=given.detach,
            ),
            self.shell.user_ns,
        )

    def do_debugger(self, given: ParsedLine) -> None:
        target = self.debug_target
        if target is None:
            raise UsageError(
                "%sky debugger: only a page has a debugger, such as JupyterLab's, and none is connected here"
            )
        if given.target == "off":
            target.leave()
        elif given.target is not None:
            pool = pools.need(given.name)
            (rank,) = pool.check_ranks([int(given.target)])
            target.choose(pool, rank)
        debugged = "the notebook's own kernel"
        if target.pool is not None:
            debugged = f"rank {target.rank} of pool {target.pool.spec.name}, until `%sky debugger off`"
        print(f"the page's debugger debugs {debugged}")

    def do_down(self, given: ParsedLine) -> None:
        if pools.get(given.name) is None if given.name is not None else not pools.all():
            print(leftover_pools.end_left(given.name, pools.gone(given.name)))
            pools.forget(given.name)
            return
        managed = [pool for pool in pools.all() if not pool.is_guest]
        for pool in managed if given.all else [pools.need(given.name)]:
            pool.lifecycle.refuse_guest("ended")
            _take_limits(pool, given)
            end_pool(pool, print)
            print(f"pool {pool.spec.name}: ended{_unsure(pool)}")

    def do_attach(self, given: ParsedLine) -> None:
        pool = pools.get(given.name) if given.name is not None else None
        if pool is None or pool.state == "taken" or pool.is_guest:
            if pool is not None and pool.is_guest:
                pool = self._manage(pool, take_over=given.take_over)
            else:
                if pool is not None:
                    pools.discard(pool)
                pool = attach_pool(given.name, take_over=given.take_over)
        pools.use(pool)
        running = cells.running(pool)
        for id in running:
            cells.follow(pool, id, self.shell.user_ns)
        if not running:
            print("nothing runs on it; `%sky runs` lists what ran, and `%sky wait RUN` brings a result back")

    def _manage(self, guest: Pool, *, take_over: bool) -> Pool:
        """Become the manager of a pool whose guest this notebook is; if that is refused, stay its guest."""
        name = guest.spec.name
        if on := [id for id, detached in guest.detached.items() if not detached.run.over.is_set()]:
            raise PoolError(
                f"run {on[0]} of this notebook, a guest of pool {name!r}, goes on; it would be ended with that. "
                f"`%sky wait {on[0]}` waits for it; then attach"
            )
        cells.gather(guest, self.shell.user_ns)
        leave_pool(guest)
        try:
            return attach_pool(guest.id, take_over=take_over)
        except BaseException:
            with contextlib.suppress(SkyError, OSError):
                join_pool(guest.id)
            raise

    def do_join(self, given: ParsedLine) -> None:
        if given.name is None:
            raise UsageError("%sky join: which pool? `%sky join NAME`; the side panel and `%sky status` list them")
        pool = pools.get(given.name)
        if pool is None or not pool.is_guest:
            pool = join_pool(given.name)
        pools.use(pool)

    def do_leave(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        cells.gather(pool, self.shell.user_ns)
        leave_pool(pool)
        print(f"pool {pool.spec.name}: left; it keeps running in the notebook that manages it")

    def do_wait(self, given: ParsedLine) -> None:
        pool, id = runs_table.find(given)
        cells.watch(pool, id, self.shell.user_ns)

    def do_logs(self, given: ParsedLine) -> None:
        from . import logs

        if given.pods is not None:
            pool = pools.need(given.name)
            print(logs.of_machines(pool, given.pods, previous=given.previous, last=given.last, to=given.to))
            return
        pool, id = runs_table.find(given)
        ranks = [rank for rank in pool.homes(id) if given.ranks is None or rank in given.ranks]
        print(logs.write(pool, id, ranks, given.to) if given.to else logs.text(pool, id, ranks, given.last))

    def do_trace(self, given: ParsedLine) -> None:
        from . import trace

        run, file = trace.targets(given.target, given.to)
        if run is None:
            print(trace.write(pools.need(given.name), None, file))
        else:
            print(trace.write(*runs_table.find(replace(given, target=run)), file))

    def do_freeze(self, given: ParsedLine) -> None:
        print(pools.need(given.name).packages.frozen())

    def do_put(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        put_files(pool, str(given.target), given.to, chosen(given.on, pool.spec.nodes))

    def do_get(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        get_files(pool, str(given.target), given.to, chosen(given.on, pool.spec.nodes))

    def do_pull(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        cells.gather(pool, self.shell.user_ns)
        cells.settle(pool)
        print(pull.pull(given, pool, self.shell.user_ns))

    def do_copy(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        cells.gather(pool, self.shell.user_ns)
        cells.settle(pool)
        for news in filter(None, cells.take_restarts(pool, self.shell.user_ns)):
            print(news)
        names = tuple(word.strip() for word in (given.target or "").split(",") if word.strip())
        print(copy_names(pool, names, given.source, given.ranks, self.shell.user_ns))

    def do_runs(self, given: ParsedLine) -> None:
        print(runs_table.table(given.name))

    def do_cost(self, given: ParsedLine) -> None:
        from . import cost_table

        print(cost_table.table(given.name))

    def do_offers(self, given: ParsedLine) -> None:
        from ..providers import offer_list

        found = offer_list.listed(given.spec())
        if frontends.in_notebook():
            display_value(found)
        else:
            print(found)

    def do_names(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        for news in filter(None, cells.take_restarts(pool, self.shell.user_ns)):
            print(news)
        there = pool.names()
        table = names.table(there.rows(pool.ledger.facts(self.shell.user_ns)), pool.modules)
        from ..pool.transfer import send_values

        print("\n".join(filter(None, [table, *there.notes(), names.kept_line(send_values.kept(pool))])))

    def do_clean(self, given: ParsedLine) -> None:
        from . import clean

        provider = given.pool.get("provider")
        print("\n".join([*clean.machines(), clean.here()] if provider is None else clean.hosts(provider)))

    def do_stop(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        cells.gather(pool, self.shell.user_ns, over=True)
        print(stop_pool(pool, print))

    def do_start(self, given: ParsedLine) -> None:
        pools.use(start_stopped(given.name))

    def do_sweep(self, given: ParsedLine) -> None:
        from . import sweep

        for line in sweep.lines(given.target, given.pool.get("provider"), all_regions=given.all_regions):
            print(line)

    # -- the notebook's own cells ------------------------------------------------------------------

    def after_cell(self, result: Any) -> None:
        """Note what a cell of the notebook assigned; it counts from now on."""
        raw = getattr(result.info, "raw_cell", None) or ""
        ran_auto, self._ran_auto = self._ran_auto, False
        if pools.all():
            self.rank_debug.install()
        if ran_auto or not pools.all() or SKY_LINE.match("".join(_with_body(raw.lstrip().splitlines(keepends=True)))):
            return
        try:
            source = self.shell.transform_cell(raw)
            cell, done = analyse(source), statements(source, self.shell.user_ns)
        except SyntaxError:
            return
        self.tell_where(result.error_in_exec)
        for pool in pools.all():
            pool.calls.note_writes(self.shell.user_ns)
            pool.ledger.notebook_ran(cell, self.shell.user_ns, finished=result.success)
            pool.settings.notebook_did(done)

    def tell_where(self, error: BaseException | None) -> None:
        """Say where a name is that a plain cell lacks and the nodes have."""
        name = getattr(error, "name", None) if isinstance(error, NameError) else None
        for pool in pools.all() if name else ():
            if name in cells.only_there(pool):
                of = "" if pool is pools.current else f" --name {pool.spec.name}"
                print(f"{name} is on the nodes: `%sky pull {name}{of}`", file=sys.stderr)
                return


@contextlib.contextmanager
def _short_errors(line: str) -> Iterator[None]:
    """Print help, and show errors of ours without our frames, inside the context."""
    try:
        yield
    except HelpRequested as help:
        print(help)
    except SpecError as error:
        raise UsageError(shortened(str(error), line)) from None
    except CellError:
        raise
    except (SkyError, KeyboardInterrupt) as error:
        tracebacks.short(error)
        raise


def started(spec: PoolSpec) -> Pool:
    """Start a pool.

    If machines elsewhere are not available, later cells do not run on this machine instead.
    """
    try:
        return start_pool(spec)
    except BaseException as error:
        pools.fail(spec, error)
        raise


def status_of(pool: Pool) -> dict[str, Any]:
    """Return a pool's status with the last five minutes of its metrics."""
    return {**status.of(pool, 0), "about": describe(pool.spec), "current": pool is pools.current}


def _shown_ranks(pool: Pool, given: ParsedLine) -> tuple[list[int], list[int]]:
    """Return the ranks that run a cell, and those whose output is shown."""
    size = pool.spec.world_size
    ranks = pool.check_ranks(chosen(given.on, size))
    shown = pool.check_ranks(chosen(given.only, size)) if given.only is not None else ranks
    check_shown(shown, ranks)
    return ranks, shown


def cell_of(pool: Pool, code: str, source: str, count: int, given: ParsedLine) -> Cell:
    """Return a cell with the options of its line.

    Parameters
    ----------
    pool : Pool
        The pool.
    code : str
        Its text, before IPython transforms it.
    source : str
        Its text afterwards.
    count : int
        Its number.
    given : ParsedLine
        The line.

    Returns
    -------
    Cell
        The cell.
    """
    ranks, shown = _shown_ranks(pool, given)
    return Cell(
        code,
        source,
        count,
        ranks,
        shown,
        include=given.include,
        exclude="all" if "all" in given.no_capture else frozenset(given.no_capture),
        push=given.push,
        shard=given.shard,
        grace=given.grace,
        timeout=given.timeout,
        sync=given.sync,
        quiet=given.quiet,
        saved=given.saved,
        detach=given.detach,
        out=given.out,
    )


def _take_limits(pool: Pool, given: ParsedLine) -> None:
    """Pass a line's exit timeout and budget on to a live pool."""
    if pool.is_guest and given.pool.get("exit_timeout") is not None:
        pool.lifecycle.refuse_guest("given another exit timeout")
    pool.exit_timeout = given.pool.get("exit_timeout", pool.exit_timeout)
    most = given.pool.get("max_cost")
    if most is not None and most != pool.spec.max_cost:
        pool.raise_budget(most)


def _unsure(pool: Pool) -> str:
    """Return the line on machines that did not confirm their end."""
    if not pool.unsure:
        return ""
    names, minutes = ", ".join(pool.unsure), (pool.spec.lease or 0.0) / 60
    return (
        f"; {names} did not answer: what runs there is ended once it does, as long as this machine is on; else "
        f"`%sky clean --host {','.join(pool.unsure)}` ends it, and its lease, {minutes:.0f} min after its last run"
    )


def _numbered(line: str, body: str) -> str:
    """Return the code with lines numbered as in the notebook: ``%%sky`` is line 1.

    A cell magic below ours must stay in the first line to be one, and counts its own lines anyway. The text is kept
    with the run, here and on the nodes.
    """
    return body if body.lstrip().startswith("%%") else f"# %%sky {without_values(line)}\n{body}"


def _with_body(lines: list[str]) -> list[str]:
    """Turn a cell with ``%%sky`` into what IPython takes for one.

    Alone it gets an empty body, which IPython wants even for ``--help``. Comments above it come below it; the lines
    after it keep their numbers.
    """
    at = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    if not SKY_LINE.match("".join(lines[at : at + 1])):
        return lines
    first = lines[at].rstrip("\n") + "\n"
    return [first, *lines[:at], *lines[at + 1 :]] if len(lines) > 1 else [first, "\n"]


# IPython leaves such transformers out where it asks whether a cell is finished: a terminal waits for its lines.
_with_body.has_side_effects = True  # type: ignore[attr-defined]


def load(shell: Any) -> None:
    """Register the magics, their completion, and the hooks on the notebook's cells."""
    magics = SkyMagics(shell)
    shell.register_magics(magics)
    Settings.from_the_start = True
    shell.events.register("post_run_cell", magics.after_cell)
    shell.events.register("post_run_cell", magics.pulse.after_cell)
    shell.sky_magics = magics
    tracebacks.install(shell)
    frontend_requests.install(shell)
    terminal_requests.install(shell)
    busy.install(shell)
    auto.install(shell, magics.auto)
    shell.input_transformers_cleanup.append(_with_body)
    completer = getattr(shell, "Completer", None)
    if completer is not None and sky_matcher not in completer.custom_matchers:
        completer.custom_matchers.append(sky_matcher)
    for line in leftover_pools.news():
        print(line)


def unload(shell: Any) -> None:
    """Undo `load`, and end the pools that are not kept."""
    magics = getattr(shell, "sky_magics", None)
    if magics is None:
        return
    pools.end_all()
    Settings.from_the_start = False
    shell.events.unregister("post_run_cell", magics.after_cell)
    shell.events.unregister("post_run_cell", magics.pulse.after_cell)
    magics.pulse.stop()
    busy_completion.remove(shell)
    cell_completion.remove(magics.inspector)
    magics.rank_debug.remove()
    tracebacks.remove(shell)
    frontend_requests.remove(shell)
    terminal_requests.remove(shell)
    debug_selector.remove(shell, magics.debug_selector)
    debug_target.remove(shell, magics.debug_target)
    busy.remove(shell)
    auto.remove(shell, magics.auto)
    if _with_body in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(_with_body)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("sky", None)
    shell.magics_manager.magics["cell"].pop("local", None)
    completer = getattr(shell, "Completer", None)
    if completer is not None and sky_matcher in completer.custom_matchers:
        completer.custom_matchers.remove(sky_matcher)
    del shell.sky_magics
