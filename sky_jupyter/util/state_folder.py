"""Places of the user's state: the registry, and the files beside it."""

from __future__ import annotations

import os
from pathlib import Path


def registry_path() -> Path:
    """Return ``SKY_REGISTRY``, or a file in the user's data folder."""
    given = os.environ.get("SKY_REGISTRY")
    if given:
        return Path(given)
    import platformdirs

    return platformdirs.user_data_path("sky_jupyter") / "registry.sqlite"


def queued_specs() -> Path:
    """Return the folder of the specs of pools whose jobs were left in a queue."""
    return registry_path().parent / "queued"


def machine_keys() -> Path:
    """Return the folder of the keys of machines that were created for pools."""
    return registry_path().parent / "machine_keys"
