"""A notebook's kernel that ends, in any way, takes its local pools with it within five seconds."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.conftest import MARK, marked_processes, pool_folders
from tests.tiers import daily
from tests.took import Took

START = """
get_ipython().run_line_magic("load_ext", "sky_jupyter")
get_ipython().run_cell_magic("sky", "--nodes 2", "big = bytearray(10_000_000)")
from sky_jupyter.pool.open_pools import pools
open({path!r}, "w").write(pools.current.id)
"""


class Notebook:
    """A kernel with a pool of two nodes in it."""

    def __init__(self, path: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, MARK: self.mark})
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        reply = self.client.execute_interactive(START.format(path=str(path)), timeout=60, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok", reply["content"]
        self.pool = path.read_text()

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path / "pool")
    yield notebook
    notebook.close()


def a_cell_runs(notebook: Notebook) -> None:
    """Begin a cell that would run for ten minutes."""
    notebook.client.execute("get_ipython().run_cell_magic('sky', '', 'import time; time.sleep(600)')")
    time.sleep(1)


def shut_down(notebook: Notebook) -> None:
    notebook.manager.shutdown_kernel()


def restart(notebook: Notebook) -> None:
    notebook.manager.restart_kernel()


def kill(notebook: Notebook) -> None:
    a_cell_runs(notebook)
    notebook.manager.signal_kernel(9)


def shut_down_while_a_cell_runs(notebook: Notebook) -> None:
    a_cell_runs(notebook)
    notebook.manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("end", daily([kill], [shut_down, restart, kill, shut_down_while_a_cell_runs]))
def test_nothing_of_its_pools_is_left(notebook: Notebook, end: Callable[[Notebook], None], took: Took) -> None:
    # Host, forkserver, scheduler, the two agents' process, two kernels.
    assert len(marked_processes(notebook.mark)) == 6
    assert len(pool_folders(notebook.pool)) == 2
    end(notebook)
    ended = time.monotonic()
    patience = ended + 60
    while marked_processes(notebook.mark) or pool_folders(notebook.pool):
        assert time.monotonic() < patience, (marked_processes(notebook.mark), pool_folders(notebook.pool))
        time.sleep(0.05)
    if end is kill:
        took.row(
            "the notebook's kernel is killed, and the pool was made without `--keep`",
            see="nothing: no process and no file of the pool is left",
            kept="the history of runs",
            ended=time.monotonic() - ended,
        )
