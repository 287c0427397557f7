"""IPython kernel of a rank, with one additional request: `sky_request`.

The agent sends it on the shell channel. It runs on the kernel's main thread, like a cell, and ends with a `sky_end`
message on iopub that follows all output of the request. Kinds of requests:

enter   take a place in the pool and enter the plugins
cell    bind the captured names and run the cell in this rank's namespace
call    unpickle a function with its arguments, call it, cache its value
fetch   write an earlier run's value, or that of a name, to a file
release drop an earlier run's value, which no one will fetch
names   summarize the names that the user has there
check   run the plugins' checks, with all other ranks
again   set the frameworks up anew in this process, with all other ranks
inspect complete a name, or describe it, for a page
leave   leave the plugins

Another request, `sky_abort`, comes on the control channel while a request runs: it breaks the collective that blocks
the main thread.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import builtins
import codecs
import contextlib
import faulthandler
import functools
import gc
import inspect
import itertools
import os
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle
import zmq
from ipykernel.compiler import XCachingCompiler
from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from tornado.ioloop import IOLoop
from traitlets import DottedObjectName, Type

from ...util.interrupts import set_interrupt_handler
from ...util.optional_imports import left_out
from ..protocol import debug_messages, short_call_frames
from ..runtime import interruption, launcher_variables, rank_environment
from ..runtime.instance_info import POOL_VARIABLE, instance_info, keep
from ..serialization import code_portability, exceptions, pickling, result_values, surrogates
from ..serialization.global_names import global_reads
from ..serialization.received_objects import HELD
from ..shared import agent_channel, direct_requests
from . import (
    added_packages,
    apply_settings,
    completion,
    framework_hints,
    generator_streams,
    history_trim,
    members_of_modules,
    name_summaries,
    process_exit,
    project_modules,
    result_store,
    short_call_receiver,
    stack_dump,
    user_input,
)
from .iopub import OutputThread
from .request_begin import RequestBegin
from .request_context import RequestContext
from .shell import SkyShell, plain_traceback, said, without_ours

if TYPE_CHECKING:
    from .rank_debugger import RankDebugger

# ipykernel imports debugpy in each kernel, which takes longer than the rest of its start, and makes a debugger that no
# rank uses: see `rank_debugger`.
with left_out("debugpy"):
    import ipykernel.debugger  # noqa: F401 - only to have it imported

_KEEP_VALUES = 16
_NATIVE_PATIENCE = 1.0
# Seconds after which no further call of a batch is started.
_MOST_TOGETHER = 0.2
_PIPE = 1 << 16
# Most characters in one message, and most messages that wait for the agent; beyond that, printing blocks.
_MOST_TEXT = 1 << 20
_MOST_WAITING = 32
# Seconds without progress after which the sending thread counts as stuck, if it is not sending: then it waits for its
# caller.
_STUCK = 0.5
# Limit of native output in a rank's log. The journal has it too; the log shows the last lines before a crash.
_MOST_LOG = 4 << 20
_NO_EXIT = (
    "{} ends this cell only, and the rank keeps its kernel and its names; `%sky restart` makes new kernels, "
    "`%sky down` ends the pool"
)
_BUILTINS = frozenset(vars(builtins))


class CellCompiler(XCachingCompiler):
    """Compiler that names cells by number; see `stack_dump.cell_file`.

    Stacks that are read from outside show these names.
    """

    # An attached debugger names them: breakpoints are set before a cell has its number.
    named_by: ClassVar[Callable[[str], str | None]] = lambda code: None

    def get_code_name(self, raw_code: str, code: str, number: int) -> str:
        return CellCompiler.named_by(raw_code) or stack_dump.cell_file(raw_code, number)


class SkyKernel(IPythonKernel):
    """Kernel of one rank; made by the forkserver's child, one per process."""

    compiler_class = Type(CellCompiler)
    shell_class = Type(SkyShell)
    # The agent waits for a message, not for idle; a pause would only delay it.
    _execute_sleep = 0.0
    # See `OneShell`.
    _supports_kernel_subshells = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shell_handlers["sky_request"] = self.sky_request
        self.control_handlers["sky_abort"] = self.sky_abort
        self.control_handlers["sky_tell_begin"] = self.sky_tell_begin
        self.short_calls = short_call_receiver.ShortCallReceiver(self)
        self.begin = RequestBegin(self.tell)
        self.requests = RequestContext()
        self.shell_handlers["comm_msg"] = self.interruptible(self.shell_handlers["comm_msg"])
        self.sky_stack = contextlib.ExitStack()
        self.sky_plugins: tuple[Any, ...] = ()
        self.sky_streams: tuple[Any, ...] = sys.stdout, sys.stderr
        self.sky_modules, self.sky_added = project_modules.ProjectModules(), added_packages.Added()
        self.sky_settings = apply_settings.Following()
        self.sky_values = result_store.ResultStore(_KEEP_VALUES)
        # Made at the first request of a page's debugger.
        self.sky_debugger: RankDebugger | None = None
        # The user's answers to code on this rank; set when the process gets its `input`.
        self.sky_input = user_input.UserInput()
        self._last_result: Any = None
        # Whether a request runs, and whether this process ends once it is idle.
        self._working = self._ending = False
        # Whether an interrupt cancelled the await of the cell.
        self._cancelled = False
        self.shell.events.register("post_run_cell", self._on_post_run_cell)
        self.shell.ask_exit = _refuse_exit
        self.shell.sky_can_ask = lambda: self.sky_input.allowed
        history_trim.keep_no_outputs(self.shell)

    def _on_post_run_cell(self, result: Any) -> None:
        self._last_result = result

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """Publish nothing: `sky_end` reports the end of a request."""

    async def poll_stopped_queue(self) -> None:
        """Do nothing: see `rank_debugger`."""

    def pre_handler_hook(self) -> None:
        """Leave the signal handler alone: `sky_request` sets it while it runs."""

    def post_handler_hook(self) -> None:
        """Do nothing; see `pre_handler_hook`."""

    def interruptible(self, handler: Callable[..., None]) -> Callable[..., None]:
        """Make a widget message handler interruptible, and run it in the cells' context.

        Otherwise SIGINT is only handled during requests.
        """

        def hear(*message: Any) -> None:
            _, ident, parent = message
            self.set_parent(ident, parent, "shell")
            handler(*message)

        def handle(*message: Any) -> None:
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            request = self.requests.run(self.get_parent, "shell")
            try:
                self.requests.run_in_copy(hear, *message)
            finally:
                signal.signal(signal.SIGINT, before)
                if self._working:
                    # Later output belongs to the cell that awaits something.
                    self.requests.run(self.set_parent, [], request, "shell")

        return handle

    def _forward_input(self, allow_stdin: bool = False) -> None:
        """Do nothing; see `user_input`."""

    def _restore_input(self) -> None:
        """Do nothing; see `user_input`."""

    @contextlib.contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """Cancel the awaiting cell on SIGINT.

        ipykernel's version neither wakes up a sleeping loop nor interrupts code that awaits nothing.
        """
        loop = asyncio.get_running_loop()

        def interrupt(number: int, frame: Any) -> None:
            self._cancelled = True
            if asyncio.current_task(loop) is future:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(future.cancel)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            # After a failure the cell is over: see `SkyShell.showtraceback`.
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.shell.sky_failure else before)

    async def sky_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run one request; report its end with `sky_end` in any case."""
        if self._ending:
            # The agent notices the end of this process, which ends all queued requests.
            return
        self.requests.run(self.set_parent, ident, parent, "shell")
        await self.requests.attend(self._request(parent["content"]))

    async def _request(self, content: dict[str, Any]) -> None:
        end = await self.run_request(content)
        self.drain_native_output()
        self.tell("sky_end", end)
        self.note_idle()

    async def run_request(self, content: dict[str, Any]) -> dict[str, Any]:
        """Run one request and return its end."""
        began = time.perf_counter()
        end, failed = {}, None
        self._working = True
        parent = self.get_parent("shell")
        for stream in self.sky_streams:
            # Also for a stream that code has replaced, and may restore in a later request.
            stream.set_parent(parent)
        try:
            set_interrupt_handler(signal.default_int_handler)
            self.begin.note(content["run"])
            if self.sky_debugger is not None:
                self.sky_debugger.of_next_request()
            self.sky_input.begin(allowed=content.get("asks") is True)
            with self.around_run(content):
                end = await getattr(self, f"sky_{content['kind']}")(content)
        except BaseException as error:
            failed = error
        # From here on an interrupt is too late: it would only prevent the end message. One may still be pending.
        try:
            set_interrupt_handler(signal.SIG_IGN)
        except KeyboardInterrupt:
            set_interrupt_handler(signal.SIG_IGN)
        self.begin.note_end()
        self.sky_input.end()
        _have_streams()
        if failed is not None:
            end = self.failure(failed)
        if direct_requests.interrupted:
            if end["status"] == "interrupted":
                end["at"] = direct_requests.interrupted[0]
            direct_requests.interrupted.clear()
        if end["status"] != "ok":
            history_trim.forget_trees(self.shell)
        if content["kind"] in ("cell", "call") and (ended := self.ended()):
            end["ended"] = ended
        end["elapsed"] = time.perf_counter() - began
        return end

    def note_idle(self) -> None:
        """Note that a request is over and reported; end this process if requested."""
        self._working = False
        if self._ending:
            self.io_loop.stop()

    @property
    def is_ending(self) -> bool:
        """Whether this process starts no more requests."""
        return self._ending

    def end_when_idle(self, descriptor: int) -> None:
        """Leave the event loop once idle: the forkserver has closed its pipe."""
        self.io_loop.remove_handler(descriptor)
        self._ending = True
        if not self._working:
            self.io_loop.stop()

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Send the agent a message that belongs to the current request."""
        send = functools.partial(
            self.session.send,
            self.iopub_socket,
            kind,
            content,
            parent=self.get_parent("shell"),
            ident=self._topic(kind),
        )
        # Sent by the thread that flushes, in order: a flush only queues its text on that thread.
        self.iopub_socket.io_thread.schedule(send)

    async def sky_abort(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Break a blocking collective; runs in the control thread.

        Native code that waits for a peer has released the GIL.
        """
        for plugin in self.sky_plugins:
            if plugin.abort is not None:
                plugin.abort(instance_info())

    async def sky_tell_begin(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Report that a request has begun, once it has; runs in the control thread."""
        self.begin.tell(parent["content"]["run"])

    # -- kinds -------------------------------------------------------------------------------------

    async def sky_enter(self, content: dict[str, Any]) -> dict[str, Any]:
        os.environ[POOL_VARIABLE] = content["info"]
        keep([POOL_VARIABLE, pickling.BLOBS, project_modules.VARIABLE])
        if (channel := agent_channel.of_rank()) is not None:
            channel.hears[interruption.TOPIC] = interruption.hear
            tell = functools.partial(rank_environment.tell, channel.tell)
            channel.hears[rank_environment.TOPIC] = lambda content, data: tell(content)
            channel.hears[debug_messages.TOPIC] = functools.partial(self.on_debug_request, channel)
        pickling.Pickler.reader = content.get("python", "")
        info = instance_info()
        before = dict(os.environ)
        launcher_variables.correct(info)
        self.sky_plugins = cloudpickle.loads(base64.b64decode(content["plugins"]))
        for plugin in self.sky_plugins:
            if plugin.around_process is not None:
                self.sky_stack.enter_context(plugin.around_process(info))
        self.sky_settings.keep(before)
        return {"status": "ok"}

    async def sky_check(self, content: dict[str, Any]) -> dict[str, Any]:
        for plugin in self.sky_plugins:
            if plugin.check is not None:
                plugin.check(instance_info())
        return {"status": "ok"}

    async def sky_again(self, content: dict[str, Any]) -> dict[str, Any]:
        os.environ[POOL_VARIABLE] = content["info"]
        keep([POOL_VARIABLE])
        launcher_variables.correct(instance_info())
        # Tracebacks of earlier failures form cycles that keep the frameworks' threads and connections alive.
        gc.collect()
        for plugin in self.sky_plugins:
            if plugin.again is not None:
                plugin.again(instance_info())
        return {"status": "ok"}

    async def sky_leave(self, content: dict[str, Any]) -> dict[str, Any]:
        self.sky_stack.close()
        return {"status": "ok"}

    async def sky_cell(self, content: dict[str, Any]) -> dict[str, Any]:
        namespace = self.shell.user_ns
        if not user_input.looks_back(content["code"]):
            # Its frames may hold memory that this cell needs.
            history_trim.forget_failure(self.shell)
        self.find_code(content)
        pickling.bind(content["manifest"], namespace, instance_info().rank)
        before = _ids(namespace)
        self.shell.execution_count = content["count"]
        self.shell.sky_pages = content.get("pager", instance_info().rank) == instance_info().rank
        self._last_result, self._cancelled, self.shell.sky_failure = None, False, None
        self.shell.sky_in_cell = True
        try:
            reply = await self.do_execute(content["code"], silent=False, store_history=True, allow_stdin=False)
        except Exception:
            # ipykernel's reply has the text of the cell's exception, whose `__str__` may raise.
            if self._last_result is None or self._last_result.success:
                raise
            reply = {"status": "error"}
        finally:
            self.shell.sky_in_cell = False
            user_input.forget_results(namespace)
        result = self._last_result
        history_trim.forget_cells(self.shell, _KEEP_VALUES)
        HELD.sweep(namespace)
        end: dict[str, Any] = {
            "status": reply["status"],
            "bound": True,
            **_told(before, namespace, content["manifest"].get("bound", ())),
        }
        if reply["status"] == "ok":
            if result is not None and result.result is not None:
                end.update(self.sky_values.dump(content["run"], result.result))
            return end
        error = result and (result.error_before_exec or result.error_in_exec)
        shown, lines = self.shell.sky_failure or (None, [])
        # An error while a value is displayed is not in the result.
        error, self.shell.sky_failure = shown if error is None else error, None
        if error is None:
            end.update(_error(None, reply["ename"], reply["evalue"], lines))
        else:
            end.update(self.told_of(error, lines))
        cancelled = self._cancelled and isinstance(error, asyncio.CancelledError)
        if cancelled or isinstance(error, KeyboardInterrupt) or self.sky_input.was_interrupted:
            end["status"] = "interrupted"
        return end

    async def sky_call(self, content: dict[str, Any]) -> dict[str, Any]:
        self.find_code(content)
        namespace = self.shell.user_ns
        for manifest in (content["manifest"], content.get("more")):
            if manifest:
                pickling.bind(manifest, namespace, instance_info().rank)
        before = _ids(namespace)
        value = await (self.streamed(content) if "stream" in content else self.called(content))
        HELD.sweep(namespace)
        told = _told(before, namespace)
        short, room = None, content.pop("room", None)
        if content.get("short") and len(told["writes"]) <= short_call_frames.MOST_WRITES:
            short = result_values.dump_short(value, short_call_frames.MOST_VALUE, room)
        if short is not None:
            return {"status": "ok", "bound": True, **short, **(told if told["writes"] else {})}
        return {"status": "ok", "bound": True, **told, **self.sky_values.dump(content["run"], value)}

    async def sky_fetch(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", **self.sky_values.export(content, self.shell.user_ns)}

    async def sky_names(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", **name_summaries.summarize(self.shell.user_ns, self.shell.user_ns_hidden)}

    async def sky_inspect(self, content: dict[str, Any]) -> dict[str, Any]:
        code, cursor, detail = content["code"], content["cursor"], content["detail"]
        if detail is None:
            return {"status": "ok", **completion.complete(self.shell, code, cursor)}
        return {"status": "ok", **completion.inspect(self.shell, code, cursor, detail)}

    async def sky_release(self, content: dict[str, Any]) -> dict[str, Any]:
        value = self.sky_values.release(content["of"])
        if value is not None:
            history_trim.forget_value(self.shell, value)
            if self._last_result is not None and self._last_result.result is value:
                self._last_result = None
        return {"status": "ok"}

    def on_debug_request(self, channel: agent_channel.AgentChannel, content: dict[str, Any], data: object) -> None:
        """Pass a request on to the debugger; runs in the control thread."""
        from . import rank_debugger

        if self.sky_debugger is None:
            # The agent removes the kernel's files by how their names begin.
            files = os.path.realpath(Path(self.parent.abs_connection_file).with_suffix(".cell-"))
            self.sky_debugger = rank_debugger.make(self, channel, files)
        if self.sky_debugger is None:
            rank_debugger.refuse(channel, content)
            return
        CellCompiler.named_by = self.sky_debugger.name
        self.sky_debugger.on_request(content)

    # -- parts -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def around_run(self, content: dict[str, Any]) -> Iterator[None]:
        """Enter the plugins' contexts for a run on a part of the pool's ranks."""
        with contextlib.ExitStack() as stack:
            for plugin in self.sky_plugins if content.get("partial") else ():
                if plugin.around_partial_run is not None:
                    stack.enter_context(plugin.around_partial_run(instance_info()))
            yield

    async def called(self, content: dict[str, Any]) -> Any:
        """Call a function and return its value; for a batch, a list of values."""
        function, calls = self.load_call(content)
        began, values = time.perf_counter(), []
        for args, kwargs in calls:
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                if asyncio.current_task() is None:
                    # A short call becomes a task here, since what it awaits may need one.
                    await asyncio.sleep(0)
                value = await value
            values.append(value)
            if content.get("together"):
                _end_lines()
            # Batches are for short calls. If one takes long, other ranks take its remaining calls.
            if time.perf_counter() - began > _MOST_TOGETHER:
                break
        return values if content.get("together") else values[0]

    async def streamed(self, content: dict[str, Any]) -> Any:
        """Call a function that reads notebook iterators or yields; return its value.

        For a generator, that is its return value.
        """
        with generator_streams.opened(content["run"]) as stream:
            function, ((args, kwargs),) = self.load_call(content)
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = await value
            return await stream.send_all(value) if content["stream"]["out"] else value

    def load_call(self, content: dict[str, Any]) -> tuple[Any, Any]:
        """Return a call's function, decorated by the plugins, and its arguments."""
        function, calls = pickling.load_call(content)
        # The first plugin's decorator is outermost, as with nested context managers.
        for plugin in reversed(self.sky_plugins):
            if plugin.decorate is not None:
                function = plugin.decorate(function)
        return function, calls

    def find_code(self, content: dict[str, Any]) -> None:
        """Apply what a request refers to: settings, added packages, project modules.

        Also store the notebook's Python, for which values are pickled.
        """
        self.sky_settings.update(content.get("settings"))
        self.sky_added.update(content.get("packages"))
        self.sky_modules.update(content.get("modules"))
        pickling.Pickler.reader = content.get("python", "")

    def failure(self, error: BaseException) -> dict[str, Any]:
        """Return the end of a request that raised outside of a cell."""
        trace = error.__traceback__
        # Skip the frames of this file.
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        pressed = issubclass(type(error), KeyboardInterrupt) or self.sky_input.was_interrupted
        status = "interrupted" if pressed else "error"
        return {"status": status, **self.told_of(error, self.traceback_of(error, trace))}

    def traceback_of(self, error: BaseException, trace: types.TracebackType | None) -> list[str]:
        """Return an exception's traceback as lines, a plain one if IPython cannot."""
        # The class may be the user's, with code behind any attribute. If that raised here, the request had no end.
        with contextlib.suppress(BaseException):
            shown = without_ours(error, trace)
            lines: list[str] = self.shell.InteractiveTB.structured_traceback(type(error), error, shown, tb_offset=0)
            return lines
        with contextlib.suppress(BaseException):
            return plain_traceback(error, trace)
        return []

    @staticmethod
    def told_of(error: BaseException, lines: list[str]) -> dict[str, Any]:
        """Return the fields of an end event for an error and its traceback."""
        name, text = type(error).__name__, said(error)
        lines = lines or plain_traceback(error, None)
        try:
            return _error(error, name, text, lines)
        except BaseException:
            # See `traceback_of`.
            told = {"ename": name, "evalue": text, "traceback": lines}
            return {**told, "raised": exceptions.describe(error), "exception": None}

    def ended(self) -> str:
        """Return the frameworks that user code has shut down, in words; or ""."""
        found = []
        for plugin in self.sky_plugins:
            if plugin.ended is not None:
                try:
                    found.append(plugin.ended(instance_info()))
                except Exception as error:
                    found.append(f"{plugin.name} ({type(error).__name__}: {error})")
        return " and ".join(dict.fromkeys(filter(None, found)))

    def drain_native_output(self) -> None:
        """Wait for output written to descriptors 1 and 2, then flush.

        ipykernel reads them through a pipe in a thread. Otherwise such lines could come after the end of the run that
        printed them.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                _await_empty(stream)
                if not getattr(stream, "is_sent", False):
                    _flush_soon(stream)


def _refuse_exit() -> None:
    # Replaces `exit` and `quit` in cells. IPython's would end the kernel after the cell is reported as done.
    user_input.refuse(_NO_EXIT, "exit()")


def _have_streams() -> None:
    """Replace standard streams that code has deleted or set to None.

    Python allows that, IPython does not.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name, None) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays for as long as the process


def _flush_soon(stream: Any) -> None:
    """Queue a flush of a stream, without waiting for it.

    The thread that flushes keeps the order, so the text is sent before later messages.
    """
    thread, flush = getattr(stream, "pub_thread", None), getattr(stream, "_flush", None)
    if thread is None or flush is None:
        stream.flush()
    else:
        thread.schedule(flush)


def _await_empty(stream: Any) -> None:
    """Wait until a stream's reader has taken everything from its pipe."""
    descriptor = getattr(stream, "_fid", None)
    if descriptor is None:
        return
    import fcntl
    import termios

    end = time.monotonic() + _NATIVE_PATIENCE
    while time.monotonic() < end:
        # The reader holds the lock until it has written the data.
        with stream.taking:
            if not any(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")):
                return
        time.sleep(0.001)


def _end_lines() -> None:
    """End open lines of a call, so that the next call's output starts on a new one."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "line_is_open", False):
            stream.write("\n")


def _ids(namespace: dict[str, Any]) -> dict[str, int]:
    """Return the identities of a namespace's values, by name."""
    return dict(zip(namespace, map(id, namespace.values()), strict=True))


def _writes(before: dict[str, int], namespace: dict[str, Any]) -> list[str]:
    """Return names bound or deleted since ``before``, without IPython's own."""
    now = _ids(namespace)
    if now == before:
        return []
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(filter(name_summaries.is_users, changed))


def _told(before: dict[str, int], namespace: dict[str, Any], bound: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """Return an end event's fields on names that a run bound, imported or deleted."""
    writes = _writes(before, namespace)
    sizes = {name: _size(namespace[name]) for name in writes if name in namespace}
    found = {name: namespace[name] for name in sizes if isinstance(namespace[name], types.ModuleType)}
    # A cell that runs again binds the same objects.
    again = {name: namespace[name] for name, *_ in bound if isinstance(namespace.get(name), types.ModuleType)}
    reads = {name: sorted(global_reads(namespace[name], namespace) - _BUILTINS) for name in sizes}
    return {
        "writes": writes,
        "modules": list(found),
        # Imports that recreate these names in a new kernel.
        "imports": {name: [vars(one)["__name__"]] for name, one in {**again, **found}.items() if _is_imported(one)},
        "members": members_of_modules.imported(bound, writes, namespace),
        "sizes": sizes,
        "uses": {name: found for name, found in reads.items() if found},
    }


def _is_imported(module: Any) -> bool:
    name = vars(module).get("__name__")
    return isinstance(name, str) and sys.modules.get(name) is module


def _size(value: Any) -> int | None:
    """Return the bytes of an array, text or number; None for other values."""
    with contextlib.suppress(Exception):
        if type(value) in (str, bytes, bytearray, int, float, complex, bool):
            return sys.getsizeof(value)
        if type(value).__module__ != "__main__" and isinstance(size := getattr(value, "nbytes", None), int):
            return size
    return None


def _error(error: Any, ename: str, evalue: str, traceback: list[str]) -> dict[str, Any]:
    return {
        "ename": ename,
        "evalue": evalue,
        "traceback": [*traceback, *project_modules.hint(error), *framework_hints.hint(error)],
        # If None, the notebook builds an exception from the name and the text.
        "raised": None if error is None else exceptions.describe(error),
        "exception": None
        if pickling.Pickler.reader and code_portability.find_code_object(error)
        else result_values.dump_exception(error),
    }


class OrderedStream(OutStream):
    """Standard output or error of a rank, sent in the order of writes.

    ipykernel buffers each stream separately, for up to 0.2 s, so that their relative order is lost.
    """

    _last: ClassVar[OrderedStream | None] = None
    # The threads that read native output, and the message count at which the sending thread was found stuck.
    _watchers: ClassVar[set[threading.Thread]] = set()
    _stuck: ClassVar[int] = -1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Must exist before the thread that watches the pipe is started.
        self.taking = threading.Lock()
        # Approximate number of characters that wait for the next flush.
        self._gathered = 0
        # Each write sets a new mark; `_sent` is the mark at the start of the last flush. Marks are unique, so that
        # concurrent writes of several threads cannot be confused.
        self._marks = itertools.count(1)
        self._mark = self._sent = 0
        # Whether the last write did not end its line.
        self.line_is_open = False
        # Whether a timer for the next flush runs.
        self._timer_is_set = False
        super().__init__(*arguments, **options)

    def _watch_pipe_fd(self) -> None:
        """Read native output from the pipe and write it to this stream.

        Unlike ipykernel's, it keeps a character whole that is split between two reads, and `_await_empty` can wait for
        it.
        """
        if self._fid is None:
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        OrderedStream._watchers.add(threading.current_thread())
        with contextlib.suppress(OSError, ValueError):
            while select.select([self._fid], [], []) and self._should_watch:
                with self.taking:
                    data = os.read(self._fid, _PIPE)
                    if not data:
                        return
                    self.write(decoder.decode(data))
                    self._log(data)

    def _log(self, data: bytes) -> None:
        """Append native output to the rank's log, up to a limit; ignore disk errors."""
        with contextlib.suppress(OSError):
            if os.fstat(self._original_stdstream_copy).st_size > _MOST_LOG:
                os.ftruncate(self._original_stdstream_copy, 0)
            os.write(self._original_stdstream_copy, data)

    @property
    def mark(self) -> int:
        """A number that differs after each write."""
        return self._mark

    @property
    def is_sent(self) -> bool:
        """Whether everything written so far has been sent."""
        return self._sent == self._mark

    def flush(self) -> None:
        """Send buffered text and wait for that.

        ipykernel's returns before the text is sent: a call that then holds the GIL would delay it.
        """
        if self.is_sent:
            return
        thread = self.pub_thread
        if thread is None or not thread.thread.is_alive() or thread.thread is threading.current_thread():
            self._flush()
            return
        # The sending thread may itself be writing to the pipe that is read here, as in a `__del__` or a native
        # library's logger. Then keep reading the pipe, and let the text wait.
        reads = threading.current_thread() in OrderedStream._watchers
        if reads and OrderedStream._stuck == thread.sent:
            return
        # A lock and no Event: an interrupt inside an Event may leave it locked, and the thread would hang.
        sent = threading.Lock()
        sent.acquire()
        thread.schedule(lambda: self._flush_and_tell(sent.release))
        while not sent.acquire(timeout=_STUCK if reads else self.flush_timeout):
            if not reads:
                return
            if not thread.sending:
                OrderedStream._stuck = thread.sent
                return

    def write(self, string: str) -> int | None:
        other = OrderedStream._last
        if other is not self:
            OrderedStream._last = self
            if other is not None:
                other.flush()
        if isinstance(string, str) and string:
            self.line_is_open = not string.endswith("\n")
        if not isinstance(string, str) or self._gathered + len(string) < _MOST_TEXT:
            written = self._write(string)
            self._gathered += written or 0
            return written
        for start in range(0, len(string), _MOST_TEXT):
            self._write(string[start : start + _MOST_TEXT])
            # This waits until the text has been sent.
            self.flush()
        return len(string)

    def _write(self, string: str) -> int | None:
        try:
            return super().write(string)
        finally:
            self._mark = next(self._marks)

    def _flush_and_tell(self, tell: Callable[[], None]) -> None:
        try:
            self._flush()
        finally:
            tell()

    def _schedule_flush(self) -> None:
        """Send the written text soon.

        ipykernel sets a timer for the first text after each flush. A loop of ``print(..., flush=True)`` would set one
        for each line, and to wake the sending thread costs more than the line.
        """
        if not self._timer_is_set and self.pub_thread is not None:
            self._timer_is_set = True
            self.pub_thread.schedule(lambda: self._io_loop.call_later(self.flush_interval, self._on_timer))

    def _on_timer(self) -> None:
        # In this order: a text that is written in between sets a new timer.
        self._timer_is_set = False
        self._flush()

    def _flush(self) -> None:
        self._gathered, mark = 0, self._mark
        super()._flush()
        self._sent = mark


class OneShell:
    """Placeholder for ipykernel's thread that reads the shell channel.

    That thread serves subshells, which are not used here. Without it the main thread reads the channel itself, and a
    short cell takes a fifth less time. ipykernel takes a false value for no thread.
    """

    def __init__(self) -> None:
        self.parent_thread = threading.current_thread()

    def __bool__(self) -> bool:
        return False


class SkyKernelApp(IPKernelApp):
    """IPython kernel application with an iopub socket that blocks, never drops."""

    outstream_class = DottedObjectName(f"{__name__}.OrderedStream")
    kernel_class = SkyKernel

    def init_control(self, context: zmq.Context[Any]) -> None:
        super().init_control(context)
        self.shell_channel_thread = OneShell()

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """Make the iopub socket: it drops nothing, and its thread opens no port."""
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        # Before bind: the option applies to connections made later.
        socket.sndhwm = _MOST_WAITING
        self.iopub_port: int = self._bind_socket(socket, self.iopub_port)
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.configure_tornado_logger()
        self.iopub_thread = OutputThread(socket, f"{self.ip}-forks", self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket


def run_kernel(connection_file: str, end: int) -> None:
    """Run the kernel of a connection file until the pipe ``end`` is closed."""
    # ipykernel replaces descriptors 1 and 2 by pipes; a crash report must go to the log directly.
    log = os.fdopen(os.dup(2), "w")
    # User code must not see the host's arguments: none, as in Python's own prompt.
    sys.argv = [""]
    app = SkyKernelApp.instance()
    app.initialize(
        [
            "-f",
            connection_file,
            "--transport=ipc",
            "--quiet",
            "--no-secure",
            "--HistoryManager.enabled=False",
            # As in the agent: no one else writes to these sockets, and every digest would be kept.
            "--Session.digest_history_size=0",
            "--IPKernelApp.parent_handle=0",
        ]
    )
    app.session.pack = surrogates.pack
    app.kernel.sky_input = user_input.install()
    # Otherwise traitlets formats every message and then discards it.
    app.log.setLevel(app.log_level)
    # Only the crashed thread: all threads would push the reason out of the lines that are shown.
    faulthandler.enable(log, all_threads=False)
    stack_dump.answer_looks(stack_dump.path_of(connection_file))
    # Registered before the user's own handlers, and therefore called after them.
    atexit.register(process_exit.flush_output)
    IOLoop.current().add_handler(end, lambda *_: app.kernel.end_when_idle(end), IOLoop.READ)
    app.kernel.short_calls.listen(short_call_frames.socket_of(connection_file))
    process = os.getpid()
    try:
        app.start()
    finally:
        if os.getpid() == process:
            process_exit.run(app.shell.user_ns)
