"""The Jupyter Server extension: pools by REST, events on changes, and the sweep."""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, object]]:
    from .app import SkyApp

    return [{"module": "sky_jupyter.server", "app": SkyApp}]
