"""Ours and the peers behind one face: start nodes, run a cell to its last byte, end.

Every import that an engine needs happens in `start`, so that a fresh process pays for it there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from . import ended
from .kernels import Kernels
from .peer_script import monarch_python

OURS = "sky_jupyter"
OURS_MAGIC = "%%sky in IPython"
OURS_NOTEBOOK = "%%sky in a kernel"
IPP = "ipyparallel"
IPP_DEFAULT = "ipyparallel as it is"
IPP_100 = "ipyparallel, heartbeat 100 ms"
IPP_MAGIC = "%%px in IPython"
IPP_NOTEBOOK = "%%px in a kernel"
BARE = "bare kernels"
JD = "jupyter-distributed"
MONARCH_NOTEBOOK = "Monarch's call in a kernel"
DASK = "Dask scatter"
HEARTBEAT = 1000
"""Milliseconds; what ipyparallel is started with where its start is not what is measured."""


class Engine(Protocol):
    """Something that runs cells on several nodes of this machine."""

    def start(self, nodes: int) -> None:
        """Bring the nodes up; returns when they are ready."""

    def run(self, code: str) -> list[str]:
        """Run a cell on every node, to its last byte; what was printed."""

    def close(self) -> None:
        """End all that was started."""


class Ours:
    """A pool, through the manager that the magics use."""

    def start(self, nodes: int, plugins: tuple[str, ...] = ()) -> None:
        from sky_jupyter.plugins import parse_plugins
        from sky_jupyter.pool.pool import Pool
        from sky_jupyter.providers import Local
        from sky_jupyter.spec.pool_spec import PoolSpec

        self.pool = Pool(PoolSpec(provider=Local(), nodes=nodes, plugins=parse_plugins(plugins)))
        self.pool.start()

    def run(self, code: str, namespace: dict[str, Any] | None = None) -> list[str]:
        from sky_jupyter.capture.collect import collect

        run = self.pool.submission.begin_cell(code, collect(code, namespace or {}, self.pool.ledger), attended=True)
        result = self.pool.attend(run)
        return [result.stdout(rank) for rank in result.ranks]

    def send(self, value: Any, code: str) -> None:
        """Run a cell that reads `value` under the name ``value``."""
        self.run(code, {"value": value})

    def close(self) -> None:
        self.pool.down()


class Ipyparallel:
    """A cluster of ipyparallel, through its client's own interface.

    Parameters
    ----------
    heartbeat : int, optional
        Milliseconds between the controller's heartbeats; its own 3000 where None. An engine is registered
        with the second one that it answers, so a start waits for them; nothing else depends on them.
    """

    def __init__(self, heartbeat: int | None = HEARTBEAT) -> None:
        self._args = [] if heartbeat is None else [f"--HeartMonitor.period={heartbeat}"]

    def start(self, nodes: int) -> None:
        import ipyparallel

        self.cluster = ipyparallel.Cluster(n=nodes, log_level=logging.ERROR, controller_args=self._args)
        self.cluster.start_cluster_sync()
        self.client = self.cluster.connect_client_sync()
        self.client.wait_for_engines(nodes, interactive=False, timeout=300)
        self.view = self.client[:]

    def run(self, code: str) -> list[str]:
        answer = self.view.execute(code, silent=False, block=True)
        answer.wait_for_output()
        return list(answer.stdout)

    def send(self, value: Any, code: str) -> None:
        """Push `value` under the name ``value`` and run a cell that reads it."""
        # The view that is made for sending one thing to all: faster than the direct one.
        self.client.broadcast_view().push({"value": value}, block=True)
        self.run(code)

    def close(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


class Bare:
    """Kernels and nothing else: what a person would write with jupyter_client in an afternoon."""

    def start(self, nodes: int) -> None:
        self.kernels = Kernels(nodes)

    def run(self, code: str) -> list[str]:
        return self.kernels.run(code)

    def send(self, value: Any, code: str) -> None:
        """Pickle `value` into a file in memory, have every kernel load it, and run a cell that reads it."""
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="bench-", dir=memory) as folder:
            path = Path(folder, "value")
            with path.open("wb") as file:
                pickle.dump(value, file, protocol=5)
            self.run(f"import pickle\nwith open({str(path)!r}, 'rb') as file: value = pickle.load(file)\n{code}")

    def close(self) -> None:
        self.kernels.close()


class Dask:
    """A cluster of Dask on this machine: what its client scatters to all workers, they hold."""

    def start(self, nodes: int) -> None:
        from distributed import Client, LocalCluster

        # Without a limit, as the others have none.
        self.cluster = LocalCluster(
            n_workers=nodes, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        )
        self.client = Client(self.cluster)
        self.client.wait_for_workers(nodes)
        self._value: Any = None

    def run(self, code: str) -> list[str]:
        return list(self.client.run(_said, code).values())

    def send(self, value: Any, code: str) -> None:
        """Scatter `value` to all workers, and run a cell there that reads it under the name ``value``."""
        self._value = self.client.scatter(value, broadcast=True)
        self.client.run(_bind, self._value.key)
        self.run(code)

    def close(self) -> None:
        self.client.close()
        self.cluster.close()


_names: dict[str, Any] = {}


def _bind(key: str, dask_worker: Any) -> None:
    """On a worker of Dask: give what was scattered its name."""
    _names["value"] = dask_worker.data[key]


def _said(code: str) -> str:
    """On a worker of Dask: run a cell; what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(code, _names)
    return said.getvalue()


