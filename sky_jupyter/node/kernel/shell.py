"""IPython shell of a rank: shows all output, and reports every failure.

IPython shows some failures and continues: those of a file that ``%run`` runs, or of a shell command that was
interrupted. A person at a notebook sees that. With many ranks nobody would, and other ranks would wait for the failed
one: so here, such failures end the cell.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import IPython
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets import Type

from ...errors import NotOnRanks
from ...util.interrupts import counting_interrupts
from . import user_input
from .display_hooks import RankDisplayHook, ShownPayloads
from .user_input import DEBUGGERS, NO_DEBUGGER, refuse

if sys.version_info >= (3, 11):
    from builtins import BaseExceptionGroup
else:
    from exceptiongroup import BaseExceptionGroup

_NOTHING_FAILED = (
    "there is nothing to debug on this rank: its last cell did not fail, or its kernel is new. "
    "A failure is kept until the rank's next cell begins"
)
_RUN = InteractiveShell.run_code.__code__
_INNER = (os.path.dirname(IPython.__file__) + os.sep, __file__)


class SkyShell(ZMQInteractiveShell):
    """Shell of a rank's kernel."""

    displayhook_class = Type(RankDisplayHook)

    def __init__(self, **kwargs: Any) -> None:
        # The exception that ends the current cell, with its traceback.
        self.sky_failure: tuple[BaseException, list[str]] | None = None
        # Whether a cell runs: an error in code that a function call runs does not end a cell.
        self.sky_in_cell = False
        # Whether a displayed result is output, because later results of the cell may follow.
        self.sky_goes_on = False
        # Whether this rank shows the text of `name?`, for all ranks of the run.
        self.sky_pages = True
        # Nesting depth of running cells.
        self._cells = 0
        # Number of our frames between a command and the frame whose names it reads.
        self._between = 0
        # Whether questions of the running code can be answered; set by the kernel.
        self.sky_can_ask: Callable[[], bool] = lambda: False
        super().__init__(**kwargs)

    # -- output ------------------------------------------------------------------------------------

    def init_prompts(self) -> None:
        """Do not define prompts.

        Programs that find ``sys.ps1`` assume an interactive terminal (Lightning does).
        """

    def init_payload(self) -> None:
        """Install a payload manager that displays payloads.

        No front end reads them from the reply.
        """
        self.payload_manager = ShownPayloads(parent=self)
        self.configurables.append(self.payload_manager)

    def _tee(self, channel: str) -> contextlib.AbstractContextManager[None]:
        """Keep no copy of what a cell writes.

        IPython (9 and later) wraps `write` for its export to a notebook, which took half of the time of a `print`. A
        rank's output is in the journal.
        """
        return contextlib.nullcontext()

    def _format_exception_for_storage(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Keep no copy of a cell's exception either, whose `__str__` may raise."""
        return {}

    # ipykernel reads its signature to find the options of this release of IPython.
    @functools.wraps(ZMQInteractiveShell.run_cell_async)
    async def run_cell_async(self, *arguments: Any, **options: Any) -> Any:
        """Run a cell; keep the result of an outer cell, and return interrupts.

        With IPython's version, a cell that runs another one has no result.
        """
        before = self.displayhook.exec_result
        try:
            return await super().run_cell_async(*arguments, **options)
        except KeyboardInterrupt as press:
            # The interrupt came between the cell's steps. Raised in a task, it would end the event loop and the
            # process.
            result = ExecutionResult(None)
            result.error_in_exec = press
            self.showtraceback()
            return result
        finally:
            self.displayhook.exec_result = before

    async def run_ast_nodes(
        self, nodelist: list[Any], cell_name: str, interactivity: str = "last_expr", *more: Any, **options: Any
    ) -> Any:
        """Run a cell's statements; results before the last one are output.

        So are the results of cells that a cell runs.
        """
        before, self._cells = self.sky_goes_on, self._cells + 1
        try:
            if interactivity == "all" and len(nodelist) > 1:
                self.sky_goes_on = True
                if await super().run_ast_nodes(nodelist[:-1], cell_name, interactivity, *more, **options):
                    return True
                nodelist = nodelist[-1:]
            self.sky_goes_on = self._cells > 1
            return await super().run_ast_nodes(nodelist, cell_name, interactivity, *more, **options)
        finally:
            self.sky_goes_on, self._cells = before, self._cells - 1

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """Send an error message that says whether the error ends the cell.

        If it does, the cell's end event carries it.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        hook, content = self.displayhook, {"ename": etype.__name__, "evalue": said(evalue), "traceback": list(stb)}
        if getattr(hook, "msg", None) is not None:
            # ipykernel makes the cell fail because of it.
            self._last_traceback_during_displayhook = True
            own = True
        else:
            own = self.sky_in_cell and _is_cells_own()
        if own:
            self.sky_failure = evalue, content["traceback"]
        topic = hook.topic.replace(b"execute_result", b"error") if hook.topic else None
        hook.session.send(hook.pub_socket, "error", {**content, "sky_own": own}, hook.parent_header, ident=topic)
        self._last_traceback = stb

    def showtraceback(self, exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        """Show an exception; an interrupt meanwhile has no effect on an ended cell.

        IPython would stop, print only the interrupt, and lose the cell's error.
        """
        before = self.sky_failure
        with counting_interrupts() as came:
            self._show_exception(exc_tuple, *arguments, **options)
            is_over = self.sky_failure is not before
        if is_over and threading.current_thread() is threading.main_thread():
            # Ignored until the end has been reported, which must not be interrupted either.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        elif came:
            raise KeyboardInterrupt

    def _show_exception(self, exc_tuple: Any = None, *arguments: Any, **options: Any) -> None:
        """Show an exception; exception groups without IPython's own frames.

        IPython prints groups instead of showing them.
        """
        with contextlib.suppress(ValueError):
            kind, value, trace = self._get_exc_info(exc_tuple)
            if _has_group(value) and not issubclass(kind, SyntaxError) and not options.get("exception_only"):
                text = "".join(traceback.format_exception(kind, value, _from_users(trace)))
                self._showtraceback(kind, value, text.splitlines())
                return
            exc_tuple = kind, value, without_ours(value, trace)
        try:
            super().showtraceback(exc_tuple, *arguments, **options)
        except Exception:
            if exc_tuple is None:
                raise
            # Its class has code behind any attribute, which raises where IPython and then Python look at it.
            kind, value, trace = exc_tuple
            self._showtraceback(kind, value, plain_traceback(value, trace))

    def showsyntaxerror(self, filename: Any = None, running_compiled_code: bool = False) -> None:
        """Show a syntax error, without the frames of IPython's parser."""
        if filename or not running_compiled_code:
            super().showsyntaxerror(filename, running_compiled_code)
            return
        kind, value, trace = self._get_exc_info()
        frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_INNER)]
        self._showtraceback(kind, value, self.SyntaxTB.structured_traceback(kind, value, frames))

    def show_usage_error(self, exc: Any) -> None:
        """Send a usage error as an error message.

        IPython prints it; the rank's end would not say why it failed.
        """
        self._showtraceback(UsageError, exc, [f"UsageError: {exc}"])

    # -- failures ----------------------------------------------------------------------------------

    def safe_execfile(self, fname: Any, *where: Any, exit_ignore: bool = False, **options: Any) -> None:
        """Run a file and raise its error; IPython's method would show it and continue."""
        __tracebackhide__ = True
        try:
            super().safe_execfile(fname, *where, exit_ignore=exit_ignore, **{**options, "raise_exceptions": True})
        except SystemExit:
            if not exit_ignore:
                raise

    def safe_run_module(self, mod_name: Any, where: dict[str, Any]) -> None:
        """Run a module and raise its error; IPython's method would show it and continue."""
        import runpy

        __tracebackhide__ = True
        try:
            where.update(runpy.run_module(str(mod_name), run_name="__main__", alter_sys=True))
        except SystemExit as status:
            if status.code:
                raise

    def system_piped(self, cmd: Any) -> None:
        """Run a shell command; raise KeyboardInterrupt if it is interrupted.

        IPython's method continues after the interrupt has ended the command.
        """
        __tracebackhide__ = True
        with _heeding_interrupts(), self._one_between():
            super().system_piped(cmd)

    system = system_piped

    def system_raw(self, cmd: Any) -> None:
        """Run a shell command; see `system_piped`."""
        __tracebackhide__ = True
        with _heeding_interrupts(), self._one_between():
            super().system_raw(cmd)

    def getoutput(self, cmd: Any, split: bool = True, depth: int = 0) -> Any:
        """Return a shell command's output; see `system_piped`."""
        __tracebackhide__ = True
        with _heeding_interrupts():
            return super().getoutput(cmd, split, depth + 1)

    def var_expand(self, cmd: Any, depth: int = 0, *arguments: Any, **options: Any) -> Any:
        """Expand variables in a command, in the frame that IPython means.

        There are frames of this class in between.
        """
        return super().var_expand(cmd, depth + 1 + self._between, *arguments, **options)

    @contextlib.contextmanager
    def _one_between(self) -> Iterator[None]:
        self._between += 1
        try:
            yield
        finally:
            self._between -= 1

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        """Run a cell magic; for ``%%bash`` and similar ones, see `system_piped`."""
        __tracebackhide__ = True
        found = self.find_cell_magic(magic_name)
        script = getattr(found, "__module__", "") == "IPython.core.magics.script"
        with _heeding_interrupts() if script else contextlib.nullcontext():
            return super().run_cell_magic(magic_name, line, cell)

    # -- debugging ---------------------------------------------------------------------------------

    def debugger(self, force: bool = False) -> None:
        """Debug the last failure, or refuse if nobody can type commands."""
        if force and not self.call_pdb:
            if not self.sky_can_ask():
                refuse(NO_DEBUGGER, "%debug")
            if not hasattr(sys, "last_traceback"):
                raise UsageError(_NOTHING_FAILED)
            super().debugger(force=True)
        elif self.call_pdb:
            # Called after a traceback was shown; that error remains the cell's.
            print(NO_DEBUGGER.format("%pdb"), file=sys.stderr)


