"""Real ranks for plugin tests: forked from a process that has preloaded, as a pool's kernels are.

`World` starts one mother process with the image's variables. It imports what the plugins preload,
forks the ranks and waits for them. Each rank enters the plugins in order, then runs the functions
that the test sends it over its own socket, and leaves when told: rank 0 last.

    with World(parse_plugins("jax,keras"), 2) as world:
        assert world.run(lambda info: jax.device_count()) == [2, 2]

Functions go by cloudpickle and are called with the rank's `InstanceInfo` first.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sky_jupyter.node.runtime.instance_info import InstanceInfo
from sky_jupyter.node.system import processes
from sky_jupyter.plugins import Plugin
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


class RankError(AssertionError):
    """A function failed on ranks; the message holds their tracebacks."""

    def __init__(self, failed: dict[int, str]) -> None:
        self.failed = failed
        super().__init__("\n".join(f"--- rank {rank}\n{text}" for rank, text in failed.items()))


def needs(package: str) -> None:
    """Skip where a framework is not installed; it is not imported, for ranks do that."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)


def infos(
    plugins: Sequence[Plugin], nodes: int, ranks_per_node: int = 1, peers: tuple[str, ...] = ()
) -> list[InstanceInfo]:
    """What each rank would be told, with fresh ports."""
    names = [plugin.name for plugin in plugins if plugin.collective]
    ports = {name: free_port() for name in [*names, *(f"{name}.programs" for name in names)]}
    return [
        InstanceInfo(
            node=rank // ranks_per_node,
            rank=rank,
            total_nodes=nodes,
            world_size=nodes * ranks_per_node,
            ranks_per_node=ranks_per_node,
            local_rank=rank % ranks_per_node,
            head_addr="127.0.0.1",
            head_port=free_port(),
            peers=peers or ("127.0.0.1",) * nodes,
            job_id="test",
            ports=ports,
        )
        for rank in range(nodes * ranks_per_node)
    ]


