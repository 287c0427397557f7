"""Files and folders up and down an SSH connection, with progress, and resumed after a break.

What is on the wire is checked by SSH itself. What was left of an earlier, broken transfer is compared
by its hash before it counts, and so is the whole in the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import paramiko

from ...errors import LinkLost, MachineError
from . import scripts
from .machine import SSHMachine, failure
from .values import Moved, NoShell, Progress

_CHUNK = 1 << 20
# Small enough to stay in a processor's cache until it is sent or written.
_PIECE = 1 << 18
_NOTICED = 2.0
_PART = ".sky-part"
# Up to this size a file goes with others, in one archive; larger ones are resumed within.
_SMALL = 8 << 20
_BATCH = 32 << 20
_BATCH_FILES = 5000


class _Count:
    """Adds up what is there, and tells."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.sent, self.there = total, 0, 0
        self._progress = progress

    def add(self, sent: int = 0, there: int = 0) -> None:
        self.sent += sent
        self.there += there
        if self._progress is not None:
            self._progress(self.sent + self.there, self.total)

    @property
    def moved(self) -> Moved:
        return Moved(self.sent, self.there)


def upload(
    machine: SSHMachine,
    source: Path,
    target: PurePath | str,
    *,
    only: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Send a file or folder; ``target`` is its name there, and ``~/`` the user's home.

    A folder is added to what stands there under its name; nothing is removed. Called again after a
    break, with the same arguments, it goes on where it was. With ``only``, that many things of a folder
    are sent, by their names below it, whatever an earlier transfer has left there whole.

    Raises
    ------
    MachineError
        When it cannot be written there.
    LinkLost
        When the connection breaks.
    OSError
        When the source cannot be read.
    """
    if source.is_dir():
        return _upload_folder(machine, source, str(target), only, progress)
    info = source.stat()
    count = _Count(info.st_size, progress)
    try:
        _upload_file(machine, source, str(target), count)
    except NoShell:
        _sftp_upload(machine, source, str(target), count)
    return count.moved


def download(machine: SSHMachine, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
    """Fetch a file or folder to ``target``; as `upload`, the other way.

    Raises
    ------
    MachineError
        When it is not there or cannot be read.
    LinkLost
        When the connection breaks.
    """
    where = scripts.path(source)
    try:
        done = machine.shell.run(
            f"if [ -d {where} ]; then echo folder; elif [ -f {where} ] && : <{where}; "
            f"then wc -c <{where}; stat -L -c %a -- {where} || echo 600; else ls -ld -- {where}; exit 1; fi"
        )
    except NoShell:
        return _sftp_download(machine, str(source), target, progress)
    if done.status:
        raise failure(machine.target, f"{source} cannot be fetched", _said(done.out))
    words = done.out.split()
    if words == [b"folder"]:
        return _download_folder(machine, str(source), target, progress)
    count = _Count(int(words[0]), progress)
    _download_file(machine, str(source), target, int(words[0]), int(words[1], 8), count)
    return count.moved


# Up


def _upload_file(machine: SSHMachine, source: Path, target: str, count: _Count) -> None:
    with open(source, "rb") as file:
        info = os.fstat(file.fileno())
        size, mode = info.st_size, stat.S_IMODE(info.st_mode)
        part = scripts.path(target + _PART)
        offset = 0 if size <= _SMALL else _left(machine, file, target, size)
        count.add(there=offset)
        whole = f'&& [ "$(sha256sum <{part})" = "{_hash(file, size)}  -" ]' if offset else ""
        file.seek(offset)
        begin = f"umask 077; mkdir -p -- {scripts.path(PurePath(target).parent)} && " if not offset else ""
        done = machine.shell.run(
            f"{begin}{{ {scripts.take(size - offset)}; }} {'>>' if offset else '>'}{part} && "
            f"[ $(wc -c <{part}) -eq {size} ] {whole} && chmod {mode & 0o777:o} {part} && "
            f"mv -f -- {part} {scripts.path(target)} && rm -f -- {scripts.path(target + '.sky-who')}",
            _chunks(file, size - offset, source, lambda sent: count.add(sent=sent)),
        )
    if done.status:
        raise failure(
            machine.target, f"{target} could not be written", _said(done.out) or "its end is not what was sent"
        )


def _left(machine: SSHMachine, file: Any, target: str, size: int) -> int:
    """How much of a file an earlier transfer has left there; whoever still writes to it is ended first."""
    part, who = scripts.path(target + _PART), scripts.path(target + ".sky-who")
    ticks = '_t=$(cat "/proc/$1/stat" 2>/dev/null); set -- ${_t##*)}; echo "${20:-}"'
    done = machine.shell.run(
        f"umask 077; mkdir -p -- {scripts.path(PurePath(target).parent)} || exit 1; ticks() {{ {ticks}; }}; "
        f"if [ -f {who} ]; then read -r a b <{who}; "
        f'if [ "$a" != $$ ] && [ "$b" ] && [ "$(ticks "$a")" = "$b" ]; then kill -s KILL -- -"$a"; sleep 0.2; fi; fi; '
        f'echo "$$ $(ticks $$)" >{who} || exit 1; '
        f"if [ -f {part} ]; then wc -c <{part}; sha256sum <{part}; else : >{part} && echo 0; fi"
    )
    if done.status:
        raise failure(machine.target, f"{target} could not be written", _said(done.out))
    words = done.out.split()
    there = int(words[0])
    if 0 < there <= size and len(words) > 1 and _hash(file, there) == words[1].decode():
        return there
    return 0


def _upload_folder(
    machine: SSHMachine, source: Path, target: str, only: Collection[str] | None, progress: Progress | None
) -> Moved:
    entries = [entry for entry in _walk(source) if only is None or entry.name in only]
    count = _Count(sum(entry.size for entry in entries), progress)
    journal = scripts.path(target.rstrip("/") + ".sky-done")
    done = machine.shell.run(
        f"umask 077; mkdir -p -- {scripts.path(target)} && if [ -f {journal} ]; then cat {journal}; fi"
    )
    if done.status:
        raise failure(machine.target, f"{target} could not be written", _said(done.out))
    finished = set(done.out.decode("ascii", "replace").split()) if only is None else set()
    for batch in _batches(entries):
        size = sum(entry.size for entry in batch)
        digest = _digest(batch)
        if digest in finished:
            count.add(there=size)
            continue
        if len(batch) == 1 and batch[0].size > _SMALL:
            _upload_file(machine, source / batch[0].name, f"{target.rstrip('/')}/{batch[0].name}", count)
            note = machine.shell.run(f"echo {digest} >>{journal}")
        else:
            archive = _archive(source, batch)
            # Nobody's names or numbers are carried over: what arrives is its new user's.
            unpack = f"tar -xof - -C {scripts.path(target)}"
            note = machine.shell.run(
                f"{{ {scripts.take(len(archive))}; }} | {unpack} && echo {digest} >>{journal}",
                _told(archive, size, count),
            )
        if note.status:
            raise failure(machine.target, f"{target} could not be written", _said(note.out))
    machine.shell.run(f"rm -f -- {journal}")
    return count.moved


@dataclass(frozen=True)
class _Entry:
    """One thing in a folder, by its name below that."""

    name: str
    size: int
    facts: tuple[int, int, int]


def _walk(source: Path) -> Iterator[_Entry]:
    for folder, folders, files in os.walk(source):
        folders.sort()
        for name in [*folders, *sorted(files)]:
            path = Path(folder, name)
            info = path.lstat()
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                raise OSError(f"{path} is neither file nor folder nor symbolic link: it cannot be sent")
            size = info.st_size if stat.S_ISREG(info.st_mode) else 0
            yield _Entry(str(path.relative_to(source)), size, (info.st_size, info.st_mtime_ns, info.st_mode))


def _batches(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    batch: list[_Entry] = []
    size = 0
    for entry in entries:
        if entry.size > _SMALL:
            # Its folder has to be there first.
            if batch:
                yield batch
            yield [entry]
            batch, size = [], 0
            continue
        if batch and (size + entry.size > _BATCH or len(batch) >= _BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def _digest(batch: Sequence[_Entry]) -> str:
    facts = "\0".join(f"{entry.name}\0{entry.facts}" for entry in batch)
    return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()


def _archive(source: Path, batch: Sequence[_Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for entry in batch:
            info = archive.gettarinfo(source / entry.name, entry.name)
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            if info.islnk():
                # The file that it is the second name of may be in an archive that went before.
                info.type, info.size = tarfile.REGTYPE, (source / entry.name).stat().st_size
            if info.isreg():
                with open(source / entry.name, "rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return buffer.getvalue()


def _told(archive: bytes, size: int, count: _Count) -> Iterator[bytes]:
    """The archive in pieces, with what of its files' bytes each stands for."""
    told = 0
    for at in range(0, len(archive), _CHUNK):
        piece = archive[at : at + _CHUNK]
        yield piece
        now = size * (at + len(piece)) // len(archive)
        count.add(sent=now - told)
        told = now


# Down


def _download_file(machine: SSHMachine, source: str, target: Path, size: int, mode: int, count: _Count) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + _PART)
    where = scripts.path(source)
    with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
        offset = os.fstat(file.fileno()).st_size
        if offset and (offset > size or _hash(file, offset) != _remote_hash(machine, where, offset)):
            offset = 0
        file.truncate(offset)
        file.seek(offset)
        count.add(there=offset)
        # `tail` reads 8 KiB at a time, which costs the host as much as to encrypt them.
        give = f"tail -c +{offset + 1} {where}" if offset else f"cat <{where}"
        got = _receive(machine, give, file.write, lambda sent: count.add(sent=sent))
        file.flush()
        if offset + got != size or (offset and _hash(file, size) != _remote_hash(machine, where, size)):
            raise MachineError(machine.target.name, "changed", f"{source} changed while it was fetched; fetch it again")
    part.chmod(mode & 0o777)
    part.replace(target)