class JupyterDistributed:
    """Its proxy kernel, started as its server extension starts it, with a process for each rank.

    The extension itself only rewrites how the server launches the notebook's kernel; here the same
    adapter rewrites it for a kernel manager of ours. In JupyterLab a kernel is first started without
    it and then restarted; that is left out, in its favour.
    """

    def start(self, nodes: int) -> None:
        from jupyter_client import KernelManager
        from jupyter_distributed.coordinator import KernelLaunchAdapter

        self._folder = ended.temporary_folder()
        model = KernelManager()
        model._launch_args = {}  # as a manager has it once it has started its kernel
        adapter = KernelLaunchAdapter()
        adapter.configure_proxy(model, adapter.capture(model), nodes, Path(self._folder.name, "registry.json"))
        # Its ranks have their connection files where temporary files are, and leave them there if they are killed.
        env = {**model._launch_args["env"], "TMPDIR": self._folder.name}
        self.kernels = Kernels(1, argv=model.kernel_spec.argv, env=env)

    def run(self, code: str) -> list[str]:
        return self.kernels.run(code)

    def close(self) -> None:
        # A request, and not a kill: the proxy has to end its ranks.
        self.kernels.managers[0].shutdown_kernel(now=False)
        self.kernels.close()
        self._folder.cleanup()


