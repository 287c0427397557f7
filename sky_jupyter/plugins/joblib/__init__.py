"""The plugins `joblib` and `sklearn`: parallel loops run on the pool's ranks.

This module has what a pool needs. The backend itself, which imports joblib, is in `backend`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from ...errors import SpecError
from ...spec.pool_spec import Image, PoolSpec
from ..core.plugin import Plugin, given

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z0-9.+-]*)\Z")


def joblib(version: str | None = None) -> Plugin:
    """Run joblib's parallel loops on the pool.

    Such as ``Parallel(n_jobs=-1)(delayed(f)(x) for x in data)``.

    Parameters
    ----------
    version : str, optional
        The release of joblib on the nodes; by default the notebook's own. Both must be compatible.

    Returns
    -------
    Plugin
        The value for ``plugins=``. A pool with it raises SpecError if joblib is not installed in the notebook's
        environment.

    Raises
    ------
    SpecError
        When the version is not valid.
    """
    return _plugin("joblib", {"joblib": version}, version)


def sklearn(version: str | None = None) -> Plugin:
    """Run scikit-learn's searches, cross-validations and ensembles on the pool.

    This applies to everything in scikit-learn that takes ``n_jobs``.

    Parameters
    ----------
    version : str, optional
        The release of scikit-learn on the nodes; by default the notebook's own. Both must be compatible.

    Returns
    -------
    Plugin
        The value for ``plugins=``. A pool with it raises SpecError if scikit-learn is not installed in the notebook's
        environment.

    Raises
    ------
    SpecError
        When the version is not valid.
    """
    return _plugin("sklearn", {"scikit-learn": version, "joblib": None}, version)


def _plugin(name: str, packages: dict[str, str | None], version: str | None) -> Plugin:
    if version is not None and not (isinstance(version, str) and _VERSION.match(version)):
        raise SpecError(f"{name}(version={version!r}) is not a release; write it as '1.6.0'")
    return Plugin(
        name=name,
        args=given(version=version),
        preload=(name,),
        transform=functools.partial(_transform, name, packages),
        around_client=_around_client,
    )


def _transform(name: str, packages: dict[str, str | None], image: Image, spec: PoolSpec) -> Image:
    # Pickles are exchanged: both sides need the same releases.
    asked = []
    for package, version in packages.items():
        try:
            own = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise SpecError(
                f"plugin {name}: {package} is not installed in the notebook's environment, where its loops begin; "
                f"install it there (%pip install {package})"
            ) from None
        asked.append(f"{package}=={version or own}")
    return image.adding(pip=asked)


@contextlib.contextmanager
def _around_client(pool: Any) -> Iterator[None]:
    if importlib.util.find_spec("joblib") is None:
        raise SpecError("joblib is not installed in the notebook's environment; install it there (%pip install joblib)")
    from . import backend

    with backend.serving(pool):
        yield
