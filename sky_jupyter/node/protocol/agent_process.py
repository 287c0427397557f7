"""Agents that share a process: their incarnations, and the process's name.

Nodes of one machine may share one process, in which each has its own agent, with its own name, address and kernels.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

_TOKEN = 12


def new_incarnations(nodes: Sequence[int]) -> dict[int, str]:
    """Return incarnations for the agents of a new process, with a common prefix."""
    process = secrets.token_hex(_TOKEN // 2)
    return {node: f"{process}{index:04x}" for index, node in enumerate(nodes)}


def renewed(incarnation: str) -> str:
    """Return another incarnation of an agent in the same process."""
    return f"{process_of(incarnation)}{secrets.token_hex(4)}"


def process_of(incarnation: str) -> str:
    """Return the common part of the incarnations of one process's agents."""
    return incarnation[:_TOKEN]


def name_of(nodes: Sequence[int]) -> str:
    """Return the name of these nodes' process: ``"agent 0"`` or ``"agents 0-3"``."""
    return f"agent {nodes[0]}" if len(nodes) == 1 else f"agents {nodes[0]}-{nodes[-1]}"


def log_of(name: str) -> str:
    """Return the path of a process's log in the pool's folder, by its name.

    Processes of other kinds have no such file.
    """
    first = re.match(r"agents? (\d+)", name)
    return f"n{first[1] if first else ''}/agent.log"
