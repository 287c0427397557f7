"""Programs that leave something behind unless the process that runs them ends in order, and what must come of it.

Each runs in a cell of its own, on every rank. A program's text finds `path`, the file that it may write, and
`leaves`, to be told paths that must be gone once the process has ended. A new one is an entry in `PROGRAMS`.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SETUP = """
import glob, os, pathlib
def leaves(*paths):
    with open(f"{path}.left", "a") as file:
        file.writelines(f"{one}\\n" for one in paths)
"""


@dataclass(frozen=True)
class Program:
    """What a cell does, and the text that its file must have once the process has ended in order."""

    name: str
    code: str
    text: str = ""
    # Whether what it leaves goes even where the process is killed: a resource tracker sees to that.
    outlives_a_kill: bool = False
    # Whether a plain Jupyter kernel manages it too: at its end it kills the workers and the trackers first.
    plain: bool = True

    def cell(self, folder: Path, rank: str) -> str:
        """The cell; ``rank`` is an expression."""
        return f"rank = {rank}\npath = f'{folder}/{self.name}.{{rank}}'\n{SETUP}{self.code}"

    def faults(self, folder: Path, ranks: Iterable[int], *, killed: bool = False) -> list[str]:
        """What is not as it must be, in words."""
        found = []
        for rank in ranks:
            path = folder / f"{self.name}.{rank}"
            if self.text and not killed and (text := _text(path)) != self.text:
                found.append(f"{self.name} of rank {rank} has written {text!r}")
            if not killed or self.outlives_a_kill:
                left = Path(f"{path}.left")
                paths = left.read_text().split() if left.exists() else []
                found += [f"{self.name} of rank {rank} has left {one}" for one in paths if Path(one).exists()]
        return found


def _text(path: Path) -> str | None:
    if not path.exists():
        return None
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
    except EOFError:
        return "(cut off)"


PROGRAMS = (
    Program("file", "file = open(path, 'w'); file.write('data' * 10)", "data" * 10),
    Program("module", "import gzip, json; json.held = gzip.open(path, 'wt'); json.held.write('x')", "x", plain=False),
    Program("atexit", "import atexit; atexit.register(pathlib.Path(path).write_text, 'ran')", "ran"),
    Program(
        "logging",
        """
import logging.handlers
handler = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(path, delay=True))
logging.getLogger("traces").addHandler(handler)
logging.getLogger("traces").error("said")
""",
        "said\n",
    ),
    Program(
        "writer_thread",
        """
import atexit, queue, threading
lines, writer_file = queue.Queue(), open(path, "w")
def write():
    while (line := lines.get()) is not None:
        writer_file.write(line)
def close():
    lines.put(None); writer.join(); writer_file.close()
writer = threading.Thread(target=write, daemon=True); writer.start(); atexit.register(close)
for number in range(100): lines.put("x")
""",
        "x" * 100,
    ),
    Program(
        "thread",
        """
import threading
go = threading.Event()
def work(wait=threading.main_thread().join, to=pathlib.Path(path)):
    go.wait(0.2); to.write_text("finished")
threading.Thread(target=work).start()
""",
        "finished",
    ),
    Program("finalize", "import weakref; weakref.finalize(leaves, pathlib.Path(path).write_text, 'ran')", "ran"),
    Program(
        "deletion",
        """
class Deleted:
    def __init__(self, to): self.to = to
    def __del__(self): self.to.write_text("deleted")
deleted = Deleted(pathlib.Path(path))
""",
        "deleted",
    ),
    Program(
        "generator",
        """
def generate(to):
    try: yield
    finally: to.write_text("closed")
generator = generate(pathlib.Path(path)); next(generator)
""",
        "closed",
    ),
    Program(
        "native_file",
        """
import ctypes
library = ctypes.CDLL(None)
library.fopen.restype, library.fputs.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p)
library.fputs(b"native", library.fopen(path.encode(), b"w"))
""",
        "native",
    ),
    Program("temporary", "import tempfile; temporary = tempfile.TemporaryDirectory(); leaves(temporary.name)"),
    Program("multiprocessing_folder", "import multiprocessing.util; leaves(multiprocessing.util.get_temp_dir())"),
    Program(
        "shared_memory",
        """
from multiprocessing import shared_memory
shared = shared_memory.SharedMemory(create=True, size=1 << 20); leaves(f"/dev/shm/{shared.name}")
""",
        outlives_a_kill=True,
        plain=False,
    ),
    Program(
        "spawned_pool",
        """
import gc, math, multiprocessing, multiprocessing.synchronize
with multiprocessing.get_context("spawn").Pool(1) as spawned:
    assert spawned.map(math.sqrt, [4.0]) == [2.0]
locks = [one for one in gc.get_objects() if isinstance(one, multiprocessing.synchronize.SemLock)]
leaves(*(f"/dev/shm/sem.{lock._semlock.name[1:]}" for lock in locks if lock._semlock.name))
del locks
""",
        outlives_a_kill=True,
    ),
    Program(
        "open_pool",
        """
import math, multiprocessing
open_pool = multiprocessing.get_context("spawn").Pool(1)
assert open_pool.map(math.sqrt, [4.0]) == [2.0]
leaves(f"/proc/{open_pool._pool[0].pid}")
""",
        outlives_a_kill=True,
        plain=False,
    ),
    Program(
        "joblib",
        """
import joblib, numpy
joblib.Parallel(n_jobs=2, max_nbytes="1K")(joblib.delayed(numpy.sum)(numpy.random.rand(10_000)) for _ in range(4))
made = glob.glob(f"/dev/shm/joblib_memmapping_folder_{os.getpid()}_*"); leaves(*made); assert made
""",
        outlives_a_kill=True,
    ),
)


def faults(folder: Path, ranks: Iterable[int], *, killed: bool = False, patience: float = 60.0) -> list[str]:
    """What the programs have not written, or have left; what ends beside its process has a moment to."""
    end = time.monotonic() + patience
    while found := [text for program in PROGRAMS for text in program.faults(folder, ranks, killed=killed)]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return found
