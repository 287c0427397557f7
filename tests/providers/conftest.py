"""The suites of this folder say what they compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.providers.conformance")
