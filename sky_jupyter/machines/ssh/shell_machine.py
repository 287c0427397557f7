"""What machines share on which ``/bin/sh`` can be started with pipes: commands, files and processes by shell scripts.

A machine over SSH is one. A kind of machine that another distribution adds, such as a container that an API starts
commands in, says how a shell is started, how it ends, and how an address is reached: `open_shell`, `status` and
`open_stream`. Nothing else is needed there but a POSIX system with ``/proc``.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Protocol

from ...errors import LinkLost, MachineError
from ..base import Done, Machine, Moved, ProcessId, Progress
from ..forwards import LocalForward, Stream
from ..process_handle import EarlierProcess
from . import scripts
from .failures import failure

# The kernel counts in hundredths of a second for user space on every processor that is sold.
_TICKS = 100
_BEGIN_PATIENCE = 60.0
_SIGNAL_PATIENCE = 30.0
_MAX_NOISE = 16 << 20
_READ = 1 << 16


class Pipes(Protocol):
    """The standard streams of a shell that runs on a machine; made by `ShellMachine.open_shell`."""

    @property
    def closed(self) -> bool:
        """Whether it was closed, or the connection broke."""

    def recv(self, size: int, /) -> bytes:
        """What it writes to standard output; empty at the end."""

    def recv_stderr(self, size: int, /) -> bytes:
        """What it writes to standard error; empty at the end."""

    def send_all(self, data: bytes, /) -> Any:
        """Write all of this to standard input; OSError where nobody reads it any more."""

    def shutdown_write(self) -> None:
        """End standard input."""

    def close(self) -> None:
        """Close all streams; the shell may run on."""


class ShellCommand:
    """A command that runs on another machine, in a session of its own; made by `ShellMachine.exec`."""

    def __init__(self, machine: ShellMachine, pipes: Pipes, mark: str) -> None:
        self._machine, self._pipes, self._mark = machine, pipes, mark.encode()
        self._errors = b""
        self._status: int | None = None
        self._ended = threading.Event()
        self._rest = b""
        self._pid, self._ticks = 0, 0
        threading.Thread(target=self._listen, name="sky-ssh-command", daemon=True).start()

    @property
    def identity(self) -> ProcessId:
        """Its process id there, and when it was started, in seconds since that machine's start."""
        return self._pid, self._ticks / _TICKS

    def begin(self) -> None:
        """Read until it says who it is; what a login's own files print before is left out."""
        timer = threading.Timer(_BEGIN_PATIENCE, self._pipes.close)
        timer.daemon = True
        timer.start()
        try:
            for line in self._raw_lines(_MAX_NOISE):
                # Noise without a line's end may stand before it.
                _, found, rest = line.partition(self._mark + b" ")
                if found:
                    self._pid, self._ticks = who(rest.decode("utf-8", "replace"))
                    return
        finally:
            timer.cancel()
        raise self._not_begun()

    def _not_begun(self) -> MachineError:
        self._ended.wait(_SIGNAL_PATIENCE)
        if not self._machine.up:
            return LinkLost(self._machine.name, "broken", "the connection broke as a command was started")
        told = self._errors.decode("utf-8", "replace").strip() or "it said nothing"
        return failure(self._machine.name, "a command could not be started", told)

    def lines(self) -> Iterator[str]:
        """Its standard output, a line at a time; ends with it, or with the connection."""
        for line in self._raw_lines():
            yield line.decode("utf-8", "replace")

    def terminate(self) -> None:
        """Ask it and what it has started in its group to end."""
        self._signal("TERM")

    def kill(self) -> None:
        """End it and what it has started in its group."""
        self._signal("KILL")

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, or minus the signal that ended it; see `base.Command.wait`."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"process {self._pid} on {self._machine.label} has not ended after {timeout} s")
        if self._status is None:
            raise LinkLost(
                self._machine.name,
                "closed",
                f"the connection ended before process {self._pid} did: how that ended is not known",
            )
        return self._status

    @property
    def ended(self) -> bool:
        """Whether it has ended, or is not heard of any more."""
        return self._ended.is_set()

    def close(self) -> None:
        """Listen to it no more; it lives on unless it was asked not to."""
        self._pipes.close()

    def _signal(self, name: str) -> None:
        if not self._ended.is_set():
            self._machine.run(scripts.signal(name, self._pid, self._ticks), timeout=_SIGNAL_PATIENCE)

    def _raw_lines(self, most: int | None = None) -> Iterator[bytes]:
        seen = 0
        while most is None or seen <= most:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                yield line
                continue
            with contextlib.suppress(OSError, EOFError):
                if data := self._pipes.recv(_READ):
                    self._rest += data
                    seen += len(data)
                    continue
            if self._rest:
                line, self._rest = self._rest, b""
                yield line
            return

    def _listen(self) -> None:
        """Take in standard error, which is ours: what went wrong at the start, and how it ended."""
        with contextlib.suppress(OSError, EOFError):
            while data := self._pipes.recv_stderr(_READ):
                self._errors = (self._errors + data)[-_READ:]
                _, found, rest = self._errors.rpartition(self._mark + b" ")
                if found and rest.endswith(b"\n"):
                    status = int(rest.split()[0])
                    # A shell says 128 and the signal for a child that a signal ended.
                    self._status = status if status <= 128 else 128 - status
                    self._ended.set()
        if self._status is None:
            with contextlib.suppress(MachineError):
                status = self._machine.status(self._pipes)
                self._status = status if status < 0 else self._status
        self._ended.set()


