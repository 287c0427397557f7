"""The checks that need a GPU, as tests: ``python -m pytest -m gpu tests/gpu``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu import table
from tests.gpu.__main__ import HOW, outcome
from tests.gpu.checks import Bench, registered

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    # The environment of the other tests may have frameworks for CPUs alone.
    if "gpu" not in request.config.option.markexpr or not table.gpus():
        pytest.skip(f"checks of GPUs are run {HOW}")
    bench = Bench("cuda")
    yield bench
    bench.drop()


@pytest.mark.parametrize("key", registered())
def test_on_a_gpu(bench: Bench, key: str) -> None:
    result, figure = outcome(key, bench)
    if result == table.SKIPPED:
        pytest.skip(figure)
    assert result == table.PASSED, figure
