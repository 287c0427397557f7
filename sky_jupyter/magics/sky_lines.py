"""Lines of ``%sky`` and ``%%sky``, and cells of `%sky auto`; loads at the first."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ..errors import PoolError, SkyError, SpecError
from ..pool.open_pools import pools
from ..pool.runs.result import CellError
from ..session.debug_target import NodeCode
from ..util.text import shortened
from . import auto, tracebacks
from .cell_runs import numbered, run_code
from .cell_text import SKY_LINE, with_body
from .parsing import HelpRequested, ParsedLine, parse

if TYPE_CHECKING:
    from ..pool.pool import Pool
    from ..session.debug_target import DebugTarget
    from .cell_questions import CellQuestions
    from .verbs import Verbs


class SkyLines:
    """Lines and cells of one shell; made and held by the magics.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    state : Auto
        The state of `%sky auto`.
    questions : CellQuestions
        Completion and inspection of cells.
    debug_target : DebugTarget or None
        Target of the page's debugger; None without a page that debugs.
    """

    def __init__(
        self, shell: Any, state: auto.Auto, questions: CellQuestions, debug_target: DebugTarget | None
    ) -> None:
        self.shell, self.auto, self._questions = shell, state, questions
        self._debug_target = debug_target

    @functools.cached_property
    def verbs(self) -> Verbs:
        """The code of the verbs."""
        # Imported here: a cell does not need it.
        from .verbs import Verbs

        return Verbs(self.shell, self.auto, self._debug_target)

    def sky(self, line: str, cell: str | None) -> None:
        """Execute ``%sky`` or, with a cell, ``%%sky``."""
        with self.auto.aside(), _short_errors(line):
            given = parse(line, cell=cell is not None)
            if cell is None:
                self.verbs.run(line, given)
            else:
                self._cell(line, cell, given)

    def auto_cell(self, code: str) -> None:
        """Run a plain cell, or a part of it, on the pool of `%sky auto`."""
        with self.auto.aside(), _short_errors(self.auto.line):
            given = self.auto.need()
            try:
                self._on_ranks(code, given)
            except PoolError as error:
                pool = pools.get(str(given.name))
                if type(error) is PoolError and (pool is None or pool.state != "ready"):
                    raise PoolError(f"{error} (`%sky auto off` runs cells in the notebook again)") from None
                raise

    def debug_rank(self, pool: Pool, rank: int) -> None:
        """Debug a rank's failure, for ``%debug RANK``."""
        with self.auto.aside(), _short_errors(""):
            self.verbs.debug_on(pool, rank)

    def _cell(self, line: str, body: str, given: ParsedLine) -> None:
        """Run the body of ``%%sky``, whose lines are numbered as in the notebook."""
        if not body.strip():
            raise UsageError(
                f"%%sky: the cell is empty; `%sky up {line}`".rstrip(" `") + "` makes a pool for later cells"
            )
        self._on_ranks(numbered(line, body), given)

    def _on_ranks(self, code: str, given: ParsedLine) -> None:
        run_code(self.shell, self._questions.inspector, code, given)

    def node_code(self, text: str) -> NodeCode | None:
        """Return what the nodes run for a cell of the notebook; None if it runs here."""
        lines = text.splitlines(keepends=True)
        blank = next((at for at, line in enumerate(lines) if line.strip()), 0)
        # IPython drops empty lines above a cell.
        lines = with_body(lines[blank:])
        if lines and SKY_LINE.match(lines[0]):
            code = numbered(lines[0].removeprefix("%%sky").strip(), "".join(lines[1:]))
            return NodeCode(code, blank + (not code.startswith("# %%sky")))
        return NodeCode("".join(lines), blank) if self.auto.on and auto.goes_to_nodes(lines) else None


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
