"""Tab, Shift-Tab and ``name?`` in ``%%sky`` cells, from nodes and notebook.

Nothing here starts a pool, or raises into the notebook.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from IPython.core import page
from IPython.core.completer import CompletionContext, SimpleCompletion

from ..pool.open_pools import pools
from ..session import jedi_completion, remote_completion
from . import auto
from .cell_text import SkyCell, first_line, sky_cell
from .option_table import chosen
from .parsing import ParsedLine, parse

if TYPE_CHECKING:
    from ..pool.pool import Pool

# Matchers of IPython that know names of the notebook, and one that knows files of this machine.
_OWN = ("IPCompleter.jedi_matcher", "IPCompleter.python_matcher")
_FILES = "IPCompleter.file_matcher"
_KEYS = "dict key"
# Seconds for the types of jedi's completions, which it infers one by one.
_TYPES = 0.1
_NAME = re.compile(r"--name[= ]+(\S+)")
_SKY_CELL = re.compile(r"%%sky(?:\s(?P<line>.*))?\Z", re.DOTALL)


class CellInspector:
    """Completion and inspection in one shell's cells; made with the first pool.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    # -- what is asked -----------------------------------------------------------------------------

    def asked(self, text: str, cursor: int) -> tuple[Pool, int, SkyCell] | None:
        """Return the pool and the rank that a cell means, with its code.

        Return None if the cell runs in the notebook, the cursor is not in its code, or there is no pool.
        """
        cell = sky_cell(text)
        if cell is None:
            given = pool_options(self.shell, text)
            if given is None:
                return None
            cell = SkyCell("", text, 0)
        else:
            given = _parsed(cell.line)
        found = _pool_and_rank(given)
        return (*found, cell) if found is not None and cursor >= cell.start else None

    # -- completion --------------------------------------------------------------------------------

    def completions(self, context: CompletionContext) -> dict[str, Any] | None:
        """Return a matcher's result for a ``%%sky`` cell; None if the nodes know nothing."""
        lines = context.full_text.split("\n")[: context.cursor_line]
        cursor = sum(len(line) + 1 for line in lines) + context.cursor_position
        if (asked := self.asked(context.full_text, cursor)) is None:
            return None
        pool, rank, cell = asked
        if not jedi_completion.is_loaded():
            # jedi loads in the background, while the rank is asked and after that.
            jedi_completion.warm(lambda: True)
        found = remote_completion.complete(pool, rank, cell.code, cursor - cell.start)
        if found is None:
            return None
        start = found.start + cell.start
        texts = dict(found.matches)
        token = cursor - len(context.token)
        for text, kind in () if _KEYS in texts.values() else self.own(context):
            # Both replace the text before the cursor, from different places on.
            if token <= start:
                begun = context.full_text[token:start]
                text = text[len(begun) :] if text.startswith(begun) else ""
            else:
                text = context.full_text[start:token] + text
            if text:
                texts.setdefault(text, kind)
        completions = [SimpleCompletion(text=text, type=kind) for text, kind in texts.items()]
        fragment = context.full_text[start:cursor]
        kinds = set(texts.values())
        # For a dictionary, IPython offers only its keys. Files of this machine are not the nodes'.
        suppressed: Any = True if _KEYS in kinds else {*_OWN, _FILES} if "path" in kinds else set(_OWN)
        return {"completions": completions, "ordered": True, "matched_fragment": fragment, "suppress": suppressed}

    def busy_completions(self, text: str, cursor: int) -> remote_completion.Completions | None:
        """Return the nodes' completions, for a page whose kernel is busy.

        The notebook's own names are left out: the thread that runs a cell may change them meanwhile.
        """
        if (asked := self.asked(text, cursor)) is None:
            return None
        pool, rank, cell = asked
        found = remote_completion.complete(pool, rank, cell.code, cursor - cell.start, remote_completion.APART)
        return None if found is None else remote_completion.Completions(found.start + cell.start, found.matches)

    def own(self, context: CompletionContext) -> Iterator[tuple[str, str]]:
        """Yield the notebook's own completions of the token, with their types."""
        end = time.monotonic() + _TYPES
        for name, matcher in self._own_matchers():
            for one in matcher(context)["completions"]:
                if name != _OWN[0]:
                    yield one.text, one.type or "<unknown>"
                    continue
                typed = len(one.name_with_symbols) - len(one.complete or "")
                text = context.token[: len(context.token) - typed] + one.name_with_symbols
                yield text, (one.type if time.monotonic() < end else "<unknown>")

    def _own_matchers(self) -> Iterator[tuple[str, Any]]:
        """Yield IPython's matchers of the notebook's names, by their own names."""
        completer = self.shell.Completer
        for matcher in completer.matchers:
            name = getattr(matcher, "matcher_identifier", None) or getattr(matcher, "__qualname__", "")
            if name == _OWN[0] and not jedi_completion.is_ready():
                # A page waits for a second, and loading jedi may take longer: IPython's own matcher is ready at once.
                name, matcher = _OWN[1], completer.python_matcher
            if name in _OWN and name not in completer.disable_matchers:
                yield name, matcher

    # -- inspection --------------------------------------------------------------------------------

    def inspected(self, text: str, cursor: int, detail: int, patience: float | None = None) -> dict[str, Any] | None:
        """Return what the nodes know of the name at the cursor, as a mimebundle.

        See `remote_completion.inspect`.
        """
        if (asked := self.asked(text, cursor)) is None:
            return None
        pool, rank, cell = asked
        return self.shown(remote_completion.inspect(pool, rank, cell.code, cursor - cell.start, detail, patience))

    def shown(self, bundle: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a mimebundle in the forms that this shell's pager takes."""
        if bundle is not None and not getattr(self.shell, "enable_html_pager", False):
            bundle.pop("text/html", None)
        return bundle

    def answer_question(self, source: str, given: ParsedLine) -> bool:
        """Answer a cell that is ``name?`` or ``name??``; return whether it is one.

        Parameters
        ----------
        source : str
            The cell's code, in plain Python.
        given : ParsedLine
            Its options.

        Returns
        -------
        bool
            False for any other cell, which the ranks run.
        """
        question = _question(source)
        if question is None:
            return False
        magic, name = question
        asked = _pool_and_rank(given)
        bundle = (
            remote_completion.inspect(*asked, name, len(name), int(magic == "pinfo2"), remote_completion.ASKED)
            if asked
            else None
        )
        if bundle is None:
            # The notebook may have the name; if not, IPython says that it is not found.
            self.shell.run_line_magic(magic, name)
        else:
            page.page(self.shown(bundle))
        return True


def pool_options(shell: Any, cell: str) -> ParsedLine | None:
    """Return a cell's options for its pool; None for a cell of the notebook.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell, with the extension loaded.
    cell : str
        The cell's text, finished or not.

    Returns
    -------
    ParsedLine or None
        The options of ``%%sky``, or of ``%sky auto`` if it is on and the cell is plain.

    Raises
    ------
    UsageError
        When the cell's ``%%sky`` line cannot be parsed.
    """
    lines = cell.splitlines(keepends=True)
    at = first_line(lines)
    if at is not None and (match := _SKY_CELL.match(lines[at].rstrip("\n"))):
        return parse(match["line"] or "", cell=True)
    on: auto.Auto | None = shell.sky_magics.auto if hasattr(shell, "sky_magics") else None
    return on.given if on is not None and on.on and auto.goes_to_nodes(lines) else None


def _parsed(line: str) -> ParsedLine:
    """Return a line's options; of an unfinished line, only the pool's name."""
    try:
        return parse(line, cell=True)
    except Exception:
        found = _NAME.search(line)
        return ParsedLine(verb=None, name=found[1] if found else None)


def _pool_and_rank(given: ParsedLine) -> tuple[Pool, int] | None:
    """Return the pool and rank that a cell's options name; None without a live pool."""
    pool = pools.current if given.name is None else pools.get(given.name)
    if pool is None:
        return None
    ranks = chosen(given.on, pool.spec.world_size) or (0,)
    return pool, ranks[0] if ranks[0] in range(pool.spec.world_size) else 0


def _question(source: str) -> tuple[str, str] | None:
    """Return the magic and the name of a cell that is one question, such as ``x?``."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    if len(body) != 1 or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Call):
        return None
    call = body[0].value
    words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if ast.unparse(call.func) != "get_ipython().run_line_magic" or len(words) != 2:
        return None
    return (words[0], words[1]) if words[0] in ("pinfo", "pinfo2") and words[1].strip() else None
