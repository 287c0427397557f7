"""A distribution of a third party, as it lies beside the programs that find its providers by their entry points."""

from __future__ import annotations

from pathlib import Path

PROVIDERS = {"cloud": "tests.providers.cloud:Cloud", "pods": "tests.providers.pod:Pods"}


def install(folder: Path) -> None:
    """Have a folder of Python's path bring the tests' own providers."""
    info = folder / "sky_tests_own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sky-tests-own\nVersion: 1.0\n")
    lines = ["[sky_jupyter.providers]", *(f"{name} = {target}" for name, target in PROVIDERS.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
