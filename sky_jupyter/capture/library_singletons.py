"""Unpicklable objects that nodes have of their own, such as loggers.

``loguru.logger`` holds locks and files: on a node it is the logger that loguru has there.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from .import_graph import is_local


def made_there(obj: Any) -> Any:
    """Return how a node gets its own object, in the form of ``__reduce__``."""
    kind = type(obj)
    package = sys.modules.get(str(kind.__module__).partition(".")[0])
    file = getattr(package, "__file__", None)
    if package is None or file is None or is_local(os.path.dirname(file)):
        return NotImplemented
    for name, value in list(vars(package).items()):
        if value is obj:
            return getattr, (package, name)
    if (kind.__module__, kind.__name__) == ("rich.console", "Console"):
        return _console(obj)
    return NotImplemented


def _console(console: Any) -> Any:
    """Return how to make such a console; NotImplemented if it writes to a file."""
    if getattr(console, "_file", None) is not None:
        return NotImplemented
    options = {"stderr": console.stderr, "soft_wrap": console.soft_wrap, "no_color": console.no_color}
    kind: Any = type(console)
    return functools.partial(kind, **options), ()
