"""Terminals on a node: programs on pseudo-terminals, for a remote terminal.

The agent keeps a bounded part of the output, numbered by byte; a program that prints more waits until some is read. If
nobody reads for a while, the terminal is hung up, as after a broken connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import pwd
import secrets
import shlex
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ...errors import PoolError
from ...util.background_tasks import BackgroundTasks
from ..runtime import rank_environment
from ..system.processes import signal_group
from . import terminal_child

if TYPE_CHECKING:
    from .kernel_client import RankKernel

# Most bytes of output, and of input, that are kept; most bytes in one answer.
_MOST, _MOST_INPUT, _PIECE = 256 << 10, 64 << 10, 64 << 10
_MOST_OPEN = 16
# Seconds that a read waits for output, and that a rank has for telling its environment.
_LINGER, _ENVIRONMENT = 2.0, 1.5
# Seconds without a read after which a terminal is hung up: longer than a link needs to come back.
PATIENCE = 60.0
# Seconds from SIGHUP to SIGKILL.
_FAREWELL = 2.0
_LOOK = 0.5
_NO_SHELLS = ("nologin", "false", "true", "sync")
_UNKNOWN = "this terminal has ended: nobody had read it for {:g} s, or the node's agent is new"


class Terminal:
    """Program on a pseudo-terminal; `TerminalService` makes it.

    Parameters
    ----------
    process : asyncio.subprocess.Process
        The program, which leads a session of its own.
    master : int
        Our end of the terminal.
    """

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.heard = time.monotonic()
        self.changed = asyncio.Event()
        # Its exit status, once it has ended and all its output is in the buffer; negative for a signal.
        self.status: int | None = None
        # How many bytes of input were accepted.
        self.taken = 0
        self._process, self._master = process, master
        # Output that may not have been read yet, and the number of its first byte.
        self._output, self._start = bytearray(), 0
        self._input = bytearray()
        self._room = asyncio.Event()
        self._paused = self._eof = self._closed = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(master, False)
        self._loop.add_reader(master, self._take)
        self._waiting = asyncio.ensure_future(self._wait())

    def page(self, after: int) -> bytes:
        """Return the output from a byte on; drop earlier output."""
        del self._output[: max(0, after - self._start)]
        self._start = max(self._start, after)
        if self._paused and len(self._output) < _MOST // 2 and not self._closed:
            self._paused = False
            self._room.set()
            if not self._eof:
                self._loop.add_reader(self._master, self._take)
        return bytes(self._output[:_PIECE])

    def write(self, at: int, data: bytes) -> int:
        """Pass on input from byte ``at`` on; return the number of bytes accepted so far.

        Bytes that were accepted before are not passed on again; more are accepted only if there is room.
        """
        if at <= self.taken and not self._closed:
            fresh = data[self.taken - at :][: max(0, _MOST_INPUT - len(self._input))]
            self.taken += len(fresh)
            self._input += fresh
            self._pass_on()
        return self.taken

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size; its program is notified."""
        if not self._closed:
            set_size(self._master, rows, columns)

    async def close(self) -> None:
        """Hang up; end the program and the foreground processes."""
        if self._closed:
            return
        # Background processes are hung up too, but not killed: `nohup` keeps them, as after a broken connection.
        session, front = set(_groups_of(self._process.pid)), self._front()
        self._release()
        for number, groups, pause in ((signal.SIGHUP, session, _FAREWELL), (signal.SIGKILL, front, 0.0)):
            for group in groups:
                signal_group(group, number)
                signal_group(group, signal.SIGCONT)
            if pause and self._process.returncode is None:
                await asyncio.wait([self._waiting], timeout=pause)
        await asyncio.wait([self._waiting], timeout=_FAREWELL)

    def _front(self) -> set[int]:
        """Return the process groups of the program and of the foreground processes."""
        groups = {self._process.pid} if self._process.returncode is None else set()
        with contextlib.suppress(OSError):
            front = os.tcgetpgrp(self._master)
            # A terminal without a session has group 0, which would mean this process's own group.
            if front > 1 and os.getsid(front) == self._process.pid:
                groups.add(front)
        return groups

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._room.set()

    def _take(self) -> bool:
        """Read the terminal's output; return False if there is none."""
        try:
            data = os.read(self._master, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            # No process has the terminal open any more.
            data = b""
        if not data:
            self._eof = True
            self._loop.remove_reader(self._master)
            return False
        self._output += data
        if len(self._output) >= _MOST:
            self._paused = True
            self._room.clear()
            self._loop.remove_reader(self._master)
        self.changed.set()
        return True

    def _pass_on(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self._master, self._input[:4096])]
        except BlockingIOError:
            self._loop.add_writer(self._master, self._pass_on)
            return
        except OSError:
            self._input.clear()
        self._loop.remove_writer(self._master)

    async def _wait(self) -> None:
        status = await self._process.wait()
        # Its last output may still be in the terminal.
        while not self._closed and not self._eof:
            if self._paused:
                await self._room.wait()
            elif not self._take():
                break
        self._release()
        self.status = status
        self.changed.set()


