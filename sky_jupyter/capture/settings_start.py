"""Which settings ranks follow: all of a notebook's process, or later ones alone.

Loading the extension says so, and needs nothing else of what follows settings (`changed_settings`).
"""

from __future__ import annotations

from typing import ClassVar


class SettingsStart:
    """From when on settings count.

    Attributes
    ----------
    of_process : bool
        True to send settings that were made before the pool, as in a notebook. In other programs, settings at the
        pool's start are taken as the program's own.
    """

    of_process: ClassVar[bool] = False
