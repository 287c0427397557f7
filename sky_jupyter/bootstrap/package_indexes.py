"""Package indexes that are for some packages only, as uv is told of them: in a pyproject.toml, and by variables.

Of a private index the user name and password are in uv's environment only: neither in a file nor on a command line.
A package that such an index names comes from there whoever needs it, and so is asked for by name: uv would take
what only another package needs from the usual index, where somebody else may have put one of that name.
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
from . import git_logins
from .requirements import parse

FILE = "pyproject.toml"


def wanted(image: Image) -> list[str]:
    """All requirements of an image: what it asks for, without logins of git, and what its indexes name besides."""
    asked = {canonicalize_name(parse(item).name) for item in image.pip}
    named = [name for index in image.pip_indexes for name in index.packages]
    return [*map(git_logins.without, image.pip), *(name for name in named if canonicalize_name(name) not in asked)]


def variables(image: Image, before: str = "") -> dict[str, str]:
    """What uv's environment must have for the image's indexes; ``before`` is what it has as UV_INDEX already."""
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
    """The text of a pyproject.toml that asks for these, each from where it may come; empty where none is special."""
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
    """Share requirements out: a pyproject.toml as of `project`, and the lines that uv is to read from standard input.

    What is given by its URL is never in the first, which lies in a file: there may be a password in it.
    """
    lines = [item for item in requirements if "://" in item]
    text = project([item for item in requirements if "://" not in item], image)
    return text, "".join(f"{item}\n" for item in (lines if text else requirements))


@contextlib.contextmanager
def arguments(requirements: Sequence[str], image: Image) -> Iterator[tuple[list[str], str]]:
    """How uv's ``pip install`` is told of requirements: its arguments, which name none of them, and its input."""
    text, lines = parts(requirements, image)
    if not text:
        yield ["-r", "-"], lines
        return
    with tempfile.TemporaryDirectory(prefix="sky-asked-") as folder:
        path = Path(folder, FILE)
        path.write_text(text, encoding="utf-8")
        yield ["-r", str(path), *(["-r", "-"] if lines else [])], lines


def environment(image: Image, env: Mapping[str, str]) -> dict[str, str]:
    """What uv's environment must have for an image, beside what is there: indexes, logins, which builds to take."""
    return {**image.build_env, **variables(image, env.get("UV_INDEX", "")), **git_logins.variables(image.pip, env)}


def _array(items: Sequence[str]) -> str:
    # TOML's basic strings are JSON's, as far as requirements go.
    return json.dumps(list(items))
