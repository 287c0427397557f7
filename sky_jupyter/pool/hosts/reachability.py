"""Check of which hosts of a pool reach each other, while the head starts."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...bootstrap.prepared_host import PreparedHost, on_all
from ...errors import BootstrapError, SkyError
from ..base.timeouts import TIMEOUTS

T = TypeVar("T")
_PATIENCE = TIMEOUTS.links.reach
_CONNECT = TIMEOUTS.links.connect
# The listeners end by themselves after this.
_LIFE = max(1, round(TIMEOUTS.links.listener))
_LISTEN = """
import json, os, signal, socket
def bound(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.bind((host, 0))
    return made, made.getsockname()[1]
free = bound("127.0.0.1")[1]
try:
    here, port = bound({address!r})
    here.listen(128)
except OSError as error:
    print(json.dumps(dict(why=str(error), free=free)))
else:
    child = os.fork()
    if child:
        print(json.dumps(dict(port=port, child=child, free=free)))
    else:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        signal.alarm({life})
        signal.pause()
"""
_CALL = """
import json, socket, threading
found = dict()
def call(node, host, port):
    try:
        socket.create_connection((host, port), {patience}).close()
    except OSError as error:
        found[node] = str(error)
calls = [threading.Thread(target=call, args=one) for one in {places!r}]
for one in calls: one.start()
for one in calls: one.join()
print(json.dumps(found))
"""


_FREE = """
import json, socket
made = socket.socket()
made.bind(("127.0.0.1", 0))
print(json.dumps(dict(free=made.getsockname()[1])))
"""
# The description of nodes that need not reach each other.
ALONE = "nodes are independent (cluster=False)"


@dataclass(frozen=True)
class Reachability:
    """Result of `look`.

    Attributes
    ----------
    gaps : mapping of two nodes to str
        (caller, node) -> why the caller does not reach the node.
    free : mapping of int to int
        By node, a port that was free on its loopback.
    """

    gaps: Mapping[tuple[int, int], str]
    free: Mapping[int, int]


def place(address: str) -> tuple[str, int]:
    """Return host and port of an address such as ``tls://10.0.0.1:8786``."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def script_of(python: str, code: str) -> str:
    """Return a one-line shell command that runs Python code."""
    return f"{shlex.quote(python)} -I -S -c {shlex.quote(f'exec({code!r})')}"


def look(sites: Sequence[PreparedHost], stop: threading.Event, *, everyone: bool) -> Reachability:
    """Test connections between the head and all hosts; if ``everyone``, of all.

    They use the hosts' addresses in the pool. Raises BootstrapError if a host cannot be asked.
    """
    if len(sites) < 2:
        return Reachability({}, {site.node: 0 for site in sites})

    def listen(site: PreparedHost) -> dict[str, Any]:
        return _ask(site, _LISTEN.format(address=site.address, life=_LIFE))

    def call(site: PreparedHost) -> dict[int, str]:
        others = [other for other in sites if other is not site and (everyone or 0 in (site.node, other.node))]
        return _call(site, others, ears)

    def hush(site: PreparedHost) -> None:
        with contextlib.suppress(SkyError, TimeoutError):
            site.machine.run(f"kill {int(ears[site.node]['child'])}", timeout=_PATIENCE)

    ears = _by_node(sites, on_all(sites, listen, "agent", stop))
    try:
        found = _by_node(sites, on_all(sites, call, "agent", stop))
    finally:
        on_all([site for site in sites if "child" in ears[site.node]], hush, "agent", threading.Event())
    gaps = {(caller, node): why for caller, missed in found.items() for node, why in missed.items()}
    return Reachability(gaps, {node: int(ear["free"]) for node, ear in ears.items()})


def apart(sites: Sequence[PreparedHost], stop: threading.Event) -> Reachability:
    """Return a `Reachability` of independent hosts, without a test.

    Raises BootstrapError if a host cannot be asked.
    """
    free = on_all(sites, lambda site: int(_ask(site, _FREE)["free"]), "agent", stop)
    return Reachability({(0, site.node): ALONE for site in sites if site.node}, _by_node(sites, free))


def _by_node(sites: Sequence[PreparedHost], found: Sequence[T]) -> dict[int, T]:
    return {site.node: one for site, one in zip(sites, found, strict=True)}


def _call(site: PreparedHost, others: Sequence[PreparedHost], ears: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return which of the others a host does not reach, and why."""
    missed: dict[int, str] = {}
    places = []
    for other in others:
        if "why" in ears[other.node]:
            missed[other.node] = f"it cannot listen there: {ears[other.node]['why']}"
        else:
            places.append((other.node, other.address, ears[other.node]["port"]))
    if places:
        answer = _ask(site, _CALL.format(patience=_CONNECT, places=places))
        missed.update((int(node), why) for node, why in answer.items())
    addresses = {other.node: other.address for other in others}
    return {node: f"at {addresses[node]}: {why}" for node, why in missed.items()}


def _ask(site: PreparedHost, code: str) -> dict[str, Any]:
    """Run Python code on a host; return the JSON object that it prints."""
    said = site.run(
        script_of(site.interpreter, code), "agent", "it could not be asked whom it reaches", timeout=_PATIENCE
    )
    try:
        return dict(json.loads(said.strip().rpartition("\n")[2]))
    except ValueError:
        raise BootstrapError("agent", f"asked which hosts it reaches, it answered {said!r}") from None
