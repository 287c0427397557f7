"""Terminals of a node's agent: programs on pseudo-terminals, read by number of the byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import psutil
import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.node.agent.kernel_client import RankKernel
from sky_jupyter.node.agent.terminals import TerminalService
from sky_jupyter.node.runtime.rank_environment import for_terminal
from tests.pool.pools import wait_until

ID = "0123456789abcdef"
PROGRAM = """
import os, signal, time
def end(*_):
    raise SystemExit(9)
signal.signal(signal.SIGWINCH, lambda *_: print(*os.get_terminal_size(), flush=True))
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


class IdleRank:
    """A rank without a kernel, of which the agent knows what it is started with."""

    entered = False
    variables: ClassVar[dict[str, str]] = {"MINE": "set", "SHELL": "/bin/bash"}

    def __init__(self, folder: Path) -> None:
        self.cwd, self.env = str(folder), self.variables

    def answer(self, content: Mapping[str, Any]) -> None:
        """Take no question."""


@contextlib.asynccontextmanager
async def service(folder: Path, patience: float = 60.0) -> AsyncIterator[TerminalService]:
    made = TerminalService({2: cast("RankKernel", IdleRank(folder))}, folder, patience=patience)
    try:
        yield made
    finally:
        await made.close()


async def opened(made: TerminalService, command: str | None, id: str = ID) -> None:
    await made.sky_open_terminal(id, 2, [24, 80], "xterm", command)


async def rest(made: TerminalService, after: int = 0, until: bytes = b"") -> tuple[bytes, int | None]:
    """What a terminal prints from there on, to its end or to a text, and its exit status."""
    found = b""
    while True:
        answer = await made.sky_read_terminal(ID, after + len(found))
        found += answer["data"]
        if answer["exit"] is not None or (until and until in found):
            return found, answer["exit"]


def test_a_program_has_the_ranks_environment_a_terminal_and_its_size(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as made:
            await opened(made, "echo $MINE $SKY_RANK $TERM; pwd; stty size; test -t 0; exit 3")
            data, status = await rest(made)
            assert data.split() == [b"set", b"2", b"xterm", bytes(tmp_path), b"24", b"80"]
            assert status == 3

    asyncio.run(work())


def test_a_user_without_a_name_has_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    async def work() -> None:
        async with service(tmp_path) as made:
            await opened(made, "echo there")
            assert (await rest(made))[0].split() == [b"there"]

    monkeypatch.setitem(IdleRank.variables, "SHELL", "")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    asyncio.run(work())


def test_what_is_read_or_written_again_counts_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as made:
            await opened(made, "stty -echo; echo ready; exec cat")
            await opened(made, "echo another")
            data, _ = await rest(made, until=b"ready\r\n")
            assert (await made.sky_read_terminal(ID, 0))["data"] == data
            assert await made.sky_write_terminal(ID, 0, b"one\n") == 4
            assert await made.sky_write_terminal(ID, 0, b"one\ntwo\n") == 8
            assert await made.sky_write_terminal(ID, 100, b"from nowhere\n") == 8
            assert (await rest(made, len(data), b"two\r\n"))[0] == b"one\r\ntwo\r\n"
            await made.sky_write_terminal(ID, 8, b"\x04")
            assert (await rest(made, len(data) + 10))[1] == 0

    asyncio.run(work())


def test_ctrl_c_and_a_new_size_reach_the_program(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as made:
            await opened(made, f"exec {sys.executable} -c '{PROGRAM}'")
            data, _ = await rest(made, until=b"ready")
            await made.sky_resize_terminal(ID, [40, 132])
            more, _ = await rest(made, len(data), b"132 40")
            await made.sky_write_terminal(ID, 0, b"\x03")
            end, status = await rest(made, len(data) + len(more))
            assert (b"^C" in end, status) == (True, 9)

    asyncio.run(work())


def test_a_program_that_nobody_reads_waits_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as made:
            await opened(made, "seq 200000; touch done")
            first = (await made.sky_read_terminal(ID, 0))["data"]
            assert not (tmp_path / "done").exists()
            data, status = await rest(made, len(first))
            assert (first + data).split() == [str(number).encode() for number in range(1, 200001)]
            assert status == 0
            assert (tmp_path / "done").exists()

    asyncio.run(work())


@pytest.mark.parametrize("way", ["unread", "closed", "agent ends"])
def test_nothing_that_ran_in_a_terminal_outlives_it(tmp_path: Path, way: str) -> None:
    sleep = f"sleep {10**6 + os.getpid()}"

    async def work() -> None:
        async with service(tmp_path, patience=0.3 if way == "unread" else 60.0) as made:
            await opened(made, f"set -m; {sleep} & trap '' HUP; echo ready; {sleep}")
            await rest(made, until=b"ready")
            if way == "closed":
                await made.sky_close_terminal(ID)
            if way == "unread":
                # Nobody reads: its programs are gone before the terminal is.
                await asyncio.to_thread(wait_until, lambda: not any(_runs(one, sleep) for one in psutil.process_iter()))
                await made.close()
            if way == "agent ends":
                await made.close()
            with pytest.raises(PoolError, match="this terminal has ended"):
                await made.sky_read_terminal(ID, 0)

    asyncio.run(work())
    assert not [one for one in psutil.process_iter() if _runs(one, sleep)]


def _runs(process: psutil.Process, command: str) -> bool:
    try:
        return process.cmdline() == command.split()
    except psutil.Error:
        return False


def test_a_node_has_no_more_terminals_than_it_bears(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as made:
            for number in range(16):
                await opened(made, "true", f"{number:08x}")
            with pytest.raises(PoolError, match="16 terminals on this node"):
                await opened(made, "true")

    asyncio.run(work())


def test_what_a_kernel_sets_for_itself_is_not_the_terminals() -> None:
    env = {"PAGER": "cat", "GIT_PAGER": "less", "MPLBACKEND": "module://matplotlib_inline.backend_inline", "A": "1"}
    assert for_terminal({**env, "FORCE_COLOR": "1", "TERM": "xterm-color"}, "vt100") == {
        "GIT_PAGER": "less",
        "A": "1",
        "TERM": "vt100",
    }
