"""Upload and download of files and folders by shell scripts, resumable.

SSH checks the data in transit. The received part of an earlier transfer is compared by its hash before it is used, and
the complete file again at the end. Both sides write to a staging folder that only its user can write to, and move files
from there to their place. The manifest and the receiver are those of ``node.files``, as for all transfers.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import IO, Any, Protocol

from ...errors import LinkLost, MachineError
from ...node.files import file_writer, manifest_diff, staging
from ...node.files.file_manifest import (
    FILE,
    FOLDER,
    LINK,
    OTHER,
    ManifestEntry,
    batches,
    digest_in,
    file_at,
    leads_out,
    shown,
    total,
    walk_opened,
)
from ...node.files.file_writer import PART, Receiver
from ...node.files.open_folder import Beneath
from ..base import Done, Moved, Progress
from . import scripts
from .command_errors import failure
from .types import NoShell
from .types import shown as quoted

_CHUNK = 1 << 20
# Small enough to stay in a processor's cache until it is sent or written.
_PIECE = 1 << 18
_NOTICED = 2.0
# Most bytes of a script's standard error that a message has.
_MOST_SAID = 1 << 12
# Smaller files are sent together in archives; larger ones are sent alone, and can be resumed.
_SMALL = 8 << 20
_BATCH = 32 << 20
_BATCH_FILES = 5000
# The script's message if the staging folder is a link or belongs to another user.
_ELSEWHERE = "is a link, or is another user's: nothing goes through it"


class TransferMachine(Protocol):
    """Part of a machine that transfers use; `shell_machine.ShellMachine` has it."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def up(self) -> bool: ...

    def run(self, script: str, *, stdin: Any = None, timeout: float | None = None) -> Done: ...

    def script(self, script: str, stdin: Any = None) -> contextlib.AbstractContextManager[Any]: ...

    def status(self, pipes: Any) -> int: ...


