"""``%%sky``, ``%sky`` and ``%%local``, as loading the extension registers them.

The code behind them is imported when it is first used: every notebook waits for `%load_ext`, but not every notebook
runs a cell on a pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from ..pool.open_pools import pools
from ..session import debug_selector, debug_target
from ..util.garbage import collections_paused
from ..util.text import shortened
from . import auto, cell_questions, debug_magic, early_start
from . import busy_status as busy
from .cell_text import SKY_LINE, with_body

if TYPE_CHECKING:
    from ..pool.pool import Pool
    from ..session.debug_target import NodeCode
    from .sky_lines import SkyLines


def _manual() -> str:
    from .manual_page import MANUAL

    return MANUAL


@magics_class
class SkyMagics(Magics):
    """The magics of a shell; made when the extension is loaded."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.pulse = busy.Pulse(shell)
        self.auto = auto.Auto(shell)
        # Whether the cell that runs, or has just ended, ran on the nodes by `%sky auto`.
        self._ran_auto = False
        self.questions = cell_questions.install(shell)
        self.rank_debug = debug_magic.RankDebug(shell, self.debug_rank)
        self.debug_target = debug_target.install(shell, self.node_code)
        self.debug_selector = debug_selector.install(shell, self.debug_target)
        self._lines: SkyLines | None = None

    @property
    def lines(self) -> SkyLines:
        """The object that runs lines and cells."""
        if self._lines is None:
            with collections_paused():
                # Imported here: it needs most of the package.
                from .sky_lines import SkyLines

            self._lines = SkyLines(self.shell, self.auto, self.questions, self.debug_target)
        return self._lines

    @line_cell_magic
    def sky(self, line: str, cell: str | None = None) -> None:
        """Run a cell on every rank of a pool, or manage pools; see ``%%sky?``."""
        if pools.all() or not early_start.is_local_start(line, is_cell=cell is not None):
            self.lines.sky(line, cell)
            return
        from ..pool.hosts.early_host import early_hosts

        # The host process starts while the rest of the package is imported, and is ended if the line does not use it.
        early_hosts.begin()
        try:
            self.lines.sky(line, cell)
        finally:
            early_hosts.discard()

    # IPython asks for this before it looks at the docstring.
    sky.getdoc = _manual

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run the cell in the notebook, also while `%sky auto` sends cells to a pool."""
        # `%%local` alone on its line is removed before IPython looks for magics.
        raise UsageError(f"%%local takes no options, not {shortened(line, line)!r}")

    def auto_cell(self, code: str) -> None:
        """Run a plain cell, or part of one, on the pool of `%sky auto`.

        Its transformer turns plain cells into calls of this.
        """
        self._ran_auto = True
        self.lines.auto_cell(code)

    def debug_rank(self, pool: Pool, rank: int) -> None:
        """Debug a rank's failure, for ``%debug RANK``."""
        self.lines.debug_rank(pool, rank)

    def node_code(self, text: str) -> NodeCode | None:
        """Return what the nodes run for a cell of the notebook; None if it runs here."""
        return self.lines.node_code(text)

    def after_cell(self, result: Any) -> None:
        """Note the names that a cell of the notebook assigned: its values count now."""
        raw = getattr(result.info, "raw_cell", None) or ""
        ran_auto, self._ran_auto = self._ran_auto, False
        if not pools.all():
            return
        self.rank_debug.install()
        if ran_auto or SKY_LINE.match("".join(with_body(raw.lstrip().splitlines(keepends=True)))):
            return
        # Imported here: without a pool, no names are followed.
        from . import plain_cells

        plain_cells.note(self.shell, result)
