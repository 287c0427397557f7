"""The machine that the notebook runs on."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from ..errors import MachineError, PoolError
from ..util import process_identity
from .base import Done, Machine, Moved, ProcessId, Progress
from .forwards import LocalForward, dial
from .process_handle import ProcessHandle

_LOOK = 0.5
# Commands that may still be running, also those that nobody refers to. If a Popen is dropped before its process has
# ended, Python warns of it, and the process stays a zombie until another one is started.
_started: set[subprocess.Popen[str]] = set()


def working_folder() -> Path:
    """Return the working folder; raise PoolError, with its name, if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        name = os.environ.get("PWD", "")
        with contextlib.suppress(OSError):
            name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        raise PoolError(
            f"the working folder {name or 'of this process'} is gone: make it again, or change to another "
            "(`%cd ~`, os.chdir), and try again"
        ) from None


def absolute(text: str | os.PathLike[str]) -> Path:
    """Return an absolute path, relative to the working folder.

    A leading ``~`` is the home folder; as in a shell, ``./~`` and the ``~NAME`` of an unknown user are ordinary
    names. Raise PoolError if the working folder was removed.
    """
    path = Path(os.path.expanduser(text))
    return path if path.is_absolute() else working_folder() / path


class LocalCommand:
    """Subprocess in a session of its own, out of reach of signals to the notebook."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        _started.difference_update([other for other in tuple(_started) if other.poll() is not None])
        _started.add(process)

    def __del__(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def identity(self) -> ProcessId:
        """Process id and start time; see `process_identity.started`."""
        return self.process.pid, process_identity.started(self.process.pid)

    def lines(self) -> Iterator[str]:
        """Yield lines of standard output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.rstrip("\n")

    def terminate(self) -> None:
        """Send SIGTERM, then SIGCONT so that a stopped process can end."""
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to its process group, as its children may hold its output."""
        # Until somebody has waited for it, nobody else's group has its number, also if it has ended.
        if self.process.returncode is None:
            # macOS raises PermissionError for a group whose processes have all ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise TimeoutError after ``timeout`` seconds."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.process.pid} has not ended after {timeout} s") from None
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


class LocalProcess(ProcessHandle):
    """Command that an earlier process of this machine started, without its output.

    Parameters
    ----------
    pid : int
        Process id.
    started : float
        Start time, as in `process_identity.started`; another process with that id is ignored.
    """

    pause = longest_pause = 0.01

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return process_identity.lives(*self.identity)

    def lines(self) -> Iterator[str]:
        """Yield nothing, and return when it has ended."""
        while self.alive:
            time.sleep(_LOOK)
        return iter(())

    def terminate(self) -> None:
        """Send SIGTERM, then SIGCONT so that a stopped process can end."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        process_identity.send(process_identity.ProcessIdentity(*self.identity), number)