class _Count:
    """Counter of transferred bytes that reports progress."""

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
    machine: TransferMachine,
    source: Path,
    target: PurePath | str,
    *,
    names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Send a file to its place, or files to a staging folder.

    Called again after a break with the same arguments, it resumes. ``~/`` is the user's home on the machine. A staging
    folder was made by this user, and nobody else writes to it. Each file in it is complete or absent. See
    `base.Machine.upload`.
    """
    with Beneath.source(source) as folder:
        if not folder.alone and names is None:
            names = {entry.name: entry.name for entry in _files_of(source, folder)}
        if names is not None:
            return _Upload(machine, source, folder, str(target), names, progress).run()
        place = PurePath(target).parent / staging.name_for(f"{machine.label}:{target}")
        up = _Upload(machine, source, folder, str(place), {"": PurePath(target).name}, progress)
        (entry,) = up.entries
        try:
            up.send(entry, f"../{PurePath(target).name}", entry.mode)
        except NoShell:
            if not _has_sftp(machine):
                raise
            up.count.sent = up.count.there = 0
            _sftp_upload(up, entry, str(target))
        return up.count.moved


def download(
    machine: TransferMachine, source: PurePath | str, target: Path, *, progress: Progress | None = None
) -> Moved:
    """Fetch a file or folder to ``target``; files already in a folder stay.

    Symbolic links in the folder become links. Called again after a break, it resumes. See `base.Machine.download`.
    """
    where = scripts.path(source)
    try:
        done = machine.run(
            f"if [ -d {where} ]; then echo folder; elif [ -f {where} ] && : <{where}; "
            f"then wc -c <{where}; stat -L -c %a -- {where} || echo 600; else ls -ld -- {where}; exit 1; fi"
        )
    except NoShell:
        if not _has_sftp(machine):
            raise
        return _sftp_download(machine, str(source), target, progress)
    if done.status:
        raise failure(machine.name, f"{source} cannot be fetched", _said(done.out))
    words = done.out.split()
    if words == [b"folder"]:
        return _download_folder(machine, str(source), target, progress)
    entry = ManifestEntry("", FILE, int(words[0]), mode=int(words[1], 8) & 0o777)
    count = _Count(entry.size, progress)
    with _receiving(target, folder=False) as to:
        _download_file(machine, to, entry, where, "", count)
    return count.moved


# Up


def _files_of(source: Path, folder: Beneath) -> Iterator[ManifestEntry]:
    for entry in walk_opened(folder, source):
        if entry.kind == LINK:
            raise OSError(f"{shown(str(source / entry.name))} is neither file nor folder: it cannot be sent like this")
        if entry.kind == FILE:
            yield entry


class _Upload:
    """Upload of several files to one staging folder.

    Parameters
    ----------
    machine : TransferMachine
        The receiving machine.
    source : Path
        Local file or folder.
    folder : Beneath
        The same, opened.
    place : str
        Staging folder on the machine.
    names : mapping of str to str
        Files to send, by their names below the source, and their names on the machine.
    progress : callable or None
        Called with the bytes transferred and the total.
    """

    def __init__(
        self,
        machine: TransferMachine,
        source: Path,
        folder: Beneath,
        place: str,
        names: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        for there in names.values():
            if leads_out(there):
                raise OSError(f"{there!r} leads out of the folder that it is sent to")
        self.machine, self.source, self.folder, self.place, self.names = machine, source, folder, place, names
        self.entries = [file_at(folder, source, name) for name in names]
        self.count = _Count(total(self.entries), progress)

    def run(self) -> Moved:
        """Send all files that the machine lacks."""
        whole = self._there()
        missing = []
        for entry in self.entries:
            if whole.get(self.names[entry.name]) == entry.size:
                self.count.add(there=entry.size)
            else:
                missing.append(entry)
        for batch in batches(missing, _BATCH, count=_BATCH_FILES, alone=_SMALL):
            if len(batch) == 1 and batch[0].size > _SMALL:
                self.send(batch[0], f"./{self.names[batch[0].name]}")
            else:
                archive = self._archive(batch)
                # Owner names and numbers are not sent: the files belong to the receiving user.
                self._do(
                    f"{{ {scripts.take(len(archive))}; }} | tar -xof -",
                    _told(archive, total(batch), self.count),
                )
        return self.count.moved

    def send(self, entry: ManifestEntry, target: str, mode: int | None = None) -> None:
        """Send one file to ``target``, relative to the staging folder."""
        part, who = (scripts.quote(f"./{self.names[entry.name]}{end}") for end in (PART, ".who"))
        with self.open(entry) as file:
            offset = 0 if entry.size <= _SMALL else self._left(entry, file, part, who)
            self.count.add(there=offset)
            digest = digest_in(file, most=entry.size) if offset else ""
            whole = f'&& [ "$(sha256sum <{part})" = "{digest}  -" ]' if offset else ""
            settle = f"&& chmod {mode:o} {part} " if mode is not None else ""
            end = f"&& rm -f -- {who} " + ('&& cd .. && rmdir -- "$OLDPWD"' if target.startswith("../") else "")
            file.seek(offset)
            self._do(
                f"{self._above(entry)}{{ {scripts.take(entry.size - offset)}; }} {'>>' if offset else '>'}{part} && "
                f"[ $(wc -c <{part}) -eq {entry.size} ] {whole} {settle}"
                f"&& mv -fT -- {part} {scripts.quote(target)} {end}",
                _chunks(file, entry.size - offset, self.path(entry), lambda sent: self.count.add(sent=sent)),
                "its end is not what was sent",
            )

    def _do(self, script: str, data: Any = None, otherwise: str = "") -> bytes:
        """Run a script in the staging folder and return its output."""
        done = self.machine.run(f"{_enter(self.place)} && {script}", stdin=data)
        if done.status:
            raise failure(self.machine.name, f"{self.place} could not be written", _said(done.out) or otherwise)
        return done.out

    def _there(self) -> dict[str, int]:
        """Return the sizes of files that arrived earlier."""
        found = {}
        told = self._do(f"find . -type f ! -name '*{PART}' -exec stat -c '%s %n' {{}} +")
        for line in told.decode("utf-8", "surrogateescape").splitlines():
            size, _, name = line.partition(" ./")
            if size.isdecimal():
                found[name] = int(size)
        return found

    def _left(self, entry: ManifestEntry, file: IO[bytes], part: str, who: str) -> int:
        """End an earlier transfer of a file; return the size of its valid part."""
        ticks = '_t=$(cat "/proc/$1/stat" 2>/dev/null); set -- ${_t##*)}; echo "${20:-}"'
        told = self._do(
            f"{self._above(entry)}ticks() {{ {ticks}; }}; "
            f"if [ -f {who} ]; then read -r a b <{who}; "
            f'if [ "$a" != $$ ] && [ "$b" ] && [ "$(ticks "$a")" = "$b" ]; '
            f'then kill -s KILL -- -"$a"; sleep 0.2; fi; fi; '
            f'echo "$$ $(ticks $$)" >{who} || exit 1; '
            f"if [ -f {part} ]; then wc -c <{part}; sha256sum <{part}; else : >{part} && echo 0; fi"
        )
        words = told.split()
        there = int(words[0])
        if 0 < there <= entry.size and len(words) > 1 and digest_in(file, most=there) == words[1].decode():
            return there
        return 0

    def _above(self, entry: ManifestEntry) -> str:
        """Return a script that makes a file's folder.

        Nobody else writes to a staging folder, so that it has no links.
        """
        inner = str(PurePath(self.names[entry.name]).parent)
        return "" if inner == "." else f"mkdir -p -- {scripts.quote(f'./{inner}')} && "

    def open(self, entry: ManifestEntry) -> IO[bytes]:
        """Open one of the files, to read it."""
        return open(self.folder.open(entry.name), "rb")

    def path(self, entry: ManifestEntry) -> str:
        """Return a file's path for messages."""
        return shown(str(self.source / entry.name) if entry.name else str(self.source))

    def _archive(self, batch: Sequence[ManifestEntry]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
            for entry in batch:
                info = tarfile.TarInfo(self.names[entry.name])
                info.size, info.mode = entry.size, 0o600
                with self.open(entry) as file:
                    if os.fstat(file.fileno()).st_size != entry.size:
                        raise OSError(f"{self.path(entry)} changed while it was sent")
                    info.mtime = int(os.fstat(file.fileno()).st_mtime)
                    try:
                        archive.addfile(info, file)
                    except OSError as error:
                        raise OSError(f"{self.path(entry)} cannot be sent: {error.strerror or error}") from None
        return buffer.getvalue()


def _enter(place: str) -> str:
    """Return a script that makes and enters a staging folder, without links."""
    above, name = scripts.path(PurePath(place).parent), PurePath(place).name
    return (
        f"umask 077; CDPATH=; mkdir -p -- {above} && cd -P -- {above} && _sky_a=${{PWD%/}} && "
        f"{{ [ -d {scripts.quote(f'./{name}')} ] || mkdir -- {scripts.quote(f'./{name}')}; }} && "
        f"cd -P -- {scripts.quote(f'./{name}')} && "
        f'{{ {{ [ "$PWD" = "$_sky_a"/{scripts.quote(name)} ] && [ -O . ]; }} || '
        f"{{ echo {scripts.quote(f'{name} {_ELSEWHERE}')}; exit 1; }}; }}"
    )


def _told(archive: bytes, size: int, count: _Count) -> Iterator[bytes]:
    """Yield the archive in chunks and count the file bytes that each represents."""
    told = 0
    for at in range(0, len(archive), _CHUNK):
        piece = archive[at : at + _CHUNK]
        yield piece
        now = size * (at + len(piece)) // len(archive)
        count.add(sent=now - told)
        told = now


# Down


class _NotTaken(OSError):
    """Raised for an archive's member that is refused."""


@contextlib.contextmanager
def _receiving(target: Path, *, folder: bool) -> Iterator[Receiver]:
    to = Receiver(target, folder=folder)
    whole = False
    try:
        yield to
        whole = True
    finally:
        to.close(whole=whole)


def _download_file(
    machine: TransferMachine, to: Receiver, entry: ManifestEntry, where: str, go: str, count: _Count
) -> None:
    """Fetch one file: ``where``, in the folder that the script ``go`` enters."""
    with to.part(entry.token, entry.name) as file:
        size, offset = entry.size, os.fstat(file.fileno()).st_size
        if offset and (offset > size or digest_in(file, most=offset) != _remote_hash(machine, go, where, offset)):
            offset = 0
        file.truncate(offset)
        file.seek(offset)
        count.add(there=offset)

        def write(data: bytes) -> None:
            if file.tell() + len(data) > size:
                raise _changed(machine, entry.name or where)
            file_writer.write(file, data)

        give = f"{go}exec {_give(where, bool(go), start=offset)}"
        got = _receive(machine, give, write, lambda sent: count.add(sent=sent))
        if offset + got != size or (offset and digest_in(file, most=size) != _remote_hash(machine, go, where, size)):
            raise _changed(machine, entry.name or where)
        to.put_part(entry.token, entry.name, entry.mode, entry.mtime if go else None)


def _give(where: str, strict: bool, start: int = 0, size: int | None = None) -> str:
    """Return a script that prints a file or part; ``strict`` refuses links."""
    if strict:
        # A machine that can list folders (find -printf) has GNU's dd.
        count = "" if size is None else f" count={size}"
        return f"dd if={where} bs=128k iflag=nofollow,skip_bytes,count_bytes skip={start}{count} status=none"
    if size is not None:
        return f"head -c {size} {where}"
    # `tail` reads 8 KiB at a time, which costs the host as much as encrypting them.
    return f"tail -c +{start + 1} {where}" if start else f"cat {where}"


def _changed(machine: TransferMachine, name: str) -> MachineError:
    return MachineError(machine.name, "changed", f"{shown(name)} changed while it was fetched; fetch it again")


def _download_folder(machine: TransferMachine, source: str, target: Path, progress: Progress | None) -> Moved:
    where = scripts.path(source)
    # Behind the entries come the last words of `find` on standard error, and its status.
    listing = f"{{ find . ! -name . -printf '%y %s %T@ %m %P\\0' 2>&1 >&3; echo $?; }} | tail -c {_MOST_SAID}"
    done = machine.run(f"cd {where} && {{ {listing}; }} 3>&1")
    told, _, rest = done.out.rpartition(b"\0")
    words, _, status = rest.strip().rpartition(b"\n")
    if done.status or status != b"0":
        raise failure(machine.name, f"{source} cannot be fetched", quoted(_said(words or status)))
    entries = _listed(told)
    for entry in entries:
        if entry.kind == OTHER:
            raise MachineError(
                machine.name, "odd", f"{shown(entry.name)} is neither file nor folder nor link: it is not fetched"
            )
    count = _Count(total(entries), progress)
    with _receiving(target, folder=True) as to:
        # Folders first: a file in a missing folder would create that without its mode.
        wanted = [entry for entry in entries if entry.kind == FOLDER and not _has_folder(to, entry.name)]
        wanted += [entry for entry in entries if entry.kind == LINK]
        large = []
        for entry in entries:
            if entry.kind != FILE:
                continue
            if manifest_diff.has_come(to.place, entry):
                count.add(there=entry.size)
            elif entry.size > _SMALL:
                large.append(entry)
            else:
                wanted.append(entry)
        if wanted:
            _fetch_archive(machine, where, wanted, to, count)
        for entry in large:
            inner, _, name = entry.name.rpartition("/")
            # A folder or file that was replaced by a link meanwhile is not followed.
            go = f"CDPATH=; cd -P -- {where} && _sky_a=${{PWD%/}} && cd -P -- {scripts.quote(f'./{inner}')} && "
            go += f'[ "$PWD" = "$_sky_a"{scripts.quote(f"/{inner}" if inner else "")} ] && ' if inner else ""
            _download_file(machine, to, entry, scripts.quote(f"./{name}"), go, count)
    return count.moved


def _listed(told: bytes) -> list[ManifestEntry]:
    """Parse the output of `find`: kind, size, time, mode and name of each entry."""
    kinds, entries = {"f": FILE, "d": FOLDER, "l": LINK}, []
    for item in filter(None, told.decode("utf-8", "surrogateescape").split("\0")):
        kind, size, when, mode, name = item.split(" ", 4)
        second, _, fraction = when.partition(".")
        mtime = int(second) * 1_000_000_000 + int(f"{fraction:0<9}"[:9])
        entries.append(
            ManifestEntry(name, kinds.get(kind, OTHER), int(size) if kind == "f" else 0, mtime, int(mode, 8) & 0o777)
        )
    return entries


def _has_folder(to: Receiver, name: str) -> bool:
    info = to.place.stat(name)
    return info is not None and stat.S_ISDIR(info.st_mode)


def _fetch_archive(
    machine: TransferMachine,
    where: str,
    wanted: Sequence[ManifestEntry],
    to: Receiver,
    count: _Count,
) -> None:
    left = {entry.name: entry for entry in wanted}
    listing = b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in left)
    script = f"cd {where} && exec tar --no-recursion --hard-dereference --null -cf - -T -"
    with machine.script(f"printf 'sky-archive\\n'; {script}", [listing]) as pipes:
        errors = _Errors(pipes)
        reader: Any = _Reader(pipes, b"sky-archive\n")
        try:
            with tarfile.open(fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
                for member in archive:
                    _extract(archive, member, to, left)
                    count.add(sent=member.size if member.isreg() else 0)
            reader.rest()
        except (tarfile.TarError, EOFError, OSError) as error:
            # A local write error or a refused member does not come from the connection.
            if not (isinstance(error, _NotTaken) or getattr(error, "filename", None)) and _ends(machine):
                raise LinkLost(machine.name, "broken", "the connection broke while a folder was fetched") from None
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise
            raise MachineError(machine.name, "command", f"the archive from there is not whole: {error}") from None
        status = machine.status(pipes)
        words = errors.said() if status else ""
    if status:
        told = f" ({words})" if words else ""
        raise MachineError(machine.name, "changed", f"tar there ended with {status}{told}: did the folder change?")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, to: Receiver, left: dict[str, ManifestEntry]) -> None:
    """Extract a member that was requested; refuse one outside the target."""
    name = member.name.removeprefix("./")
    if leads_out(name):
        raise _NotTaken(f"{shown(name)!r} leads out of the folder: it is not fetched")
    if not (member.isreg() or member.isdir() or member.issym()):
        raise _NotTaken(f"{shown(name)} is neither file nor folder nor symbolic link: it is not fetched")
    kind = FILE if member.isreg() else FOLDER if member.isdir() else LINK
    entry = left.pop(name, None)
    if entry is None or entry.kind != kind or (kind == FILE and member.size > entry.size):
        raise _NotTaken(f"{shown(name)} changed while it was fetched; fetch it again")
    to.place.make_above(name)
    if kind == LINK:
        to.link(name, member.linkname)
    elif kind == FOLDER:
        to.place.make(name)
        to.place.settle(name, entry.mode | 0o700, None)
    else:
        source = archive.extractfile(member)
        assert source is not None
        # Until the file is in its place, its user can write to it, also after a break.
        to.put(entry.token, name, source.read(), entry.mode | 0o600, entry.mtime)
        to.place.settle(name, entry.mode, None)