def _download_folder(machine: SSHMachine, source: str, target: Path, progress: Progress | None) -> Moved:
    where = scripts.path(source)
    done = machine.shell.run(f"cd {where} && find . ! -name . -printf '%y %s %T@ %m %P\\0'")
    if done.status:
        raise failure(machine.target, f"{source} cannot be fetched", _said(done.out))
    items = [item.split(" ", 4) for item in os.fsdecode(done.out).split("\0") if item]
    files = [(name, int(size), float(when), int(mode, 8)) for kind, size, when, mode, name in items if kind == "f"]
    count = _Count(sum(size for _, size, _, _ in files), progress)
    target.mkdir(parents=True, exist_ok=True)
    wanted = [name for kind, _, _, _, name in items if kind == "l" or (kind == "d" and not (target / name).is_dir())]
    large = []
    for name, size, when, mode in files:
        if _has(target, name, size, when):
            count.add(there=size)
        elif size > _SMALL:
            large.append((name, size, when, mode))
        else:
            wanted.append(name)
    if wanted:
        _fetch_archive(machine, where, wanted, target, count)
    for name, size, when, mode in large:
        _inside(target, name)
        _download_file(machine, f"{source.rstrip('/')}/{name}", target / name, size, mode, count)
        os.utime(target / name, (when, when))
    return count.moved