# Code objects of the functions that run a cell.
_CELLS = {
    InteractiveShell._run_cell.__code__,
    InteractiveShell.run_cell_async.__code__,
    SkyShell.run_cell_async.__code__,  # type: ignore[attr-defined]
}


@contextlib.contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if one came during it.

    IPython would let the interrupt end only the command.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: Any = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        came.append(number)
        before(number, frame)

    if callable(before):
        signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        # An interrupted command may raise, for example if it did not end soon enough.
        if not came:
            raise
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _is_cells_own() -> bool:
    """Return True if the displayed error ends the cell.

    Then the cell's code does not run any more. If the cell's code itself displays an error, of code that it runs in
    turn, that error is output.
    """
    frame: Any = sys._getframe(2)
    outermost = inner = None
    below = None
    while frame is not None:
        if frame.f_code is _RUN:
            outermost, inner = frame, below
        elif frame.f_code in _CELLS and outermost is None:
            # The error is from before or after the cell's code, such as a syntax error or an interrupt.
            outermost, inner = frame, None
        below, frame = frame, frame.f_back
    if outermost is None:
        return False
    return inner is None or inner.f_code is not outermost.f_locals.get("code_obj")


def _has_group(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, BaseExceptionGroup):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


def _from_users(trace: Any) -> Any:
    """Return a traceback from its first frame of user code on."""
    first = trace
    while first is not None and "__tracebackhide__" in first.tb_frame.f_locals:
        first = first.tb_next
    return first or trace


