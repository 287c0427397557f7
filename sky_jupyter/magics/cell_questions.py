"""Hooks of Tab, Shift-Tab and ``name?``; `cell_completion` loads with a pool.

Without a pool there is nothing to answer about its cells, so nothing is imported for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, context_matcher

from ..pool.base.event_loop import loop
from ..pool.open_pools import pools
from ..session import jedi_completion
from ..util import jedi_cache

if TYPE_CHECKING:
    from .cell_completion import CellInspector

# Seconds for which the notebook must be idle before jedi is loaded, so that cells that run one after another are not
# slowed down.
_IDLE = 0.5


class CellQuestions:
    """Hooks of one shell; `install` makes them, `remove` takes them away.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.active = True

        @context_matcher(identifier="sky_cell_matcher")
        def match(context: CompletionContext) -> dict[str, Any]:
            # From here on IPython loads jedi itself, in this thread.
            self._was_asked = True
            jedi_cache.protect()
            found: dict[str, Any] | None = None
            # IPython would show an error as a traceback below the cell.
            with contextlib.suppress(Exception, KeyboardInterrupt):
                found = self.inspector.completions(context) if pools.all() else None
            if not (found and found["completions"] and self.shell.Completer.suppress_competing_matchers is None):
                # IPython asks jedi next.
                with contextlib.suppress(KeyboardInterrupt):
                    jedi_completion.settle()
            return found or {"completions": []}

        self.matcher = match
        self.kernel: Any = getattr(shell, "kernel", None)
        self.before: Any = getattr(self.kernel, "do_inspect", None)
        self._inspector: CellInspector | None = None
        self._warming: Future[None] | None = None
        self._was_asked = False

    @property
    def inspector(self) -> CellInspector:
        """The object that answers."""
        if self._inspector is None:
            # Imported here: it needs the options of lines, which take longer to import than all that loading the
            # extension needs.
            from .cell_completion import CellInspector

            self._inspector = CellInspector(self.shell)
        return self._inspector

    # -- the first answer --------------------------------------------------------------------------

    def after_cell(self, result: Any = None) -> None:
        """Load jedi before anybody asks, once there is a pool and no cell runs."""
        if self._was_asked or not pools.all():
            return
        if self._warming is None or self._warming.cancelled():
            self._warming = loop().submit(self._warm_when_idle())

    def before_cell(self, info: Any = None) -> None:
        """Leave the processor to the cell that begins."""
        if self._warming is not None:
            self._warming.cancel()

    async def _warm_when_idle(self) -> None:
        await asyncio.sleep(_IDLE)
        jedi_completion.warm(lambda: not self._was_asked)

    # -- inspection --------------------------------------------------------------------------------

    def do_inspect(self, code: str, cursor_pos: int, detail_level: int = 0, *more: Any, **options: Any) -> Any:
        """Answer a page's Shift-Tab; the kernel's own method answers for other cells."""
        bundle = None
        # An interrupt is meant for this question only.
        with contextlib.suppress(Exception, KeyboardInterrupt):
            if self.active and pools.all():
                bundle = self.inspector.inspected(code, cursor_pos, detail_level)
        if bundle is None:
            return self.before(code, cursor_pos, detail_level, *more, **options)
        return {"status": "ok", "found": True, "data": bundle, "metadata": {}}


def install(shell: Any) -> CellQuestions:
    """Answer from now on, in a terminal or a kernel."""
    questions = CellQuestions(shell)
    completer = getattr(shell, "Completer", None)
    if completer is not None:
        completer.custom_matchers.append(questions.matcher)
    if callable(questions.before):
        questions.kernel.do_inspect = questions.do_inspect
    shell.events.register("pre_run_cell", questions.before_cell)
    shell.events.register("post_run_cell", questions.after_cell)
    return questions


def remove(questions: CellQuestions) -> None:
    """Undo `install`; a hook that another extension set later stays."""
    questions.active = False
    questions.before_cell()
    for event, callback in (("pre_run_cell", questions.before_cell), ("post_run_cell", questions.after_cell)):
        if callback in questions.shell.events.callbacks[event]:
            questions.shell.events.unregister(event, callback)
    completer = getattr(questions.shell, "Completer", None)
    if completer is not None and questions.matcher in completer.custom_matchers:
        completer.custom_matchers.remove(questions.matcher)
    if questions.kernel is not None and vars(questions.kernel).get("do_inspect") == questions.do_inspect:
        del questions.kernel.do_inspect
