"""The kernel of a rank: an IPython kernel that takes one request more, `sky_request`.

The agent sends it on the shell channel; it runs on the kernel's main thread, like a cell, and ends
with a `sky_end` message on iopub that follows every output of the request. Kinds of requests:

enter   take a place in the pool and enter the plugins
cell    bind the captured names and run the cell in this rank's namespace
call    unpickle a function with its arguments, call it, keep what it returns
fetch   write an earlier run's value, or that of a name, to a file
release let go of an earlier run's value, which nobody will fetch
check   go through the plugins' checks, with all other ranks
again   set the frameworks up anew in this process, with all other ranks
leave   leave the plugins

One more, `sky_abort`, comes on the control channel while a request is worked on: it breaks the
collective that the main thread is blocked in.
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
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import cloudpickle
import zmq
from ipykernel.compiler import XCachingCompiler
from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from tornado.ioloop import IOLoop
from traitlets import DottedObjectName, Type

from ..runtime.instance_info import POOL_VARIABLE, instance_info, keep
from ..serialization import code_portability, exceptions, pickling, result_values, surrogates
from ..serialization.global_names import global_reads
from ..serialization.sent_objects import HELD
from ..shared import agent_channel
from . import (
    added_packages,
    apply_settings,
    generator_streams,
    history_trim,
    process_exit,
    project_modules,
    result_store,
    stack_dump,
)
from .iopub import OutputThread
from .shell import SkyShell, answer_nobody, refuse, said, without_ours

_KEEP_VALUES = 16
_NATIVE_PATIENCE = 1.0
# Of calls that come together, no more are begun after so many seconds.
_MOST_TOGETHER = 0.2
_PIPE = 1 << 16
# So many characters are sent in one message, and so many messages wait for the agent; who prints
# more waits.
_MOST_TEXT = 1 << 20
_MOST_WAITING = 32
# What is not sent after so many seconds, by a thread that is not sending, waits for who waits for it.
_STUCK = 0.5
# What a rank's log takes of native output, which is in the journal too: it is for a crash's last words.
_MOST_LOG = 4 << 20
_NO_EXIT = (
    "{} ends this cell only, and the rank keeps its kernel and its names; `%sky restart` makes new kernels, "
    "`%sky down` ends the pool"
)
_BUILTINS = frozenset(vars(builtins))
_HIDDEN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "_", "__", "___", "_dh", "_oh", "_ih", "_exit_code"})


class CellCompiler(XCachingCompiler):
    """Names the code of a cell by its number, for stacks that are read from outside; see `stack_dump.cell_file`."""

    def get_code_name(self, raw_code: str, code: str, number: int) -> str:
        return stack_dump.cell_file(raw_code, number)


class SkyKernel(IPythonKernel):
    """Made by the forkserver's child, one a process; ends with it."""

    compiler_class = Type(CellCompiler)
    shell_class = Type(SkyShell)
    # The agent waits for idle by message; a pause would only slow it.
    _execute_sleep = 0.0
    # See `OneShell`.
    _supports_kernel_subshells = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shell_handlers["sky_request"] = self.sky_request
        self.control_handlers["sky_abort"] = self.sky_abort
        self.shell_handlers["comm_msg"] = _interruptible(self.shell_handlers["comm_msg"])
        self.sky_stack = contextlib.ExitStack()
        self.sky_plugins: tuple[Any, ...] = ()
        self.sky_streams = sys.stdout, sys.stderr
        self.sky_modules, self.sky_added = project_modules.ProjectModules(), added_packages.Added()
        self.sky_settings = apply_settings.Following()
        self.sky_values = result_store.ResultStore(_KEEP_VALUES)
        self._last_result: Any = None
        # Whether a request is worked on, and whether this process is to end when it is not.
        self._working = self._ending = False
        # Whether an interrupt cancelled what the cell awaits.
        self._cancelled = False
        self.shell.events.register("post_run_cell", self._on_post_run_cell)
        self.shell.ask_exit = _refuse_exit
        history_trim.keep_no_outputs(self.shell)

    def _on_post_run_cell(self, result: Any) -> None:
        self._last_result = result

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """Nothing: `sky_end` says when a request is over, and the agent hears of nothing else that is between."""

    def pre_handler_hook(self) -> None:
        """Nothing: interrupts are heeded by `sky_request`, while it works and no longer."""

    def post_handler_hook(self) -> None:
        """Nothing, as before."""

    def _forward_input(self, allow_stdin: bool = False) -> None:
        """Nothing: see `answer_nobody`."""

    def _restore_input(self) -> None:
        """Nothing, as before."""

    @contextlib.contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """ipykernel's, for cells that await; it leaves a loop asleep, and code that awaits nothing alone."""
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
            # A cell that has failed is over: see `SkyShell.showtraceback`.
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.shell.sky_failure else before)

    async def sky_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Do one request; whatever happens, `sky_end` says how it ended."""
        if self._ending:
            # The agent hears that this process has ended, and with it all that waited.
            return
        content = parent["content"]
        began = time.perf_counter()
        end, failed = {}, None
        self._working = True
        for stream in self.sky_streams:
            # What code has put elsewhere and takes up again belongs to the request that does so.
            stream.set_parent(parent)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if content["kind"] == "call":
                # A call may be stopped in the moment in which it begins: from here on that reaches it.
                self.tell("sky_begin", {})
            with self.around_run(content):
                end = await getattr(self, f"sky_{content['kind']}")(content)
        except BaseException as error:
            failed = error
        # From here on an interrupt comes too late, and would only keep the end from being told. One
        # may be on its way still.
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _have_streams()
        if failed is not None:
            end = self.failure(failed)
        if agent_channel.interrupted:
            if end["status"] == "interrupted":
                end["at"] = agent_channel.interrupted[0]
            agent_channel.interrupted.clear()
        if end["status"] != "ok":
            history_trim.forget_trees(self.shell)
        if content["kind"] in ("cell", "call") and (ended := self.ended()):
            end["ended"] = ended
        end["elapsed"] = time.perf_counter() - began
        self.drain_native_output()
        self.tell("sky_end", end)
        self._working = False
        if self._ending:
            self.io_loop.stop()

    def end_when_idle(self, descriptor: int) -> None:
        """The forkserver has closed its end of a pipe: leave the loop, and with it the process, in order."""
        self.io_loop.remove_handler(descriptor)
        self._ending = True
        if not self._working:
            self.io_loop.stop()

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Send the agent a message of the request that is being done."""
        send = functools.partial(
            self.session.send,
            self.iopub_socket,
            kind,
            content,
            parent=self.get_parent("shell"),
            ident=self._topic(kind),
        )
        # Sent by the thread that flushes, and not before its turn: a flush only puts its text at
        # the end of what that thread is to send.
        self.iopub_socket.io_thread.schedule(send)

    async def sky_abort(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Runs in the control thread: native code that waits for a peer has let go of the GIL."""
        for plugin in self.sky_plugins:
            if plugin.abort is not None:
                plugin.abort(instance_info())

    # -- kinds -------------------------------------------------------------------------------------

    async def sky_enter(self, content: dict[str, Any]) -> dict[str, Any]:
        os.environ[POOL_VARIABLE] = content["info"]
        keep([POOL_VARIABLE, pickling.BLOBS, project_modules.VARIABLE])
        pickling.Pickler.reader = content.get("python", "")
        info = instance_info()
        before = dict(os.environ)
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
        # Tracebacks of earlier failures are cycles, and hold threads and connections of the frameworks.
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
        self.find_code(content)
        pickling.bind(content["manifest"], namespace, instance_info().rank)
        before = {name: id(value) for name, value in namespace.items()}
        self.shell.execution_count = content["count"]
        self._last_result, self._cancelled, self.shell.sky_failure = None, False, None
        self.shell.sky_in_cell = True
        try:
            reply = await self.do_execute(content["code"], silent=False, store_history=True, allow_stdin=False)
        finally:
            self.shell.sky_in_cell = False
        result = self._last_result
        history_trim.forget_cells(self.shell, _KEEP_VALUES)
        HELD.sweep(namespace)
        end: dict[str, Any] = {"status": reply["status"], "bound": True, **_told(before, namespace)}
        if reply["status"] == "ok":
            if result is not None and result.result is not None:
                end.update(self.sky_values.dump(content["run"], result.result))
            return end
        error = result and (result.error_before_exec or result.error_in_exec)
        shown, lines = self.shell.sky_failure or (None, [])
        # What fails while a value is shown is no error of the result.
        error, self.shell.sky_failure = error or shown, None
        end.update(self.told_of(error, lines) if error else _error(None, reply["ename"], reply["evalue"], lines))
        if isinstance(error, KeyboardInterrupt) or (self._cancelled and isinstance(error, asyncio.CancelledError)):
            end["status"] = "interrupted"
        return end

    async def sky_call(self, content: dict[str, Any]) -> dict[str, Any]:
        self.find_code(content)
        namespace = self.shell.user_ns
        for manifest in (content["manifest"], content.get("more")):
            if manifest:
                pickling.bind(manifest, namespace, instance_info().rank)
        before = {name: id(value) for name, value in namespace.items()}
        value = await (self.streamed(content) if "stream" in content else self.called(content))
        HELD.sweep(namespace)
        return {
            "status": "ok",
            "bound": True,
            **_told(before, namespace),
            **self.sky_values.dump(content["run"], value),
        }

    async def sky_fetch(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", **self.sky_values.export(content, self.shell.user_ns)}

    async def sky_release(self, content: dict[str, Any]) -> dict[str, Any]:
        value = self.sky_values.release(content["of"])
        if value is not None:
            history_trim.forget_value(self.shell, value)
            if self._last_result is not None and self._last_result.result is value:
                self._last_result = None
        return {"status": "ok"}

    # -- parts -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def around_run(self, content: dict[str, Any]) -> Iterator[None]:
        """What the plugins want around a cell or a call that leaves out some of the pool's ranks."""
        with contextlib.ExitStack() as stack:
            for plugin in self.sky_plugins if content.get("partial") else ():
                if plugin.around_partial_run is not None:
                    stack.enter_context(plugin.around_partial_run(instance_info()))
            yield

    async def called(self, content: dict[str, Any]) -> Any:
        """What a function returns, or where several calls of it come together, a list of what each does."""
        function, calls = self.load_call(content)
        began, values = time.perf_counter(), []
        for args, kwargs in calls:
            value = function(*args, **kwargs)
            values.append(await value if inspect.iscoroutine(value) else value)
            if content.get("together"):
                _end_lines()
            # Short ones come together. Where they are not short after all, others may have the rest.
            if time.perf_counter() - began > _MOST_TOGETHER:
                break
        return values if content.get("together") else values[0]

    async def streamed(self, content: dict[str, Any]) -> Any:
        """What a function returns that reads iterators of the notebook or yields, of a generator what it returns."""
        with generator_streams.opened(content["run"]) as stream:
            function, ((args, kwargs),) = self.load_call(content)
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = await value
            return await stream.send_all(value) if content["stream"]["out"] else value

    def load_call(self, content: dict[str, Any]) -> tuple[Any, Any]:
        """A function, as the plugins want it, and with which arguments it is to be called."""
        function, calls = pickling.load_call(content)
        # The first one's is outermost, as with context managers that are entered in that order.
        for plugin in reversed(self.sky_plugins):
            if plugin.decorate is not None:
                function = plugin.decorate(function)
        return function, calls

    def find_code(self, content: dict[str, Any]) -> None:
        """Have what a request needs found: packages that were added, and the notebook's own modules as they are now.

        Who reads its values is noted with it, and what the notebook has set in its process is set here.
        """
        self.sky_settings.update(content.get("settings"))
        self.sky_added.update(content.get("packages"))
        self.sky_modules.update(content.get("modules"))
        pickling.Pickler.reader = content.get("python", "")

    def failure(self, error: BaseException) -> dict[str, Any]:
        """How a request ended that raised outside of a cell."""
        trace = error.__traceback__
        # The frames of this file say nothing of what was called.
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        trace = without_ours(error, trace)
        lines = self.shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
        return {"status": status, **self.told_of(error, lines)}

    @staticmethod
    def told_of(error: BaseException, lines: list[str]) -> dict[str, Any]:
        """What an end tells of an error, and of its traceback, where that was shown."""
        name, text = type(error).__name__, said(error)
        return _error(error, name, text, lines or [f"{name}: {text}" if text else name])

    def ended(self) -> str:
        """What of the plugins' frameworks the user's code has ended, in words; nothing where all stands."""
        found = []
        for plugin in self.sky_plugins:
            if plugin.ended is not None:
                try:
                    found.append(plugin.ended(instance_info()))
                except Exception as error:
                    found.append(f"{plugin.name} ({type(error).__name__}: {error})")
        return " and ".join(dict.fromkeys(filter(None, found)))

    def drain_native_output(self) -> None:
        """Wait for what native code and subprocesses wrote to descriptors 1 and 2, then flush.

        ipykernel reads them through a pipe in a thread; without this, such lines could come
        after the end of the run that printed them.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                _await_empty(stream)
                if not getattr(stream, "is_sent", False):
                    _flush_soon(stream)


def _refuse_exit() -> None:
    # What `exit` and `quit` do in a cell. IPython's would end the kernel, and that after the cell is called done.
    refuse(_NO_EXIT, "exit()")


def _have_streams() -> None:
    """Put a stream in the place of one that code has set to None, or deleted: Python allows it, IPython does not."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name, None) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays for as long as the process


def _interruptible(handler: Callable[..., None]) -> Callable[..., None]:
    """A handler of what a page tells a widget; without this an interrupt ends requests and nothing else."""

    def handle(*arguments: Any) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            handler(*arguments)
        finally:
            signal.signal(signal.SIGINT, before)

    return handle


def _flush_soon(stream: Any) -> None:
    """Have what a stream has gathered sent before what is sent next, without waiting for it.

    The thread that flushes does what it is asked in order; see `sky_request` for what follows.
    """
    thread, flush = getattr(stream, "pub_thread", None), getattr(stream, "_flush", None)
    if thread is None or flush is None:
        stream.flush()
    else:
        thread.schedule(flush)


def _await_empty(stream: Any) -> None:
    """Wait until what lies in a stream's pipe has become the stream's text."""
    descriptor = getattr(stream, "_fid", None)
    if descriptor is None:
        return
    import fcntl
    import struct
    import termios

    end = time.monotonic() + _NATIVE_PATIENCE
    while time.monotonic() < end:
        # Whoever reads the pipe holds the lock until it has handed on what it read.
        with stream.taking:
            if not struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]:
                return
        time.sleep(0.001)


