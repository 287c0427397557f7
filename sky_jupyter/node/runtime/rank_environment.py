"""Environment of a rank, for programs that run beside it, such as terminals.

The rank's control thread sends it to the agent, also while the main thread is busy.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .instance_info import instance_info

# The topic of the agent's question, and the receiver of the answer.
TOPIC, TO = "environment", "terminals"
_TRIES = 5
# Variables that a kernel sets for programs without pager and colours, and another terminal's size.
_KERNELS = ("LINES", "COLUMNS", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PYDEVD_DISABLE_FILE_VALIDATION")
_PAGERS = ("PAGER", "GIT_PAGER")


def environment() -> dict[str, str]:
    """Return this rank's environment, with its numbers and its Python first in PATH."""
    info = instance_info()
    found = {**os.environ, "SKY_RANK": str(info.rank), "SKY_NODE": str(info.node)}
    return {**found, "PATH": with_programs(found.get("PATH"))}


def with_programs(path: str | None) -> str:
    """Return a PATH in which the programs of this process's Python are found first."""
    programs = os.path.dirname(sys.executable)
    folders = (path or os.defpath).split(os.pathsep)
    return os.pathsep.join([programs, *(one for one in folders if one != programs)])


def tell(send: Callable[[dict[str, Any]], None], content: Mapping[str, Any]) -> None:
    """Answer the agent's question for the environment and the working folder."""
    for _ in range(_TRIES):
        # The main thread may change the environment meanwhile.
        with contextlib.suppress(RuntimeError, OSError):
            send({"to": TO, "id": content.get("of"), "env": environment(), "cwd": os.getcwd()})
            return


def for_terminal(env: Mapping[str, str], term: str) -> dict[str, str]:
    """Return a rank's environment without what its kernel has set for itself."""
    found = {name: value for name, value in env.items() if name not in _KERNELS}
    for name in _PAGERS:
        if found.get(name) == "cat":
            del found[name]
    if found.get("MPLBACKEND", "").startswith("module://matplotlib_inline"):
        del found["MPLBACKEND"]
    return {**found, "TERM": term}


__all__ = ["TO", "TOPIC", "environment", "for_terminal", "tell", "with_programs"]
