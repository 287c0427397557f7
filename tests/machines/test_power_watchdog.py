"""The watchdog of machines that are made, as a process of this machine, which touches a file instead of going off."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sky_jupyter.machines import power_watchdog
from sky_jupyter.node.host.power_file import PowerFile, uptime

from .conftest import eventually

Begin = Callable[..., Path]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a watchdog; returns the file that shows that it went off."""
    started: list[int] = []

    def start(until: float | None = None, grace: float = 3600.0) -> Path:
        off = tmp_path / "off"
        line = power_watchdog.command(
            until, file=str(tmp_path / "run" / "power"), grace=grace, pause=0.05, power_off=f"touch {off}"
        )
        done = subprocess.run(["sh", "-c", f"{line} echo $!"], capture_output=True, text=True, check=True)
        started.append(int(done.stdout))
        eventually((tmp_path / "run" / "power").exists)
        return off

    yield start
    for pid in started:
        os.kill(pid, signal.SIGKILL)


def test_a_machine_that_nobody_uses_goes_off_after_its_grace(begin: Begin) -> None:
    eventually(begin(grace=1).exists)


def test_a_machine_goes_off_at_its_deadline_whatever_its_file_says(begin: Begin, tmp_path: Path) -> None:
    off = begin(time.time() + 1)
    PowerFile(str(tmp_path / "run" / "power")).keep(1e6)
    eventually(off.exists)


def test_a_machine_stays_on_as_long_as_its_file_says(begin: Begin, tmp_path: Path) -> None:
    file = tmp_path / "run" / "power"
    off = begin(time.time() + 3600, grace=1)
    began = uptime()
    PowerFile(str(file)).keep(1000.0)
    eventually(lambda: uptime() > began + 2)
    # What is no number, or is not there, changes nothing.
    file.write_text("soon\n")
    eventually(lambda: uptime() > began + 2.3)
    file.unlink()
    eventually(lambda: uptime() > began + 2.6)
    assert not off.exists()


def test_a_pool_that_has_ended_has_its_machine_go_off(begin: Begin, tmp_path: Path) -> None:
    off = begin()
    PowerFile(str(tmp_path / "run" / "power")).give_up()
    eventually(off.exists)


def test_a_machine_that_is_prepared_stays_on(begin: Begin, tmp_path: Path) -> None:
    begin(grace=60)
    file = tmp_path / "run" / "power"
    subprocess.run(["sh", "-c", power_watchdog.keep_line(str(file), 500)], check=True)
    assert 450 < int(file.read_text()) - uptime() <= 501
    assert [path.name for path in file.parent.iterdir()] == ["power"]


def test_the_file_is_written_every_few_seconds_at_most(tmp_path: Path) -> None:
    file = tmp_path / "power"
    PowerFile(str(file)).keep(100.0)
    assert not file.exists(), "no watchdog has made it"
    file.touch()
    power = PowerFile(str(file))
    power.keep(100.0)
    written = file.stat().st_ino
    power.keep(200.0)
    assert file.stat().st_ino == written
    power.keep(300.0, at_once=True)
    assert 290 < int(file.read_text()) - uptime() <= 300


def test_the_same_order_has_the_same_line() -> None:
    assert power_watchdog.command(1e9) == power_watchdog.command(1e9)
    assert "1000000000" in power_watchdog.command(1e9)
