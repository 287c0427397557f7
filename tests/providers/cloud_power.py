"""Power of the tests' cloud: its hosts run the watchdog of machines that are made, and go off when that says so."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sky_jupyter.machines import power_watchdog
from sky_jupyter.node.host.power_file import GRACE
from tests.hosts.world import Host, HostsError

if TYPE_CHECKING:
    from tests.hosts.world import World
    from tests.providers.cloud import Cloud

# What a host without a power supply says instead of going off; and the watchdog's process.
_OFF, _WATCHDOG = "/run/powered-off", "/run/watchdog.pid"
_LOOK = 0.1


class Hypervisor:
    """Whoever boots the cloud's machines and sees them go off; of one `Cloud.powered`.

    Parameters
    ----------
    cloud : Cloud
        Its machines.
    world : World
        The hosts that they are.
    grace : float
        Seconds that a machine stays on while nobody writes its power file.
    """

    def __init__(self, cloud: Cloud, world: World, grace: float = GRACE) -> None:
        self._cloud, self._grace = cloud, grace
        self._hosts = {host.name: host for host in world}
        # The first processes of the hosts that have a watchdog.
        self._watched: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hypervisor")

    def __enter__(self) -> Hypervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for host in self._hosts.values():
            if host.pid in self._watched:
                with contextlib.suppress(HostsError):
                    host.run(f"kill $(cat {_WATCHDOG}); rm -f {_WATCHDOG} {_OFF}", check=False)

    def _run(self) -> None:
        while not self._over.wait(_LOOK):
            for record in self._cloud.machines():
                if record.is_there and record.addresses:
                    # A test may take its power away meanwhile.
                    with contextlib.suppress(HostsError, OSError):
                        self._look(record.id, self._hosts[record.addresses[0]], record.until)

    def _look(self, id: str, host: Host, until: float | None) -> None:
        if not host.pid:
            return
        if host.pid not in self._watched:
            line = power_watchdog.command(until, grace=self._grace, pause=0.2, power_off=f"touch {_OFF}")
            host.run(f"{line} echo $! > {_WATCHDOG}")
            self._watched.add(host.pid)
        elif Path(f"/proc/{host.pid}/root{_OFF}").exists():
            self._cloud.vanish([id])
