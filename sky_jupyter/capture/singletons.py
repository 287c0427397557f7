"""What cannot be pickled, and is made anew on the nodes: objects that a package has made once for all, consoles.

``loguru.logger`` holds locks and files: on a node it is the logger that loguru has there.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from .import_graph import is_local


def made_there(obj: Any) -> Any:
    """How a node has its own of an object, as ``__reduce__`` says it; NotImplemented where that is not known."""
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
    """Make a console such as this; one that writes to a file of the notebook's has none there."""
    if getattr(console, "_file", None) is not None:
        return NotImplemented
    options = {"stderr": console.stderr, "soft_wrap": console.soft_wrap, "no_color": console.no_color}
    kind: Any = type(console)
    return functools.partial(kind, **options), ()
