"""Which settings of this process ranks follow: those of a notebook from its start on, or later ones alone.

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
