"""The scheduler's socket for requests to shared objects, and who asks there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Scheduler

from sky_jupyter.node.dask import shared_state_listener
from sky_jupyter.node.dask.scheduler import WithoutHttp
from sky_jupyter.node.dask.shared_state import SharedStateExtension
from sky_jupyter.node.protocol import shared_state_frames as frames
from sky_jupyter.node.protocol.short_call_frames import pack
from sky_jupyter.node.shared.direct_requests import DirectRequests
from sky_jupyter.node.system import peer_user


class Bare(WithoutHttp, Scheduler):
    """Dask's, which listens nowhere."""


class There:
    """A scheduler whose loop runs in a thread, and its socket."""

    def __init__(self, folder: Path) -> None:
        self.path = frames.socket_of(folder)
        self._folder = folder
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with Bare(protocol="inproc", dashboard=False) as scheduler:
            self.state = SharedStateExtension(scheduler)
            with shared_state_listener.listen(self.state, self._folder) as listener:
                self._ready.set()
                await self._end.wait()
                self.loop.remove_reader(listener)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self.thread.join()

    def do(self, work: Callable[[], Any]) -> Any:
        """Do something on the loop."""

        async def done() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(60)

    def wait_until(self, holds: Callable[[], object]) -> None:
        while not self.do(holds):
            time.sleep(0.01)

    def requests(self, who: str = "a.0.1.") -> Requests:
        return Requests(self.path, who, self.state.epoch)

    @property
    def waiting(self) -> int:
        return int(self.do(lambda: sum(self.state.waits.values())))


class Requests:
    """A process that asks."""

    def __init__(self, path: str, who: str, epoch: str) -> None:
        self.direct, self.epoch = DirectRequests(path, who), epoch

    def ask(self, kind: str, op: str, *data: bytes, where: str = "waiting", **what: Any) -> Any:
        """Return what comes of a request: the first value, or that of the answer; None where it goes the long way."""
        request = {"kind": kind, "op": op, "name": "x", **what}
        return _read(self.direct.ask(uuid.uuid4().hex, request, data, self.epoch, where))

    async def ask_async(self, kind: str, op: str, *data: bytes, **what: Any) -> Any:
        request = {"kind": kind, "op": op, "name": "x", **what}
        return _read(await self.direct.ask_async(uuid.uuid4().hex, request, data, self.epoch, "waiting"))


def _read(answer: tuple[dict[str, Any], list[bytes]] | None) -> Any:
    if answer is None:
        return None
    content, data = answer
    if content["status"] != "ok":
        return content["kind"]
    return data[0] if data else content["value"]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        scheduler = There(tmp_path)
        yield scheduler
        scheduler.end()


def test_requests_are_answered_and_leave_nothing_at_the_scheduler(there: There) -> None:
    asking = there.requests()
    assert [asking.ask("counter", "add", by=1) for _ in range(100)] == list(range(1, 101))
    assert asking.ask("dict", "put", b"key", b"value" * 200_000, keys=["k"]) is True
    assert asking.ask("dict", "get", keys=["k"]) == b"value" * 200_000
    assert asking.ask("dict", "eval") == "TypeError"
    assert asking.ask("dict", "get") == "KeyError"
    assert asking.ask("dict", ["get"]) == "TypeError"  # type: ignore[arg-type]
    # The last answer is kept: it may not have been read.
    assert len(there.state.asks) == 1
    assert len(there.state.closers["a.0.1."]) == 1
    asking.direct.close()
    there.wait_until(lambda: not there.state.closers)
    assert asking.ask("counter", "get") is None


