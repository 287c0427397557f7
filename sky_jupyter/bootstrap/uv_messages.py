"""Explanations of uv's failures in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MISSING = re.compile(r"Because (\S+) was not found in the (?:package registry|provided package locations)")
_UNCACHED = re.compile(r"Because (\S+) was not found in the cache")
_VERSIONS = re.compile(
    r"there (?:is|are) no versions? of ([\w.-]+)|Because only ([\w.-]+?)[<>=]\S* (?:is|are) available", re.ASCII
)
_OFFLINE = re.compile(r"dns error|error sending request|tcp connect error|Network is unreachable", re.IGNORECASE)
_PYTHON = re.compile(r"python-build-standalone|No interpreter found for Python|cpython-", re.IGNORECASE)


def of(lines: Sequence[str]) -> str:
    """Explain why uv failed, from what it printed; empty if its own words suffice."""
    text = " ".join(" ".join(lines).split())
    if _OFFLINE.search(text):
        what = "the Python that was asked for is not on this machine" if _PYTHON.search(text) else "packages are needed"
        return f"{what}, and the internet (or the index) cannot be reached from here"
    if match := _UNCACHED.search(text):
        return f"package {match[1]} is not in uv's cache, and uv may not use the network (UV_OFFLINE)"
    if match := _MISSING.search(text):
        return f"there is no package {match[1]} (is it spelled right?)"
    if match := _VERSIONS.search(text):
        return f"there is no such version of {match[1] or match[2]}"
    return ""
