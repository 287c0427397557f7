"""Settings of the notebook's process, applied in a rank.

Each change is applied once, so that later changes by a cell stay. Settings of a module that is not loaded are applied
when it is imported, before the importing cell continues.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..serialization.process_settings import FAMILIES, homes


class Following(MetaPathFinder):
    """Import hook that applies settings; made by the kernel before user code runs."""

    def __init__(self) -> None:
        # The notebook whose settings are applied, and the number of the last change.
        self._of, self._taken = "", 0
        self._own: frozenset[str] = frozenset()
        self._waiting: dict[str, dict[tuple[str, str], Any]] = {}
        self._looking = threading.local()

    def keep(self, before: Mapping[str, str]) -> None:
        """Exempt environment variables that plugins have changed since ``before``."""
        self._own = frozenset(name for name, value in os.environ.items() if before.get(name) != value)

    def update(self, told: Mapping[str, Any] | None) -> None:
        """Apply changes from the notebook; see ``capture``'s `Settings.told`."""
        if not told or (told["of"] == self._of and told["version"] <= self._taken):
            return
        taken = self._taken if told["of"] == self._of else 0
        self._of, self._taken = told["of"], told["version"]
        for version, kind, key, form, value in told["changes"]:
            if version > taken and kind in FAMILIES and not (kind == "env" and key in self._own):
                self._take(kind, key, form, value)
        if self._waiting and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def _take(self, kind: str, key: str, form: str, value: Any) -> None:
        module = FAMILIES[kind].module
        needs = {module} if module else homes(value) if kind == "warnings" else set()
        missing = {one for one in needs if one not in sys.modules}
        for waiting in self._waiting.values():
            waiting.pop((kind, key), None)
        for one in missing:
            self._waiting.setdefault(one, {})[kind, key] = form, value
        if not module or not missing:
            _put(kind, key, form, value)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module with pending settings; its loader then applies them."""
        if name not in self._waiting or getattr(self._looking, "name", "") == name:
            return None
        self._looking.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.name = ""
        loader: Any = spec and spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Restore the loader before the module can be inspected.
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            run(module)
            self._loaded(name)

        with contextlib.suppress(AttributeError):
            loader.exec_module = exec_module
        return spec

    def _loaded(self, name: str) -> None:
        for (kind, key), (form, value) in self._waiting.pop(name, {}).items():
            _put(kind, key, form, value)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def _put(kind: str, key: str, form: str, value: Any) -> None:
    """Apply one setting; on an error, print a message and continue."""
    try:
        with warnings.catch_warnings() if kind != "warnings" else contextlib.nullcontext():
            if kind != "warnings":
                # The notebook has already shown deprecation warnings.
                warnings.simplefilter("ignore")
            FAMILIES[kind].put(key, pickle.loads(base64.b64decode(value)) if form == "pickle" else value)
    except Exception as error:
        what = FAMILIES[kind].line.format(key=key)
        print(
            f"{what}, as the notebook has it, could not be set here: {type(error).__name__}: {error}", file=sys.stderr
        )
