"""Front ends: which one is there, and what it draws; see docs/view.md."""

from __future__ import annotations

import functools
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

Front = Literal["jupyter", "vscode", "colab", "marimo", "none"]
# Our own media types.
_OURS = "application/vnd.sky."


def front_end() -> Front:
    """Return the front end's name; ``"none"`` if there is no notebook."""
    if in_marimo():
        return "marimo"
    shell = _kernel_shell()
    if shell is None:
        return "none"
    if "google.colab" in sys.modules:
        return "colab"
    # A Jupyter server that was started in VS Code's terminal has VS Code's variables, and a session's name.
    local = "VSCODE_PID" in os.environ and "JPY_SESSION_NAME" not in os.environ
    return "vscode" if local or "__vsc_ipynb_file__" in shell.user_ns else "jupyter"


def in_notebook() -> bool:
    """Tell whether this process is a Jupyter kernel whose front end draws HTML."""
    return _kernel_shell() is not None


def in_marimo() -> bool:
    """Tell whether marimo runs this as a notebook or app, and not as a script."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())


def drawable(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a bundle that this front end may get.

    VS Code and Colab load no extension of ours, and VS Code prefers ``application/vnd.*`` to all else.
    """
    if front_end() not in ("vscode", "colab"):
        return dict(bundle)
    return {kind: value for kind, value in bundle.items() if not kind.startswith(_OURS)}


class Slot:
    """Output of the cell, created on first use and then updated."""

    def __init__(self) -> None:
        self._id = ""
        self._send: Callable[[dict[str, Any]], object] | None = None

    def let_go(self, kernel: Any) -> None:
        """Let any one thread update the output from now on, also after its cell.

        IPython would update an output of the cell that runs then, and a capture of output would take the update.
        """
        self._send = functools.partial(_publish, kernel, kernel.get_parent("shell"), self._id, update=True)

    def show(self, bundle: dict[str, Any]) -> None:
        """Show a bundle with a form for each front end; main thread, before release."""
        from IPython.display import display

        shown, update = drawable(bundle), bool(self._id)
        self._id = self._id or secrets.token_hex(16)
        if self._send is not None:
            self._send(shown)
        elif (shell := _kernel_shell()) is not None and _is_direct(shell):
            _publish(shell.kernel, shell.kernel.get_parent("shell"), self._id, shown, update=update)
        else:
            display(shown, raw=True, display_id=self._id, update=update)


def _publish(kernel: Any, parent: Any, id: str, bundle: dict[str, Any], *, update: bool) -> None:
    """Send an output to all pages of a kernel."""
    content = {"data": bundle, "metadata": {}, "transient": {"display_id": id}}
    kind = "update_display_data" if update else "display_data"
    kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=kind.encode())


def _is_direct(shell: Any) -> bool:
    """Tell whether an output may be sent as it is: no hook, nothing left to flush.

    IPython's own way waits until another thread has flushed both streams, which takes longer than the rest.
    """
    publisher = shell.display_pub
    return (
        type(publisher) is getattr(sys.modules.get("ipykernel.zmqshell"), "ZMQDisplayPublisher", None)
        and not publisher._hooks
        and not getattr(publisher, "store_display_history", False)
        and not any(getattr(stream, "_flush_pending", True) for stream in (sys.stdout, sys.stderr))
    )


def takes_buffers() -> bool:
    """Tell whether binary buffers of comm messages arrive.

    In Colab they did not always, and nothing is known of VS Code.
    """
    return front_end() not in ("vscode", "colab")


def allow_widgets() -> None:
    """Let Colab load third-party widgets; do nothing elsewhere."""
    colab = sys.modules.get("google.colab")
    if colab is not None:
        colab.output.enable_custom_widget_manager()


def _kernel_shell() -> Any:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if shell is not None and hasattr(shell, "kernel") else None