def _has(target: Path, name: str, size: int, when: float) -> bool:
    """Whether a file came down before: its time is set last."""
    try:
        info = (target / name).lstat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_size == size and abs(info.st_mtime - when) < 1.0


def _fetch_archive(machine: SSHMachine, where: str, names: Sequence[str], target: Path, count: _Count) -> None:
    listing = b"".join(os.fsencode(name) + b"\0" for name in names)
    script = f"cd {where} && exec tar --no-recursion --null -cf - -T -"
    channel = machine.session.channel(scripts.LAUNCH)
    with contextlib.closing(channel):
        mark = b"sky-archive\n"
        machine.session.feed(channel, [scripts.line(f"printf 'sky-archive\\n'; {script}"), listing])
        reader: Any = _Reader(channel, mark)
        try:
            with tarfile.open(fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
                for member in archive:
                    _extract(archive, member, target)
                    count.add(sent=member.size if member.isreg() else 0)
            reader.rest()
        except (tarfile.TarError, EOFError, OSError) as error:
            if _ends(machine):
                raise LinkLost(
                    machine.target.name, "broken", "the connection broke while a folder was fetched"
                ) from None
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise
            raise MachineError(
                machine.target.name, "command", f"the archive from there is not whole: {error}"
            ) from None
        status = machine.session.status(channel)
    if status:
        raise MachineError(machine.target.name, "changed", f"tar there ended with {status}: did the folder change?")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """One member, which stays below the target whatever its name says."""
    _inside(target, member.name)
    if not (member.isreg() or member.isdir() or member.issym()):
        raise OSError(f"{member.name} is neither file nor folder nor symbolic link: it is not fetched")
    member.mode = (member.mode or 0) & 0o777 | (0o700 if member.isdir() else 0o600)
    path = target / member.name
    if member.issym():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.exists():
            path.unlink()
        path.symlink_to(member.linkname)
    elif member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None
        # Never through a link that stands there under its name.
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode), "wb") as file:
            while data := source.read(_CHUNK):
                file.write(data)
        os.utime(path, (member.mtime, member.mtime))


def _inside(target: Path, name: str) -> None:
    """Refuse a name that leads out of the target, by itself or by a link that came before it."""
    parts = PurePath(name).parts
    if PurePath(name).is_absolute() or ".." in parts or not parts:
        raise OSError(f"{name!r} leads out of the folder: it is not fetched")
    path = target
    for part in parts[:-1]:
        path = path / part
        if path.is_symlink():
            raise OSError(f"{name!r} leads through the link {path}: it is not fetched")


