"""A machine behind an SSH connection: commands run there, files go there, streams lead on from there."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from ...errors import LinkLost, MachineError
from ..base import Done, Machine, Moved, ProcessId, Progress
from ..forwards import LocalForward
from ..process_handle import EarlierProcess
from . import scripts
from .remote_shell import Shell, failure
from .session import Access, Session, connect
from .target import Target

# The kernel counts in hundredths of a second for user space on every processor that is sold.
_TICKS = 100
_BEGIN_PATIENCE = 60.0
_SIGNAL_PATIENCE = 30.0
_MAX_NOISE = 16 << 20
_READ = 1 << 16


class SSHCommand:
    """A command that runs on another machine, in a session of its own; made by `SSHMachine.exec`."""

    def __init__(self, machine: SSHMachine, channel: Any, mark: str) -> None:
        self._machine, self._channel, self._mark = machine, channel, mark.encode()
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
        timer = threading.Timer(_BEGIN_PATIENCE, self._channel.close)
        timer.daemon = True
        timer.start()
        try:
            for line in self._raw_lines(_MAX_NOISE):
                # Noise without a line's end may stand before it.
                _, found, rest = line.partition(self._mark + b" ")
                if found:
                    self._pid, self._ticks = _who(rest.decode("utf-8", "replace"))
                    return
        finally:
            timer.cancel()
        raise self._not_begun()

    def _not_begun(self) -> MachineError:
        self._ended.wait(_SIGNAL_PATIENCE)
        if not self._machine.session.alive:
            return LinkLost(self._machine.target.name, "broken", "the connection broke as a command was started")
        told = self._errors.decode("utf-8", "replace").strip() or "it said nothing"
        return failure(self._machine.target, "a command could not be started", told)

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
        """Its exit status, or minus the signal that ended it.

        Raises
        ------
        TimeoutError
            When it has not ended after ``timeout`` seconds.
        LinkLost
            When the connection ended first: how it ended is not known, nor whether it has.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"process {self._pid} on {self._machine.target} has not ended after {timeout} s")
        if self._status is None:
            raise LinkLost(
                self._machine.target.name,
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
        self._channel.close()

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
                if data := self._channel.recv(_READ):
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
            while data := self._channel.recv_stderr(_READ):
                self._errors = (self._errors + data)[-_READ:]
                _, found, rest = self._errors.rpartition(self._mark + b" ")
                if found and rest.endswith(b"\n"):
                    status = int(rest.split()[0])
                    # A shell says 128 and the signal for a child that a signal ended.
                    self._status = status if status <= 128 else 128 - status
                    self._ended.set()
        if self._status is None:
            with contextlib.suppress(MachineError):
                status = self._machine.session.status(self._channel)
                self._status = status if status < 0 else self._status
        self._ended.set()


class SSHProcess(EarlierProcess):
    """A command that an earlier connection started there: it can be ended, and not listened to.

    Parameters
    ----------
    machine : SSHMachine
        Where it runs.
    pid, started
        Its `SSHCommand.identity`.
    """

    def __init__(self, machine: SSHMachine, pid: int, started: float) -> None:
        super().__init__(pid, started)
        self._machine = machine
        self._ticks = round(started * _TICKS)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._machine.run(scripts.alive(self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE).status == 0

    @property
    def place(self) -> str:
        """Its machine."""
        return f" on {self._machine.target}"

    def terminate(self) -> None:
        """Ask it and its group to end."""
        self._machine.run(scripts.signal("TERM", self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE)

    def kill(self) -> None:
        """End it and its group."""
        self._machine.run(scripts.signal("KILL", self.identity[0], self._ticks), timeout=_SIGNAL_PATIENCE)


class SSHMachine:
    """Another machine, through one connection that any number of threads may use. It implements `base.Machine`.

    Parameters
    ----------
    session : Session
        The connection; it ends with the machine's `close`.
    address : str, optional
        How the pool's other machines reach it; the address at which it answered us unless given.
    """

    is_this_machine = False

    def __init__(self, session: Session, address: str | None = None) -> None:
        self.session = session
        self.target = session.target
        self.key = f"ssh {self.target.user}@{self.target.host}:{self.target.port}"
        self.address = address or session.address
        self._shell = Shell(session)

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.target.name

    @property
    def up(self) -> bool:
        """Whether its connection stands."""
        return self.session.alive

    def retry(self) -> None:
        """Nothing: a connection that has broken is not made again without the link."""

    def facts(self) -> Mapping[str, Any]:
        """Nothing: it is not connected to again."""
        return {}

    @classmethod
    def connect(cls, target: Target, access: Access | None = None) -> SSHMachine:
        """Connect to a host; see `session.connect` for what can go wrong."""
        return cls(connect(target, access))

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> SSHCommand:
        """Start a command in a session of its own; its standard error goes to ``log``.

        Parameters
        ----------
        env : mapping of str to str
            Added to what a login has there; no argument of any process shows it.
        survive : bool
            Whether it goes on when the connection is gone. Where it does not, it is asked to end when
            the host notices that, and killed three seconds later.
        make : bool
            Whether ``cwd`` is made first, for its user only.

        Raises
        ------
        MachineError
            When it cannot be started: no such folder, program or log.
        """
        mark = f"sky-{secrets.token_hex(8)}"
        channel = self.session.channel(scripts.LAUNCH)
        command = SSHCommand(self, channel, mark)
        try:
            channel.sendall(scripts.line(scripts.command(argv, env, cwd, log, mark, survive, make)))
            command.begin()
        except OSError:
            channel.close()
            raise LinkLost(self.target.name, "broken", "the connection broke as a command was started") from None
        except BaseException:
            channel.close()
            raise
        return command

    def process(self, identity: ProcessId) -> SSHProcess:
        """A command that was started here before, by its identity."""
        return SSHProcess(self, *identity)

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in the connection's shell, one after another; see `base.Machine.run`."""
        return self._shell.run(script, stdin, timeout=timeout)

    def interrupt(self) -> None:
        """End the script that runs; whoever called `run` gets an error."""
        self._shell.close()

    def server(self) -> tuple[int, int]:
        """Who serves this connection there: a process, and its beginning in ticks."""
        return _who(self.run(scripts.server(), timeout=_SIGNAL_PATIENCE).out.decode("utf-8", "replace"))

    def end_server(self, pid: int, ticks: int) -> None:
        """End who served an earlier connection of ours, and may not know yet that it is gone."""
        self.run(scripts.end_server(pid, ticks), timeout=_SIGNAL_PATIENCE)

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
            raise failure(self.target, f"{what} could not be written", done.out.decode("utf-8", "replace").strip())

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file or folder, resumed after a break, while scripts go on; see `base.Machine.upload`."""
        with self._lane() as lane:
            return self._files.upload(lane, source, target, names=names, progress=progress)

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder; see `base.Machine.download`."""
        with self._lane() as lane:
            return self._files.download(lane, source, target, progress=progress)

    @property
    def _files(self) -> Any:
        from . import file_transfer as files

        return files

    @contextlib.contextmanager
    def _lane(self) -> Iterator[SSHMachine]:
        """The same connection with a shell of its own: a script in the other one does not wait for a transfer."""
        lane = SSHMachine(self.session, self.address)
        try:
            yield lane
        finally:
            lane.interrupt()

    def forward(self, host: str, port: int, *, local_port: int = 0) -> LocalForward:
        """A port here that leads there as long as this connection stands; see `base.Machine.forward`."""
        if not local_port:
            self.open_stream(host, port).close()
        return LocalForward(lambda: self.open_stream(host, port), local_port)

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Not possible: the link keeps relays, over connections of its own."""
        raise MachineError(self.name, "relay", "only a connection of the pool's link has relays")

    def open_stream(self, host: str, port: int) -> Any:
        """A connection from there to an address there, used as a socket is (``recv``, ``sendall``, ``close``)."""
        return self.session.open_stream(host, port)

    def close(self) -> None:
        """End the connection."""
        self.session.close()

    def __enter__(self) -> SSHMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _who(text: str) -> tuple[int, int]:
    """A process id and its beginning in ticks, of our own first line; 0 where the system has no /proc."""
    pid, _, stat = text.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return int(pid), int(fields[19]) if len(fields) > 19 else 0