class ShellProcess(EarlierProcess):
    """A command that an earlier connection started there: it can be ended, and not listened to.

    Parameters
    ----------
    machine : ShellMachine
        Where it runs.
    pid, started
        Its `ShellCommand.identity`.
    """

    def __init__(self, machine: ShellMachine, pid: int, started: float) -> None:
        super().__init__(pid, started)
        self._machine = machine
        self._ticks = round(started * _TICKS)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        script = scripts.alive(self.identity[0], self._ticks)
        return self._machine.run(script, timeout=_SIGNAL_PATIENCE).status == 0

    @property
    def place(self) -> str:
        """Its machine."""
        return f" on {self._machine.label}"

    def terminate(self) -> None:
        """Ask it and its group to end."""
        self._machine.run(scripts.signal("TERM", self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE)

    def kill(self) -> None:
        """End it and its group."""
        self._machine.run(scripts.signal("KILL", self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE)


class ShellMachine(ABC):
    """A machine on which ``/bin/sh`` can be started with pipes; implements `base.Machine` with that.

    A subclass has ``name``, ``key`` and ``address``, and the three abstract methods.
    """

    is_this_machine = False
    name: Any
    key: str
    address: str

    @abstractmethod
    def open_shell(self, command: str) -> Pipes:
        """Start ``/bin/sh -c COMMAND`` there, with pipes; MachineError where it cannot be started."""

    @abstractmethod
    def status(self, pipes: Any) -> int:
        """Wait until a shell has ended; its exit status, or minus the signal that ended it.

        Raises
        ------
        LinkLost
            When the connection ended first.
        """

    @abstractmethod
    def open_stream(self, host: str, port: int) -> Stream:
        """A connection from there to an address there; MachineError where nobody listens there."""

    @property
    def label(self) -> str:
        """What the user calls it, with more of where it is if there is more to say."""
        return str(self.name)

    @property
    def up(self) -> bool:
        """True: a machine that notices when its connection is gone says so."""
        return True

    def retry(self) -> None:
        """Nothing: it is tried anew with each command."""
        return

    def close(self) -> None:
        """Close the forwards; each command has a connection of its own."""
        for one in self._forwards:
            one.close()

    def facts(self) -> Mapping[str, Any]:
        """Nothing but its id is needed to have it again."""
        return {}

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in a shell of its own; see `base.Machine.run`."""
        over = threading.Event()
        with self.script(f"( exec 2>&1; {script} )", stdin) as pipes, _timed(pipes.close, timeout, over) as failed:
            parts = []
            try:
                while data := pipes.recv(_READ):
                    parts.append(data)
                status = -1 if over.is_set() else self.status(pipes)
            except (OSError, EOFError, LinkLost) as error:
                status = -1
                failed.append(error)
        if over.is_set():
            raise TimeoutError(f"a script on {self.label} has not ended after {timeout:g} s")
        if failed:
            raise LinkLost(self.name, "broken", f"the connection broke while a script ran ({failed[0]})") from None
        return Done(status if status >= 0 else 128 - status, b"".join(parts))

    @contextlib.contextmanager
    def script(self, script: str, stdin: Iterable[bytes] | None = None) -> Iterator[Pipes]:
        """A script that runs with pipes, and is fed from a thread; what cannot be had of its input is raised.

        Standard output may begin with what a login's own files print.
        """
        pipes = self.open_shell(scripts.LAUNCH)
        failed: list[Exception] = []
        source = "" if stdin is not None else " </dev/null"
        feeder = threading.Thread(
            target=_feed,
            args=(pipes, [scripts.line(f"{{ {script}; }}{source}")], stdin or (), failed),
            name="sky-shell-feed",
            daemon=True,
        )
        feeder.start()
        with contextlib.closing(pipes):
            try:
                yield pipes
            finally:
                if failed:
                    raise failed[0]

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> ShellCommand:
        """Start a command in a session of its own; see `base.Machine.exec`.

        One that does not survive is asked to end when the machine notices that the connection is gone, and killed
        three seconds later.
        """
        mark = f"sky-{secrets.token_hex(8)}"
        pipes = self.open_shell(scripts.LAUNCH)
        command = ShellCommand(self, pipes, mark)
        try:
            pipes.send_all(scripts.line(scripts.command(argv, env, cwd, log, mark, survive, make)))
            command.begin()
        except OSError:
            pipes.close()
            raise LinkLost(self.name, "broken", "the connection broke as a command was started") from None
        except BaseException:
            pipes.close()
            raise
        return command

    def process(self, identity: ProcessId) -> ShellProcess:
        """A command that was started here before, by its identity."""
        return ShellProcess(self, *identity)

    def put(self, files: Mapping[PurePath, bytes]) -> None:
        """Write several files with one command; see `base.Machine.put`."""
        self.put_parts([(path, len(data)) for path, data in files.items()], files.values())

    def put_parts(self, files: Sequence[tuple[PurePath, int]], data: Iterable[bytes]) -> None:
        """Write several files of known lengths with one command, from bytes that follow one another."""
        items = [(PurePosixPath(str(path)), size) for path, size in files]
        if not items:
            return
        script = scripts.put(items, f"sky-{secrets.token_hex(6)}")
        done = self.run(script, stdin=data)
        if done.status:
            what = str(items[0][0]) if len(items) == 1 else f"{len(items)} files"
            raise failure(self.name, f"{what} could not be written", done.out.decode("utf-8", "replace").strip())

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file or folder; see `base.Machine.upload`."""
        from . import file_transfer

        return file_transfer.upload(self, source, target, names=names, progress=progress)

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder; see `base.Machine.download`."""
        from . import file_transfer

        return file_transfer.download(self, source, target, progress=progress)

    def forward(self, host: str, port: int, *, local_port: int = 0) -> LocalForward:
        """A port here that leads there, by a connection of its own for each; see `base.Machine.forward`."""
        if not local_port:
            self.open_stream(host, port).close()
        made = LocalForward(lambda: self.open_stream(host, port), local_port)
        self._forwards.append(made)
        return made

    @functools.cached_property
    def _forwards(self) -> list[LocalForward]:
        return []

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Not possible: connections lead there, and none leads back."""
        raise MachineError(self.name, "relay", "no port of it can lead to another machine through here")


def who(text: str) -> tuple[int, int]:
    """A process id and its beginning in ticks, of our own first line; 0 where the system has no /proc."""
    pid, _, stat = text.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return int(pid), int(fields[19]) if len(fields) > 19 else 0


@contextlib.contextmanager
def _timed(end: Any, timeout: float | None, over: threading.Event) -> Iterator[list[BaseException]]:
    """Call ``end`` when it takes too long; the event says that it was so."""
    failed: list[BaseException] = []

    def expire() -> None:
        over.set()
        end()

    timer = None if timeout is None else threading.Timer(timeout, expire)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield failed
    finally:
        if timer is not None:
            timer.cancel()


def _feed(pipes: Pipes, first: Sequence[bytes], data: Iterable[bytes], failed: list[Exception]) -> None:
    """Write a script and its input; where the input cannot be had, the script ends with its pipes."""
    try:
        for part in first:
            pipes.send_all(part)
        parts = iter(data)
        while True:
            try:
                part = next(parts)
            except StopIteration:
                break
            except Exception as error:
                failed.append(error)
                pipes.close()
                return
            pipes.send_all(part)
        pipes.shutdown_write()
    except (OSError, EOFError):
        # It has ended before it had read all: its answer is there.
        return
