"""Folders that somebody hostile has filled, and a victim outside that nothing of theirs may reach.

A new trick is a line in `ENDS`, `NAMES` or `PLACES`, or a function in `KINDS`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import socket
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sky_jupyter.node.files import staging

LARGE = 9 << 20
"""More than goes in an archive: such a file comes in pieces, and goes on after a break."""

# What temporary names ended with at any time, here and on hosts.
ENDS = [".sky-part", ".sky-done", ".sky-who", ".part", ".who", ".sky", "~", ".tmp"]

# Names that file systems allow.
NAMES = [
    b"x" * 255,
    b"y" * 248,
    "é".encode() * 127,
    b"not \xff\xfe text",
    b"\x80" * 255,
    b"new\nline",
    b"-rf",
    b"--checkpoint-action=exec=touch pwned",
    b'it\'s "quoted" `touch pwned` $(touch pwned) ;&|<>*?[]{}!\\',
    b" leading and trailing ",
    b"~",
    b"~root",
    b"tab\tbell\x07esc\x1b]0;x\x07",
    b".sky-index.json",
    b"...",
]


@dataclass(frozen=True)
class Victim:
    """A file outside, and a folder with one in it, that stay as they are."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "authorized_keys"

    def state(self) -> list[tuple[str, bytes, int, int, int]]:
        """All that could tell that somebody was here."""
        found = []
        for path in sorted(self.folder.rglob("*")):
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found.append((str(path), content, info.st_mode, info.st_mtime_ns, info.st_nlink))
        return found


@contextlib.contextmanager
def victim(folder: Path) -> Iterator[Victim]:
    """A victim, of which bytes, mode, time and links are the same afterwards, and beside which nothing is new."""
    folder.mkdir()
    made = Victim(folder)
    made.file.write_text("precious")
    made.file.chmod(0o604)
    os.utime(made.file, ns=(10**18, 10**18))
    before = made.state()
    yield made
    assert made.state() == before


def fill(folder: Path, hostage: Victim) -> Path:
    """A folder with links of every kind under every name of ours, odd names, hard links and a sparse file."""
    (folder / "deep").mkdir(parents=True)
    for name in ("model.bin", "deep/other.bin", "small.txt"):
        path = folder / name
        path.write_bytes(os.urandom(LARGE if name.endswith(".bin") else 5))
        for end in ENDS:
            Path(f"{path}{end}").symlink_to(hostage.file)
        path.with_name(f".{path.name}.part").symlink_to(os.path.relpath(hostage.file, path.parent))
    links = {
        "relative": os.path.relpath(hostage.file, folder),
        "absolute": str(hostage.file),
        "to a folder": str(hostage.folder),
        "dangling": str(hostage.folder / "new"),
        "loop": "loop",
        "around": ".",
        "above": "..",
        "deep/two": "../to a folder",
        ".sky-done": str(hostage.file),
        ".sky-who": str(hostage.file),
        "incoming": str(hostage.folder),
    }
    for name, to in links.items():
        (folder / name).symlink_to(to)
    for name in NAMES:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name)
    os.link(folder / "model.bin", folder / "deep" / "second name")
    with open(folder / "sparse", "wb") as file:
        file.truncate(64 << 20)
    return folder


def tree(folder: Path) -> dict[bytes, object]:
    """What is in a folder: contents, targets of links."""
    found: dict[bytes, object] = {}
    top = os.fsencode(folder)
    for above, inner, files in os.walk(top):
        for name in [*inner, *files]:
            path = os.path.join(above, name)
            info = os.lstat(path)
            key = os.path.relpath(path, top)
            if stat.S_ISLNK(info.st_mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISDIR(info.st_mode):
                found[key] = "folder"
            else:
                with open(path, "rb") as file:
                    found[key] = file.read()
    return found


# Things in the place that a folder comes to, which came with an earlier one.

PLACES: dict[str, Callable[[Path, Victim], None]] = {
    "a link where a large file goes": lambda place, hostage: (place / "model.bin").symlink_to(hostage.file),
    "a link where a small file goes": lambda place, hostage: (place / "small.txt").symlink_to(hostage.file),
    "a dangling link where a file goes": lambda place, hostage: (place / "small.txt").symlink_to(hostage.folder / "n"),
    "a link where a folder goes": lambda place, hostage: (place / "deep").symlink_to(hostage.folder),
    "a link where a link goes": lambda place, hostage: (place / "loop").symlink_to(hostage.folder),
    "a hard link where a file goes": lambda place, hostage: os.link(hostage.file, place / "small.txt"),
}


def take_staging(place: Path, hostage: Victim) -> Path:
    """Put a link where the staging folder of a place would be: who could know its name could do that."""
    staged = staging.beside(place)
    staged.symlink_to(hostage.folder)
    return staged


# What is neither file nor folder nor link.


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent) if hasattr(contextlib, "chdir") else _inside(path.parent):
        socket.socket(socket.AF_UNIX).bind(path.name)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    # That of /dev/full: who wrote to it would be told.
    "device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7)),
}


