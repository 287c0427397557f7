"""Kinds of machines of the link: their targets' JSON forms and how to connect.

Another kind of machine needs one more row here, and its own `SessionMachine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import MachineError, SpecError
from ...util.validate import Check, is_flag, is_text, list_of, number, optional, whole
from ..batch.step_target import StepTarget
from ..pods.pod_target import PodTarget
from ..ssh.target import Target

if TYPE_CHECKING:
    from ..ssh.session_machine import SessionMachine

AnyTarget = Target | PodTarget | StepTarget

_TEXTS = ("keys", "certificates", "known_hosts", "system_known_hosts")
# Checks of a target's values, except its jump.
_TARGET: Mapping[str, Check] = {
    **dict.fromkeys(("name", "host", "user", "strict", "family"), is_text),
    **dict.fromkeys(("agent", "proxy_command", "host_key_alias", "bind"), optional(is_text)),
    **dict.fromkeys(_TEXTS, list_of(is_text)),
    **dict.fromkeys(("identities_only", "hash_known_hosts"), is_flag),
    "port": whole(1, 65535),
    "timeout": number(0),
}
_POD: Mapping[str, Check] = {
    **dict.fromkeys(("name", "namespace", "pod", "uid", "container", "address"), is_text),
    "kubeconfig": list_of(is_text),
    "context": optional(is_text),
}
_STEP: Mapping[str, Check] = {
    **dict.fromkeys(("name", "node", "incarnation", "folder", "address"), is_text),
    **dict.fromkeys(("enter", "raw"), list_of(is_text)),
}
_MAX_JUMPS = 16


def _host(facts: dict[str, Any], depth: int = 0) -> Target:
    if not _fits(facts, _TARGET, "jump") or depth > _MAX_JUMPS:
        raise _no_target()
    values = dict(facts)
    for name in _TEXTS:
        values[name] = tuple(values[name])
    if values["jump"] is not None:
        values["jump"] = _host(values["jump"], depth + 1)
    return Target(**values)


def _pod(facts: dict[str, Any]) -> PodTarget:
    if not _fits(facts, _POD):
        raise _no_target()
    return PodTarget(**{**facts, "kubeconfig": tuple(facts["kubeconfig"])})


def _step(facts: dict[str, Any]) -> StepTarget:
    if not _fits(facts, _STEP, "login"):
        raise _no_target()
    login = None if facts["login"] is None else _host(facts["login"])
    return StepTarget(**{**facts, "enter": tuple(facts["enter"]), "raw": tuple(facts["raw"]), "login": login})


def _fits(facts: Any, checks: Mapping[str, Check], *more: str) -> bool:
    return (
        isinstance(facts, dict)
        and facts.keys() == {*checks, *more}
        and all(good(facts[name]) for name, good in checks.items())
    )


def _no_target() -> SpecError:
    return SpecError("this is no target of a connection")


def _connect_host(target: Any, access: Any, address: str | None) -> SessionMachine:
    from ..ssh.machine import SSHMachine

    return SSHMachine.connect(target, access, address)


def _connect_pod(target: Any, access: Any, address: str | None) -> SessionMachine:
    from ..pods.machine import PodMachine

    return PodMachine.connect(target, address)


def _connect_step(target: Any, access: Any, address: str | None) -> SessionMachine:
    from ..batch.step_machine import StepMachine

    return StepMachine.connect(target, access, address)


class TargetKind(NamedTuple):
    """Row of the table: name, target class, and how to read and connect targets."""

    name: str
    kind: type
    read: Callable[[dict[str, Any]], AnyTarget]
    connect: Callable[[AnyTarget, Any, str | None], SessionMachine]


# An SSH host's form names no kind, as in links and records of earlier versions.
_KINDS = (
    TargetKind("", Target, _host, _connect_host),
    TargetKind("pod", PodTarget, _pod, _connect_pod),
    TargetKind("step", StepTarget, _step, _connect_step),
)


def from_target(target: AnyTarget) -> dict[str, Any]:
    """Return a target's JSON form."""
    name = _kind_of(target).name
    return {**({"kind": name} if name else {}), **dataclasses.asdict(target)}


def target(facts: Any) -> AnyTarget:
    """Return a target from its JSON form; raise SpecError if it is invalid."""
    if isinstance(facts, dict):
        facts = dict(facts)
        name = facts.pop("kind", "")
        for kind in _KINDS:
            if kind.name == name:
                return kind.read(facts)
    raise _no_target()


def connect(target: AnyTarget, access: Any, address: str | None) -> SessionMachine:
    """Connect to a target's machine.

    Parameters
    ----------
    target : Target, PodTarget or StepTarget
        The machine.
    access : Access
        Keys and prompts, for the kinds that log in.
    address : str, optional
        Address for the pool's other machines.

    Returns
    -------
    SessionMachine
        The machine, connected.

    Raises
    ------
    MachineError
        When it cannot be connected to.
    """
    return _kind_of(target).connect(target, access, address)


def _kind_of(target: AnyTarget) -> TargetKind:
    for kind in _KINDS:
        if isinstance(target, kind.kind):
            return kind
    raise MachineError(str(getattr(target, "name", target)), "kind", "the link knows no such kind of machine")


__all__ = ["AnyTarget", "TargetKind", "connect", "from_target", "target"]