class TerminalService:
    """Terminals of a node; made by the agent.

    Parameters
    ----------
    ranks : mapping of int to RankKernel
        The node's ranks.
    folder : Path
        The node's folder.
    pool : str
        Name of the pool in the prompt.
    patience : float
        Seconds without a read after which a terminal is hung up.
    """

    def __init__(
        self, ranks: Mapping[int, RankKernel], folder: Path, pool: str = "", patience: float = PATIENCE
    ) -> None:
        self._ranks, self._folder, self._pool, self._patience = ranks, folder, pool, patience
        self._open: dict[str, Terminal] = {}
        # Requests to ranks for their environment.
        self._asked: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._opening = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self._guard: asyncio.Task[None] | None = None

    async def sky_open_terminal(
        self, id: str, rank: int, size: Sequence[int], term: str, command: str | None = None
    ) -> dict[str, Any]:
        """Open a terminal beside a rank, once for each id.

        Parameters
        ----------
        id : str
            The terminal's id.
        rank : int
            The rank whose environment and folder its program has.
        size : sequence of int
            Rows and columns.
        term : str
            Type of the terminal that shows it.
        command : str, optional
            Command for the shell; without it, the shell reads from the terminal.

        Returns
        -------
        dict
            ``beside``, whether the rank has sent its environment.
        """
        async with self._opening:
            if id in self._open:
                return {"beside": True}
            if len(self._open) >= _MOST_OPEN:
                raise PoolError(f"there are {_MOST_OPEN} terminals on this node already: close one")
            env, cwd, beside = await self._of_rank(rank)
            master, slave = pty.openpty()
            try:
                set_size(slave, *size)
                env = rank_environment.for_terminal(env, term)
                words = [sys.executable, "-I", "-S", terminal_child.__file__, *self._words(env, rank, command)]
                process = await asyncio.create_subprocess_exec(
                    *words, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd, start_new_session=True
                )
            except BaseException:
                os.close(master)
                raise
            finally:
                os.close(slave)
            self._open[id] = Terminal(process, master)
            if self._guard is None:
                self._guard = asyncio.ensure_future(self._watch())
            return {"beside": beside}

    async def sky_read_terminal(self, id: str, after: int) -> dict[str, Any]:
        """Return output from byte ``after`` on, waiting a while for it.

        Earlier output has been read. ``exit`` is the exit status at the end of the output, and None before.
        """
        terminal, end = self._known(id), time.monotonic() + _LINGER
        while True:
            terminal.heard = time.monotonic()
            terminal.changed.clear()
            data = terminal.page(after)
            left = end - time.monotonic()
            if data or terminal.status is not None or left <= 0:
                return {"data": data, "exit": None if data else terminal.status}
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(terminal.changed.wait(), left)

    async def sky_write_terminal(self, id: str, at: int, data: bytes) -> int:
        """Pass on input from byte ``at`` on; return the number of bytes accepted so far."""
        return self._known(id).write(at, bytes(data))

    async def sky_resize_terminal(self, id: str, size: Sequence[int]) -> None:
        """Set a terminal's size."""
        self._known(id).resize(*size)

    async def sky_close_terminal(self, id: str) -> None:
        """Hang a terminal up; no-op if it has ended."""
        terminal = self._open.pop(id, None)
        if terminal is not None:
            await asyncio.shield(self._tasks.start(terminal.close()))

    async def close(self) -> None:
        """Hang up all terminals."""
        opened, self._open = list(self._open.values()), {}
        await asyncio.gather(*(terminal.close() for terminal in opened))

    def on_told(self, content: Mapping[str, Any]) -> None:
        """Take a rank's answer on its environment."""
        asked = self._asked.pop(str(content.get("id")), None)
        if asked is not None and not asked.done() and isinstance(content.get("env"), dict):
            asked.set_result(dict(content))

    def _known(self, id: str) -> Terminal:
        if id not in self._open:
            raise PoolError(_UNKNOWN.format(self._patience))
        return self._open[id]

    async def _of_rank(self, rank: int) -> tuple[dict[str, str], str, bool]:
        """Return a rank's environment and folder, and whether the rank sent them itself."""
        kernel = self._ranks[rank]
        key = secrets.token_hex(8)
        asked = self._asked[key] = asyncio.get_running_loop().create_future()
        kernel.answer({"for": rank_environment.TOPIC, "of": key})
        try:
            told = await asyncio.wait_for(asked, _ENVIRONMENT if kernel.entered else 0)
            return told["env"], told["cwd"], True
        except asyncio.TimeoutError:
            # The rank is about to start, has died, or holds the interpreter: use the environment of its start.
            env = {**os.environ, **kernel.env, "SKY_RANK": str(rank)}
            return {**env, "PATH": rank_environment.with_programs(env.get("PATH"))}, kernel.cwd, False
        finally:
            self._asked.pop(key, None)

    def _words(self, env: Mapping[str, str], rank: int, command: str | None) -> list[str]:
        """Return the program and its arguments: the user's shell on this machine."""
        shell = env.get("SHELL", "")
        # A container's user may have only a number.
        with contextlib.suppress(KeyError):
            shell = shell or pwd.getpwuid(os.getuid()).pw_shell
        if not os.access(shell, os.X_OK) or os.path.basename(shell) in _NO_SHELLS:
            shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        if command is not None:
            return [shell, "-c", command]
        if os.path.basename(shell) != "bash":
            return [shell]
        # The user's own startup files may put other programs first.
        where = f"rank {rank}" if not self._pool else f"{self._pool} rank {rank}"
        lines = [
            "for one in /etc/bash.bashrc ~/.bashrc; do [ -r $one ] && . $one; done; unset one",
            f"PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH",
            f"PS1={shlex.quote(f'({where}) ')}$PS1",
        ]
        path = self._folder / f"shell{rank}.rc"
        path.write_text("\n".join([*lines, ""]))
        return [shell, "--rcfile", str(path)]

    async def _watch(self) -> None:
        """Hang up the terminals that nobody reads."""
        try:
            while self._open:
                await asyncio.sleep(min(_LOOK, self._patience))
                for id, terminal in list(self._open.items()):
                    if time.monotonic() - terminal.heard > self._patience:
                        await self.sky_close_terminal(id)
        finally:
            self._guard = None


def _groups_of(session: int) -> Iterator[int]:
    """Yield the process groups of a session."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                yield os.getpgid(pid)


def set_size(descriptor: int, rows: int, columns: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
