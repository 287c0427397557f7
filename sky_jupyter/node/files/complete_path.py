"""Completion of paths, on a node or in the notebook."""

from __future__ import annotations

import contextlib
import itertools
import os

# Most entries of a folder that are looked at, and that are offered.
_MOST_LISTED = 20_000
_MOST_OFFERED = 500


def complete(path: str, base: str) -> list[str]:
    """Return the paths that begin as this one does.

    Parameters
    ----------
    path : str
        The beginning of a path, with ``~`` for the home folder.
    base : str
        The folder that relative paths begin in.

    Returns
    -------
    list of str
        The paths in the form of the given one, sorted; a folder's ends with a slash.
    """
    folder, slash, begun = path.rpartition("/")
    found: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        with os.scandir(os.path.join(base, os.path.expanduser(folder + slash))) as entries:
            found += [
                f"{folder}{slash}{entry.name}{'/' if _is_folder(entry) else ''}"
                for entry in itertools.islice(entries, _MOST_LISTED)
                # A hidden file only if its dot has been typed, as in a shell.
                if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
            ]
    return sorted(found)[:_MOST_OFFERED]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        return False
