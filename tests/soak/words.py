"""What ranks say and leave behind in a soak: told by a run's number alone, on the ranks and for who checks them.

Imported by the ranks (which say it), by the manager under test (which hands it on) and by the driver
(which knows from it what must have been said).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

KINDS = ("lines", "unicode", "ragged", "flood", "native", "unicode natively", "child", "mixed", "nothing")
_LETTERS = "abc XYZ 019 äöü ß → 語 🚀 é\tŁ"
TRIM = signal.SIGURG
# One write of native code that nothing else can come between.
_ATOMIC = 400


class Piece(NamedTuple):
    """Something that is written: by ``print``, by native code, or by a child process."""

    stream: str
    how: str
    text: str


def pieces(seed: int, number: int, rank: int, kind: str) -> Iterator[Piece]:
    """What one rank writes in one run, in order."""
    own = random.Random(f"{seed}/{number}/{rank}/{kind}")
    name = f"{number}.{rank}"
    count = {"nothing": 0, "flood": own.randrange(2000, 12_000), "child": 2}.get(kind, own.randrange(3, 40))
    for index in range(count):
        stream = "stderr" if own.random() < 0.3 else "stdout"
        if kind == "flood":
            yield Piece(stream, "print", f"{name} line {index} {'=' * own.randrange(60)}\n")
        elif kind in ("lines", "native"):
            how = "print" if kind == "lines" else "native"
            yield Piece(stream, how, f"{name} line {index}\n")
        elif kind == "ragged":
            yield Piece(stream, "print", f"{name}:{index}" + own.choice(["", "\r", "\n", "\r\n", "\b\x1b[32m", "\x00"]))
        elif kind == "unicode":
            yield Piece(stream, "print", _words(own, own.randrange(200)) + own.choice(["", "\n"]))
        elif kind == "unicode natively":
            yield Piece(stream, "native", _words(own, own.randrange(3000)) + "\n")
        elif kind == "child":
            yield Piece(stream, "child", f"{name} child {index} {_words(own, 30)}\n")
        else:
            how = own.choice(["print", "native", "child"] if index == 0 else ["print", "native"])
            yield Piece(stream, how, f"{how} {name} {index}\n")


def _words(own: random.Random, length: int) -> str:
    return "".join(own.choice(_LETTERS) for _ in range(length))


def expected(seed: int, number: int, rank: int, kind: str) -> dict[str, str]:
    """All that one rank writes in one run, by stream."""
    said = {"stdout": "", "stderr": ""}
    parts: dict[str, list[str]] = {"stdout": [], "stderr": []}
    for piece in pieces(seed, number, rank, kind):
        parts[piece.stream].append(piece.text)
    said.update({stream: "".join(texts) for stream, texts in parts.items()})
    return said


# What IPython says where an interrupt comes while it shows an exception, of the one or of the other, and what a
# child process says that is interrupted, maybe while it starts.
_OTHERS = re.compile(
    r"(\nKeyboardInterrupt\n|Unexpected exception formatting exception|Traceback \(most recent call last\)|"
    r"Fatal Python error).*",
    re.DOTALL,
)


def without_interrupt(text: str) -> str:
    """What an interrupted rank wrote, without what others say of its interrupt at the end of it."""
    return _OTHERS.sub("", text)


def differs(kind: str, said: str, wanted: str, *, whole: bool) -> str:
    """How what arrived of one stream differs from what was written; empty where all is well.

    What did not end by itself (not ``whole``) may lack the rest, and nothing in between. In a mixture
    each way of writing has an order of its own.
    """
    if kind == "mixed":
        # The last line may be cut where the whole is.
        lines = said.splitlines(keepends=True)
        for how in ("print", "native", "child"):
            mine = "".join(line for line in lines if line.startswith(f"{how} "))
            theirs = "".join(line for line in wanted.splitlines(keepends=True) if line.startswith(f"{how} "))
            if how_far := _compare(mine, theirs, whole=whole):
                return f"written by {how}: {how_far}"
        strange = [line for line in lines if not line.startswith(("print ", "native ", "child "))]
        return f"there are lines that nobody wrote: {strange[:3]}" if strange else ""
    return _compare(said, wanted, whole=whole)


def _compare(said: str, wanted: str, *, whole: bool) -> str:
    if said == wanted or (not whole and wanted.startswith(said)):
        return ""
    at = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), min(len(said), len(wanted)))
    around = slice(max(0, at - 30), at + 60)
    return (
        f"{len(said)} characters instead of {len(wanted)}, and from {at} on {said[around]!r} instead of "
        f"{wanted[around]!r}"
    )


# On the ranks.


def say(seed: int, number: int, rank: int, kind: str, pace: float = 0.0) -> None:
    """Write all of it, in about ``pace`` seconds."""
    todo = list(pieces(seed, number, rank, kind))
    pause = pace / max(1, len(todo))
    owed = 0.0
    for piece in todo:
        if piece.how == "print":
            stream = sys.stdout if piece.stream == "stdout" else sys.stderr
            stream.write(piece.text)
            if kind == "mixed":
                # What native code writes must not fall into the middle of a line.
                stream.flush()
        elif piece.how == "native":
            _write(1 if piece.stream == "stdout" else 2, piece.text.encode())
        else:
            code = f"import os, sys; os.write({1 if piece.stream == 'stdout' else 2}, {piece.text.encode()!r})"
            subprocess.run([sys.executable, "-S", "-c", code], check=True)
        owed += pause
        if owed > 0.02:
            time.sleep(owed)
            owed = 0.0


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def mark(folder: str, number: int, rank: int, letter: str) -> None:
    """Leave a letter where the driver sees it, whatever becomes of this process."""
    file = os.open(Path(folder) / f"{number}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, letter.encode())
    os.close(file)


def large(number: int, rank: int) -> bytes:
    """A value that stays on its rank until it is fetched."""
    return hashlib.sha256(f"{number}/{rank}".encode()).digest() * 50_000


def digest(value: Any) -> str:
    """What a rank was sent, in short."""
    return hashlib.sha256(value).hexdigest()


def meet(rank: int, *, joins: bool) -> float:
    """Take part in one collective of all ranks, or do not; the sum of all ranks plus one each."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([rank + 1.0])
    if joins:
        dist.all_reduce(total)
    return float(total.item())


def trim(*_: Any) -> None:
    """Give back to the system what this process holds and nobody uses: only the rest can be seen to grow."""
    for _ in range(3):
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def trimming(info: Any) -> Iterator[None]:
    """In an agent: trim when it is told to, by a signal that is ignored where nobody listens."""
    signal.signal(TRIM, trim)
    yield


class Planned(Exception):
    """What a rank raises that is to raise."""


def end(fate: str, number: int, rank: int) -> None:
    """End as it was decided for this rank."""
    if fate == "raises":
        raise Planned(f"{number}.{rank}")
    if fate == "exits":
        os._exit(3)
    if fate in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, fate))
        time.sleep(60)
