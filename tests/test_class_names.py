"""No two public classes and no two files share a name: in a traceback or a search nobody could tell them apart."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import sky_jupyter

PACKAGE = Path(sky_jupyter.__file__).parent
# File names that may stand in several packages, each with its reason.
CONVENTIONS = {
    "__init__.py": "Python asks for it",
    "__main__.py": "Python runs it for `python -m PACKAGE`",
    "base.py": "holds what the other modules of its package build on",
    "context.py": "holds the protocols of what the parts of its package know of the whole",
    "machine.py": "holds the class of its package that implements `Machine`",
}


def test_no_two_public_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_file_name_is_in_two_packages() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        homes[path.name].append(str(path.relative_to(PACKAGE)))
    several = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in CONVENTIONS} == {}
    assert CONVENTIONS.keys() <= several.keys()
