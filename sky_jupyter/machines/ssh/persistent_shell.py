"""Shell that runs many scripts on one channel: log-in files run only once."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import paramiko

from ...errors import LinkLost, MachineError
from ..base import Done
from . import scripts
from .session_protocol import MachineSession
from .types import NoShell, shown

_READ = 1 << 16
_BEGIN_PATIENCE = 60.0
_MAX_OUTPUT = 64 << 20
# Pieces of output kept while input is sent: as many as the limit allows if they are large.
_MOST_PIECES = _MAX_OUTPUT // _READ
# Timeout of a write to a script that does not read, after which its output is polled.
_TURN = 0.05


class _SourceFailed(Exception):
    """Raised when the input itself cannot be read; the connection works."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Shell:
    """Shell that runs scripts one at a time on one channel, opened on first use.

    Parameters
    ----------
    session : MachineSession
        The connection.
    """

    def __init__(self, session: MachineSession) -> None:
        self._session = session
        self._mark = f"sky-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._channel: Any = None
        self._rest: list[bytes] = []

    def run(
        self, script: str, data: Iterable[bytes | memoryview] | None = None, *, timeout: float | None = None
    ) -> Done:
        """Run a one-line script in a subshell; return its status and both outputs.

        Parameters
        ----------
        script : str
            One line.
        data : iterable of bytes, optional
            Standard input, empty by default; a script that ends with status 0 must have read all of it.
        timeout : float, optional
            Seconds to wait; forever by default.

        Returns
        -------
        Done
            Exit status, and standard output and error together.

        Raises
        ------
        TimeoutError
            When it has not ended after ``timeout`` seconds; the shell is closed then.
        LinkLost
            When the connection ends first.
        """
        with self._lock:
            self._begin()
            with _patience(self._channel, timeout) as out_of_time:
                try:
                    return self._ask(script, data)
                except _SourceFailed as failed:
                    self._give_up()
                    raise failed.error from None
                except (OSError, EOFError, paramiko.SSHException) as error:
                    told = self._give_up()
                    if out_of_time.is_set():
                        raise TimeoutError(
                            f"a script on {self._session.target} has not ended after {timeout:g} s"
                        ) from None
                    raise self._broken(told or str(error)) from None
                except BaseException:
                    # Part of a script or its input has been sent: the shell cannot be used again.
                    self._give_up()
                    raise

    def _ask(self, script: str, data: Iterable[bytes | memoryview] | None) -> Done:
        source = "" if data is not None else " </dev/null"
        tell = f"_sky_r=$?; printf '\\n%s %s\\n' {self._mark} $_sky_r"
        # A failed script may not have read its input. The shell would run the rest as scripts, so it ends too.
        after = "" if data is None else "; [ $_sky_r -eq 0 ] || exit 1"
        self._send(f"( {script} ) 2>&1{source}; {tell}{after}")
        if data is not None:
            self._feed(data)
        done = self._reply()
        if data is not None and done.status:
            self._channel.close()
        return done

    def _feed(self, data: Iterable[bytes | memoryview]) -> None:
        """Send a script's input, and read its output meanwhile so that it does not block."""
        self._channel.settimeout(_TURN)
        try:
            for part in _own_errors(data):
                view = memoryview(part)
                while view:
                    while self._channel.recv_ready() and len(self._rest) <= _MOST_PIECES:
                        self._rest.append(self._channel.recv(_READ))
                    with contextlib.suppress(TimeoutError):  # no room for any of it yet
                        view = view[self._send_some(view) :]
        except (OSError, EOFError, paramiko.SSHException):
            if not self._session.alive:
                raise
            # The script ended before it had read all of its input: its reply can be read.
        finally:
            self._channel.settimeout(None)

    def _send_some(self, data: memoryview) -> int:
        sent = int(self._channel.send_some(data))
        if not sent:
            raise EOFError
        return sent

    def close(self) -> None:
        """Close the shell; a script that runs in it is interrupted."""
        channel = self._channel
        if channel is not None:
            channel.close()

    def _begin(self) -> None:
        if self._channel is not None and not self._channel.closed:
            return
        self._channel, self._rest = self._session.channel(scripts.LAUNCH), []
        with _patience(self._channel, _BEGIN_PATIENCE) as out_of_time:
            try:
                loop = f"printf '\\n%s 0\\n' {self._mark}; while IFS= read -r _sky; do eval \"$_sky\"; done"
                self._send(loop)
                self._reply()  # and what the login's own files print before it
            except (OSError, EOFError, paramiko.SSHException):
                self._refuse(out_of_time.is_set())

    def _refuse(self, out_of_time: bool) -> NoReturn:
        """Raise the error for a shell that did not start, with its output."""
        # The rest of its output arrives with the channel's end.
        with contextlib.suppress(OSError, EOFError):
            self._channel.settimeout(1.0)
            while len(self._rest) <= _MOST_PIECES and (data := self._channel.recv(_READ)):
                self._rest.append(data)
        words = [b"".join(self._rest).decode("utf-8", "replace").strip(), self._give_up()]
        told = "; ".join(shown(word) for word in words if word)
        if not self._session.alive:
            raise self._broken("it ended") from None
        target = self._session.target
        if out_of_time:
            text = (
                f"{target} has not started /bin/sh in {_BEGIN_PATIENCE:g} s: a file that its logins run (~/.bashrc, "
                "~/.profile) may wait, or read what comes after it"
            )
        else:
            text = f"{target} runs no /bin/sh for this user: give it a login shell, without ForceCommand"
        raise NoShell(target.name, "shell", f"{text} ({'it said: ' + told if told else 'it said nothing'})") from None

    def _send(self, script: str) -> None:
        self._channel.send_all(scripts.line(script))

    def _reply(self) -> Done:
        """Return the output before our next mark line, and the status in that line."""
        mark = b"\n" + self._mark.encode() + b" "
        parts, tail = self._rest, b"".join(self._rest)
        size = len(tail)
        while True:
            at = tail.find(mark)
            if at >= 0 and tail.find(b"\n", at + len(mark)) >= 0:
                break
            data = self._channel.recv(_READ)
            if not data:
                raise EOFError
            parts.append(data)
            size += len(data)
            if size > _MAX_OUTPUT:
                raise OSError(f"more than {_MAX_OUTPUT} bytes of output")
            tail = b"".join([tail[-len(mark) - 16 :], data])
        whole = b"".join(parts)
        out, _, rest = whole.partition(mark)
        status, _, rest = rest.partition(b"\n")
        self._rest = [rest]
        return Done(int(status), out)

    def _give_up(self) -> str:
        """Close the channel and return its last standard error."""
        with contextlib.suppress(OSError, EOFError):
            self._channel.settimeout(1.0)
            told = self._channel.recv_stderr(_READ).decode("utf-8", "replace").strip()
            self._channel.close()
            return str(told)
        self._channel.close()
        return ""

    def _broken(self, told: str) -> MachineError:
        target = self._session.target
        if not self._session.alive:
            return LinkLost(target.name, "broken", f"the connection broke while a script ran ({told or 'it ended'})")
        return MachineError(target.name, "shell", f"the shell there ended while it ran a script: {told or 'no output'}")


def _own_errors(data: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the data; wrap its own errors to tell them from the channel's."""
    parts = iter(data)
    while True:
        try:
            part = next(parts)
        except StopIteration:
            return
        except Exception as error:
            raise _SourceFailed(error) from None
        yield part


@contextlib.contextmanager
def _patience(channel: Any, timeout: float | None) -> Any:
    """Close a channel after a timeout; the yielded event is set then."""
    over = threading.Event()

    def end() -> None:
        over.set()
        channel.close()

    if timeout is None:
        yield over
        return
    timer = threading.Timer(timeout, end)
    timer.daemon = True
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()
