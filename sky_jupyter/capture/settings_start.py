"""Choice of settings that ranks follow: all of a notebook's, or only later ones.

Loading the extension makes the choice. It needs nothing else of the modules that follow settings (`changed_settings`).
"""

from __future__ import annotations

from typing import ClassVar


class SettingsStart:
    """Start of the time in which changes of settings count.

    Attributes
    ----------
    of_process : bool
        True to send settings that were made before the pool, as in a notebook. In other programs, settings at the
        pool's start are taken as the program's own.
    """

    of_process: ClassVar[bool] = False
