"""Which front end shows what this process displays; docs/view.md says where each of these facts is from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Literal

Front = Literal["jupyter", "vscode", "colab", "marimo", "none"]
# Our own media types.
_OURS = "application/vnd.sky."


def front_end() -> Front:
    """The front end; ``"none"`` where there is no notebook."""
    if in_marimo():
        return "marimo"
    shell = _kernel_shell()
    if shell is None:
        return "none"
    if "google.colab" in sys.modules:
        return "colab"
    # A Jupyter server that was started in a terminal of VS Code has its variables, and a session's name.
    local = "VSCODE_PID" in os.environ and "JPY_SESSION_NAME" not in os.environ
    return "vscode" if local or "__vsc_ipynb_file__" in shell.user_ns else "jupyter"


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel, whose front end draws HTML."""
    return _kernel_shell() is not None


def in_marimo() -> bool:
    """Whether marimo runs this as a notebook, to be edited or as an app; a script of its is none."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())


def drawable(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """What of a bundle this front end may get.

    VS Code and Colab take no extension of ours, and VS Code prefers ``application/vnd.*`` to all else.
    """
    if front_end() not in ("vscode", "colab"):
        return dict(bundle)
    return {kind: value for kind, value in bundle.items() if not kind.startswith(_OURS)}


def takes_buffers() -> bool:
    """Whether binary buffers of a comm's messages arrive: in Colab they did not always, and of VS Code none is told."""
    return front_end() not in ("vscode", "colab")


def allow_widgets() -> None:
    """Have Colab load widgets that are not its own, as it asks for; nothing elsewhere."""
    colab = sys.modules.get("google.colab")
    if colab is not None:
        colab.output.enable_custom_widget_manager()


def _kernel_shell() -> Any:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if shell is not None and hasattr(shell, "kernel") else None
