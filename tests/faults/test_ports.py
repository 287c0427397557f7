"""Who can reach a local pool: nobody from another machine, nobody without its keys; and where those lie."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import dask.config
import psutil
import pytest
from distributed import Client
from distributed.core import rpc
from distributed.security import Security

import sky_jupyter as sky
from sky_jupyter.node.dask import scheduler
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from tests.attacks.neighbours import family, listening
from tests.pool.pools import begin, local_pool, run
from tests.pool.test_faults import scheduler_of

KEYS = ("pool.key", "pool.cert", "pool.ca", "host.json")
COLLECTIVE = """
import jax, jax.numpy as jnp, torch, torch.distributed as dist
from jax.experimental import multihost_utils
ones = torch.ones(3)
dist.all_reduce(ones)
total = int(multihost_utils.process_allgather(jnp.ones(())).sum())
(total, ones.tolist())
"""


def ports_of_dask(pool: Pool) -> list[str]:
    """The addresses of the scheduler and of each agent."""
    assert pool.control is not None
    return [pool.scheduler_address, *pool.control.addresses.values()]


def only_loopback(pool: Pool) -> None:
    found = listening(pool)
    assert len(found) >= 1 + pool.spec.nodes
    for text, _ in found:
        address = ipaddress.ip_address(text)
        assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, found


def test_no_port_is_open_to_another_machine_whatever_the_pool_goes_through() -> None:
    pytest.importorskip("jax", reason="needs the extra jax")
    pytest.importorskip("torch", reason="needs the extra torch")
    with local_pool(plugins=(sky.plugins.jax(), sky.plugins.torch())) as pool:
        only_loopback(pool)
        current = begin(pool, COLLECTIVE + "import time; time.sleep(1); total")
        while not current.over.is_set():
            only_loopback(pool)
        assert pool.attend(current).values == [2, 2]
        pool.restart()
        only_loopback(pool)
        assert run(pool, COLLECTIVE).values == [(2, [2.0] * 3)] * 2
        with pytest.raises(CellError):
            run(pool, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ranks=[1])
        assert run(pool, COLLECTIVE).values == [(2, [2.0] * 3)] * 2
        only_loopback(pool)
        scheduler_of(pool).kill()
        assert run(pool, COLLECTIVE).values == [(2, [2.0] * 3)] * 2
        only_loopback(pool)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as made:
        yield made


LISTENS = "import sky_jupyter as sky; info = sky.instance_info(); info.head_addr, info.port('together')"


@pytest.mark.skipif(sys.platform != "linux", reason="ports are kept on Linux")
def test_a_coordinators_port_is_given_to_nobody_else_before_it_listens() -> None:
    with local_pool(nodes=1, plugins=(sky.plugins.Plugin("together", collective=True),)) as pool:
        (place,) = run(pool, LISTENS).values
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(place)
        # As a coordinator does.
        socket.create_server(place).close()
        pool.restart()
        assert run(pool, LISTENS).values != [place]
        with socket.socket() as stranger:
            stranger.bind(place)


def test_where_no_coordinator_listens_programs_may_bind_the_heads_port_in_any_way(pool: Pool) -> None:
    info = run(pool, "import sky_jupyter as sky; sky.instance_info()").head
    with socket.socket() as plain:
        plain.bind((info.head_addr, info.head_port))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Security | None]:
    """What others could come with: nothing, keys of their own, another pool's, and of this one its authority only."""
    with local_pool(nodes=1) as other:
        folder = tmp_path_factory.mktemp("keys")
        for name in KEYS[:3]:
            (folder / name).write_bytes((other.hosts[0].folder / name).read_bytes())
    return {"no keys": None, "keys of its own": Security.temporary(), "another pool's keys": scheduler.security(folder)}


REFUSED = r"(?i)tls|ssl|certificate|encrypt|closed|reset|timed out|before comm was established"


async def identity(address: str, security: Security | None) -> str:
    """What a server of Dask says that it is, to whom it lets in."""
    arguments = {} if security is None else security.get_connection_args("client")
    async with rpc(address, connection_args=arguments, timeout=60) as server:
        return str((await asyncio.wait_for(server.identity(), 60))["type"])


