"""What the tests of a module share is recreated after one of them has failed, or where it is found broken.

A pytest plugin, which `tests/conftest.py` brings: one failure is told once, and not by each test that comes after it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from sky_jupyter.pool.pool import Pool

_SUSPECT = pytest.StashKey["set[str]"]()
_RETRIED = pytest.StashKey["set[str]"]()


def shared(item: pytest.Item) -> Iterator[tuple[str, Any]]:
    """Yield the module's fixtures that a test uses and that are made already; not those that all tests use."""
    info = getattr(item, "_fixtureinfo", None)
    for name, definitions in (info.name2fixturedefs if info else {}).items():
        for definition in definitions:
            if definition.scope == "module" and definition.cached_result is not None and not name.startswith("_"):
                yield name, definition


def is_broken(value: object) -> bool:
    """Whether this is a pool that says of itself that it cannot be used."""
    return isinstance(value, Pool) and bool(value.broken)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End what the test would share, where that may not be sound; its fixtures recreate it then."""
    module = item.getparent(pytest.Module)
    if module is None:
        return
    suspect = module.stash.setdefault(_SUSPECT, set())
    retried = module.stash.setdefault(_RETRIED, set())
    for name, definition in list(shared(item)):
        if definition.cached_result is None:
            continue  # it ended with another
        value, _, error = definition.cached_result
        if error is not None:
            # What could not be made is tried once more, and not for each test.
            if name in retried:
                continue
            retried.add(name)
        elif name not in suspect and not is_broken(value):
            continue
        suspect.discard(name)
        try:
            definition.finish(item._request)  # type: ignore[attr-defined]
        except Exception as broken:
            warnings.warn(f"what a failed test left could not be ended in order: {broken!r}", stacklevel=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Remember what a test that failed shared."""
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module is not None:
        module.stash.setdefault(_SUSPECT, set()).update(name for name, _ in shared(item))
    return report
