"""Plugin `huggingface`: its packages, a token, and models fetched in advance.

The token is a secret. It goes from the notebook to the ranks over the pool's own channel, and into their environment
once their processes run. It is in no file, argument, log or message of the pool; see `core.secrets`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecError
from ..spec.pool_spec import Image, PoolSpec
from .core.plugin import Plugin, Step, given
from .core.secrets import Secret

if TYPE_CHECKING:
    from ..node.runtime.instance_info import InstanceInfo

PACKAGES = ("datasets", "tokenizers", "transformers")
VARIABLE = "HF_TOKEN"
_FORMER = "HUGGING_FACE_HUB_TOKEN"
_MODEL = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?\Z", re.ASCII)

_LIKE_A_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}\Z")


class Token(Secret):
    """Token for Hugging Face; by default, that of the user's own log-in."""

    __slots__ = ()

    def find(self) -> str | None:
        """Return HF_TOKEN's value, or the token that `hf auth login` has stored."""
        given = os.environ.get(VARIABLE) or os.environ.get(_FORMER)
        if given is None:
            path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home(), "token")
            with contextlib.suppress(OSError):
                given = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
        return (given or "").strip() or None


def huggingface(token: str | Secret | bool | Iterable[str] | None = None, models: str | Iterable[str] = ()) -> Plugin:
    """Log in to Hugging Face on all ranks, and fetch models before the first cell.

    Parameters
    ----------
    token : str or bool, optional
        The token for gated and private models. By default that of your own log-in: the variable
        HF_TOKEN, or the token that ``hf auth login`` has stored. ``False`` sends none.
    models : str or iterable of str
        Repositories on the Hub, such as ``"gpt2"`` or ``"org/name@revision"``. They are fetched once per machine
        while the pool starts.

    Returns
    -------
    Plugin
        The value for ``plugins=``.

    Raises
    ------
    SpecError
        When an argument is not valid.

    Notes
    -----
    ``Trainer`` needs the plugin `accelerate` too. Programs that were written for Skyward pass a list of
    models first and the token second; this order is accepted too.
    """
    if isinstance(token, (list, tuple)):
        models, token = token, None if models == () else models
    secret = _secret(token)
    names = tuple(part.strip() for part in models.split(",")) if isinstance(models, str) else tuple(models)
    names = tuple(name for name in names if name != "")
    for name in names:
        if isinstance(name, str) and _LIKE_A_TOKEN.match(name):
            # The text is a secret: it must not be in a message.
            raise SpecError("huggingface(models=...) has a token among the models: give it as token=...")
        if not isinstance(name, str) or not _MODEL.match(name):
            raise SpecError(f"huggingface(models=...): {name!r} is not a repository such as gpt2 or org/name@revision")
    return Plugin(
        name="huggingface",
        args=given(token=token if token is None or token is False else secret, models=",".join(names) or None),
        transform=_transform,
        bootstrap=functools.partial(_steps, secret, names) if names else None,
        secret_variables=(VARIABLE, _FORMER),
        around_process=None if secret is None else functools.partial(_around, secret),
    )


def _secret(token: object) -> Secret | None:
    if token is None or token is True:
        return Token()
    if token is False:
        return None
    if isinstance(token, Secret):
        return token
    if not isinstance(token, str) or not token.strip() or not token.strip().isprintable() or " " in token.strip():
        # The text is a secret: it must not be in a message.
        raise SpecError("huggingface(token=...) must be a token, False for none, or left out for that of your log-in")
    return Token(token.strip())


def _transform(image: Image, spec: PoolSpec) -> Image:
    return image.adding(pip=PACKAGES)


def _steps(secret: Secret | None, models: tuple[str, ...], spec: PoolSpec) -> list[Step]:
    env: dict[str, str | Secret] = {} if secret is None else {VARIABLE: secret}
    return [Step(["python", "-m", f"{__package__}.fetch_models", *models], env=env)]


@contextlib.contextmanager
def _around(secret: Secret, info: InstanceInfo) -> Iterator[None]:
    # Without a token, the machine's own log-in or variable applies.
    token = secret.reveal()
    before = os.environ.get(VARIABLE)
    if token is not None:
        # A variable that the process sets itself does not appear in /proc/PID/environ.
        os.environ[VARIABLE] = token
    try:
        yield
    finally:
        if token is not None:
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before


def home() -> str:
    """Return the folder of Hugging Face's files here; it may begin with ``~``."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
