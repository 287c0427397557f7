"""Load and unload the extension: install its hooks in a shell, and remove them.

`%load_ext sky_jupyter` waits only for this module and its imports.
"""

from __future__ import annotations

from typing import Any

from ..capture.settings_start import SettingsStart
from ..pool.open_pools import pools
from ..session import debug_selector, debug_target
from . import auto, cell_questions, leftover_pools, page_requests, tracebacks
from . import busy_status as busy
from .cell_text import with_body
from .line_matcher import sky_matcher
from .sky_magics import SkyMagics


def load(shell: Any) -> None:
    """Register the magics, their completion, and the hooks on the notebook's cells."""
    magics = SkyMagics(shell)
    shell.register_magics(magics)
    SettingsStart.of_process = True
    shell.events.register("post_run_cell", magics.after_cell)
    shell.events.register("post_run_cell", magics.pulse.after_cell)
    shell.sky_magics = magics
    tracebacks.install(shell)
    page_requests.install(shell, magics.questions)
    busy.install(shell)
    auto.install(shell, magics.auto)
    shell.input_transformers_cleanup.append(with_body)
    completer = getattr(shell, "Completer", None)
    if completer is not None and sky_matcher not in completer.custom_matchers:
        completer.custom_matchers.append(sky_matcher)
    for line in leftover_pools.news():
        print(line)


def unload(shell: Any) -> None:
    """Undo `load`, and end the pools that are not kept."""
    magics = getattr(shell, "sky_magics", None)
    if magics is None:
        return
    pools.end_all()
    SettingsStart.of_process = False
    shell.events.unregister("post_run_cell", magics.after_cell)
    shell.events.unregister("post_run_cell", magics.pulse.after_cell)
    magics.pulse.stop()
    cell_questions.remove(magics.questions)
    magics.rank_debug.remove()
    tracebacks.remove(shell)
    page_requests.remove(shell)
    debug_selector.remove(shell, magics.debug_selector)
    debug_target.remove(shell, magics.debug_target)
    busy.remove(shell)
    auto.remove(shell, magics.auto)
    if with_body in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(with_body)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("sky", None)
    shell.magics_manager.magics["cell"].pop("local", None)
    completer = getattr(shell, "Completer", None)
    if completer is not None and sky_matcher in completer.custom_matchers:
        completer.custom_matchers.remove(sky_matcher)
    del shell.sky_magics