def _end_lines() -> None:
    """End the lines that a call has left open: the next one's output begins on its own."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "line_is_open", False):
            stream.write("\n")


def _writes(before: dict[str, int], namespace: dict[str, Any]) -> list[str]:
    """Names that are bound anew or gone since ``before``, without IPython's own."""
    now = {name: id(value) for name, value in namespace.items()}
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(
        name
        for name in changed
        if name not in _HIDDEN and not (name.startswith("_") and (name[1:].isdigit() or name.startswith("_i")))
    )


def _told(before: dict[str, int], namespace: dict[str, Any]) -> dict[str, Any]:
    """What an end tells of the names that a run has bound or deleted."""
    writes = _writes(before, namespace)
    sizes = {name: _size(namespace[name]) for name in writes if name in namespace}
    found = {name: namespace[name] for name in sizes if isinstance(namespace[name], types.ModuleType)}
    reads = {name: sorted(global_reads(namespace[name], namespace) - _BUILTINS) for name in sizes}
    return {
        "writes": writes,
        "modules": list(found),
        # By what a new kernel gets them again.
        "imports": {name: [vars(one)["__name__"]] for name, one in found.items() if _is_imported(one)},
        "sizes": sizes,
        "uses": {name: found for name, found in reads.items() if found},
    }


