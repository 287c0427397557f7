"""Runs of uv: pass on its lines, quote them on failure, leave secrets out."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence

from ..errors import BootstrapError
from ..util.redaction import without_secrets
from . import uv_messages
from .uv_settings_files import foreign_settings

OnLine = Callable[[str], None]
LAST_LINES = 30


def run_uv(
    arguments: Sequence[str],
    *,
    phase: str,
    on_line: OnLine,
    stop: threading.Event | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> list[str]:
    """Run one uv command and hand on each line that it prints.

    uv sees this process's environment, so that ``UV_INDEX``, ``UV_FIND_LINKS`` and the like work, and the
    settings of the project that it runs in, unless others may write those.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of ``uv``.
    phase : str
        The bootstrap phase that an error shall name.
    on_line : callable
        Called with each line, in this thread.
    stop : threading.Event, optional
        When set, uv is ended and the phase fails.
    env : mapping of str to str, optional
        Additional variables.
    stdin : str
        uv's input, for the argument ``-``. It is for what may hold passwords, since all users of the machine see
        arguments.

    Returns
    -------
    list of str
        All lines.

    Raises
    ------
    BootstrapError
        When uv fails, is stopped or is not there; with its last lines.
    """
    # Nodes lack this package, and may import the API.
    import uv

    command = without_secrets(shlex.join(["uv", *arguments]))
    try:
        program = uv.find_uv_bin()
    except FileNotFoundError:
        raise BootstrapError(
            phase, "the uv program is not in this environment; reinstall it: pip install --force-reinstall uv"
        ) from None
    folder = None
    if (foreign := foreign_settings()) is not None:
        folder = "/"
        on_line(f"{foreign} is not used: other users of this machine may write it, and it says where packages are from")
    # uv gets its own session, so that its child processes end with it, and a terminal's interrupt reaches us first.
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        process = subprocess.Popen(
            [program, *arguments],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**_environment(), **(env or {})},
            cwd=folder,
            start_new_session=True,
        )
    lines: list[str] = []
    try:
        stopped = not _read_lines(process, lines, on_line, stop)
        if not stopped:
            process.wait()
    finally:
        _end(process)
    if stopped or process.returncode:
        message = "uv was stopped" if stopped else f"uv ended with status {process.returncode}"
        if not stopped and (why := uv_messages.of(lines)):
            message = f"{why}; {message}"
        raise BootstrapError(phase, message, command=command, lines=lines[-LAST_LINES:])
    return lines


def _environment() -> dict[str, str]:
    env = {**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
    # Environments are compiled when they are made; this variable would make every start slower.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def _read_lines(
    process: subprocess.Popen[bytes], lines: list[str], on_line: OnLine, stop: threading.Event | None
) -> bool:
    """Collect lines until the output ends; False when told to stop before."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if stop is not None and stop.is_set():
                return False
            if not selector.select(0.1):
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            *whole, rest = (rest + chunk).split(b"\n")
            if not chunk and rest:  # the last line may lack its end
                whole.append(rest)
            for raw in whole:
                line = without_secrets(raw.decode(errors="replace").rstrip())
                lines.append(line)
                on_line(line)
            if not chunk:
                return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End uv and all that it started; nothing happens when it has ended by itself."""
    if process.poll() is None:
        for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(seconds)
                break
    if process.stdout is not None:
        process.stdout.close()
