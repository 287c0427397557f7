"""A kernel that is killed just as its request ends: the request ends with it, so that somebody replaces it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from sky_jupyter.node.agent.kernel_client import RankKernel


class Socket:
    """A connection to a kernel that says nothing."""

    def send(self, *_: Any, **__: Any) -> None: ...

    def close(self) -> None: ...


class Session(Socket):
    def msg(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        return {"header": {}, "content": content}


class Process:
    """A kernel's process, as its provisioner has it; it ends some time after it was killed."""

    def __init__(self) -> None:
        self.pid, self.has_process, self.killed = 1, True, False
        self.end: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def kill(self) -> None:
        self.killed = True


def ends_of(folder: Path, *, killed: bool) -> list[tuple[str, str]]:
    """The ends of a request whose rank says that it is over, once it was killed or before."""
    ends: list[tuple[str, str]] = []

    async def request() -> None:
        rank = RankKernel(0, folder, "", {}, lambda run, event: ends.append((run, event["status"])))
        process = Process()
        rank._provisioner = process  # type: ignore[assignment]
        rank._shell = rank._control = rank._iopub = Socket()
        rank._session = Session()  # type: ignore[assignment]
        requested = asyncio.ensure_future(rank.request("run", {}))
        await asyncio.sleep(0)
        if killed:
            assert await rank.signal(signal.SIGKILL, "run")
            assert process.killed
        content = {"status": "ok", "elapsed": 0.1}
        rank._on_message({"msg_type": "sky_end", "parent_header": {"msg_id": "run"}, "content": content})
        # Whoever waits for the request may send the next one as soon as it is over.
        await asyncio.sleep(0.02)
        assert requested.done() is not killed
        process.has_process = False
        process.end.set_result({"text": "killed by SIGKILL (9)", "ended": 9})
        await rank._watch(process)  # type: ignore[arg-type]
        await requested

    asyncio.run(request())
    return ends


def test_a_request_ends_when_it_says_so(tmp_path: Path) -> None:
    assert ends_of(tmp_path, killed=False) == [("run", "ok")]


def test_a_request_whose_kernel_was_killed_ends_with_the_kernel_whatever_it_still_says(tmp_path: Path) -> None:
    assert ends_of(tmp_path, killed=True) == [("run", "died")]