def _is_imported(module: Any) -> bool:
    name = vars(module).get("__name__")
    return isinstance(name, str) and sys.modules.get(name) is module


def _size(value: Any) -> int | None:
    """The bytes of an array, a text or a number; None of what would have to be searched for them."""
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
        "traceback": [*traceback, *project_modules.hint(error)],
        # Without it the notebook makes one of the name and the text.
        "raised": None if error is None else exceptions.describe(error),
        "exception": None
        if pickling.Pickler.reader and code_portability.find_code_object(error)
        else result_values.dump_exception(error),
    }


class OrderedStream(OutStream):
    """Standard output or error of a rank: what one says before the other writes is sent before it.

    ipykernel gathers each for itself, for up to 0.2 s, and their order is lost.
    """

    _last: ClassVar[OrderedStream | None] = None
    # The threads that read native output, and after how many messages they found the one that sends stuck.
    _watchers: ClassVar[set[threading.Thread]] = set()
    _stuck: ClassVar[int] = -1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Before the thread that watches the pipe is started.
        self.taking = threading.Lock()
        # About how many characters wait for the next flush.
        self._gathered = 0
        # A mark that each text leaves, and the one that had been left before the last flush began. Each is
        # another one, so that none is taken for another's whatever threads write at once.
        self._marks = itertools.count(1)
        self._mark = self._sent = 0
        # Whether what was written last did not end its line.
        self.line_is_open = False
        super().__init__(*arguments, **options)

    def _watch_pipe_fd(self) -> None:
        """ipykernel's, but a character that two reads share stays whole, and `_await_empty` can wait for it."""
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
        """Leave native output in the rank's log too, as far as the disk takes it, and not without end."""
        with contextlib.suppress(OSError):
            if os.fstat(self._original_stdstream_copy).st_size > _MOST_LOG:
                os.ftruncate(self._original_stdstream_copy, 0)
            os.write(self._original_stdstream_copy, data)

    @property
    def is_sent(self) -> bool:
        """Whether all is sent that was written here so far."""
        return self._sent == self._mark

    def flush(self) -> None:
        """ipykernel's returns before the text is sent, and a call that then keeps the GIL would hold it back."""
        if self.is_sent:
            return
        thread = self.pub_thread
        if thread is None or not thread.thread.is_alive() or thread.thread is threading.current_thread():
            self._flush()
            return
        # The thread that sends may itself be writing to the pipe that is read here: a `__del__` that runs
        # there does, or a native library's logger. Then the pipe is read on, and the text waits.
        reads = threading.current_thread() in OrderedStream._watchers
        if reads and OrderedStream._stuck == thread.sent:
            return
        # No Event: an interrupt that comes inside of one may leave it locked, and the thread would stand still.
        sent = threading.Lock()
        sent.acquire()
        thread.schedule(self._flush)
        thread.schedule(sent.release)
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
            # Waits until it is on its way.
            self.flush()
        return len(string)

    def _write(self, string: str) -> int | None:
        try:
            return super().write(string)
        finally:
            self._mark = next(self._marks)

    def _flush(self) -> None:
        self._gathered, mark = 0, self._mark
        super()._flush()
        self._sent = mark


