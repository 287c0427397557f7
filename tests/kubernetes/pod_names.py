"""The cluster's DNS: the names that headless services give to pods, and nothing else.

``p-node-0-0.p.people.svc.cluster.local`` is the pod with this hostname and subdomain in the namespace ``people``.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kubernetes.controllers import Watched

DOMAIN = "svc.cluster.local"
_A, _IN, _NO_ERROR, _NO_NAME = 1, 1, 0, 3


def serve(pods: Watched) -> None:
    """Answer questions at port 53 of all addresses, for as long as the process lives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 53))
        while True:
            question, client = server.recvfrom(512)
            try:
                server.sendto(answer(question, addresses(pods)), client)
            except (ValueError, IndexError, struct.error, OSError):
                continue


def addresses(pods: Watched) -> dict[str, str]:
    """The address of each pod that has a name; a pod that is on its way out gives it up to the one that replaces it."""
    found = {}
    leaving_first = sorted(pods.all(), key=lambda pod: "deletionTimestamp" not in pod["metadata"])
    for pod in leaving_first:
        spec, address = pod["spec"], (pod.get("status") or {}).get("podIP")
        if address and spec.get("hostname") and spec.get("subdomain"):
            name = f"{spec['hostname']}.{spec['subdomain']}.{pod['metadata']['namespace']}.{DOMAIN}"
            found[name] = address
    return found


def answer(question: bytes, known: dict[str, str]) -> bytes:
    """A reply to a DNS query with one question."""
    number, flags, count = struct.unpack("!HHH", question[:6])
    if flags & 0x8000 or count != 1:
        raise ValueError("no query")
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode())
        at += 1 + length
    end = at + 5
    kind, space = struct.unpack("!HH", question[at + 1 : end])
    address = known.get(".".join(labels).lower())
    record = b""
    if address and (kind, space) == (_A, _IN):
        record = struct.pack("!HHHIH", 0xC00C, _A, _IN, 1, 4) + socket.inet_aton(address)
    code = _NO_ERROR if address else _NO_NAME
    header = struct.pack("!HHHHHH", number, 0x8580 | code, 1, int(bool(record)), 0, 0)
    return header + question[12:end] + record
