"""Killing a notebook at any moment of its pool's life on hosts, and what is left then, there and here.

    kill = kills.at_random(random.Random(7))
    with kills.victim(kill.act, registry) as notebook:
        kill.strike(notebook)

The notebook is a process that makes a pool on two hosts and does one act with it; it is killed (SIGKILL) a
moment after it has begun with that. Whoever comes next is a process that loads the extension.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import pool_folders
from tests.hosts.traces import left
from tests.hosts.world import World
from tests.pool.remote import links
from tests.programs import ROOT

NAME = "attacked"
# Each act, and the seconds within which it mostly is over on hosts where an environment is.
ACTS = {"start": 5.0, "restart": 2.0, "anew": 6.0, "grow": 5.0, "shrink": 3.0, "down": 2.5}
# What hosts live without a word of who makes the pool, and without a notebook: seconds, for these tests.
START_LEASE, LEASE = 8.0, 10.0

_VICTIM = """
import signal, sys
import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec

name, lease, act = sys.argv[1], float(sys.argv[2]), sys.argv[3]
provider = sky.SSH("host0,host1", offline=True)
pool = Pool(PoolSpec(provider=provider, nodes=1 if act == "grow" else 2, name=name, idle_timeout=lease))
say = lambda word: print(word, pool.id, flush=True)
if act == "start":
    say(act)
pool.start()
if act == "anew":
    # Its processes on the head are gone: a restart makes all of them anew.
    pool.hosts[0].process.kill()
    while pool.state != "broken":
        signal.sigtimedwait([], 0.05)
if act != "start":
    say(act)
if act in ("restart", "anew"):
    pool.restart()
elif act == "grow":
    pool.resize(2)
elif act == "shrink":
    pool.resize(1)
elif act == "down":
    pool.down()
say("done")
sys.stdin.read()
"""

_NEXT = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "sky_jupyter")
print("TOLD", flush=True)
for line in sys.stdin:
    try:
        shell.run_line_magic("sky", "down --name " + sys.argv[1])
    except Exception as error:
        print(type(error).__name__ + ":", error)
    print("ENDED", flush=True)
"""


@dataclass(frozen=True)
class Kill:
    """One kill.

    Parameters
    ----------
    act : str
        What the notebook is at; of `ACTS`.
    after : float
        Seconds after it has begun with that.
    comes : bool
        Whether another notebook comes at once; else nobody does.
    """

    act: str
    after: float
    comes: bool

    def strike(self, notebook: subprocess.Popen[str]) -> str:
        """Wait until it is at it, and kill it; the pool's id."""
        assert notebook.stdout is not None
        said: list[str] = []
        # Libraries log what they like before it.
        while (line := notebook.stdout.readline()) and line.partition(" ")[0] != self.act:
            said.append(line)
        assert line, f"the notebook did not come to it: {''.join(said)}"
        pool = line.split()[1]
        time.sleep(self.after)
        notebook.send_signal(signal.SIGKILL)
        notebook.wait()
        return pool


def at_random(chance: random.Random, act: str = "") -> Kill:
    """A kill at a random moment, of this act or any."""
    act = act or chance.choice(sorted(ACTS))
    return Kill(act, round(chance.uniform(0.0, ACTS[act]), 2), chance.random() < 0.5)


@contextlib.contextmanager
def victim(act: str, registry: Path) -> Iterator[subprocess.Popen[str]]:
    """The notebook."""
    with _process(_VICTIM, registry, NAME, str(LEASE), act) as made:
        yield made


class Next:
    """The next notebook: it has loaded the extension."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.told = self._until("TOLD")

    def down(self) -> str:
        """What ``%sky down`` of the pool says."""
        assert self._process.stdin is not None
        self._process.stdin.write("down\n")
        self._process.stdin.flush()
        return self._until("ENDED")

    def _until(self, mark: str) -> str:
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            if line.strip() == mark:
                break
            lines.append(line)
        else:
            lines.append(f"(it ended before {mark})")
        return "".join(lines)


@contextlib.contextmanager
def next_notebook(registry: Path) -> Iterator[Next]:
    """Another notebook of the same user."""
    with _process(_NEXT, registry, NAME) as made:
        yield Next(made)


@contextlib.contextmanager
def _process(code: str, registry: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "SKY_REGISTRY": str(registry), "SKY_START_LEASE": str(START_LEASE), "SSH_AUTH_SOCK": ""}
    made = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield made
    finally:
        with contextlib.suppress(BrokenPipeError):
            made.communicate("")


def remains(world: World, pool: str) -> list[str]:
    """What a pool has left on the hosts and here; empty where there is nothing."""
    found = []
    for host in world:
        processes, files, ports = left(host)
        found += [f"{host.name}: {what}" for what in (processes, files, ports) if what]
    found += [f"here: link {process.pid}" for process in links(pool)]
    return found + [f"here: {path}" for path in pool_folders(pool)]


def until_nothing_remains(world: World, pool: str, patience: float = 120.0) -> float:
    """Wait until nothing of a pool is left, and for how long that took; AssertionError with what is left for ever."""
    began = time.monotonic()
    while found := remains(world, pool):
        assert time.monotonic() - began < patience, found
        time.sleep(0.2)
    return time.monotonic() - began
