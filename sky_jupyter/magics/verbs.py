"""Verbs of ``%sky``: each calls `session` and prints the result."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display as display_value

from ..capture.project_files import check_paths
from ..display.base import frontends
from ..display.base.prompts import agrees
from ..display.notebook import pool_panel
from ..errors import PoolError, SkyError
from ..pool.lifecycle import status
from ..pool.open_pools import pools
from ..session import cells
from ..session.cells import Cell
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
    start_stopped,
    stop_pool,
)
from . import end_leftovers, leftover_pools, pull, runs_table
from . import names_table as names
from .cell_runs import run_script, shown_ranks
from .option_table import chosen, without_values
from .parsing import ParsedLine
from .pool_choice import pool_for, started, take_limits

if TYPE_CHECKING:
    from ..pool.pool import Pool
    from ..session.debug_target import DebugTarget
    from .auto import Auto


class Verbs:
    """Code of the verbs, for one shell; held by `SkyLines`.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    auto : Auto
        The state of `%sky auto`.
    debug_target : DebugTarget or None
        Target of the page's debugger; None without a page that debugs.
    """

    def __init__(self, shell: Any, auto: Auto, debug_target: DebugTarget | None) -> None:
        self.shell, self.auto, self.debug_target = shell, auto, debug_target
        self.line = ""

    def run(self, line: str, given: ParsedLine) -> None:
        """Execute the verb of a line."""
        self.line = line
        getattr(self, f"do_{given.verb}")(given)

    def do_run(self, given: ParsedLine) -> None:
        run_script(self.shell, given)

    do_torchrun = do_accelerate = do_run

    def do_up(self, given: ParsedLine) -> None:
        if given.dry_run or given.detach:
            spec = given.spec()
            from ..session import job_queue

            print(job_queue.preview(spec) if given.dry_run else job_queue.submit(spec))
            return
        there = pools.current if given.name is None else pools.get(given.name)
        began = time.time()
        pool = pool_for(given)
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
        check_paths(given.include)
        pool = pool_for(replace(given, verb=None))
        shown_ranks(pool, given)
        self.auto.turn_on(given, pool.spec.name, without_values(self.line.strip().removeprefix("auto").strip()))
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
        take_limits(pool, given)
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
        take_limits(pool, given)
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

    def debug_on(self, pool: Pool, rank: int) -> None:
        """Debug the failure of a rank's last cell."""
        cells.debug(pool, rank, self.shell.displayhook.prompt_count, self.shell.user_ns)

    def do_exec(self, given: ParsedLine) -> None:
        pool = pools.need(given.name)
        ranks, _ = shown_ranks(pool, given)
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
                # One node's failure says nothing about the others.
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
            print(end_leftovers.end_left(given.name, pools.gone(given.name)))
            pools.forget(given.name)
            return
        managed = [pool for pool in pools.all() if not pool.is_guest]
        for pool in managed if given.all else [pools.need(given.name)]:
            pool.lifecycle.refuse_guest("ended")
            take_limits(pool, given)
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
        """Become the manager of a pool that this notebook is a guest of, or stay guest."""
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
        ranks = logs.ranks_of(pool, id, given.ranks)
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


def status_of(pool: Pool) -> dict[str, Any]:
    """Return a pool's status with the last five minutes of its metrics."""
    return {**status.of(pool, 0), "about": describe(pool.spec), "current": pool is pools.current}


def _unsure(pool: Pool) -> str:
    """Return the line about machines that did not confirm their end."""
    if not pool.unsure:
        return ""
    names, minutes = ", ".join(pool.unsure), (pool.spec.lease or 0.0) / 60
    return (
        f"; {names} did not answer: what runs there is ended once it does, as long as this machine is on; else "
        f"`%sky clean --host {','.join(pool.unsure)}` ends it, and its lease, {minutes:.0f} min after its last run"
    )