@pytest.mark.parametrize("who", ["no keys", "keys of its own", "another pool's keys"])
def test_a_client_without_the_pools_keys_is_refused_at_every_port(
    pool: Pool, strangers: dict[str, Security | None], who: str
) -> None:
    security = strangers[who]
    with pytest.raises(Exception, match=REFUSED):
        Client(pool.scheduler_address, security=security, timeout=3, set_as_default=False)
    mine = scheduler.security(pool.hosts[0].folder)
    assert [asyncio.run(identity(address, mine)) for address in ports_of_dask(pool)] == [
        "PoolScheduler",
        "AgentWorker",
        "AgentWorker",
    ]
    for address in ports_of_dask(pool):
        with pytest.raises(Exception, match=REFUSED):
            asyncio.run(identity(address, security))
        # Nor in the clear, by who does not insist on TLS.
        with dask.config.set({"distributed.comm.require-encryption": False}):
            plain = asyncio.wait_for(identity(address.replace("tls://", "tcp://"), None), 4)
            with pytest.raises((OSError, asyncio.TimeoutError)):
                asyncio.run(plain)
    assert run(pool, "40 + 2").values == [42, 42]


def test_a_plain_connection_gets_nothing_from_any_port(pool: Pool) -> None:
    secured = {int(address.rpartition(":")[2]) for address in ports_of_dask(pool)}
    for host, port in sorted(listening(pool)):
        with socket.create_connection((host, port), timeout=3) as plain:
            plain.sendall(b"GET /status HTTP/1.1\r\nHost: pool\r\n\r\n" + b"\0" * 64)
            try:
                answer = plain.recv(1000)
            except (ConnectionError, TimeoutError):
                answer = b""
        # At the most TLS's own alert: 21.
        assert port in secured, (host, port)
        assert answer[:1] in (b"", b"\x15"), answer
    assert run(pool, "40 + 2").values == [42, 42]


def test_a_client_that_trusts_anyone_is_refused_without_a_certificate_of_the_pool(pool: Pool) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for address in ports_of_dask(pool):
        host, _, port = address.removeprefix("tls://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as plain:
            try:
                with context.wrap_socket(plain) as secured:
                    # With TLS 1.3 the refusal comes with the first reading.
                    answer = secured.recv(1000)
            except (ssl.SSLError, ConnectionError):
                answer = b""
        assert answer == b""
    assert run(pool, "40 + 2").values == [42, 42]


def test_who_knocks_and_says_nothing_holds_nobody_up(pool: Pool) -> None:
    opened = []
    try:
        for host, port in listening(pool):
            opened += [socket.create_connection((host, port), timeout=3) for _ in range(20)]
        assert run(pool, "40 + 2").values == [42, 42]
    finally:
        for plain in opened:
            plain.close()


def secrets_of(folder: Path) -> set[str]:
    """The lines of the pool's private key, and the keys of its kernels."""
    key = (folder / "pool.key").read_text()
    lines = {line for line in key.splitlines() if len(line) >= 32 and "-----" not in line}
    for path in folder.glob("n*/k*.json"):
        lines.update(re.findall(r'"key": "(\w+)"', path.read_text()))
    return lines


def test_keys_are_the_users_alone_and_in_no_arguments_and_no_environment(pool: Pool) -> None:
    folder = pool.hosts[0].folder
    run(pool, "1")
    found = secrets_of(folder)
    assert len(found) >= 5
    for name in KEYS:
        facts = (folder / name).stat()
        assert (stat.S_IMODE(facts.st_mode), facts.st_uid) == (0o600, os.getuid())
    for path in [folder, *folder.rglob("*")]:
        facts = path.lstat()
        if stat.S_ISDIR(facts.st_mode):
            # What lies below one that nobody else enters is out of reach.
            assert path != folder or stat.S_IMODE(facts.st_mode) == 0o700
        elif any(secret in path.read_text(errors="replace") for secret in found if stat.S_ISREG(facts.st_mode)):
            assert stat.S_IMODE(facts.st_mode) == 0o600, path
    assert Path(pool.hosts[0].blobs).stat().st_mode & 0o077 == 0
    for process in [psutil.Process(), *family(pool)]:
        for what in ("cmdline", "environ"):
            text = Path(f"/proc/{process.pid}/{what}").read_text(errors="replace")
            assert not [secret for secret in found if secret in text], (process, what)
