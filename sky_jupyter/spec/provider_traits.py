"""Traits of a provider for a pool's spec, and for code that only reads specs."""

from __future__ import annotations

from typing import Protocol


class ProviderTraits(Protocol):
    """Traits that all pools of a provider share; see `providers.base.Provider`."""

    @property
    def kind(self) -> str:
        """The name, as for ``--provider``."""

    @property
    def provisions(self) -> bool:
        """Whether it creates machines, so that a failed attempt may be retried."""

    @property
    def survives_manager(self) -> bool:
        """Whether its machines and pools keep running when the notebook ends.

        The hosts of such a pool are prepared over `Machine`, end by a lease, and can be attached to again.
        """

    @property
    def offline(self) -> bool:
        """Whether machines have no package index and get all packages from here."""

    @property
    def supported_options(self) -> tuple[str, ...]:
        """The names in `MACHINE_OPTIONS` that it supports; a pool warns of the others."""

    @property
    def notice(self) -> str:
        """The interruption notice function as ``"module:function"``; empty without one.

        A node calls it every few seconds. It returns None or an `Interruption` of ``node.runtime.interruption``.
        """
