"""``%sky auto``: run plain cells on a pool until it is turned off.

A transformer of IPython's input replaces a plain cell by a call that runs it on the pool. Only the kernel has the
state: nothing is written to the notebook, and in a new kernel auto is off. Pages show and change it by a request on the
control channel (docs/actions.md).
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.inputtransformer2 import make_tokens_by_line

from ..errors import PoolError
from ..pool.open_pools import pools
from ..util import control_channel
from .cell_text import first_line

if TYPE_CHECKING:
    from .parsing import ParsedLine

REQUEST = "sky_auto_request"
CHANGED = "sky_auto"
# Cell magics that measure code: they do it where the code runs.
_ON_NODES = ("time", "timeit", "prun")
# For such a cell magic, IPython runs the code as a cell of its own, which is treated like any other.
_AROUND = ("capture",)
_MAGIC = re.compile(r"%%(\S*)")
_BRACKETS = re.compile(r"[()\[\]{}]")
_LOCAL = re.compile(r"%%local\s*\Z")
_STAYS = re.compile(r"\?{0,2}%sky\b|%(?:re|un)?load_ext\s+sky_jupyter\b|%debug\s+(?:rank\s+)?\d+\s*$")
# Without the extension, nothing sends the lines below to a pool; when it is loaded again, auto is off.
_ENDS = re.compile(r"%(?:re|un)load_ext\s+sky_jupyter\b")
_EXIT = re.compile(r"(?:exit|quit)(?:\s*\(\s*\))?\s*\Z")


class Auto:
    """State of `%sky auto`: whether plain cells run on a pool, on which, and how.

    The magics hold it.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.on = False
        # The options of the last `%sky auto`: parsed, and as text.
        self.given: ParsedLine | None = None
        self.line = ""
        self._aside = 0
        # The cells that IPython runs, the outermost first, and the request that they belong to.
        self._running: list[Any] = []
        self._request: Any = None
        self._told: dict[str, Any] = {}

    def turn_on(self, given: ParsedLine, pool: str, line: str = "") -> None:
        """Run plain cells on this pool, from the next cell on.

        Pages show ``line``, which has no secrets.
        """
        # The pool exists: later cells only name it, and ask for no other nodes or packages.
        self.given = replace(given, verb=None, pool={}, name=pool, target=None)
        self.line = line
        self.on = True
        self.tell()

    def turn_off(self) -> None:
        """Run plain cells in the notebook from the next one on."""
        self.on = False
        self.tell()

    def need(self) -> ParsedLine:
        """Return a plain cell's options; raise PoolError if its pool has ended."""
        if self.given is None:
            raise PoolError("`%sky auto` is off; `%sky auto --nodes 2` has each cell run on a pool of two nodes")
        name = str(self.given.name)
        if pools.get(name) is None:
            raise PoolError(
                f"pool {name!r} has ended, and `%sky auto` sends each cell to it: `%sky auto off` runs cells in the "
                f"notebook again, `%%local` this one, and `%sky up --name {shlex.quote(name)}`, with the options that "
                "it had, recreates the pool"
            )
        return self.given

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave cells unchanged inside the block: they are being run already."""
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1

    # -- which cells ------------------------------------------------------------------------------

    def transform(self, lines: list[str]) -> list[str]:
        """Turn a plain cell into a call that runs it on the pool; for IPython."""
        at = first_line(lines)
        if at is None or self._aside:
            return lines
        if _LOCAL.match(lines[at]):
            rest = lines[at + 1 :]
            below = first_line(rest)
            if below is not None and rest[below].startswith("%%"):
                # A cell magic must be in the first line.
                return rest[below:]
            return [*_noted(lines[: at + 1]), *rest]
        return _calls(lines) if self.on and self._is_plain(lines) else lines

    # IPython leaves out transformers with this mark when it checks whether a cell is finished.
    transform.has_side_effects = True  # type: ignore[attr-defined]

    def _is_plain(self, lines: list[str]) -> bool:
        """Tell whether a cell, or some of its lines, goes to the pool.

        Only cells that the user runs do.
        """
        self._forget_earlier()
        if self._running and not _is_around(self._running[0].raw_cell):
            return False
        message = self._message()
        if message and message.get("header", {}).get("msg_type", "execute_request") != "execute_request":
            # Such as a widget's callback.
            return False
        content = message.get("content", {})
        return not content.get("silent") and bool(content.get("store_history", True)) and goes_to_nodes(lines)

    def _forget_earlier(self) -> None:
        """Forget the cells of an earlier request: they are over, reported or not."""
        request = self._message().get("header", {}).get("msg_id")
        if request != self._request:
            self._running, self._request = [], request

    def _message(self) -> dict[str, Any]:
        """Return the message that the kernel works on; empty in a terminal."""
        kernel: Any = getattr(self._shell, "kernel", None)
        return (kernel.get_parent("shell") or {}) if hasattr(kernel, "get_parent") else {}

    def before_cell(self, info: Any) -> None:
        """Note that IPython begins a cell."""
        self._forget_earlier()
        self._running.append(info)

    def after_cell(self, result: Any) -> None:
        """Note that IPython has ended a cell, and tell pages what has changed."""
        at = next((at for at, info in enumerate(self._running) if result and info is result.info), 0)
        del self._running[at:]
        self.tell()

    # -- pages ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state that pages show."""
        live = pools.current
        name = str(self.given.name) if self.on and self.given else live.spec.name if live else None
        return {
            "on": self.on,
            "pool": name,
            "live": pools.get(name) is not None if name else False,
            "options": self.line,
        }

    def tell(self) -> None:
        """Tell pages the state if it has changed; thread-safe."""
        kernel, state = getattr(self._shell, "kernel", None), self.state()
        if kernel is not None and state != self._told:
            self._told = state
            kernel.session.send(kernel.iopub_socket, CHANGED, state, parent={}, ident=CHANGED.encode())

    def answer(self, content: dict[str, Any], request: dict[str, Any]) -> control_channel.Reply:
        """Answer a page with the state, after turning auto on or off if it asks so."""
        wanted = content.get("on")
        if wanted is not None and not isinstance(wanted, bool):
            return control_channel.refusal(f"'on' is true or false, not {wanted!r:.64}")
        if wanted and not self.on:
            live = pools.current
            if live is None:
                return control_channel.refusal("there is no pool; `%sky auto --nodes 2` makes one, and turns it on")
            known = self.given is not None and self.given.name == live.spec.name
            # Imported here: most notebooks never turn it on, and loading the extension does not wait for the options.
            from .parsing import parse

            given = self.given if known and self.given else parse("", cell=True)
            self.turn_on(given, live.spec.name, self.line if known else "")
        elif wanted is False:
            self.turn_off()
        return {"status": "ok", **self.state()}, ()


