"""Environment of a node before a cell runs: `Image` and `PipIndex`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import SpecError
from ..util.redaction import without_secrets

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?\Z")
_PYTHON = re.compile(r"3\.(?P<minor>[0-9]+)(\.[0-9]+)?\Z")
_URL = re.compile(r"(?P<scheme>https?|file)://(?:(?P<login>[^/\s@]*)@)?(?P<rest>[^\s@]+)\Z")
_PROJECT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, repr=False)
class PipIndex:
    """Package index besides the usual one, and the packages it is for.

    Parameters
    ----------
    url : str
        URL of the index. A user name and password in it are secrets: they appear in no log, command line, file name
        or description of a pool.
    packages : iterable of str
        Packages that come only from this index, which is used for nothing else. By default, any may come from it.
    """

    url: str
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not _URL.match(self.url.strip()):
            # The message leaves the URL out: it may hold a password.
            raise SpecError("an index's url must be http://…, https://… or file://…")
        object.__setattr__(self, "url", self.url.strip())
        object.__setattr__(self, "packages", tuple(sorted(map(_project, _texts("PipIndex.packages", self.packages)))))

    @property
    def shown(self) -> str:
        """The URL without user name and password."""
        return _URL.sub(r"\g<scheme>://\g<rest>", self.url)

    @property
    def login(self) -> tuple[str, str]:
        """The user name and password of the URL; empty if it has none."""
        found = _URL.match(self.url)
        name, _, word = ((found["login"] if found else "") or "").partition(":")
        return name, word

    @property
    def name(self) -> str:
        """The name of the index for uv: a hash of the URL without its secrets."""
        return f"sky{hashlib.blake2b(self.shown.encode(), digest_size=6).hexdigest()}"

    def __repr__(self) -> str:
        return f"PipIndex({self.shown!r}, packages={list(self.packages)!r})"


@dataclass(frozen=True, repr=False)
class Image:
    """Packages, environment variables and files that a node needs.

    Parameters
    ----------
    python : str, optional
        Python version such as ``"3.12"``; by default, and for ``"auto"``, the notebook's.
    pip : iterable of str
        Requirements (PEP 508) to install.
    apt : iterable of str
        Debian packages, as ``"git"`` or ``"git=1:2.39.5-0+deb12u2"``. Missing ones are installed on hosts, which needs
        root or sudo without a password there. Nothing is installed on the machine of local nodes.
    env : mapping of str to str
        Environment variables of every rank, set before any import. Their values may be secrets, and are never shown.
    pip_indexes : iterable of PipIndex
        Package indexes besides the usual one.
    includes : iterable of str
        Files and folders of this machine that are sent with the project's own modules; `included` finds them.
    excludes : iterable of str
        Patterns of files to leave out, as in a ``.gitignore``, such as ``"*.ckpt"``.

    Examples
    --------
    >>> image = Image(python="3.12", pip=["einops"], env={"OMP_NUM_THREADS": "2"})
    >>> print(image)
    # python 3.12
    # env: OMP_NUM_THREADS
    einops
    """

    python: str | None = None
    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pip_indexes: tuple[PipIndex, ...] = field(default=(), kw_only=True)
    includes: tuple[str, ...] = field(default=(), kw_only=True)
    excludes: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name in ("pip", "apt"):
            # Order carries no meaning for an image, so equal sets give equal hashes.
            object.__setattr__(self, name, tuple(sorted(set(_texts(f"image.{name}", getattr(self, name))))))
        for name in ("includes", "excludes"):
            object.__setattr__(self, name, tuple(dict.fromkeys(_texts(f"image.{name}", getattr(self, name)))))
        object.__setattr__(self, "pip_indexes", _indexes(self.pip_indexes))
        for package in self.apt:
            if not _APT.match(package):
                raise SpecError(f"apt package {package!r} is not NAME, NAME:ARCHITECTURE or NAME=VERSION")
        if not isinstance(self.env, Mapping):
            raise SpecError(f"image.env must be a mapping of strings, not {type(self.env).__name__}")
        for key, value in self.env.items():
            if not isinstance(key, str) or not _ENV_NAME.match(key):
                raise SpecError(f"environment variable {key!r} is not a valid name; use letters, digits and _")
            if not isinstance(value, str):
                raise SpecError(f"environment variable {key} must be a string, not {type(value).__name__}")
        object.__setattr__(self, "env", dict(sorted(self.env.items())))
        if self.python == "auto":
            object.__setattr__(self, "python", None)
        if self.python is not None:
            if not isinstance(self.python, str):
                raise SpecError(f"image.python must be a string such as '3.12', not {self.python!r}")
            match = _PYTHON.match(self.python)
            if not match or not 10 <= int(match["minor"]) <= 14:
                raise SpecError(f"python {self.python!r} is not supported; use one of 3.10 to 3.14")

    def __hash__(self) -> int:
        return hash(self.digest)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # An image that an earlier version has pickled lacks newer fields.
        newer = {"pip_indexes": (), "includes": (), "excludes": ()}
        self.__dict__.update({**newer, **state})

    @property
    def digest(self) -> str:
        """The sixteen hex digits that identify the packages of this image.

        Of the variables, only those of `build_env` change them; files do not.
        """
        facts: list[Any] = [self.python, self.pip, self.apt, *([self.build_env] if self.build_env else [])]
        if self.pip_indexes:
            facts.append([[index.shown, index.packages] for index in self.pip_indexes])
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()

    @property
    def build_env(self) -> dict[str, str]:
        """The variables that decide which builds of packages are installed."""
        return {name: value for name, value in self.env.items() if name == "UV_TORCH_BACKEND"}

    def adding(
        self, *, pip: Iterable[str] = (), apt: Iterable[str] = (), env: Mapping[str, str] | None = None
    ) -> Image:
        """Return this image with more packages and variables.

        Parameters
        ----------
        pip : iterable of str
            Requirements (PEP 508).
        apt : iterable of str
            Debian packages.
        env : mapping of str to str, optional
            Environment variables; one that is already set keeps its value.

        Returns
        -------
        Image
            The new image.
        """
        return replace(self, pip=(*self.pip, *pip), apt=(*self.apt, *apt), env={**(env or {}), **self.env})

    def requirements(self) -> str:
        """Return the image as a requirements file, all else in comments.

        Secrets are left out. An index for some packages only is a comment too: pip cannot express it.

        Returns
        -------
        str
            The file's text.
        """
        lines = [f"# python {self.python}"] if self.python else []
        lines += [f"# apt: {', '.join(self.apt)}"] if self.apt else []
        lines += [f"# env: {', '.join(self.env)}"] if self.env else []
        lines += [f"# include: {path}" for path in self.includes]
        lines += [f"# exclude: {pattern}" for pattern in self.excludes]
        for index in self.pip_indexes:
            only = f"# only {', '.join(index.packages)}: " if index.packages else ""
            lines.append(f"{only}--extra-index-url {index.shown}")
        return "\n".join([*lines, *(without_secrets(item) for item in self.pip)])

    def __str__(self) -> str:
        return self.requirements() or "# the notebook's own environment"

    def __repr__(self) -> str:
        parts = [f"python={self.python!r}"] if self.python else []
        parts += [f"pip={[without_secrets(item) for item in self.pip]!r}"] if self.pip else []
        names = ("pip_indexes", "apt", "includes", "excludes")
        parts += [f"{name}={list(value)!r}" for name in names if (value := getattr(self, name))]
        parts += [f"env={{{', '.join(f'{key!r}: …' for key in self.env)}}}"] if self.env else []
        return f"Image({', '.join(parts)})"


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SpecError(f"{name} must be a list of strings, not the {type(value).__name__} {value!r}")
    texts = [item.strip() if isinstance(item, str) else str(item) for item in value]
    if not all(texts):
        raise SpecError(f"{name} has an empty text in it")
    return texts


def _project(name: str) -> str:
    if not _PROJECT.match(name):
        raise SpecError(f"{name!r} in PipIndex.packages is no package's name; versions go into Image(pip=…)")
    return re.sub(r"[-_.]+", "-", name).lower()


def _indexes(value: Any) -> tuple[PipIndex, ...]:
    if isinstance(value, PipIndex) or not isinstance(value, Iterable) or isinstance(value, str):
        raise SpecError("image.pip_indexes must be a list of sky.PipIndex")
    indexes = tuple(value)
    if not all(isinstance(index, PipIndex) for index in indexes):
        raise SpecError("image.pip_indexes must be a list of sky.PipIndex(url=…, packages=…)")
    names = [name for index in indexes for name in index.packages]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"package {twice!r} is named by two of image.pip_indexes; it comes from one only")
    return indexes
