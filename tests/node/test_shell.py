"""The shell of a rank beside IPython's own."""

from __future__ import annotations

import inspect

from ipykernel.zmqshell import ZMQInteractiveShell

from sky_jupyter.node.kernel.shell import SkyShell


def test_it_says_that_it_takes_what_this_release_of_ipython_takes() -> None:
    """The kernel gives it what its signature has; IPython 8 knows no ``cell_meta``."""
    known = inspect.signature(ZMQInteractiveShell.run_cell_async).parameters
    assert list(inspect.signature(SkyShell.run_cell_async).parameters) == list(known)
