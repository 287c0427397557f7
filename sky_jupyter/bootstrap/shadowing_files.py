"""Files beside a notebook that shadow packages, such as `distributed.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec, PathFinder

_NEEDED = (
    "cloudpickle",
    "cryptography",
    "dask",
    "distributed",
    "packaging",
    "paramiko",
    "pathspec",
    "platformdirs",
    "psutil",
    "tornado",
    "uv",
    "xxhash",
    "zmq",
)


def problem() -> str:
    """Say what shadows a package, and what to do about it; empty if nothing does."""
    beside = {os.path.realpath(path or os.curdir) for path in ("", *sys.path[:1])}
    others = [path for path in sys.path if os.path.realpath(path or os.curdir) not in beside]
    found = [path for name in _NEEDED if (path := _hides(name, beside, others))]
    if not found:
        return ""
    names = [os.path.basename(path) for path in found]
    return (
        f"{' and '.join(found)} {'hides a package' if len(found) == 1 else 'hide packages'} of the same name that Sky "
        f"Jupyter needs: rename {' and '.join(names)}, and restart the kernel"
    )


def _hides(name: str, beside: Collection[str], others: list[str]) -> str:
    """Return the path of a file that shadows an installed package."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None) if loaded is not None else _found(name, sys.path)
    if spec is None or spec.origin is None:
        return ""
    path = os.path.realpath(spec.origin)
    path = os.path.dirname(path) if spec.submodule_search_locations is not None else path
    return path if os.path.dirname(path) in beside and _found(name, others) is not None else ""


def _found(name: str, folders: list[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, folders)
    except (ImportError, OSError):
        return None