class _Reader:
    """Channel as a file for tarfile; it skips a login's output before the mark."""

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
        """Return the bytes that are available; wait for the first."""
        if self._ahead:
            part, self._ahead = self._ahead, b""
            return part
        return bytes(self._channel.recv(_PIECE))

    def rest(self) -> None:
        """Read to the end, so that the sender can end."""
        while self._channel.recv(_CHUNK):
            pass


class _Errors:
    """Last bytes of a script's standard error; nobody else reads it meanwhile.

    A thread reads all of it: unread, it would fill its pipe or the connection's window, and the script would wait.
    """

    def __init__(self, channel: Any) -> None:
        self._channel, self._last = channel, b""
        self._thread = threading.Thread(target=self._read, name="sky-ssh-errors", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := self._channel.recv_stderr(_PIECE):
                self._last = (self._last + data)[-_MOST_SAID:]

    def said(self) -> str:
        """Return what a script that has ended said last, as one line."""
        self._thread.join(_NOTICED)
        return quoted(_said(self._last))


def _receive(machine: TransferMachine, script: str, write: Callable[[bytes], Any], tell: Callable[[int], None]) -> int:
    """Run a script, pass its output to ``write``, and return the number of bytes."""
    got = 0
    with machine.script(f"printf 'sky-bytes\\n'; {script}") as pipes:
        errors = _Errors(pipes)
        try:
            reader = _Reader(pipes, b"sky-bytes\n")
            while data := reader.read_some():
                write(data)
                got += len(data)
                tell(len(data))
            status = machine.status(pipes)
        except EOFError:
            raise LinkLost(machine.name, "broken", "the connection broke as a file was to be fetched") from None
        if status:
            raise failure(machine.name, "a file cannot be fetched", errors.said())
    return got


# Both


def _said(out: bytes) -> str:
    return out.decode("utf-8", "replace").strip()


def _chunks(file: Any, size: int, source: str, tell: Callable[[int], None]) -> Iterator[memoryview]:
    """Yield exactly ``size`` bytes; a chunk is valid until the next one is requested."""
    room = memoryview(bytearray(min(size, _PIECE)))
    while size:
        got = file.readinto(room[: min(size, _PIECE)])
        if not got:
            raise OSError(f"{source} became shorter while it was sent")
        yield room[:got]
        size -= got
        tell(got)


def _remote_hash(machine: TransferMachine, go: str, where: str, size: int) -> str:
    words = machine.run(f"{go}{_give(where, bool(go), size=size)} | sha256sum").out.split()
    return words[0].decode("ascii", "replace") if words else ""


# Without a shell, transfers always begin anew: a partial file cannot be hashed on the host.


def _sftp_upload(up: _Upload, entry: ManifestEntry, target: str) -> None:
    import paramiko

    machine, count, target = up.machine, up.count, target.removeprefix("~/")
    # A random name and exclusive creation: existing files are never written to.
    part = f"{PurePath(target).parent}/.sky-{secrets.token_hex(16)}"
    with contextlib.closing(_sftp(machine)) as sftp, up.open(entry) as file:
        try:
            with sftp.open(part, "wxb") as remote:
                remote.set_pipelined(True)
                for data in _chunks(file, entry.size, up.path(entry), lambda sent: count.add(sent=sent)):
                    remote.write(bytes(data))
            if sftp.lstat(part).st_size != entry.size:
                raise OSError("its size there is not what was sent")
            sftp.chmod(part, stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777)
            sftp.posix_rename(part, target)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if _ends(machine):
                raise LinkLost(machine.name, "broken", "the connection broke while a file was sent") from None
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                sftp.remove(part)
            raise failure(machine.name, f"{target} could not be written", str(error)) from None


def _sftp_download(machine: TransferMachine, source: str, target: Path, progress: Progress | None) -> Moved:
    import paramiko

    source = source.removeprefix("~/")
    with contextlib.closing(_sftp(machine)) as sftp, _receiving(target, folder=False) as to:
        try:
            info = sftp.stat(source)
            if stat.S_ISDIR(info.st_mode or 0):
                raise MachineError(machine.name, "shell", f"{source} is a folder, and {machine.label} runs no shell")
            entry = ManifestEntry("", FILE, info.st_size or 0, mode=(info.st_mode or 0o600) & 0o777)
            count = _Count(entry.size, progress)
            with sftp.open(source, "rb") as remote, to.part(entry.token, "") as file:
                file.truncate(0)
                remote.prefetch(entry.size)
                while data := remote.read(_CHUNK):
                    file_writer.write(file, data)
                    count.add(sent=len(data))
                    if count.sent > entry.size:
                        raise _changed(machine, source)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if _ends(machine):
                raise LinkLost(machine.name, "broken", "the connection broke while a file was fetched") from None
            raise failure(machine.name, f"{source} cannot be fetched", str(error)) from None
        if count.sent != entry.size:
            raise _changed(machine, source)
        to.put_part(entry.token, "", entry.mode)
    return count.moved


def _has_sftp(machine: Any) -> bool:
    """Return False for a node of a batch job: without a shell, its step has failed."""
    return hasattr(machine.session, "sftp")


def _sftp(machine: Any) -> Any:
    """Return an SFTP client of a machine that has no shell."""
    return machine.session.sftp()


def _ends(machine: TransferMachine) -> bool:
    """Return True if the connection broke; a channel ends slightly earlier."""
    end = time.monotonic() + _NOTICED
    while machine.up and time.monotonic() < end:
        time.sleep(0.02)
    return not machine.up
