"""Executes a notebook in a real kernel of the running Python and prints what it says, as it comes.

    python notebooks/execute.py notebooks/quickstart.ipynb [--save] [--timeout SECONDS]

Exits with 1 and the traceback when a cell fails. The file changes with `--save` only.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_async
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

HEAD_LINES = 3
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class OwnKernelSpecs(KernelSpecManager):
    """Knows one kernel, of the Python that runs this, whatever else is installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


class Printing(NotebookClient):
    """Executes a notebook and prints each cell's head and its outputs.

    Streams and errors are printed as they come. What a cell goes on updating is printed once, in its
    last form, when the cell ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.updated: dict[str, dict[str, Any]] = {}

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        kind, content = msg["msg_type"], msg["content"]
        display_id = (content.get("transient") or {}).get("display_id")
        if kind == "stream":
            show(content["text"])
        elif kind == "error":
            show("\n".join(content["traceback"]), whole_lines=True)
        elif kind in ("display_data", "execute_result", "update_display_data"):
            if display_id:
                self.updated[display_id] = content["data"]
            else:
                show(plain(content["data"]), whole_lines=True)
        output: NotebookNode | None = super().process_message(msg, cell, cell_index)
        return output

    def take_signals(self, **about_the_notebook: Any) -> None:
        """Let the first interrupt reach the cell, so that it can clean up; the second one ends the kernel."""
        interrupts = 0

        def on_signal() -> None:
            nonlocal interrupts
            interrupts += 1
            if self.km is not None:
                act = self.km.interrupt_kernel() if interrupts == 1 else self.km.shutdown_kernel(now=True)
                self.acting = asyncio.ensure_future(ensure_async(act))

        # In place of nbclient's own handlers, which pull the kernel away from under the cell.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)

    def print_updated(self, **about_the_cell: Any) -> None:
        """Print the displays that were still changing: now they are final."""
        for bundle in self.updated.values():
            show(plain(bundle), whole_lines=True)
        self.updated.clear()


def execute(path: Path, *, timeout: float | None = None) -> NotebookNode:
    """Execute a notebook in its own folder, printing as it goes; returns it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.resolve().parent)}}
    client = Printing(notebook, timeout=timeout, resources=resources, record_timing=False, on_cell_start=print_head)
    client.on_cell_executed = client.print_updated
    client.on_notebook_start = client.take_signals
    # Sockets in a folder of its own, which no other user can reach.
    with tempfile.TemporaryDirectory() as folder:
        client.km = AsyncKernelManager(
            kernel_spec_manager=OwnKernelSpecs(), transport="ipc", ip=str(Path(folder, "kernel"))
        )
        try:
            client.execute()
        finally:
            client.print_updated()
    return notebook


def print_head(cell: NotebookNode, cell_index: int) -> None:
    if cell.cell_type == "code":
        lines = cell.source.splitlines()
        rest = [f"… {len(lines) - HEAD_LINES} more lines"] if len(lines) > HEAD_LINES + 1 else lines[HEAD_LINES:]
        print("\n" + "\n".join(f"│ {line}" for line in [*lines[:HEAD_LINES], *rest]), flush=True)


def plain(bundle: dict[str, Any]) -> str:
    """The text of a mimebundle, or which types it has where it has none."""
    text = bundle.get("text/plain", f"<{', '.join(bundle)}>")
    return text if isinstance(text, str) else "".join(text)


def show(text: str, *, whole_lines: bool = False) -> None:
    if not sys.stdout.isatty():
        text = _COLOUR.sub("", text)
    sys.stdout.write(f"{text.rstrip()}\n" if whole_lines else text)
    sys.stdout.flush()


def main() -> int:
    """Read the command line and execute; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--save", action="store_true", help="write the outputs into the notebook")
    parser.add_argument("--timeout", type=float, help="seconds that one cell may take")
    options = parser.parse_args()
    try:
        notebook = execute(options.notebook, timeout=options.timeout)
    except CellExecutionError as error:  # its traceback has been printed when it came
        print(f"\n{options.notebook}: the last cell above failed with {error.ename}", file=sys.stderr)
        return 130 if error.ename == "KeyboardInterrupt" else 1
    except (CellTimeoutError, DeadKernelError) as error:
        print(f"\n{options.notebook}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.save:
        nbformat.write(notebook, options.notebook)
    return 0


if __name__ == "__main__":
    sys.exit(main())