class _Reader:
    """A channel as tarfile wants it; what stands before the mark is a login's noise."""

    def __init__(self, channel: Any, mark: bytes) -> None:
        self._channel = channel
        self._ahead = b""
        while mark not in self._ahead:
            data = channel.recv(_CHUNK)
            if not data:
                raise EOFError("it ended before it began")
            self._ahead += data
        self._ahead = self._ahead.partition(mark)[2]

    def read(self, size: int) -> bytes:
        while len(self._ahead) < size:
            data = self._channel.recv(_CHUNK)
            if not data:
                break
            self._ahead += data
        part, self._ahead = self._ahead[:size], self._ahead[size:]
        return part

    def read_some(self) -> bytes:
        """What is there, as soon as there is any."""
        if self._ahead:
            part, self._ahead = self._ahead, b""
            return part
        return bytes(self._channel.recv(_PIECE))

    def rest(self) -> None:
        """Read what stands behind the archive, so that its maker can end."""
        while self._channel.recv(_CHUNK):
            pass


def _receive(machine: SSHMachine, script: str, write: Callable[[bytes], Any], tell: Callable[[int], None]) -> int:
    """Run a script and hand its output on; returns how much it was."""
    channel = machine.session.channel(scripts.LAUNCH)
    got = 0
    with contextlib.closing(channel):
        machine.session.feed(channel, [scripts.line(f"printf 'sky-bytes\\n'; exec {script}")])
        try:
            reader = _Reader(channel, b"sky-bytes\n")
            while data := reader.read_some():
                write(data)
                got += len(data)
                tell(len(data))
            status = machine.session.status(channel)
        except EOFError:
            raise LinkLost(machine.target.name, "broken", "the connection broke as a file was to be fetched") from None
        if status:
            told = channel.recv_stderr(_CHUNK).decode("utf-8", "replace").strip()
            raise failure(machine.target, "a file cannot be fetched", told)
    return got


# Both


def _said(out: bytes) -> str:
    return out.decode("utf-8", "replace").strip()


def _chunks(file: Any, size: int, source: Path, tell: Callable[[int], None]) -> Iterator[memoryview]:
    """Exactly so many bytes of a file: the other side counts on them. A piece is good until the next is asked for."""
    room = memoryview(bytearray(min(size, _PIECE)))
    while size:
        got = file.readinto(room[: min(size, _PIECE)])
        if not got:
            raise OSError(f"{source} became shorter while it was sent")
        yield room[:got]
        size -= got
        tell(got)


def _hash(file: Any, size: int) -> str:
    """The SHA-256 of a file's first bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while size and (data := file.read(min(size, _CHUNK))):
        digest.update(data)
        size -= len(data)
    return digest.hexdigest()


def _remote_hash(machine: SSHMachine, where: str, size: int) -> str:
    return machine.shell.run(f"head -c {size} {where} | sha256sum").out.split()[0].decode()


# Where there is no shell, from the beginning each time: what was left cannot be compared there.


def _sftp_upload(machine: SSHMachine, source: Path, target: str, count: _Count) -> None:
    target = target.removeprefix("~/")
    part = target + _PART
    count.sent = count.there = 0
    with contextlib.closing(machine.session.sftp()) as sftp, open(source, "rb") as file:
        try:
            with sftp.open(part, "wb") as remote:
                remote.set_pipelined(True)
                size = os.fstat(file.fileno()).st_size
                for data in _chunks(file, size, source, lambda sent: count.add(sent=sent)):
                    remote.write(bytes(data))
            if sftp.stat(part).st_size != size:
                raise OSError("its size there is not what was sent")
            sftp.chmod(part, stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777)
            sftp.posix_rename(part, target)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if _ends(machine):
                raise LinkLost(machine.target.name, "broken", "the connection broke while a file was sent") from None
            raise failure(machine.target, f"{target} could not be written", str(error)) from None


def _sftp_download(machine: SSHMachine, source: str, target: Path, progress: Progress | None) -> Moved:
    source = source.removeprefix("~/")
    part = target.with_name(target.name + _PART)
    with contextlib.closing(machine.session.sftp()) as sftp:
        try:
            info = sftp.stat(source)
            if stat.S_ISDIR(info.st_mode or 0):
                raise MachineError(
                    machine.target.name, "shell", f"{source} is a folder, and {machine.target} runs no shell"
                )
            count = _Count(info.st_size or 0, progress)
            with sftp.open(source, "rb") as remote, open(part, "wb") as file:
                remote.prefetch(info.st_size)
                while data := remote.read(_CHUNK):
                    file.write(data)
                    count.add(sent=len(data))
        except (OSError, EOFError, paramiko.SSHException) as error:
            if _ends(machine):
                raise LinkLost(machine.target.name, "broken", "the connection broke while a file was fetched") from None
            raise failure(machine.target, f"{source} cannot be fetched", str(error)) from None
    part.replace(target)
    return count.moved


def _ends(machine: SSHMachine) -> bool:
    """Whether a machine's connection has broken; a channel ends a moment before that is known."""
    end = time.monotonic() + _NOTICED
    while machine.session.alive and time.monotonic() < end:
        time.sleep(0.02)
    return not machine.session.alive