class Shell:
    """Magics in an IPython shell of this process.

    Parameters
    ----------
    before : callable
        What must be run first, given the number of nodes.
    magic : str
        The line above each cell.
    after : sequence of str
        What ends it.
    """

    def __init__(self, before: Callable[[int], str], magic: str, after: str) -> None:
        self._before, self._magic, self._after = before, magic, after

    def start(self, nodes: int) -> None:
        self._run(self._before(nodes))

    def run(self, code: str) -> list[str]:
        return [self._run(f"{self._magic}\n{code}")]

    def close(self) -> None:
        self._run(self._after)

    def _run(self, code: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            shell().run_cell(code, store_history=True).raise_error()
        return said.getvalue()


class Notebook(Shell):
    """The same magics in a notebook's kernel, as the page sees them: a message there, and all that comes back."""

    argv: Sequence[str] = ()

    def start(self, nodes: int) -> None:
        self.kernels = Kernels(1, self.argv)
        super().start(nodes)

    def _run(self, code: str) -> str:
        return self.kernels.run(code)[0]

    def close(self) -> None:
        super().close()
        self.kernels.close()


class MonarchNotebook(Notebook):
    """A call of all actors of PyTorch Monarch in a notebook's kernel, in an environment of its own."""

    def __init__(self) -> None:
        super().__init__(_monarch_before, "", "_procs.stop().get()")
        self.argv = [str(monarch_python("cell")), "-m", "ipykernel_launcher", "-f", "{connection_file}"]

    def run(self, code: str) -> list[str]:
        return [self._run("_actors.echo.call(b'').get()" if code == "x = 1" else code)]


def _sky_before(nodes: int) -> str:
    return f"%load_ext sky_jupyter\n%sky up --yes --nodes {nodes}"


_SKY_AFTER = "%sky down"


def _px_before(nodes: int) -> str:
    return (
        "import logging, ipyparallel\n"
        f"_args = ['--HeartMonitor.period={HEARTBEAT}']\n"
        f"_cluster = ipyparallel.Cluster(n={nodes}, log_level=logging.ERROR, controller_args=_args)\n"
        "_cluster.start_cluster_sync()\n"
        "_client = _cluster.connect_client_sync()\n"
        f"_client.wait_for_engines({nodes}, interactive=False, timeout=60)\n"
        "_view = _client[:]\n"
        "_view.block = True\n"
        "_view.activate()"
    )


def _monarch_before(nodes: int) -> str:
    return (
        "from monarch.actor import Actor, endpoint, this_host\n"
        "class Small(Actor):\n"
        "    @endpoint\n"
        "    def echo(self, given): return None\n"
        f"_procs = this_host().spawn_procs(per_host={{'gpus': {nodes}}})\n"
        "_actors = _procs.spawn('small', Small)\n"
        "_ = _actors.echo.call(b'').get()"
    )


_PX_AFTER = "_client.close(); _cluster.stop_cluster_sync()"

ENGINES: dict[str, Callable[[], Any]] = {
    OURS: Ours,
    OURS_MAGIC: lambda: Shell(_sky_before, "%%sky", _SKY_AFTER),
    OURS_NOTEBOOK: lambda: Notebook(_sky_before, "%%sky", _SKY_AFTER),
    IPP: Ipyparallel,
    IPP_DEFAULT: lambda: Ipyparallel(heartbeat=None),
    IPP_100: lambda: Ipyparallel(heartbeat=100),
    IPP_MAGIC: lambda: Shell(_px_before, "%%px", _PX_AFTER),
    IPP_NOTEBOOK: lambda: Notebook(_px_before, "%%px", _PX_AFTER),
    BARE: Bare,
    DASK: Dask,
    JD: JupyterDistributed,
    MONARCH_NOTEBOOK: MonarchNotebook,
}
_NEEDS = dict.fromkeys([IPP, IPP_DEFAULT, IPP_100, IPP_MAGIC, IPP_NOTEBOOK], "ipyparallel")
_NEEDS[JD] = "jupyter_distributed"


def there(*names: str) -> list[str]:
    """Those of the engines whose packages are installed; not every peer is made for every Python."""
    found = [name for name in names if name not in _NEEDS or importlib.util.find_spec(_NEEDS[name]) is not None]
    return [name for name in found if name != MONARCH_NOTEBOOK or monarch_python("cell") is not None]


@contextlib.contextmanager
def live(*names: str, nodes: int = 2) -> Iterator[dict[str, Any]]:
    """Engines that live side by side, by name; ended in the end."""
    with contextlib.ExitStack() as stack:
        engines = {}
        for name in there(*names):
            engines[name] = ENGINES[name]()
            engines[name].start(nodes)
            stack.callback(engines[name].close)
        yield engines


def shell() -> Any:
    """This process's IPython shell; it keeps no history on disk."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    if not InteractiveShell.initialized():
        InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    return InteractiveShell.instance()