def goes_to_nodes(lines: list[str]) -> bool:
    """Tell whether ``%sky auto`` sends a cell, or some of its lines, to the pool."""
    at = first_line(lines)
    if at is None or _EXIT.match("".join(lines[at:])):
        return False
    if magic := _MAGIC.match(lines[at]):
        return magic[1] in _ON_NODES
    return any(on_nodes for on_nodes, _, _ in _parts(lines))


def _is_around(cell: str) -> bool:
    lines = cell.splitlines(keepends=True)
    at = first_line(lines)
    magic = _MAGIC.match(lines[at]) if at is not None else None
    return magic is not None and magic[1] in _AROUND


def _calls(lines: list[str]) -> list[str]:
    """Return the cell with its parts for the nodes as calls of the magics."""
    if lines[first_line(lines) or 0].startswith("%%"):
        return [_call("".join(lines))]
    cell: list[str] = []
    for on_nodes, start, part in _parts(lines):
        # The nodes count lines as the notebook does.
        cell += [_call("".join([*_noted(lines[:start]), *part]))] if on_nodes else part
    return cell


def _call(code: str) -> str:
    return f"get_ipython().sky_magics.auto_cell({code!r})\n"


def _noted(lines: list[str]) -> list[str]:
    return [f"# {line}" for line in lines]


def _parts(lines: list[str]) -> list[tuple[bool, int, list[str]]]:
    """Split a cell at the lines that stay in the notebook.

    Each part has whether it goes to the nodes, its first line's number, and its lines.
    """
    here: set[int] = set()
    # IPython treats such a line by itself, whatever brackets are in it.
    plain = [_BRACKETS.sub(" ", line) if line.startswith(("%", "!")) else line for line in lines]
    for tokens in make_tokens_by_line(plain):
        words = [token for token in tokens if token.string.strip() and not token.string.startswith("#")]
        if words and words[0].start[1] == 0 and _STAYS.match(lines[words[0].start[0] - 1]):
            first = words[0].start[0] - 1
            here.update(range(first, len(lines) if _ENDS.match(lines[first]) else words[-1].end[0]))
    parts: list[tuple[bool, int, list[str]]] = []
    for number, line in enumerate(lines):
        if parts and parts[-1][0] == (number not in here):
            parts[-1][2].append(line)
        else:
            parts.append((number not in here, number, [line]))
    return [(on_nodes and first_line(part) is not None, start, part) for on_nodes, start, part in parts]


def install(shell: Any, auto: Auto) -> None:
    """Install the transformer of cells, and the handler of pages' requests."""
    shell.input_transformers_cleanup.append(auto.transform)
    shell.events.register("pre_run_cell", auto.before_cell)
    shell.events.register("post_run_cell", auto.after_cell)
    control_channel.register(getattr(shell, "kernel", None), REQUEST, auto.answer)
    auto.tell()


def remove(shell: Any, auto: Auto) -> None:
    """Undo `install`."""
    auto.turn_off()
    control_channel.unregister(getattr(shell, "kernel", None), REQUEST)
    for event, callback in (("pre_run_cell", auto.before_cell), ("post_run_cell", auto.after_cell)):
        if callback in shell.events.callbacks[event]:
            shell.events.unregister(event, callback)
    if auto.transform in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(auto.transform)