class World:
    """Ranks that have entered plugins, for the length of a ``with`` block.

    Parameters
    ----------
    plugins : sequence of Plugin
        Entered in this order.
    nodes, ranks_per_node : int
        How many nodes, and ranks on each.
    env : dict of str, optional
        More variables for the ranks.
    peers : tuple of str
        Each node's address; all of 127.0.0.0/8 is this machine.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        nodes: int = 2,
        *,
        ranks_per_node: int = 1,
        env: dict[str, str] | None = None,
        peers: tuple[str, ...] = (),
    ) -> None:
        self.plugins, self.nodes, self.ranks_per_node = tuple(plugins), nodes, ranks_per_node
        self.env, self.peers = env or {}, peers
        self.statuses: dict[int, int] = {}
        self.orderly = True

    def __enter__(self) -> World:
        self.infos = infos(self.plugins, self.nodes, self.ranks_per_node, self.peers)
        image = PoolSpec(None, nodes=self.nodes, ranks_per_node=self.ranks_per_node, plugins=self.plugins).full_image
        pairs = [socket.socketpair() for _ in self.infos]
        self.connections = [Connection(mine.detach()) for mine, _ in pairs]
        self.folder = tempfile.TemporaryDirectory(prefix="sky-world-")
        # Ranks import with bytecode: without it each world would pay seconds for compiling.
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self.mother = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.plugins.world",
                str(os.getpid()),
                self.folder.name,
                *(str(theirs.fileno()) for _, theirs in pairs),
            ],
            cwd=ROOT,
            env={**env, **image.env, **self.env},
            pass_fds=[theirs.fileno() for _, theirs in pairs],
            stdout=subprocess.PIPE,
            stderr=(log := open(Path(self.folder.name) / "mother", "wb")),
        )
        log.close()
        for _, theirs in pairs:
            theirs.close()
        for connection, info in zip(self.connections, self.infos, strict=True):
            connection.send_bytes(cloudpickle.dumps((self.plugins, info)))
        try:
            # The imports take 8 s of processor time for Keras with torch, and ten times as long on a busy machine.
            self._answers(range(len(self.infos)), patience=None)
            self._answers(range(len(self.infos)))
        except BaseException:
            self.orderly = False
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *args: Any, ranks: Iterable[int] | None = None) -> list[Any]:
        """Call ``function(info, *args)`` on ranks at the same time, as a cell is run there; the values by rank."""
        chosen = list(range(len(self.infos)) if ranks is None else ranks)
        for rank in chosen:
            self.connections[rank].send_bytes(cloudpickle.dumps(("run", function, args, len(chosen) < len(self.infos))))
        return self._answers(chosen)

    def again(self) -> None:
        """Have all ranks set their plugins up anew, on new ports."""
        self.infos = [replace(info, ports=new.ports) for info, new in zip(self.infos, self._fresh(), strict=True)]
        for connection, info in zip(self.connections, self.infos, strict=True):
            connection.send_bytes(cloudpickle.dumps(("again", info)))
        self._answers(range(len(self.infos)))

    def _fresh(self) -> list[InstanceInfo]:
        return infos(self.plugins, self.nodes, self.ranks_per_node, self.peers)

    def start(self, rank: int, function: Callable[..., Any], *args: Any) -> None:
        """Call ``function(info, *args)`` on one rank and do not wait: the world can only be closed then."""
        self.orderly = False
        self.connections[rank].send_bytes(cloudpickle.dumps(("run", function, args, False)))

    def leave(self, rank: int) -> float:
        """Have one rank leave its plugins and end; the seconds that took."""
        begin = time.monotonic()
        with contextlib.suppress(OSError, EOFError):
            self.connections[rank].send_bytes(cloudpickle.dumps(("leave",)))
            if self.connections[rank].poll(20):
                self.connections[rank].recv_bytes()
        return time.monotonic() - begin

    def kill(self, rank: int) -> None:
        """End one rank by SIGKILL, as the kernel does when memory is short."""
        os.kill(self.run(lambda info: os.getpid(), ranks=[rank])[0], signal.SIGKILL)

    def close(self) -> None:
        """Leave, rank 0 last; afterwards `statuses` holds every rank's exit status."""
        for rank in reversed(range(len(self.connections))) if self.orderly else ():
            self.leave(rank)
        for connection in self.connections:
            connection.close()
        if not self.orderly:
            # Ranks that hang in a collective go with their mother.
            self.mother.kill()
        try:
            out, _ = self.mother.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.mother.kill()
            out, _ = self.mother.communicate()
        self.folder.cleanup()
        for line in out.splitlines():
            with contextlib.suppress(ValueError):
                self.statuses.update({int(rank): status for rank, status in json.loads(line).items()})

    def printed(self, rank: int | str) -> str:
        """What a rank, or the mother of them, has written to its output so far."""
        path = Path(self.folder.name) / str(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def _answers(self, ranks: Iterable[int], patience: float | None = 120.0) -> list[Any]:
        """What ranks have to say next; without patience, however late, unless they or their mother end."""
        values, failed = [], {}
        for rank in ranks:
            try:
                if not self.connections[rank].poll(patience):
                    raise EOFError(f"no answer within {patience:g} s")
                good, value = cloudpickle.loads(self.connections[rank].recv_bytes())
            except (EOFError, OSError) as error:
                good, value = (
                    False,
                    f"the rank is gone: {error!r}\n{self.printed('mother')}\n{self.printed(rank)[-3000:]}",
                )
            if good:
                values.append(value)
            else:
                failed[rank] = value
        if failed:
            raise RankError(failed)
        return values


def _mother(folder: str, descriptors: list[int]) -> None:
    """Preload, fork a rank for each socket, report their ends, wait for all; as a pool's forkserver does it."""
    gc.disable()
    connections = [Connection(descriptor) for descriptor in descriptors]
    greetings = [connection.recv_bytes() for connection in connections]
    for plugin in cloudpickle.loads(greetings[0])[0]:
        for module in plugin.preload:
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    ranks, mother = {}, os.getpid()
    for rank, connection in enumerate(connections):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                processes.die_with_parent(mother)
                log = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                for other in connections:
                    if other is not connection:
                        other.close()
                connection.send_bytes(cloudpickle.dumps((True, None)))
                _rank(connection, *cloudpickle.loads(greetings[rank]))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        ranks[pid] = rank
    for connection in connections:
        connection.close()
    for _ in range(len(ranks)):
        pid, status = os.wait()
        print(json.dumps({ranks[pid]: os.waitstatus_to_exitcode(status)}), flush=True)
    # The interpreter would take seconds to take thousands of modules apart.
    os._exit(0)


def _rank(connection: Connection, plugins: Sequence[Plugin], info: InstanceInfo) -> None:
    """Enter the plugins, do what the test asks, leave; gone when the test is."""
    with contextlib.ExitStack() as stack:
        for plugin in plugins:
            if plugin.around_process is not None:
                stack.enter_context(plugin.around_process(info))
        connection.send_bytes(cloudpickle.dumps((True, None)))
        while True:
            try:
                order, *rest = cloudpickle.loads(connection.recv_bytes())
            except EOFError:
                return
            if order == "leave":
                break
            try:
                if order == "again":
                    (info,) = rest
                    for plugin in plugins:
                        if plugin.again is not None:
                            plugin.again(info)
                    answer = True, None
                else:
                    function, args, partial = rest
                    with contextlib.ExitStack() as around:
                        for plugin in plugins if partial else ():
                            if plugin.around_partial_run is not None:
                                around.enter_context(plugin.around_partial_run(info))
                        answer = True, function(info, *args)
            except BaseException:
                text = io.StringIO()
                traceback.print_exc(file=text)
                answer = False, text.getvalue()
            connection.send_bytes(cloudpickle.dumps(answer))


if __name__ == "__main__":
    processes.die_with_parent(int(sys.argv[1]))
    _mother(sys.argv[2], [int(text) for text in sys.argv[3:]])