class LocalMachine:
    """Machine of the notebook; its commands are subprocesses of this process."""

    name = "this machine"
    key = "local"
    address = "127.0.0.1"
    is_this_machine = True
    up = True

    def retry(self) -> None:
        """Do nothing: there is no connection."""

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def facts(self) -> Mapping[str, Any]:
        """Return an empty mapping."""
        return {}

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in a subprocess; see `base.Machine.run`."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        failed: list[BaseException] = []
        feeder = threading.Thread(target=_feed, args=(process, stdin, failed), name="sky-local-feed", daemon=True)
        over = threading.Event()

        def end() -> None:
            over.set()
            _kill_group(process)

        timer = threading.Timer(timeout, end) if timeout is not None else None
        try:
            feeder.start()
            if timer is not None:
                timer.daemon = True
                timer.start()
            assert process.stdout is not None
            out = process.stdout.read()
            status = process.wait()
            feeder.join()
        except BaseException:
            _kill_group(process)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
        if failed:
            raise failed[0]
        if over.is_set():
            raise TimeoutError(f"a script on {self.name} has not ended after {timeout:g} s")
        return Done(status if status >= 0 else 128 - status, out)

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> LocalCommand:
        """Start a command in a session of its own; see `base.Machine.exec`.

        Its environment is ``env`` alone. Every command survives; its caller ends those that must not.
        """
        try:
            if make:
                Path(cwd).mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as errors:
                process = subprocess.Popen(
                    list(argv),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
        except OSError as error:
            raise self._failure(f"{argv[0]} could not be started", error) from error
        return LocalCommand(process)

    def process(self, identity: ProcessId) -> LocalProcess:
        """Return a process of this machine."""
        return LocalProcess(*identity)

    def put(self, files: Mapping[PurePath, bytes]) -> None:
        """Write files that only their user can read; see `base.Machine.put`."""
        for path, data in files.items():
            try:
                self._put(Path(path).expanduser(), data)
            except OSError as error:
                raise self._failure(f"{path} could not be written", error) from error

    def _put(self, path: Path, data: bytes) -> None:
        missing = [folder for folder in path.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        part = path.with_name(f".sky-{secrets.token_hex(6)}")
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Copy a file, or files to a staging folder; see `base.Machine.upload`."""
        goal = Path(target).expanduser()
        alone = source.is_file() and names is None
        if names is None:
            names = {"": ""} if alone else {name: name for name in _files_below(source)}
        pairs = []
        for name, there in names.items():
            found = source / name if name else source
            if not stat.S_ISREG(found.lstat().st_mode if name else found.stat().st_mode):
                raise OSError(errno.EINVAL, f"{found} is not a file: it cannot be sent")
            if not alone and (PurePath(there).is_absolute() or ".." in PurePath(there).parts or not there):
                raise OSError(errno.EINVAL, f"{there!r} leads out of the folder that it is sent to")
            pairs.append((found, goal / there if there else goal))
        return self._copy(pairs, mode=0o600 if not alone else None, progress=progress, what=str(target))

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Copy a file or folder; see `base.Machine.download`."""
        origin = Path(source).expanduser()
        if not origin.exists():
            raise MachineError(self.name, "command", f"{source} cannot be fetched: there is no such file or folder")
        if origin.is_file():
            return self._copy([(origin, target)], mode=None, progress=progress, what=str(target))
        pairs = []
        target.mkdir(exist_ok=True)
        for folder, inner, files in os.walk(origin):
            goal = target / Path(folder).relative_to(origin)
            goal.mkdir(exist_ok=True)
            for name in [*inner, *files]:
                found = Path(folder, name)
                if found.is_symlink():
                    with contextlib.suppress(FileExistsError):
                        (goal / name).symlink_to(os.readlink(found))
                elif found.is_file():
                    pairs.append((found, goal / name))
                elif not found.is_dir():
                    text = f"{found} is neither file nor folder nor link: it is not fetched"
                    raise MachineError(self.name, "odd", text)
        return self._copy(pairs, mode=None, progress=progress, what=str(target))

    def _copy(
        self, pairs: Sequence[tuple[Path, Path]], *, mode: int | None, progress: Progress | None, what: str
    ) -> Moved:
        """Copy files atomically; skip files with equal size and modification time."""
        total = sum(source.stat().st_size for source, _ in pairs)
        sent = there = 0
        for source, goal in pairs:
            info = source.stat()
            if goal.is_file() and (goal.stat().st_size, goal.stat().st_mtime_ns) == (info.st_size, info.st_mtime_ns):
                there += info.st_size
            else:
                try:
                    goal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    part = goal.with_name(f".sky-{secrets.token_hex(6)}")
                    try:
                        shutil.copyfile(source, part)
                        part.chmod(stat.S_IMODE(info.st_mode) if mode is None else mode)
                        os.utime(part, ns=(info.st_atime_ns, info.st_mtime_ns))
                        part.replace(goal)
                    except BaseException:
                        part.unlink(missing_ok=True)
                        raise
                except OSError as error:
                    if error.filename is not None and Path(os.fsdecode(error.filename)) == source:
                        raise
                    raise self._failure(f"{what} could not be written", error) from error
                sent += info.st_size
            if progress is not None:
                progress(sent + there, total)
        return Moved(sent, there)

    def forward(self, host: str, port: int, *, local_port: int = 0) -> LocalForward:
        """Open a port that leads to an address; see `base.Machine.forward`."""
        if not local_port:
            try:
                dial(host, port).close()
            except OSError as error:
                raise MachineError(self.name, "closed", f"{host}:{port} cannot be reached: {error}") from None
        return LocalForward(lambda: dial(host, port), local_port)

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Raise MachineError: local nodes reach each other without a relay."""
        raise MachineError(self.name, "relay", "local nodes need no relay")

    def _failure(self, what: str, error: OSError) -> MachineError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        reason = "full" if full else "denied" if denied else "command"
        return MachineError(self.name, reason, f"{what}: {error.strerror or error}")


def _files_below(folder: Path) -> Iterator[str]:
    for above, _, files in os.walk(folder):
        for name in files:
            yield str(Path(above, name).relative_to(folder))


def _feed(process: subprocess.Popen[bytes], stdin: Iterable[bytes] | None, failed: list[BaseException]) -> None:
    """Write a script's input; ignore a script that ends before reading all of it."""
    if process.stdin is None or stdin is None:
        return
    try:
        parts = iter(stdin)
        while True:
            try:
                part = next(parts)
            except StopIteration:
                break
            except BaseException as error:
                failed.append(error)
                _kill_group(process)
                break
            process.stdin.write(part)
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
