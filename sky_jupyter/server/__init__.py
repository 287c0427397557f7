"""The Jupyter Server extension: the registry's pools by REST, events when they change, and the reaper."""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, object]]:
    from .app import SkyApp

    return [{"module": "sky_jupyter.server", "app": SkyApp}]
