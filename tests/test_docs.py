"""The documentation has every public name; that it builds without a warning, `python3 dev.py check` sees."""

from __future__ import annotations

import re
from pathlib import Path

import sky_jupyter as sky
from sky_jupyter.plugins.parse import FACTORIES

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^\.\. auto(?:class|function|data|exception|module):: (\S+)$", PAGE, re.MULTILINE)


def test_the_api_reference_has_every_public_name_once() -> None:
    public = [*sky._HOMES, "sky_jupyter.spec.accelerators", "sky_jupyter.plugins.Step", "sky_jupyter.plugins.Secret"]
    assert sorted(NAMES) == sorted([*public, *(f"sky_jupyter.plugins.{name}" for name in FACTORIES)])
