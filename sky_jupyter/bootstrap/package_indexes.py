"""Indexes for some packages only, for uv: a pyproject.toml, and variables.

The user name and password of a private index are only in uv's environment, neither in a file nor on a command line. A
package that such an index lists always comes from there, whichever package needs it. So it is asked for by name:
otherwise uv would take a package that only another one needs from the usual index, where somebody else may have
published one of that name.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from ..spec.pool_spec import Image
from . import git_credentials
from .satisfied_requirements import parse

FILE = "pyproject.toml"


def wanted(image: Image) -> list[str]:
    """Return an image's requirements, and the other packages that its indexes name.

    Logins of git repositories are removed.
    """
    asked = {canonicalize_name(parse(item).name) for item in image.pip}
    named = [name for index in image.pip_indexes for name in index.packages]
    return [*map(git_credentials.without, image.pip), *(name for name in named if canonicalize_name(name) not in asked)]


def variables(image: Image, before: str = "") -> dict[str, str]:
    """Return uv's variables for an image's indexes; ``before`` is its UV_INDEX."""
    found = {}
    for index in image.pip_indexes:
        name, word = index.login
        if name:
            found[f"UV_INDEX_{index.name.upper()}_USERNAME"] = unquote(name)
            found[f"UV_INDEX_{index.name.upper()}_PASSWORD"] = unquote(word)
    everywhere = [f"{index.name}={index.shown}" for index in image.pip_indexes if not index.packages]
    if everywhere:
        found["UV_INDEX"] = " ".join([*everywhere, *([before] if before else [])])
    return found


def project(requirements: Sequence[str], image: Image) -> str:
    """Return a pyproject.toml of requirements and indexes; empty if not needed."""
    only = [index for index in image.pip_indexes if index.packages]
    if not only:
        return ""
    lines = ["[project]", 'name = "asked"', 'version = "0"', f"dependencies = {_array(requirements)}"]
    for index in only:
        url = json.dumps(index.shown)
        lines += ["[[tool.uv.index]]", f'name = "{index.name}"', f"url = {url}", "explicit = true"]
    lines += ["[tool.uv.sources]"]
    lines += [f'{json.dumps(name)} = {{ index = "{index.name}" }}' for index in only for name in index.packages]
    return "\n".join([*lines, ""])


def parts(requirements: Sequence[str], image: Image) -> tuple[str, str]:
    """Split requirements into a pyproject.toml (see `project`) and uv's input.

    Requirements with a URL are never in the pyproject.toml, which is a file: a URL may hold a password.
    """
    lines = [item for item in requirements if "://" in item]
    text = project([item for item in requirements if "://" not in item], image)
    return text, "".join(f"{item}\n" for item in (lines if text else requirements))


@contextlib.contextmanager
def arguments(requirements: Sequence[str], image: Image) -> Iterator[tuple[list[str], str]]:
    """Yield uv's arguments and input; no argument names a requirement."""
    text, lines = parts(requirements, image)
    if not text:
        yield ["-r", "-"], lines
        return
    with tempfile.TemporaryDirectory(prefix="sky-asked-") as folder:
        path = Path(folder, FILE)
        path.write_text(text, encoding="utf-8")
        yield ["-r", str(path), *(["-r", "-"] if lines else [])], lines


def environment(image: Image, env: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables for an image: indexes, logins, and builds."""
    return {**image.build_env, **variables(image, env.get("UV_INDEX", "")), **git_credentials.variables(image.pip, env)}


def _array(items: Sequence[str]) -> str:
    # For requirements, TOML's basic strings are the same as JSON's.
    return json.dumps(list(items))
