"""Machines that take longer to be prepared than they stay on by themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.node.host.power_file import GRACE, uptime
from sky_jupyter.pool.base.timeouts import TIMEOUTS
from sky_jupyter.pool.lifecycle import power_renewal
from tests.pool.remote import wait_until


@dataclass(frozen=True)
class Maker:
    """What is asked of a provider."""

    power_file: str


def test_machines_stay_on_while_they_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = replace(TIMEOUTS, machines=replace(TIMEOUTS.machines, power=0.05))
    monkeypatch.setattr(power_renewal, "TIMEOUTS", times)
    file = tmp_path / "power"
    file.write_text("17\n")
    provider: Any = Maker(str(file))
    with power_renewal.kept_on([LocalMachine()], provider):
        wait_until(lambda: int(file.read_text()) > uptime() + GRACE - 60)