def test_threads_that_wait_do_not_wait_for_each_other(there: There) -> None:
    asking, got = there.requests(), []
    threads = [threading.Thread(target=lambda: got.append(asking.ask("queue", "get"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    there.wait_until(lambda: there.state.waits["queue", "get", "x"] == 5)
    for number in range(5):
        assert asking.ask("queue", "put", b"%d" % number) is True
    for thread in threads:
        thread.join(60)
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]
    assert there.waiting == 0


def test_who_came_first_has_the_item_though_others_ask_meanwhile(there: There) -> None:
    first, second, got = there.requests("a.0.1."), there.requests("b.0.1."), []
    waiting = threading.Thread(target=lambda: got.append(first.ask("queue", "get")))
    waiting.start()
    there.wait_until(lambda: there.state.waits["queue", "get", "x"] == 1)

    def put_and_get() -> tuple[Any, Any]:
        what = {"kind": "queue", "op": "put", "name": "x"}
        there.state.begin("c.0.1.", "put", what, [b"item"])
        # Before the one that waits has run.
        asked = there.state.begin("b.0.1.", "get", {**what, "op": "get", "timeout": 0.0}, [])
        return asked.is_over, there.state.queues.queues["sky-x"].qsize()

    assert there.do(put_and_get) == (False, 1)
    waiting.join(60)
    assert got == [b"item"]
    assert second.ask("queue", "size") == 0


def test_what_a_process_waits_for_when_it_ends_stays_for_others(there: There) -> None:
    child = _process(there, 'direct.ask("id", {**what, "op": "get"}, (), epoch, "waiting")')
    there.wait_until(lambda: there.state.waits["queue", "get", "x"] == 1)
    child.kill()
    child.wait()
    asking = there.requests()
    there.wait_until(lambda: not there.state.waits)
    asking.ask("queue", "put", b"item")
    assert asking.ask("queue", "get", timeout=60.0) == b"item"


def test_an_interrupted_wait_takes_nothing_and_says_where_it_was(there: There) -> None:
    asking, other = there.requests(), there.requests("b.0.1.")
    for number in range(3):
        waiting = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        waiting.start()
        with pytest.raises(KeyboardInterrupt, match="waiting for x"):
            asking.ask("queue", "get", where="waiting for x")
        waiting.join()
        other.ask("queue", "put", b"%d" % number)
        assert asking.ask("queue", "get", timeout=60.0) == b"%d" % number
    # One that is used, and none of those that were interrupted.
    there.wait_until(lambda: len(there.state.closers["a.0.1."]) == 1)


def test_a_wait_that_a_handler_of_signals_ends_by_an_error_of_files_takes_nothing(there: There) -> None:
    asking = there.requests()

    def late(*_: object) -> None:
        raise TimeoutError("the user's own")

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError, match="own"):
            asking.ask("queue", "get")
    finally:
        signal.signal(signal.SIGALRM, before)
    there.wait_until(lambda: not there.state.waits)
    asking.ask("queue", "put", b"item")
    assert asking.ask("queue", "get") == b"item"


def test_an_item_whose_answer_was_not_read_is_the_first_again(there: There) -> None:
    asking = there.requests()
    for item in (b"1", b"2"):
        asking.ask("queue", "put", item)
    request = {"kind": "queue", "op": "get", "name": "x"}
    assert _read(asking.direct.ask("unread", request, (), asking.epoch, "waiting")) == b"1"
    with _connected(there) as line:
        line.sendall(pack(frames.HELLO, "a.0.1.", there.state.epoch) + pack(frames.CANCEL, "unread"))
        there.wait_until(lambda: there.state.queues.queues["sky-x"].qsize() == 2)
    assert asking.ask("queue", "get") == b"1"


def test_a_requester_that_is_gone_has_no_connection_any_more(there: There) -> None:
    asking, other, got = there.requests("a.0.1."), there.requests("a.0.10."), []
    assert asking.ask("lock", "acquire") is True
    waiting = threading.Thread(target=lambda: got.append(asking.ask("queue", "get")))
    waiting.start()
    there.wait_until(lambda: there.state.waits["queue", "get", "x"] == 1)
    asyncio.run_coroutine_threadsafe(there.state.sky_shared_left("a.0.1."), there.loop).result(60)
    waiting.join(60)
    assert got == ["cancelled"] or got == [None]
    assert asking.ask("counter", "get") is None
    assert other.ask("lock", "acquire", timeout=0.0) is True
    # An agent that is gone takes its ranks with it.
    asyncio.run_coroutine_threadsafe(there.state.sky_shared_left("a."), there.loop).result(60)
    assert other.ask("counter", "get") is None
    assert there.requests("a.5.1.").ask("counter", "get") is None


def test_a_notebook_that_still_has_a_connection_keeps_its_locks(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sky_jupyter.node.dask.shared_state.ABSENCE", 0.05)
    register = there.state.sky_shared_register("notebook", "notebook", "client-1")
    asyncio.run_coroutine_threadsafe(register, there.loop).result(60)
    asking, other = there.requests("notebook."), there.requests("b.0.1.")
    assert asking.ask("lock", "acquire") is True
    there.do(lambda: there.state.remove_client(None, "client-1"))
    assert other.ask("lock", "acquire", timeout=0.3) is False
    asking.direct.close()
    assert other.ask("lock", "acquire", timeout=60.0) is True


def test_another_scheduler_is_not_asked(there: There, tmp_path: Path) -> None:
    asking = there.requests()
    asking.epoch = "another"
    assert asking.ask("counter", "get") is None
    nowhere = Requests(str(tmp_path / "none"), "a.0.1.", there.state.epoch)
    assert nowhere.ask("counter", "get") is None
    asking.epoch = there.state.epoch
    assert asking.ask("counter", "get") == 0


def test_what_only_json_can_have_goes_the_long_way_and_is_done_once(there: There) -> None:
    asking = there.requests()
    assert asking.ask("counter", "add", by=1 << 80) is None
    assert asking.ask("counter", "get", name="\ud800") is None
    most = (1 << 63) - 1
    assert asking.ask("counter", "add", by=most) == most
    request = {"kind": "counter", "op": "add", "name": "x", "by": most}
    for _ in range(3):
        asking.direct.ask("once", request, (), asking.epoch, "")
    assert there.do(lambda: there.state.counters["x"]) == 2 * most
    assert asking.direct.ask("again", request, (), asking.epoch, "") is None
    answer = asyncio.run_coroutine_threadsafe(
        there.state.sky_shared_request("a.0.1.", "again", request), there.loop
    ).result(60)
    assert answer["value"] == 3 * most


@pytest.mark.parametrize(
    "sent",
    [
        b"\xc1 no msgpack",
        pack(frames.REQUEST, "id", {}, []),
        pack(frames.HELLO, "a.0.1."),
        pack(frames.HELLO, 3, "epoch"),
        b"hello" + pack(frames.REQUEST, "id"),
        b"hello" + pack(frames.REQUEST, "id", [], []),
        b"hello" + pack(frames.REQUEST, "id", {"kind": "dict"}, ["text"]),
        b"hello" + pack(frames.REQUEST, ["id"], {}, []),
        b"hello" + pack(frames.CANCEL, {}),
        b"hello" + pack(9, "id"),
        b"hello" + 2 * pack(frames.REQUEST, "id", {"kind": "queue", "op": "get", "name": "x"}, []),
    ],
)
def test_whoever_sends_what_is_no_request_is_cut_off(there: There, sent: bytes) -> None:
    with _connected(there) as line:
        hello = pack(frames.HELLO, "a.0.1.", there.state.epoch)
        line.sendall(hello + sent.removeprefix(b"hello") if sent.startswith(b"hello") else sent)
        assert line.recv(1) == b""
    there.wait_until(lambda: not there.state.closers and not there.state.waits)
    assert there.requests().ask("counter", "add", by=1) == 1


def test_nobody_but_the_owner_is_served_or_asked(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = there.requests()
    assert os.stat(there.path).st_mode & 0o777 == 0o600
    monkeypatch.setattr(peer_user, "is_own", lambda connection: False)
    with _connected(there) as line:
        assert line.recv(1) == b""
    assert asking.ask("counter", "get") is None


def test_a_fork_does_not_use_its_parents_connections(there: There) -> None:
    program = """
assert direct.ask("1", {**what, "op": "put"}, [b"1"], epoch, "")
child = os.fork()
if not child:
    answer = direct.ask("2", {**what, "op": "put"}, [b"2"], epoch, "")
    direct.close()
    os._exit(0 if answer is None else 2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert direct.ask("3", {**what, "op": "get"}, (), epoch, "")[1] == [b"1"]
"""
    assert _process(there, program).wait() == 0
    assert there.requests().ask("queue", "size") == 0


def test_a_process_that_has_ended_has_no_connection_though_its_child_holds_it(there: There) -> None:
    child = _process(there, 'if os.fork(): direct.ask("id", {**what, "op": "get"}, (), epoch, "waiting")\ninput()')
    there.wait_until(lambda: there.state.waits["queue", "get", "x"] == 1)
    child.kill()
    child.wait()
    asyncio.run_coroutine_threadsafe(there.state.sky_shared_left("a.9.1."), there.loop).result(60)
    there.wait_until(lambda: not there.state.waits and not there.state.closers)
    assert child.stdin is not None
    child.stdin.close()


def _process(there: There, program: str) -> subprocess.Popen[bytes]:
    """Return a process that asks."""
    begin = f"""
import os
from sky_jupyter.node.shared.direct_requests import DirectRequests
direct, epoch = DirectRequests({there.path!r}, "a.9.1."), {there.state.epoch!r}
what = {{"kind": "queue", "name": "x"}}
"""
    return subprocess.Popen([sys.executable, "-c", begin + program], stdin=subprocess.PIPE)


def test_coroutines_ask_beside_each_other_and_a_cancelled_one_takes_nothing(there: There) -> None:
    asking = there.requests()

    async def work() -> Any:
        waiting = [asyncio.ensure_future(asking.ask_async("queue", "get")) for _ in range(5)]
        await asyncio.wait(waiting, timeout=0.1)
        waiting[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting.pop(0)
        for number in range(5):
            assert await asking.ask_async("queue", "put", b"%d" % number)
        got = sorted(await asyncio.gather(*waiting))
        return [*got, await asking.ask_async("queue", "get")]

    assert asyncio.run(work()) == [b"0", b"1", b"2", b"3", b"4"]
    assert there.waiting == 0


def test_many_who_wait_at_once_have_some_connections_and_the_long_way(there: There) -> None:
    asking = there.requests()

    async def work() -> list[Any]:
        waiting = [asyncio.ensure_future(asking.ask_async("queue", "get", timeout=60.0)) for _ in range(100)]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert {one.result() for one in done} == {None}
        there.do(lambda: [there.state.begin("b.", f"{n}", _PUT, [b"item"]) for n in range(100)])
        return [one for one in await asyncio.gather(*waiting) if one is not None]

    assert asyncio.run(work()) == [b"item"] * 64


_PUT = {"kind": "queue", "op": "put", "name": "x"}


@contextlib.contextmanager
def _connected(there: There) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(there.path)
        yield line
