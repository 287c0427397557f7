"""No public class shares its name with another: in a traceback and in a search they could not be told apart."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import sky_jupyter

PACKAGE = Path(sky_jupyter.__file__).parent
# Names that two or more classes still have. Take out what is renamed; add none.
SHARED = frozenset(
    [
        "Calls",
        "Code",
        "Flow",
        "Group",
        "Held",
        "Mirror",
        "Order",
        "Part",
        "Place",
        "Process",
        "Source",
        "Standstill",
        "Stream",
        "Target",
        "Trace",
        "Tunnel",
        "Watch",
        "Wire",
    ]
)


def test_no_two_public_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(PACKAGE)))
    several = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in SHARED} == {}