class OneShell:
    """Stands where ipykernel has a thread that reads the shell channel and hands on to the main one.

    That thread is for subshells, which nobody here asks for: without it the main thread reads for itself,
    and a short cell takes a fifth less. What is false is taken for no thread.
    """

    def __init__(self) -> None:
        self.parent_thread = threading.current_thread()

    def __bool__(self) -> bool:
        return False


class SkyKernelApp(IPKernelApp):
    """IPython's kernel application, whose output socket waits for a slow reader instead of dropping."""

    outstream_class = DottedObjectName(f"{__name__}.OrderedStream")
    kernel_class = SkyKernel

    def init_control(self, context: zmq.Context[Any]) -> None:
        super().init_control(context)
        self.shell_channel_thread = OneShell()

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """ipykernel's, with a socket that drops nothing and a thread that opens no port."""
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        # Before it is bound: it holds for the connections that the socket gets thereby.
        socket.sndhwm = _MOST_WAITING
        self.iopub_port: int = self._bind_socket(socket, self.iopub_port)
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.configure_tornado_logger()
        self.iopub_thread = OutputThread(socket, f"{self.ip}-forks", self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket


def run_kernel(connection_file: str, end: int) -> None:
    """Be the kernel that the connection file describes, until the other end of the pipe ``end`` is closed."""
    # ipykernel puts its pipes in the place of descriptors 1 and 2; a crash must reach the log itself.
    log = os.fdopen(os.dup(2), "w")
    # The host's are nothing to the user's code: it has none, as in Python's own prompt.
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
            # As the agent's: nobody else writes to these sockets, and each signature would be kept.
            "--Session.digest_history_size=0",
            "--IPKernelApp.parent_handle=0",
        ]
    )
    app.session.pack = surrogates.pack
    answer_nobody()
    # traitlets makes a record of each message, and drops it then.
    app.log.setLevel(app.log_level)
    # Of the crashed thread only: all of them would push the reason out of the lines that are shown.
    faulthandler.enable(log, all_threads=False)
    stack_dump.answer_looks(stack_dump.path_of(connection_file))
    # Before the user's own handlers, and so called after them.
    atexit.register(process_exit.flush_output)
    IOLoop.current().add_handler(end, lambda *_: app.kernel.end_when_idle(end), IOLoop.READ)
    process = os.getpid()
    try:
        app.start()
    finally:
        if os.getpid() == process:
            process_exit.run(app.shell.user_ns)
