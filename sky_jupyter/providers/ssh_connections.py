"""SSH connections to machines, in parallel, over the session's link if any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import MachineError, SpecError
from ..util.background_tasks import run_all

if TYPE_CHECKING:
    from ..machines.base import Machine
    from ..machines.ssh.target import Target
    from .base import ConnectionSession

Open = Callable[["Target", "str | None"], "Machine"]
_BESIDE = 64


def connect_all(connect: Callable[[str], Machine], ids: Sequence[str]) -> Sequence[Machine]:
    """Connect to machines in parallel; return them in the order of ``ids``.

    If one fails, close the others and raise its MachineError, whose message names all that failed.
    """
    futures = run_all(connect, ids, "sky-connect", most=_BESIDE)
    failed = [error for future in futures if (error := future.exception()) is not None]
    if not failed:
        return [future.result() for future in futures]
    for future in futures:
        if future.exception() is None:
            future.result().close()
    if len(failed) > 1 and isinstance(failed[0], MachineError):
        failed[0].args = ("; ".join(map(str, failed)),)
    raise failed[0]


def opener(session: ConnectionSession, accept: bool | Mapping[str, str] = False) -> Open:
    """Return a function that connects to a target; passphrases are asked for once.

    Its second argument is the address for the pool's other machines; by default, the one at which it answers. Raises
    SpecError without paramiko.
    """
    if session.open_link is None:
        _need_paramiko()
        from ..machines.ssh.machine import SSHMachine
        from ..machines.ssh.session import Access, connect

        access = Access.of(accept, session.prompts)
        return lambda target, address: SSHMachine(connect(target, access), address)
    # The link starts only with the first connection: before that, the provider may still look for addresses.
    open_link = session.open_link
    return lambda target, address: open_link().connect(target, accept=accept, address=address, prompts=session.prompts)


def known_target(session: ConnectionSession, id: str) -> tuple[Target, str] | None:
    """Return target and address of a machine connected before; None for a new one."""
    if session.open_link is None or (known := session.known.get(id)) is None:
        return None
    from ..machines.link import encoding
    from ..machines.ssh.target import Target

    target = known["target"]
    found = target if isinstance(target, Target) else encoding.target(target)
    return (found, str(known["address"])) if isinstance(found, Target) else None


def _need_paramiko() -> None:
    try:
        import paramiko  # noqa: F401
    except ImportError as error:
        raise SpecError(f"SSH needs paramiko: pip install 'sky-jupyter[ssh]' ({error})") from None


__all__ = ["connect_all", "known_target", "opener"]
