"""Options from a file: the TOML table that ``--config FILE.toml#SECTION`` names."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..util.text import nearest
from .option_table import SEVERAL, Option

_MAX_CONFIG = 1 << 20


def read(config: str) -> dict[str, Any]:
    """Return the TOML table ``FILE.toml#SECTION``; without a section, the whole file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    name, _, section = config.partition("#")
    text = _file(name)
    try:
        table: Any = tomllib.loads(text)
    # A number with too many digits, or lists nested too deeply, raise other errors than TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--config: {name} is not TOML: {error}") from None
    for part in section.split(".") if section else ():
        if not isinstance(table, dict) or part not in table:
            known = [key for key, value in table.items() if isinstance(value, dict)] if isinstance(table, dict) else []
            there = f"; it has {', '.join(known)}" if known else ""
            raise SpecError(f"--config: {name} has no section {section!r}{nearest(part, known) or there}")
        table = table[part]
    if not isinstance(table, dict):
        raise SpecError(f"--config: {section!r} in {name} is a value, and not a section")
    return dict(table)


def _unwaiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _file(name: str) -> str:
    """Return the text of a file; refuse a folder or one that is too large."""
    if not name:
        raise SpecError("--config: a file is missing; write FILE.toml#SECTION")
    try:
        # Opening a pipe would make the notebook wait forever.
        with open(Path(name).expanduser(), "rb", opener=_unwaiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(f"--config: {name} cannot be read: it is not a file")
            data = file.read(_MAX_CONFIG + 1)
    except OSError as error:
        raise SpecError(f"--config: {name} cannot be read: {error.strerror}") from None
    except SpecError:
        raise
    except (RuntimeError, ValueError) as error:
        raise SpecError(f"--config: {name!r} is not a path: {error}") from None
    if len(data) > _MAX_CONFIG:
        raise SpecError(f"--config: {name} is larger than {_MAX_CONFIG >> 20} MB: it cannot be a file of options")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"--config: {name} is not TOML: {error}") from None


def checked(section: dict[str, Any], by_key: dict[str, Option], known: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield a TOML table's options as texts of a line, variables as pairs."""
    for name, value in section.items():
        key = name.replace("-", "_")
        if key != name and key in section:
            raise SpecError(f"--config: {key} is given twice, with and without a dash")
        if key not in by_key or key == "config":
            if isinstance(value, dict):
                raise SpecError(f"--config: {name!r} is a section; write FILE.toml#{name} to read its options")
            raise SpecError(f"--config: unknown option {name!r}{nearest(key, known)}")
        if isinstance(value, dict):
            if key != "env":
                raise SpecError(f"--config: {name} takes {by_key[key].form}, and not a table")
            yield key, [(variable, _text(text, name)) for variable, text in value.items()]
        elif isinstance(value, list):
            texts = [_text(item, name) for item in value]
            yield key, texts if key in ("env", *SEVERAL) else [",".join(texts)]
        else:
            yield key, [_text(value, name)]


def _text(value: Any, name: str) -> str:
    """Return a value of a TOML table as a line would give it."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        raise SpecError(f"--config: the value of {name} is too large") from None


def switch(name: str, value: Any, config: str) -> bool:
    """Return the value of a switch, which has no value on a line."""
    if not isinstance(value, bool):
        raise SpecError(f"{config}: {name} takes true or false, not {value!r}")
    return value
