"""Socket below an SSH connection: a tuned TCP connection, or a ProxyCommand."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from ...errors import Unreachable
from .target import Target

# Seconds of silence after which a connection is closed.
SILENT = 12
# Bytes that the kernel accepts beyond what the network can carry.
_UNSENT = 1 << 17


def dial(target: Target) -> socket.socket:
    """Open a TCP connection to the host, without delays and with keepalives."""
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    try:
        found = socket.getaddrinfo(
            target.host, target.port, families.get(target.family, socket.AF_UNSPEC), socket.SOCK_STREAM
        )
    except (socket.gaierror, UnicodeError) as error:
        raise Unreachable(
            target.name,
            "name",
            f"no host of the name {target.host!r} is known here ({getattr(error, 'strerror', error)}); check its "
            "spelling, or give its address, or a HostName in ~/.ssh/config",
        ) from None
    failures: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            link = socket.socket(family, kind, protocol)
        except OSError as error:
            # A kernel without IPv6 has no socket for such an address; what came of another one says more.
            failures.insert(0, error)
            continue
        try:
            tune(link)
            link.settimeout(target.timeout)
            if target.bind:
                link.bind((target.bind, 0))
            link.connect(address)
            return link
        except OSError as error:
            link.close()
            failures.append(error)
    raise _no_connection(target, failures[-1])


def tune(link: socket.socket) -> None:
    """Disable Nagle's algorithm, and let the kernel close a dead connection."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
    if sys.platform == "darwin":
        wanted["TCP_KEEPALIVE"] = 4
        numbers = {0x80: SILENT}  # TCP_RXT_CONNDROPTIME
    else:
        numbers = {}
        wanted["TCP_USER_TIMEOUT"] = SILENT * 1000
    # Unsent data waits in this process, so that a few bytes of another channel need not queue behind it.
    wanted["TCP_NOTSENT_LOWAT"] = _UNSENT
    for name, value in wanted.items():
        if hasattr(socket, name):
            numbers[getattr(socket, name)] = value
    for number, value in numbers.items():
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, number, value)


def command_socket(target: Target) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a ProxyCommand; return a socket to it, and its process."""
    assert target.proxy_command is not None
    ours, theirs = socket.socketpair()
    with theirs:
        # Its standard error is shown, as by OpenSSH.
        shell = os.environ.get("SHELL") or "/bin/sh"
        child = subprocess.Popen(
            [shell, "-c", f"exec {target.proxy_command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
    return ours, child


def end(child: subprocess.Popen[bytes]) -> None:
    """End a ProxyCommand with all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
            return


def peer(inner: Any) -> str:
    """Return the address at a socket's other end; empty if it is not TCP."""
    if isinstance(inner, socket.socket) and inner.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            return str(inner.getpeername()[0])
    return ""


def _no_connection(target: Target, error: OSError) -> Unreachable:
    where = f"{target.host} port {target.port}"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Unreachable(
            target.name,
            "timeout",
            f"{where} did not answer within {target.timeout:g} s; is it running, and does a firewall, VPN or jump host "
            "stand between? (ConnectTimeout and ProxyJump in ~/.ssh/config, or jump=)",
        )
    if error.errno == errno.ECONNREFUSED:
        return Unreachable(
            target.name,
            "closed",
            f"{where} is closed: the host is there and nothing listens; is sshd running, and is this its port?",
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return Unreachable(
            target.name, "route", f"there is no route to {where} ({error.strerror}); is the network or VPN up?"
        )
    return Unreachable(target.name, "route", f"no connection to {where}: {error.strerror or error}")
