"""What all tests in a browser have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import lab


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with lab.browser() as browser:
        yield browser
