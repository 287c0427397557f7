"""What the tests of providers share; the suites of this folder say what they compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sky_jupyter.pool.registry.registry import Registry

pytest.register_assert_rewrite("tests.providers.conformance")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    made = Registry()
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets this process's time of day, which goes on from there."""
    real = time.time

    def set_to(now: float) -> None:
        ahead = now - real()
        monkeypatch.setattr(time, "time", lambda: real() + ahead)

    return set_to