# What a host may answer that somebody has taken over.

LIES: dict[str, tuple[list[tuple[str, str, int]], list[tuple[str, bytes, str]]]] = {
    # What is listed (kind, name, size), and what the archive holds (name, type, target of a link).
    "a name above": ([("f", "../escape", 4)], [("../escape", tarfile.REGTYPE, "")]),
    "a whole path": ([("f", "{victim}/new", 4)], [("{victim}/new", tarfile.REGTYPE, "")]),
    "a file behind a link": (
        [("l", "out", 0), ("f", "out/authorized_keys", 4)],
        [("out", tarfile.SYMTYPE, "{victim}"), ("out/authorized_keys", tarfile.REGTYPE, "")],
    ),
    "a folder behind a link": (
        [("l", "out", 0), ("d", "out/new", 0)],
        [("out", tarfile.SYMTYPE, "{victim}"), ("out/new", tarfile.DIRTYPE, "")],
    ),
    "a link behind a link": (
        [("l", "out", 0), ("l", "out/new", 0)],
        [("out", tarfile.SYMTYPE, "{victim}"), ("out/new", tarfile.SYMTYPE, "x")],
    ),
    "a large file behind a link": (
        [("l", "out", 0), ("f", "out/authorized_keys", 20 << 20)],
        [("out", tarfile.SYMTYPE, "{victim}")],
    ),
    "what nobody asked for": ([("f", "a", 4)], [("b", tarfile.REGTYPE, "")]),
    "one thing twice": ([("f", "a", 4)], [("a", tarfile.REGTYPE, ""), ("a", tarfile.REGTYPE, "")]),
    "more than was said": ([("f", "a", 3)], [("a", tarfile.REGTYPE, "")]),
    "a link for a file": ([("f", "a", 4)], [("a", tarfile.SYMTYPE, "{victim}/authorized_keys")]),
    "a hard link": ([("f", "a", 4)], [("a", tarfile.LNKTYPE, "{victim}/authorized_keys")]),
    "a device": ([("f", "a", 4)], [("a", tarfile.CHRTYPE, "")]),
    "a pipe in the list": ([("p", "a", 0)], []),
}


def lying_tools(folder: Path, lie: str, hostage: Victim) -> Path:
    """Programs `find` and `tar` that answer so, for the first place of a login's PATH."""
    listed, held = LIES[lie]
    folder.mkdir(exist_ok=True)
    rows = [f"{kind} {size} 1 644 {name.format(victim=hostage.folder)}" for kind, name, size in listed]
    (folder / "rows").write_bytes("\0".join([*rows, ""]).encode())
    with tarfile.open(folder / "held", "w") as archive:
        for name, kind, to in held:
            member = tarfile.TarInfo(name.format(victim=hostage.folder))
            member.type, member.linkname = kind, to.format(victim=hostage.folder)
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"evil"))
    for tool, answer in (("find", "rows"), ("tar", "held")):
        (folder / tool).write_text(f"#!/bin/sh\n/bin/cat {folder}/{answer}\n")
        (folder / tool).chmod(0o755)
    return folder


# What goes on meanwhile.


class Meanwhile:
    """A progress callback that does something once, as soon as so many bytes have come."""

    def __init__(self, do: Callable[[], None], after: int = 1 << 20) -> None:
        self.do, self.after, self.done = do, after, False

    def __call__(self, there: int, total: int) -> None:
        if not self.done and there > self.after:
            self.done = True
            self.do()


def swap(path: Path, to: Path) -> None:
    """Have a link stand where a file or folder was, at once."""
    between = path.with_name("swapped")
    between.symlink_to(to)
    if path.is_dir():
        path.rename(path.with_name("was"))
    os.replace(between, path)


def bomb(size: int) -> bytes:
    """A list of files that takes a thousandth of what it unpacks to."""
    row = json.dumps([["x" * 1000, "file", 1, 1, 0o600, "", ""]]).encode()[1:-1] + b", "
    packer = zlib.compressobj(9)
    parts = [packer.compress(part) for part in (b"[", *itertools.repeat(row, size // len(row)))]
    return b"".join([*parts, packer.flush()])
