"""The extension app: handlers, registry watcher and sweep while the server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from jupyter_server.extension.application import ExtensionApp
from tornado.ioloop import PeriodicCallback
from traitlets import Bool, Float

from ..errors import SkyError
from ..pool.registry.machine_sweep import sweep_machines
from ..pool.registry.registry import Registry, sweep
from . import handlers, mcp_endpoint
from .end_orphaned_pool import Ends
from .manager_kernels import Kernels
from .pool_list import Listing
from .registry_watcher import RegistryWatcher

EVENT = "urn:sky-jupyter:pools:v1"
# Seconds that a sweep waits for the machines of a pool to end; the next sweep continues.
_MACHINES_LIMIT = 10.0
_SCHEMA = Path(__file__).with_name("pools.yaml")


class SkyApp(ExtensionApp):
    """The extension; `jupyter server --help-all` shows its settings."""

    name = "sky_jupyter"
    description = "Lists the pools of this user's notebooks, and ends those that nobody owns any more."

    look_every = Float(1.0, help="Seconds between two looks at the registry's file.").tag(config=True)
    reap_every = Float(60.0, help="Seconds between two sweeps of pools that are gone; 0 for none.").tag(config=True)

    mcp_allow_run = Bool(False, help="Let agents run cells on pools, by the MCP server; else they may look.").tag(
        config=True
    )

    def initialize_settings(self) -> None:
        """Start the watcher and the sweep."""
        assert self.serverapp is not None
        self.registry = Registry()
        # Machines whose failed ends were reported; they are tried again at each sweep.
        self._told: set[tuple[str, str]] = set()
        kernels = Kernels(self.serverapp.kernel_manager, self.serverapp.session_manager)
        listing = Listing(self.registry, kernels)
        self.settings["sky_jupyter"] = handlers.Parts(self.registry, kernels, listing, Ends())
        self._mcp = mcp_endpoint.McpEndpoint(allow_run=self.mcp_allow_run)
        self.settings["sky_jupyter_mcp"] = self._mcp
        self.serverapp.event_logger.register_event_schema(_SCHEMA)
        self._watch = RegistryWatcher(listing, self._tell)
        self._timers = [PeriodicCallback(self._watch.look, self.look_every * 1000)]
        if self.reap_every > 0:
            self._timers.append(PeriodicCallback(self._reap, self.reap_every * 1000))
        for timer in self._timers:
            timer.start()

    def initialize_handlers(self) -> None:
        """Register the handlers below ``/sky-jupyter/``."""
        self.handlers.extend([*mcp_endpoint.HANDLERS, *handlers.HANDLERS])

    async def stop_extension(self) -> None:
        """Close the registry."""
        for timer in self._timers:
            timer.stop()
        await self._mcp.stop()
        await asyncio.to_thread(self.registry.close)

    def _tell(self, number: int) -> None:
        assert self.serverapp is not None
        self.serverapp.event_logger.emit(schema_id=EVENT, data={"number": number})

    async def _reap(self) -> None:
        """End pools whose lease has expired, and machines without a pool.

        Kernels do the same; the registry makes sure that only one process does it at a time.
        """
        if not self.registry.path.exists():
            return
        try:
            gone = await asyncio.to_thread(sweep, self.registry)
            machines = await asyncio.to_thread(sweep_machines, self.registry, _MACHINES_LIMIT)
        except SkyError as error:
            self.log.warning("sky_jupyter: %s", error)
            return
        if machines.machines:
            self.log.info("sky_jupyter: ending %d orphaned machines", machines.machines)
        for name, why in machines.failed.items():
            if (name, why) not in self._told:
                self._told.add((name, why))
                self.log.warning("sky_jupyter: machines of pool %s could not be confirmed to end: %s", name, why)
        for name in gone:
            self.log.info("sky_jupyter: pool %s is gone; what it left is removed", name)
        for text in self.registry.take_warnings():
            self.log.warning("sky_jupyter: %s", text)
