"""Cache of clouds' answers in the user's cache folder, a JSON file per subject."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from ..util.atomic_write import atomic_write


def folder() -> Path:
    """Return the cache's folder: SKY_ANSWER_CACHE, or one in the user's cache folder."""
    named = os.environ.get("SKY_ANSWER_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("sky_jupyter") / "answers"


def lookup(
    subject: Iterable[str], keys: Iterable[str], age: float, fetch: Callable[[list[str]], Mapping[str, Any]]
) -> dict[str, tuple[float, Any]]:
    """Return the values of keys with the times at which the cloud gave them.

    Values that are missing or older than ``age`` seconds are fetched. A key that ``fetch`` leaves out keeps its old
    value, if it has one. A cache that cannot be read or written counts as empty.

    Parameters
    ----------
    subject : iterable of str
        Cloud and kind of the values, and what else they depend on, such as account and region.
    keys : iterable of str
        Keys to look up.
    age : float
        Seconds for which a value is used.
    fetch : callable
        Asks the cloud for some keys; returns JSON by key.

    Returns
    -------
    dict of str to tuple
        Time in seconds since 1970, and value.
    """
    path = _path(subject)
    known = _read(path)
    now, wanted = time.time(), list(keys)
    missing = [key for key in wanted if key not in known or not -age < now - known[key][0] < age]
    found = {key: (now, value) for key, value in fetch(missing).items()} if missing else {}
    if found:
        # Another process may have written meanwhile.
        known = {**_read(path), **found}
        _write(path, known)
    return {key: known[key] for key in wanted if key in known}


def _path(subject: Iterable[str]) -> Path:
    parts = list(subject)
    name = re.sub(r"[^A-Za-z0-9-]+", "-", "-".join(parts)).strip("-")[:80]
    return folder() / f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}.json"


def _read(path: Path) -> dict[str, tuple[float, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): (float(at), value) for key, (at, value) in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(path: Path, rows: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json.dumps(rows).encode())


__all__ = ["folder", "lookup"]
