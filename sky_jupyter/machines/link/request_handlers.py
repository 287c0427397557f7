"""Handlers of the calls that clients make, with validation of their facts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import SpecError
from ...util import process_identity
from ...util.validate import Fields, field, is_text, is_whole, list_of, number, optional, whole
from ..forwards import join
from ..ssh import file_transfer
from ..ssh.known_hosts import Accepted, Unknown, valid_fingerprint
from ..ssh.types import Prompts
from . import encoding
from .connection_table import ConnectionTable
from .framing import Broken, Wire
from .idle_timeout import IdleTimeout
from .local_forwards import Tunnel
from .pool_watchdog import PoolWatchdog, Watched
from .reconnecting_host import ReconnectingHost
from .unfinished_cleanup import Finishing

_MOST_FILES = 65536
# Machines that one reply tells of: thousands do not fit a message (`framing.MAX_HEAD`).
_PAGE = 128
# Bytes from which on an upload uses its own connection.
_MUCH = 1 << 19
_TELL_EVERY = 0.05
_LOOK = 1.0
HostFacts = dict[str, Any]
# Fields of the calls, each with its check and its description.
_FIELDS: Fields = {
    **dict.fromkeys(("cwd", "host", "log", "script", "source", "target"), (is_text, "text")),
    "address": (optional(is_text), "text, or none"),
    "after": (optional(whole(0)), "a machine's number, or 0, or none"),
    "argv": (list_of(is_text, 1), "a list of texts"),
    "env": (lambda value: isinstance(value, dict) and all(map(is_text, value.values())), "texts by their names"),
    "files": (
        list_of(lambda one: _is_pair(one) and is_text(one[0]) and is_whole(one[1]), 0, _MOST_FILES),
        f"a list of at most {_MOST_FILES} paths, each with its size",
    ),
    "folders": (optional(list_of(lambda one: is_text(one) and os.path.isabs(one))), "a list of whole paths"),
    "how": (lambda value: value in ("terminate", "kill"), "terminate or kill"),
    "lease": (optional(number(0)), "a number of seconds, or none"),
    "names": (optional(list_of(lambda one: _is_pair(one) and all(map(is_text, one)))), "a list of pairs of texts"),
    "patience": (number(0), "a number of seconds"),
    "pid": (whole(1), "a process's number"),
    "port": (whole(1, 65535), "a whole number from 1 to 65535"),
    "processes": (optional(list_of(lambda one: isinstance(one, dict))), "a list of processes"),
    "started": (number(), "a process's beginning"),
    "timeout": (optional(number(0, threading.TIMEOUT_MAX)), "a number of seconds, or none"),
    "wish": (whole(0, 65535), "a whole number up to 65535"),
    "works": (list_of(lambda one: isinstance(one, dict)), "a list of machines, each with its script"),
}


class RequestHandler:
    """Server of one client's calls, one after another.

    Parameters
    ----------
    connections : ConnectionTable
        The link's connections.
    idle_timeout : IdleTimeout
        The link's idle timeout.
    watchdog : PoolWatchdog
        Watchdog of the pool.
    stop : callable
        Ends the link.
    wire : Wire
        Connection to the client.
    """

    def __init__(
        self,
        connections: ConnectionTable,
        idle_timeout: IdleTimeout,
        watchdog: PoolWatchdog,
        stop: Callable[[], None],
        wire: Wire,
    ) -> None:
        self._connections, self._idle_timeout, self._watchdog, self._stop, self._wire = (
            connections,
            idle_timeout,
            watchdog,
            stop,
            wire,
        )
        # Data that the client sends after the current call.
        self._sent: Iterator[bytes] = iter(())
        self._table: dict[str, Callable[[HostFacts], None]] = {
            "state": self._state,
            "connect": self._connect,
            "retry": self._retry,
            "let_go": self._let_go,
            "exec": self._exec,
            "wait": self._wait,
            "alive": self._alive,
            "signal": self._signal,
            "run": self._run,
            "put": self._put,
            "upload": self._upload,
            "download": self._download,
            "stream": self._stream,
            "tunnel": self._tunnel,
            "close_tunnel": self._close_tunnel,
            "relay": self._relay,
            "events": self._events,
            "keep": self._keep,
            "finish": self._finish,
            "end": self._end,
        }

    def serve(self) -> None:
        """Answer calls until the client closes."""
        with contextlib.suppress(Broken):
            while True:
                facts = self._wire.receive().facts
                self._sent = self._wire.receive_data() if facts.get("data") is True else iter(())
                call = self._table.get(str(facts.get("call")))
                try:
                    if call is None:
                        raise SpecError("the link knows no such call: it may be of another version; end it")
                    call(facts)
                except Broken:
                    raise
                except Exception as error:
                    # An error fails only this call.
                    self._read_rest()
                    self._wire.send({"error": encoding.from_error(error)})

    def _read_rest(self) -> None:
        """Read the rest of a client's data: it sends all of it before it reads the reply."""
        for _ in self._sent:
            pass

    def _answer(self, **facts: Any) -> None:
        self._read_rest()
        self._wire.send({"done": True, **facts})

    # The link and its hosts

    def _state(self, facts: HostFacts) -> None:
        # An older client names no number, and takes all machines at once.
        after, hosts = _field(facts, "after"), sorted(self._connections.hosts(), key=lambda held: held.number)
        if after is not None:
            hosts = [held for held in hosts if held.number > after]
        page = hosts if after is None else hosts[:_PAGE]
        tunnels = [_shown(one) for one in self._connections.tunnels()]
        self._answer(machines=list(map(self._described, page)), tunnels=tunnels, more=len(page) < len(hosts))

    def _described(self, held: ReconnectingHost) -> HostFacts:
        target = encoding.from_target(held.target)
        return {"machine": held.number, "target": target, "key": held.key, "address": held.address, "up": held.up}

    def _connect(self, facts: HostFacts) -> None:
        target = encoding.target(facts.get("target"))
        address = _field(facts, "address")
        agent = facts.get("agent")
        if isinstance(agent, str) and agent and "\0" not in agent:
            os.environ["SSH_AUTH_SOCK"] = agent
        prompts = Prompts(
            self._ask_passphrase if facts.get("passphrase") else None, self._ask_host if facts.get("ask") else None
        )
        held = self._connections.connect(target, address, _accepted(facts.get("accept")), prompts)
        self._answer(**self._described(held))

    def _ask_passphrase(self, path: str, attempts: int) -> str | None:
        answer = self._ask({"ask": "passphrase", "path": path, "attempts": attempts})
        return answer if isinstance(answer, str) else None

    def _ask_host(self, unknown: Unknown) -> bool:
        return self._ask({"ask": "host", **dataclasses.asdict(unknown)}) is True

    def _ask(self, question: HostFacts) -> Any:
        try:
            self._wire.send(question)
            return self._wire.receive().facts.get("answer")
        except Broken:
            return None  # the client is gone

    def _host(self, facts: HostFacts) -> ReconnectingHost:
        return self._connections.host(facts.get("machine"))

    def _keep(self, facts: HostFacts) -> None:
        lease = _field(facts, "lease")
        watched, folders = self._watched_pool(facts)
        self._idle_timeout.keep(lease)
        self._watchdog.watch(watched, folders)
        self._answer()

    def _finish(self, facts: HostFacts) -> None:
        works, patience = _field(facts, "works"), _field(facts, "patience")
        scripts = [(self._host(one), _field(one, "script")) for one in works]
        for held in self._connections.hosts():
            if held not in [one for one, _ in scripts]:
                self._connections.let_go(held.number)
        self._idle_timeout.keep(patience)
        # Nobody will attach to the pool again.
        self._watchdog.watch((), self._watched_pool(facts)[1])
        Finishing(scripts, patience, self._connections.tell, self._finished).start()
        self._answer()

    def _finished(self) -> None:
        self._watchdog.forget()
        self._stop()

    def _watched_pool(self, facts: HostFacts) -> tuple[list[Watched], list[Path]]:
        """Return the pool's processes, and its local folders."""
        processes, folders = _field(facts, "processes") or (), _field(facts, "folders") or ()
        watched = [Watched(self._host(one), *_identity(one), str(one.get("folder") or "")) for one in processes]
        return watched, [Path(one) for one in folders]

    def _end(self, facts: HostFacts) -> None:
        if facts.get("folders"):
            self._watchdog.watch((), self._watched_pool(facts)[1])
            self._watchdog.forget()
        self._answer(process=list(process_identity.this()))
        self._stop()

    def _retry(self, facts: HostFacts) -> None:
        self._host(facts).retry()
        self._answer()

    def _let_go(self, facts: HostFacts) -> None:
        self._connections.let_go(facts.get("machine"))
        self._answer()

    def _events(self, facts: HostFacts) -> None:
        with self._connections.listening() as events:
            self._answer()
            while True:
                with contextlib.suppress(queue.Empty):
                    self._wire.send({"event": dataclasses.asdict(events.get(timeout=_LOOK))})
                    continue
                if self._wire.gone():
                    raise Broken("the client is gone")

    # Commands

    def _exec(self, facts: HostFacts) -> None:
        machine = self._host(facts).machine
        command = machine.exec(
            _field(facts, "argv"),
            env=_field(facts, "env"),
            cwd=_field(facts, "cwd"),
            log=PurePosixPath(_field(facts, "log")),
            survive=facts.get("survive") is not False,
            make=facts.get("make") is True,
        )
        self._answer(command=self._connections.add(command), identity=list(command.identity))
        # The client reads its output. When that connection ends, the command's channel is closed.
        try:
            with self._watched(command.close):
                self._wire.send_data((line + "\n").encode() for line in command.lines())
        except Broken:
            command.close()
            raise

    def _wait(self, facts: HostFacts) -> None:
        command, timeout = self._connections.command(facts.get("command")), _field(facts, "timeout")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK if end is None else min(_LOOK, max(end - time.monotonic(), 0.0))
            try:
                status = command.wait(left)
                break
            except TimeoutError as error:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(str(error).replace(f"after {left} s", f"after {timeout} s")) from None
                if self._wire.gone():
                    raise Broken("the client is gone") from None
        self._answer(status=status)

    def _process(self, facts: HostFacts, lane: Any) -> Any:
        return lane.process(_identity(facts))

    def _alive(self, facts: HostFacts) -> None:
        with self._host(facts).lane() as lane:
            self._answer(alive=self._process(facts, lane).alive)

    def _signal(self, facts: HostFacts) -> None:
        how = _field(facts, "how")
        with self._host(facts).lane() as lane:
            getattr(self._process(facts, lane), how)()
        self._answer()

    def _run(self, facts: HostFacts) -> None:
        script, timeout = _field(facts, "script"), _field(facts, "timeout")
        data = self._sent if facts.get("data") is True else None
        with self._host(facts).lane() as lane, self._watched(lane.interrupt):
            done = lane.run(script, stdin=data, timeout=timeout)
        self._answer(status=done.status)
        self._wire.send_data([done.out])

    # Files

    def _put(self, facts: HostFacts) -> None:
        sizes = [(PurePosixPath(path), size) for path, size in _field(facts, "files")]
        held, size = self._host(facts), sum(size for _, size in sizes)
        with held.bulk() if size > _MUCH else held.lane() as lane:
            lane.put_parts(sizes, _exactly(self._sent, size))
        self._answer()

    def _upload(self, facts: HostFacts) -> None:
        source, target = _field(facts, "source"), _field(facts, "target")
        names = None if (pairs := _field(facts, "names")) is None else dict(pairs)
        with self._host(facts).bulk() as lane:
            moved = file_transfer.upload(lane, Path(source), target, names=names, progress=self._progress())
        self._answer(sent=moved.sent, there=moved.there)

    def _download(self, facts: HostFacts) -> None:
        source, target = _field(facts, "source"), _field(facts, "target")
        with self._host(facts).bulk() as lane:
            moved = file_transfer.download(lane, source, Path(target), progress=self._progress())
        self._answer(sent=moved.sent, there=moved.there)

    def _progress(self) -> Callable[[int, int], None]:
        last = [0.0]

        def tell(there: int, total: int) -> None:
            now = time.monotonic()
            if there >= total or now - last[0] >= _TELL_EVERY:
                last[0] = now
                # This raises if the client is gone, which ends the transfer.
                self._wire.send({"progress": [there, total]})

        return tell

    # Streams and tunnels

    def _stream(self, facts: HostFacts) -> None:
        far = self._host(facts).machine.open_stream(*_place(facts))
        self._answer()
        with contextlib.closing(far):
            join(self._wire.socket, far)
        raise Broken("the stream has ended, and the connection with it")

    def _tunnel(self, facts: HostFacts) -> None:
        held, place = self._host(facts), _place(facts)
        if facts.get("probe") is True:
            # A client of the tunnel would not see the host's error: report it now.
            held.machine.probe(*place)
        self._answer(**_shown(self._connections.tunnel(held, *place, _field(facts, "wish"))))

    def _close_tunnel(self, facts: HostFacts) -> None:
        self._connections.close_tunnel(facts.get("tunnel"))
        self._answer()

    def _relay(self, facts: HostFacts) -> None:
        near, far = self._host(facts), self._connections.host(facts.get("through"))
        self._answer(port=self._connections.relay(near, far, *_place(facts), _field(facts, "wish")).port)

    # While a call is answered

    @contextlib.contextmanager
    def _watched(self, cancel: Callable[[], Any]) -> Iterator[None]:
        """Call ``cancel`` if the client closes meanwhile."""
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                if self._wire.gone(_LOOK) and not over.is_set():
                    cancel()
                    return

        watcher = threading.Thread(target=watch, name="link-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()


def _field(facts: HostFacts, name: str) -> Any:
    """Return a field of a call; raise SpecError unless `_FIELDS` allows its value."""
    return field(_FIELDS, facts, name)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _shown(tunnel: Tunnel) -> HostFacts:
    facts = {"tunnel": tunnel.number, "machine": tunnel.held.number, "port": tunnel.port}
    return {**facts, "to": [tunnel.host, tunnel.there]}


def _exactly(data: Iterator[bytes], size: int) -> Iterator[bytes]:
    for part in data:
        size -= len(part)
        if size < 0:
            break
        yield part
    if size:
        raise SpecError("the files' bytes are not as many as was said")


def _identity(facts: HostFacts) -> tuple[int, float]:
    return _field(facts, "pid"), float(_field(facts, "started"))


def _place(facts: HostFacts) -> tuple[str, int]:
    return _field(facts, "host"), _field(facts, "port")


def _accepted(value: Any) -> Accepted:
    if isinstance(value, dict):
        return {str(name): valid_fingerprint(text) for name, text in value.items()}
    return value is True
