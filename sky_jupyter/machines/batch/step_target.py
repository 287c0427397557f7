"""Node of a batch job, and how a command is run on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import SpecError
from ..ssh.target import Target

_PLAIN = re.compile(r"[A-Za-z0-9._:@%+-]{1,200}\Z")


@dataclass(frozen=True)
class StepTarget:
    """Node of a batch job. It has no secrets.

    Attributes
    ----------
    name : str
        Name in messages, such as ``12/0 (n3)``.
    node : str
        The scheduler's name of the node.
    incarnation : str
        Id of the job's start: a requeued job's nodes are other machines.
    enter : tuple of str
        Program and arguments, on the login host, that run the command after them on the node.
    raw : tuple of str
        The same, but output is passed on at once and unchanged, with line ends or without.
    folder : str
        Folder on the node's own disk, in which `waiter` waits.
    address : str
        Address of the node, for the login host and the other nodes.
    login : Target, optional
        The login host; None for this machine.
    """

    name: str
    node: str
    incarnation: str
    enter: tuple[str, ...]
    raw: tuple[str, ...]
    folder: str
    address: str
    login: Target | None = None

    def __post_init__(self) -> None:
        if not (_PLAIN.match(self.node) and _PLAIN.match(self.incarnation) and self.folder.startswith("/")):
            raise SpecError(f"{self.node!r} of {self.incarnation!r} is not a node of a batch job")

    def __str__(self) -> str:
        where = f" behind {self.login}" if self.login is not None else ""
        return f"node {self.node} of job {self.incarnation}{where}"


__all__ = ["StepTarget"]