def without_ours(error: BaseException, trace: Any) -> Any:
    """Return a traceback without our, IPython's inner and debuggers' frames."""
    steps: list[types.TracebackType] = []
    ours, inner = (__name__, user_input.__name__), {f"{__package__}.kernel", *DEBUGGERS}
    while trace is not None:
        if "pydevd" in os.path.basename(trace.tb_frame.f_code.co_filename):
            # After an interrupt at a breakpoint: drop pydevd's frames, and the repeated stopped frame.
            del steps[len(steps) - (len(steps) > 1 and steps[-1].tb_frame is steps[-2].tb_frame) :]
            trace = None
            break
        if _module(trace) not in ours:
            steps.append(trace)
        trace = trace.tb_next
    # IPython from 9 on leaves out its own frames; earlier versions show all but the first, which runs the cell.
    steps = [step for index, step in enumerate(steps) if index == 0 or not _is_ipythons(step)]
    while isinstance(error, NotOnRanks) and len(steps) > 1 and _module(steps[-1]) in inner:
        steps.pop()
    for step in reversed(steps):
        trace = types.TracebackType(trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return trace


def _module(step: types.TracebackType) -> Any:
    return step.tb_frame.f_globals.get("__name__")


def _is_ipythons(step: types.TracebackType) -> bool:
    return str(_module(step)).partition(".")[0] == "IPython"


def said(error: Any) -> str:
    """Return an exception's text."""
    try:
        return str(error)
    except BaseException:
        return "(it has no text: its __str__ raises)"


def plain_traceback(error: BaseException, trace: types.TracebackType | None) -> list[str]:
    """Return a traceback for which nothing is read of the exception but its text."""
    name, text = type(error).__name__, said(error)
    return [*"".join(traceback.format_tb(trace)).splitlines(), f"{name}: {text}" if text else name]


__all__ = ["SkyShell", "plain_traceback", "said", "without_ours"]
