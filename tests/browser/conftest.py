"""What all tests in a browser have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import lab


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The browser's profile, of all files of tests that a worker runs."""
    folder = tmp_path_factory.mktemp("chromium")
    yield folder
    # pytest keeps folders of its last runs, and this one has a hundred megabytes.
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def chromium(profile: Path) -> Iterator[lab.Chromium]:
    with lab.kept_browser(profile) as browser:
        yield browser
