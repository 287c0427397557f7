"""A notebook without a front end: a real kernel, and cells whose outputs are kept as a saved file keeps them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager
from nbformat import NotebookNode
from nbformat.v4 import output_from_msg

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class OwnKernelSpecs(KernelSpecManager):
    """Knows one kernel, of the Python that runs this, whatever else is installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


class Cell:
    """A cell that has run: what a saved notebook has of it, and what its displays went through.

    Parameters
    ----------
    number : int
        As in ``In[number]``.
    """

    def __init__(self) -> None:
        self.number = 0
        self.status = ""
        self.outputs: list[NotebookNode] = []
        self.updates: list[str] = []
        self.payload: list[dict[str, Any]] = []
        self.elapsed = 0.0
        # Each question, and whether its answer is not to be seen.
        self.asked: list[tuple[str, bool]] = []
        self._by_id: dict[str, list[NotebookNode]] = {}

    def take(self, message: dict[str, Any]) -> None:
        """Do with a message what a front end does."""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            last = self.outputs[-1] if self.outputs else None
            if last is not None and last.output_type == "stream" and last.name == content["name"]:
                last.text += content["text"]
            else:
                self.outputs.append(output_from_msg(message))
        elif kind in ("display_data", "execute_result", "error"):
            self.outputs.append(output_from_msg(message))
            self._by_id.setdefault(content.get("transient", {}).get("display_id", ""), []).append(self.outputs[-1])
        elif kind == "update_display_data":
            for output in self._by_id[content["transient"]["display_id"]]:
                output.data = content["data"]
        if kind in ("display_data", "update_display_data"):
            self.updates.append(content["data"]["text/plain"])

    @property
    def displays(self) -> list[NotebookNode]:
        """The outputs that are displays."""
        return [output for output in self.outputs if output.output_type == "display_data"]

    @property
    def run(self) -> str:
        """The text of the run's view, which is the last display."""
        return str(self.displays[-1].data["text/plain"])

    @property
    def html(self) -> str:
        """The HTML of the run's view."""
        return str(self.displays[-1].data["text/html"])

    @property
    def body(self) -> list[str]:
        """The lines of the run's view under its header."""
        return self.run.split("\n")[1:]

    @property
    def error(self) -> str:
        """The traceback of the one error, without colours."""
        (error,) = [output for output in self.outputs if output.output_type == "error"]
        return _COLOUR.sub("", "\n".join(error.traceback))

    @property
    def error_name(self) -> str:
        """The type of the one error."""
        (error,) = [output for output in self.outputs if output.output_type == "error"]
        return str(error.ename)

    def stream(self, name: str = "stdout") -> str:
        """What the cell printed in the notebook itself."""
        return "".join(output.text for output in self.outputs if output.get("name") == name)


class Notebook:
    """A kernel and its client; made by `notebook`, ends with its ``with`` block."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=180)

    def run(
        self,
        source: str,
        *,
        until: Callable[[Cell], bool] | None = None,
        timeout: float = 240,
        answers: Iterable[str | None] | None = None,
    ) -> Cell:
        """Run a cell to its end; where ``until`` comes true, the user interrupts the kernel, once.

        What is asked is answered in turn, None not at all; without answers the front end takes none, as nbconvert's.
        """
        cell, began = Cell(), time.perf_counter()
        given = iter(answers or ())

        def answer(message: dict[str, Any]) -> None:
            cell.asked.append((message["content"]["prompt"], message["content"]["password"]))
            text = next(given)
            if text is not None:
                self.client.input(text)

        waiting = [until] if until is not None else []

        def take(message: dict[str, Any]) -> None:
            cell.take(message)
            if waiting and waiting[0](cell):
                waiting.clear()
                self.manager.interrupt_kernel()

        reply = self.client.execute_interactive(
            source,
            output_hook=take,
            timeout=timeout,
            stop_on_error=False,
            allow_stdin=answers is not None,
            stdin_hook=answer,
        )
        content = reply["content"]
        cell.number, cell.status = content["execution_count"], content["status"]
        cell.payload = content.get("payload", [])
        cell.elapsed = time.perf_counter() - began
        return cell

    def value(self, expression: str) -> Any:
        """What an expression in the notebook's namespace is, as Python writes it."""
        reply = self.client.execute_interactive("", user_expressions={"value": expression}, timeout=60)
        found = reply["content"]["user_expressions"]["value"]
        assert found["status"] == "ok", found
        return eval(found["data"]["text/plain"])

    def complete(self, source: str) -> list[str]:
        """What Tab offers at the end of a cell."""
        content = self.client.complete(source, reply=True, timeout=60)["content"]
        return sorted(source[: content["cursor_start"]] + match for match in content["matches"])

    def close(self) -> None:
        """Shut the kernel down as a front end does."""
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@contextmanager
def notebook(folder: Path, **environment: str) -> Iterator[Notebook]:
    """A notebook whose kernel works in ``folder``."""
    manager = KernelManager(kernel_spec_manager=OwnKernelSpecs(), transport="ipc", ip=str(folder / "kernel"))
    manager.start_kernel(cwd=str(folder), env={**os.environ, **environment})
    opened = None
    try:
        opened = Notebook(manager)
        yield opened
    finally:
        if opened is not None:
            opened.close()
        else:
            manager.shutdown_kernel(now=True)
